#pragma once
// What backends get from the score compiler: straight-line programs in SSA form.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/id_vector.h"
#include "foveal/score.h"
#include "score/ops.h"
#include "score/varies.h"

namespace foveal::scoring {

/// Index of an instruction in its program. Operands have smaller ids than their users.
using ValueId = std::int32_t;

struct Instr {
  Op op{};
  Type type{};                             ///< of the result
  std::array<ValueId, 3> arg{-1, -1, -1};  ///< operands, converted to the operand types of the op; -1 beyond its arity
  double real = 0;                         ///< Op::real_const
  std::int64_t integer = 0;                ///< Op::integer_const, Op::boolean_const (0 or 1)
  std::int32_t param = -1;                 ///< Op::read: position in ScoreProgram::params
  std::vector<ValueId> index{};            ///< Op::read: one integer value per dimension
};

/// fn(id) for every operand, including the indices of a read.
template <class Fn>
void for_each_operand(const Instr& instr, Fn&& fn) {
  for (const ValueId arg : instr.arg)
    if (arg >= 0) fn(arg);
  for (const ValueId index : instr.index) fn(index);
}

/// Symbols that a value depends on. A value that depends on neither q nor kv is uniform over a tile, on q only: one per row, on kv only:
/// one per column.
enum Depends : std::uint8_t { depends_score = 1, depends_batch = 2, depends_head = 4, depends_q = 8, depends_kv = 16 };

struct Program {
  std::vector<Instr> code;
  std::vector<ValueId> outputs;
  std::vector<std::uint8_t> depends;  ///< a Depends set per instruction; seqlen_q and seqlen_kv count as batch
  std::vector<bool> along_diagonals;  ///< per instruction: does not depend on the score, and on positions only through q_idx - kv_idx
  bool empty() const { return outputs.empty(); }
  ValueId size() const { return static_cast<ValueId>(code.size()); }
  /// The value of a symbol, which has one at most; -1 without it.
  ValueId symbol(Op op) const {
    const auto at = std::find_if(code.begin(), code.end(), [op](const Instr& instr) { return instr.op == op; });
    return at == code.end() ? -1 : static_cast<ValueId>(at - code.begin());
  }
  /// Whether any value is computed by this operation.
  bool uses(Op op) const {
    return std::any_of(code.begin(), code.end(), [op](const Instr& instr) { return instr.op == op; });
  }
  const Instr& operator[](ValueId id) const { return code[static_cast<std::size_t>(id)]; }
  std::uint8_t depends_of(ValueId id) const { return depends[static_cast<std::size_t>(id)]; }
  /// Whether a value depends on any of these symbols (a Depends set).
  bool depends_on(ValueId id, unsigned symbols) const { return (depends_of(id) & symbols) != 0; }
};

/// For every value up to the last of `values`: is it one of them, or an operand of one, directly or indirectly? Code: a Graph or a Program.
/// enter(id): whether the operands of a value count.
template <class Code, class Enter>
base::IdVector<char> ancestors(const Code& code, const std::vector<ValueId>& values, Enter&& enter) {
  const ValueId last = values.empty() ? -1 : *std::max_element(values.begin(), values.end());
  base::IdVector<char> found(last + 1, false);
  for (const ValueId value : values) found[value] = true;
  for (ValueId id = last; id >= 0; --id)
    if (found[id] && enter(id)) for_each_operand(code[id], [&found](ValueId operand) { found[operand] = true; });
  return found;
}
template <class Code>
base::IdVector<char> ancestors(const Code& code, const std::vector<ValueId>& values) {
  return ancestors(code, values, [](ValueId) { return true; });
}

/// A read of a trained parameter in the score_mod. Its contribution: dparam[index] += d(modified score) * factor.
struct TrainableRead {
  std::int32_t param;          ///< position in ScoreProgram::params
  std::vector<ValueId> index;  ///< values of the backward program, integer, one per dimension
  ValueId factor;              ///< value of the backward program, real: d score_mod / d read
  Varies over;                 ///< its element: terms of pairs that share one are summed first
  /// Of one that varies over pairs: one index is q_idx + const, another kv_idx + const, the rest uniform, so that no two pairs of a batch
  /// entry and head share an element. Others are scattered.
  bool own_elements = false;
  bool reads_head = false;   ///< one index is exactly `head`: different heads write different elements, unless it is clamped
  bool reads_batch = false;  ///< the same for `batch`

  /// "uniform", "row", "column", "diagonal", "element" or "scatter": how its gradient is reduced.
  const char* kind() const { return over != Varies::pair ? to_string(over) : own_elements ? "element" : "scatter"; }
};

struct ParamInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  Type type;
  bool trainable = false;  ///< a gradient is requested
  /// The gradient is zero for every input: nothing reads the parameter differentiably, or it only adds terms that are constant along kv,
  /// which softmax cancels (Request::row_constant_terms_matter). There is no TrainableRead then.
  bool gradient_is_zero = false;
};

/// The compiled score and mask of a problem. `score` in the programs is the raw score, scale * dot(q, k).
struct ScoreProgram {
  std::vector<ParamInfo> params;  ///< in the order of the problem's parameters
  /// Outputs {modified score: real}; empty if score_mod is the identity.
  Program forward;
  /// Outputs {d modified / d raw: real, factor and indices of each read..., modified score}.
  Program backward;
  ValueId dscore = -1;    ///< in backward: d modified / d raw; constant 1 if the score_mod only adds
  ValueId modified = -1;  ///< in backward: the modified score, so that a backward pass need not run `forward` too
  std::vector<TrainableRead> reads;
  /// Outputs {keep: boolean}; empty if all pairs are kept. Includes the condition of a score_mod where(c, x, -inf).
  Program mask;
  std::string text;  ///< canonical `score_mod=...; mask=...; params...`: the identity for caches
};

struct Request {
  Expr score_mod{}, mask{};            ///< each may be absent
  std::vector<Param> params{};         ///< bound parameters, in the problem's order
  std::vector<bool> wants_gradient{};  ///< one per param
  bool backward = false;
  bool row_constant_terms_matter = false;  ///< with a sink or dlse, terms that are constant along kv have gradients
};
/// Verifies, simplifies, differentiates and lowers. Throws invalid_argument for wrong types, a mask that reads score, a parameter that is
/// read but not bound, two parameters of one name, and a requested gradient of a parameter that is not real or not read.
ScoreProgram compile(const Request& request);
/// compile() through a cache keyed by the identity of expressions and parameters. Lengths are not part of the key, so decoding with a
/// growing KV cache does not compile again.
std::shared_ptr<const ScoreProgram> compile_once(const Request& request);

}  // namespace foveal::scoring
