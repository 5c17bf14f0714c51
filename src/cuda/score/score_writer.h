#pragma once
// The instructions of a score program as CUDA text: only those that an output needs and that the kernel has not computed yet, with factors
// that are uniform over the pairs of a head hoisted out of products. What has which form is decided by ScoreForms. Products:
// score_products.cpp; indices: score_indices.cpp.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/score/score_forms.h"

namespace foveal::cuda {

/// The type of a parameter's elements in CUDA.

/// Writes the instructions that some outputs need, as declarations `const int v3 = ...;`.
class Writer {
 public:
  Writer(const Problem& problem, const Program& program, const Given& given = {}) : forms_(problem, program, given) {}

  const ScoreForms& forms() const { return forms_; }

  /// Declarations of everything that `outputs` need.
  std::string body(const std::vector<ValueId>& outputs) const;
  /// Statements that return a value.
  std::string result(ValueId value) const { return body({value}) + base::join("  return v", value, ";\n"); }

  /// A value as rest * uniform, in text: what varies over pairs, and what is hoisted, being uniform over the pairs of a head.
  struct Hoisted {
    std::string rest, uniform = "1";
    std::vector<ValueId> uniform_needs{};
  };
  Hoisted hoist_constant(ValueId id) const;
  Hoisted hoist_uniform(ValueId id) const { return hoist(id, forms_.hoisted(id)); }
  Hoisted hoist_from_slope(ValueId id) const { return hoist(id, forms_.hoisted_slope(id)); }
  Hoisted hoist_from_factor(ValueId id) const;

  /// The gain of a sum with the score; nothing varies.
  Hoisted gain_of(const ScoreSum& sum) const;
  struct Offset {
    Hoisted term;
    std::string row = "1";  ///< a factor that is the same for all pairs of a row, taken out of term.rest
  };
  Offset offset_of(const ScoreSum::Offset& offset) const;

  /// Statements that return the factor of its argument.
  std::string tanh_factor(ValueId tanh) const;

  /// Statements that return the factor of the tanh in a result that is nothing but their product.
  std::string tanh_times(ValueId value) const;

  /// The number of a read's element among those that differ in the dimensions of pairs. padded: as it stands in a table
  /// (table_row_entries).
  std::string element_text(const Instr& instr, bool padded = false) const;

  std::string index_text(const Instr& instr, std::size_t dimension) const;

  /// The offset in bytes, as an origin that the pairs of a thread share and a step from there; no step where an index may be clamped.
  std::pair<std::string, std::string> bytes_from_origin(const Instr& instr) const;

 private:
  /// How to name a given value; empty for others.
  std::string given_text(ValueId id) const;

  Hoisted hoist(ValueId id, const std::optional<Product>& product) const;
  /// The rest, and the product of all uniform factors; empty when there are none.
  std::pair<std::string, std::string> rest_and_factor(const Product& product) const;

  std::string product_text(const Product& product) const;

  const char* type_text(ValueId id) const;

  /// A literal, or a kernel argument: programs that differ only in such numbers share kernels.
  std::string real_text(double x) const;
  std::optional<std::size_t> number_of(double x) const;
  /// Must a constant be a literal? Where it decides something discrete, or is the exponent of a power.
  bool must_be_literal(ValueId constant) const;

  std::string read_text(ValueId id) const;
  std::string table_read_text(const Instr& instr, std::size_t table) const;
  /// Where a read's element is, in elements.
  std::string offset_text(const Instr& instr) const;
  /// An operand where it takes part in an operation in double (double_values): what is one has a variable w beside v.
  std::string double_text(ValueId arg) const;

  std::string value_text(ValueId id) const;
  std::string operation_text(ValueId id) const;

  /// ScoreForms::sum_of_places in text: indices become one address with immediate offsets, reals one conversion, and pairs on one diagonal
  /// share both.
  struct Places {
    std::string origin, step;
  };
  Places places_text(const Linear& sum) const;

  /// ScoreForms::column_blocks in text, a value at at.kv - at.kv_step plus one at at.kv_step, for key tiles that are multiples or
  /// divisors of the block sizes (fv_steps_apart): indices by `//` and `%` then cost an immediate offset.
  struct ColumnSteps {
    std::string origin, step;
    std::vector<std::int64_t> blocks{};
  };
  std::optional<ColumnSteps> column_steps(ValueId id) const;
  /// A value derived from kv_idx by `//` and `%`, evaluated at another kv.
  std::string value_at(ValueId id, const std::string& kv) const;

  /// ScoreForms::sum_of_lines in text.
  struct Lines {
    std::string row, column;  ///< uniform terms belong to the row
    std::optional<ColumnSteps> steps{};
  };
  Lines lines_text(ValueId id, const Linear& sum) const;
  static std::string text_of(const Lines& sum);
  /// The number of a read's element as such a sum, if it is one.
  std::optional<Lines> element_by_lines(const Instr& instr, bool padded) const;

  const Problem& problem() const { return forms_.problem(); }
  const Program& program() const { return forms_.program(); }

  const ScoreForms forms_;
};

}  // namespace foveal::cuda
