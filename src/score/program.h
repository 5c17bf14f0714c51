#pragma once
// What backends receive from the score compiler: straight-line programs in SSA form. Nothing here knows how an expression was built.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "foveal/score.h"
#include "score/ops.h"

namespace foveal::scoring {

/// Index of an instruction in its program; operands always have smaller ids.
using ValueId = std::int32_t;

struct Instr {
  Op op{};
  Type type{};                             ///< of the result
  std::array<ValueId, 3> arg{-1, -1, -1};  ///< operands, as many as the op's arity; they already have the op's operand types
  double real = 0;                         ///< Op::real_const
  std::int64_t integer = 0;                ///< Op::integer_const, Op::boolean_const (0 or 1)
  std::int32_t param = -1;                 ///< Op::read: position in ScoreProgram::params
  std::vector<ValueId> index{};            ///< Op::read: one integer value per dimension
};

/// Which symbols a value depends on. A value that depends on neither q nor kv is uniform over a tile; q only: one per row; kv only: one per
/// column.
enum Depends : std::uint8_t { depends_score = 1, depends_batch = 2, depends_head = 4, depends_q = 8, depends_kv = 16 };

struct Program {
  std::vector<Instr> code;
  std::vector<ValueId> outputs;
  std::vector<std::uint8_t> depends;  ///< one Depends set per instruction; seqlen_q and seqlen_kv count as batch
  std::vector<bool> along_diagonals;  ///< one per instruction: of positions it depends on q_idx - kv_idx only, and not on the score
  bool empty() const { return outputs.empty(); }
  const Instr& operator[](ValueId id) const { return code[static_cast<std::size_t>(id)]; }
  std::uint8_t depends_of(ValueId id) const { return depends[static_cast<std::size_t>(id)]; }
};

/// How the gradient of a parameter is reduced, from the indices of a read. `scatter` is the general case, always right.
enum class Reduction : std::uint8_t {
  uniform,   ///< indices depend on batch and head only: sum over the whole tile
  row,       ///< ... and on q only: sum along kv
  column,    ///< ... and on kv only: sum along q
  diagonal,  ///< ... and on (q - kv) only (any function of it): sum along diagonals, then an ordered scatter
  element,   ///< one index is q_idx + const, another kv_idx + const, the rest uniform: one address per pair
  scatter,
};
const char* to_string(Reduction reduction);

/// One read of a trainable parameter, found in the score_mod. In ScoreProgram::backward: dparam[index] += dscore_out * factor.
struct TrainableRead {
  std::int32_t param;          ///< position in ScoreProgram::params
  std::vector<ValueId> index;  ///< values of the backward program, integer, one per dimension
  ValueId factor;              ///< value of the backward program, real: d score_mod / d (this read)
  Reduction reduction;
  bool reads_head = false;   ///< one dimension's index is exactly `head`: different heads touch different elements
  bool reads_batch = false;  ///< likewise `batch`
};

struct ParamInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  Type type;
  bool trainable = false;  ///< a gradient is wanted and the score_mod reads it
  /// True when the gradient is exactly zero for every input: the parameter only ever adds terms that are constant along kv
  /// (and no dlse is given and there is no sink; the caller decides that). No TrainableRead is emitted then.
  bool gradient_is_zero = false;
};

/// Everything about the score and the mask of one problem, ready to execute. `score` in the programs is the scaled raw score q . k * scale.
struct ScoreProgram {
  std::vector<ParamInfo> params;  ///< in the order of the problem's parameters
  /// Outputs {modified score: real}; empty when score_mod is the identity.
  Program forward;
  /// Outputs {d modified / d raw: real, factor and indices of each read..., modified score}.
  Program backward;
  ValueId dscore = -1;    ///< value in backward: d modified / d raw; a constant 1 when the score_mod only adds
  ValueId modified = -1;  ///< value in backward: the modified score, sharing work with the rest: a backward pass needs no forward program
  std::vector<TrainableRead> reads;  ///< of parameters whose gradient is wanted
  /// Outputs {keep: boolean}; empty when everything is kept. Also holds what a score_mod where(c, x, -inf) keeps.
  Program mask;
  std::string text;  ///< canonical `score_mod=...; mask=...; params...`: the identity for caches
};

struct Request {
  Expr score_mod{}, mask{};            ///< may be absent
  std::vector<Param> params{};         ///< bound parameters, in the problem's order
  std::vector<bool> wants_gradient{};  ///< one per param
  bool backward = false;
  bool row_constant_terms_matter = false;  ///< a sink or dlse makes terms constant along kv contribute after all
};
/// Verifies, simplifies, differentiates and lowers. Throws invalid_argument: wrong types, a mask that reads score, a parameter that is read
/// but not bound (names it), two parameters of one name, a gradient wanted for a parameter that is not real or that nothing reads.
ScoreProgram compile(const Request& request);
/// The program that was made last time, where the very same expressions and parameters were compiled lately: lengths are no part of it, so that
/// a cache that grows by a key a step compiles nothing.
std::shared_ptr<const ScoreProgram> compile_once(const Request& request);

}  // namespace foveal::scoring
