#pragma once
// The instructions of a score program as CUDA text: only those that an output needs and that the kernel has not computed yet, with factors
// that are uniform over the pairs of a head hoisted out of products. Products: score_products.cpp; indices: score_indices.cpp.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/score/score_facts.h"
#include "score/column_forms.h"
#include "score/discrete.h"
#include "score/interval.h"
#include "score/linear.h"
#include "score/varies.h"

namespace foveal::cuda {

using problem::Problem;
using scoring::Instr;
using scoring::Interval;
using scoring::Op;
using scoring::Program;
using scoring::ValueId;
using scoring::Varies;

/// The type of a parameter's elements in CUDA.
const char* device_type(DType dtype);

/// The score program of the pass.
inline const Program& program_of(const Problem& p) { return p.pass == Pass::forward ? p.score->forward : p.score->backward; }

/// Does an index vary over the pairs of one batch and head?
inline bool is_pair_dimension(const Program& program, ValueId index) { return scoring::varies(program, index) != Varies::uniform; }

/// Bounds of each value of a program, over all pairs and all values that the dtypes of parameters can hold.
base::IdVector<Interval> bounds_of(const Program& program, const Problem& p);

/// Values that a kernel has already when it evaluates the score of a pair: at.walk, at.diagonal, at.row, at.loaded, at.tiled, at.tanh.
struct Given {
  LineValues lines{};
  std::vector<ValueId> rows{};
  std::vector<ValueId> pair_reads{}, tiled{};
  std::vector<ReadTable> tables{};
  std::optional<ValueId> tanh{};
};

/// Writes the instructions that some outputs need, as declarations `const int v3 = ...;`.
class Writer {
 public:
  Writer(const Problem& problem, const Program& program, const Given& given = {});

  /// Declarations of everything that `outputs` need.
  std::string body(const std::vector<ValueId>& outputs) const;
  /// Statements that return a value.
  std::string result(ValueId value) const { return body({value}) + base::join("  return v", value, ";\n"); }

  /// A value as rest * uniform, in text: what varies over pairs, and what is hoisted, being uniform over the pairs of a head.
  struct Hoisted {
    std::string rest, uniform = "1";
    std::vector<ValueId> uniform_needs{};
  };

  /// Hoists only a positive constant, which does not move a row's maximum.
  Hoisted hoist_constant(ValueId id) const;

  Hoisted hoist_uniform(ValueId id) const;

  /// For the slope of the score_mod: dk can absorb a factor only where it is the same for all query heads of the group.
  Hoisted hoist_from_slope(ValueId id) const;

  /// For the factor of a trained read. The constant of a second summand is applied after the sum over pairs.
  Hoisted hoist_from_factor(ValueId id) const;

  /// About how many instructions the real values take that these outputs need for each pair.
  int instructions_for(const std::vector<ValueId>& outputs) const;

  /// The factors of a value that vary over the pairs of a head.
  std::vector<ValueId> varying_factors(ValueId id) const { return product_of(id).rest; }

  /// Is a value the raw score times a uniform factor?
  bool is_scaled_score(ValueId id) const { return is_score(product_of(id)); }

  /// A score that is the raw score times a uniform gain, plus offsets that do not depend on it.
  struct ScoreSum {
    struct Offset {
      Hoisted term;
      std::string row =
          "1";  ///< of several offsets: a factor of a product that is the same for all pairs of a row, taken out of apart.rest
      ValueId value;
      ValueId column = -1;  ///< of several offsets: the one value that apart.rest is, where it is the same for all pairs of a key
    };
    Hoisted gain;
    bool is_long = false;  ///< its offsets take so many instructions per pair that they must not wait for the PV product
    /// It is constant apart from the scale, which kernels apply when they search maxima, and at
    /// least 1, so that what it divides stays finite.
    bool gain_is_plain = false;
    std::vector<Offset> offsets{};  ///< those that fewer pairs differ in first
  };
  std::optional<ScoreSum> sum_with_score(ValueId id) const;

  /// The only tanh of the program, if its argument is the raw score times a uniform factor.
  std::optional<ValueId> tanh_of_score() const;

  /// Statements that return the factor of its argument.
  std::string tanh_factor(ValueId tanh) const;

  /// Statements that return the factor of the tanh in a result that is nothing but their product.
  std::string tanh_times(ValueId value) const;

  /// Is a value affine in q and kv: a uniform factor times a sum of q, kv and uniform terms?
  bool is_affine(ValueId value) const;

  /// Is the result of the forward pass the given tanh times uniform factors?
  bool is_softcap(ValueId value) const { return is_tanh(product_of(value)); }

  /// A column part that splits into a value at at.kv - at.kv_step plus one at at.kv_step, for key tiles that are multiples or divisors of
  /// these block sizes (fv_steps_apart): indices by `//` and `%` then cost an immediate offset.
  struct ColumnSteps {
    std::string origin, step;
    std::vector<std::int64_t> blocks{};
  };

  /// An integer sum of row values and column values, each summed on its own, so that a pair costs one addition.
  struct SumOfLines {
    std::string row, column;  ///< uniform terms belong to the row
    std::optional<ColumnSteps> steps{};
  };
  /// The number of a read's element as such a sum, if it is one. padded: as it stands in a table (ReadTable::row_entries).
  std::optional<SumOfLines> element_by_lines(const Instr& instr, bool padded = false) const;

  /// The number of a read's element among those that differ in the dimensions of pairs.
  std::string element_text(const Instr& instr, bool padded = false) const;

  std::string index_text(ValueId index, std::size_t param, std::size_t dimension) const;

  /// Where a read's element is, in elements.
  std::string offset_text(const Instr& instr) const;

  struct TileUse {
    bool transposed = false;  ///< by a kernel whose rows are keys
    bool stairs = false;      ///< PairTile::stairs is allowed
  };
  /// A read as tiles, if TMA can load it so.
  std::optional<PairTile> tile_of(ValueId id, TileUse use) const;

  /// The offset in bytes, as an origin that the pairs of a thread share and a step from there; no step where an index may be clamped.
  std::pair<std::string, std::string> bytes_from_origin(const Instr& instr) const;

  /// Is an index a multiple of this position, q_idx or kv_idx, and what is the same for all
  /// pairs, perhaps with a multiple of the other one?
  bool steps_with(ValueId index, Op position) const;

 private:
  /// How to name a given value; empty for others.
  std::string given_text(ValueId id) const;

  bool is_uniform(ValueId id) const;

  /// A value as a product: a constant, uniform factors, and the rest, a value or a product of values. The reordering changes rounding,
  /// which only 16-bit inputs tolerate; for others the rest is the value itself.
  struct Product {
    struct Factor {
      ValueId id;
      bool divides;
    };
    double constant = 1;
    std::vector<Factor> factors{};
    std::vector<ValueId> rest{};
  };
  static std::vector<ValueId> factors_of(const Product& product);
  Product product_of(ValueId id) const;
  void multiply(Product& product, ValueId id, bool whole = false) const;
  bool has_uniform_factor(ValueId id) const;
  /// Cancels what is both multiplied and divided by.
  void multiply_uniform(Product& product, ValueId id, bool divides) const;

  bool is_tanh(const Product& product) const { return given_.tanh && product.rest == std::vector{*given_.tanh} && scales(product); }
  bool is_multiple_of_tanh(const Product& product) const { return problem_.pass == Pass::forward && is_tanh(product); }

  /// Can the constant be folded into an exponent?
  static bool scales(const Product& product) { return product.constant > 0 && std::isfinite(product.constant); }

  bool is_score(const Product& product) const { return product.rest.size() == 1 && program_[product.rest[0]].op == Op::score; }

  /// The rest, and the product of all uniform factors; empty when there are none.
  std::pair<std::string, std::string> rest_and_factor(const Product& product) const;

  std::string product_text(const Product& product) const;

  bool is_wide(ValueId id) const;

  const char* type_text(ValueId id) const;

  /// A literal, or a kernel argument: programs that differ only in such numbers share kernels.
  std::string real_text(double x) const;
  std::optional<std::size_t> number_of(double x) const;
  /// Must a constant be a literal? Where it decides something discrete, or is the exponent of a power.
  bool must_be_literal(ValueId constant) const;

  std::string read_text(ValueId id) const;
  /// An operand where it takes part in an operation in double (double_values): what is one has a variable w beside v.
  std::string double_text(ValueId arg) const;
  /// Are the reals of an operation doubles?
  bool is_in_double(ValueId id) const;

  std::string value_text(ValueId id) const;

  /// An integer sum with q or kv in it, as an origin that the pairs of a thread share and a compile-time step: indices become one address
  /// with immediate offsets, reals one conversion, and pairs on one diagonal share both.
  struct SumOfPlaces {
    std::string origin, step;
    std::int64_t factors;  ///< of q and kv together, without their signs
  };
  std::optional<SumOfPlaces> sum_of_places(ValueId id) const;

  std::optional<SumOfLines> sum_of_lines(ValueId id) const;
  /// For a column part that sums kv_idx and values derived from it by `//` and `%`.
  std::optional<ColumnSteps> column_steps(ValueId id) const;
  /// A value derived from kv_idx by `//` and `%` by multiples of 8, evaluated at another kv; false for others. divided: the divisor so far.
  bool of_kv(ValueId id, const std::string& kv, std::string& text, std::int64_t& divided, std::vector<std::int64_t>& blocks) const;
  /// Real operations per pair that a value takes.
  int operations_of_pairs(ValueId id) const;
  /// A product as text, split into a part that is constant along a row ("1" if there is none) and the rest; and the factors of the rest.
  std::tuple<std::string, std::string, std::vector<ValueId>> row_and_rest(const Product& product) const;
  std::int64_t entries_of(const Instr& instr, std::size_t dimension, bool padded) const;
  static std::string text_of(const SumOfLines& sum);

  struct Sum {
    std::int64_t q = 0, kv = 0, constant = 0;
    std::vector<std::pair<ValueId, std::int64_t>> terms{};
  };
  /// Nothing where 32 bits may overflow.
  std::optional<Sum> sum_of(ValueId id) const;

  /// An integer that varies over pairs and is small enough to be converted to a real by an addition.
  bool is_small_integer(ValueId id) const;

  std::string operation_text(ValueId id) const;

  const Problem& problem_;
  const Program& program_;
  const Given given_;
  base::IdVector<Interval> bounds_;
  base::IdVector<scoring::Linear> linear_;
  base::IdVector<scoring::ColumnForm> forms_;
  base::IdVector<char> decides_;
  base::IdVector<char> doubles_;
  bool regroups_;
};

}  // namespace foveal::cuda
