#pragma once
// The instructions of a score program as CUDA text: which of them an output needs, what the kernel has already, and products in an order
// that leaves factors that are the same for all pairs of a head to others. For score_emit.cpp.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/score_facts.h"
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

/// Does an index differ between pairs of one batch and head?
inline bool is_pair_dimension(const Program& program, ValueId index) { return scoring::varies(program, index) != Varies::uniform; }

/// Of each value of a program, over all pairs of a problem and all values that the types of parameters hold.
std::vector<Interval> bounds_of(const Program& program, const Problem& p);

/// Values that a kernel has before it evaluates the score of a pair: at.walk, at.diagonal, at.row, at.loaded, at.tiled, at.tanh.
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

  /// A value as a product, in text: what differs between pairs, and what is the same for all pairs of a head.
  struct Apart {
    std::string rest, uniform = "1";
    std::vector<ValueId> uniform_needs{};
  };

  /// Only a positive constant is set apart, which the maximum of a row may leave out.
  Apart apart_from_constant(ValueId id) const;

  Apart apart_from_uniform(ValueId id) const;

  /// Of the slope of the score_mod, whose unit dk can take in only where it is the same for all query heads of the group.
  Apart slope_apart_from_uniform(ValueId id) const;

  /// Of the factor of a read. A sum whose second term has a constant leaves it to the sum over pairs.
  Apart factor_apart_from_uniform(ValueId id) const;

  /// The factors of a value that are not the same for all pairs of a head.
  std::vector<ValueId> varying_factors(ValueId id) const { return product_of(id).rest; }

  /// Is a value the raw score times what is the same for all pairs of a head?
  bool is_scaled_score(ValueId id) const { return is_score(product_of(id)); }

  /// A score that is the raw score times a factor, the same for all pairs of a head, and offsets that do not depend on it.
  struct ScoreSum {
    struct Offset {
      Apart apart;
      std::string row =
          "1";  ///< of several offsets: a factor of a product that is the same for all pairs of a row, taken out of apart.rest
      ValueId value;
      ValueId column = -1;  ///< of several offsets: the one value that apart.rest is, where it is the same for all pairs of a key
    };
    Apart gain;
    bool is_long =
        false;  ///< its offsets take so many instructions for a pair that they had better not wait until values have been multiplied
    bool gain_is_plain =
        false;  ///< a constant but for the scale, which kernels have that look for maxima; 1 at least, so that what it divides stays finite
    std::vector<Offset> offsets{};  ///< those that fewer pairs differ in first
  };
  std::optional<ScoreSum> sum_with_score(ValueId id) const;

  /// The only tanh of the program whose argument is the raw score times a factor.
  std::optional<ValueId> tanh_of_score() const;

  /// Statements that return the factor of its argument.
  std::string tanh_factor(ValueId tanh) const;

  /// Statements that return what the tanh is multiplied with in the result of the forward pass, which needs it for nothing else.
  std::string tanh_times(ValueId value) const;

  /// Is a value a multiple of a sum of q, kv and what is the same for all pairs?
  bool is_straight(ValueId value) const;

  /// Is the result of the forward pass the tanh that the kernel has, but for factors?
  bool is_capped(ValueId value) const { return is_tanh(product_of(value)); }

  /// The part of columns where it is the same sum of a value at at.kv - at.kv_step and one at at.kv_step, for all tiles of keys that blocks of these sizes divide
  /// or are divided by (fv_steps_apart): indices by `//` and `%` then cost an offset known when the kernel is compiled.
  struct ColumnSteps {
    std::string origin, step;
    std::vector<std::int64_t> blocks{};
  };

  /// An integer sum of values of rows and values of columns: these are added apart, so that a pair costs one addition.
  struct SumOfLines {
    std::string row, column;  ///< what is uniform belongs to the row
    std::optional<ColumnSteps> steps{};
  };
  /// The number of a read's element as such a sum, if it is one. padded: as it stands in a table (ReadTable::row_entries).
  std::optional<SumOfLines> element_by_lines(const Instr& instr, bool padded = false) const;

  /// The number of a read's element among those that differ in the dimensions of pairs.
  std::string element_text(const Instr& instr, bool padded = false) const;

  std::string index_text(ValueId index, std::size_t param, std::size_t dimension) const;

  /// Where a read's element is, in elements.
  std::string offset_text(const Instr& instr) const;

  /// A read as tiles, if it can be had so. transposed: for a kernel whose rows are keys; stairs: where its index of kv is such.
  std::optional<PairTile> tile_of(ValueId id, bool transposed = false, bool stairs = false) const;

  /// The same in bytes, as the offset of the place that a thread's pairs share and the step from there; no step where an index may be clamped.
  std::pair<std::string, std::string> bytes_from_origin(const Instr& instr) const;

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id); }

  /// Where a value is found that the kernel has already; otherwise empty.
  std::string given_text(std::size_t i) const;

  bool is_uniform(ValueId id) const;

  /// A value as a product: a constant, factors that are the same for all pairs, and the rest: a value, or a product of values. 16-bit
  /// inputs leave room for multiplying in this order; for others the rest is the value itself.
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
  /// What is both multiplied and divided by goes away.
  void multiply_uniform(Product& product, ValueId id, bool divides) const;

  bool is_tanh(const Product& product) const { return given_.tanh && product.rest == std::vector{*given_.tanh} && scales(product); }
  bool is_multiple_of_tanh(const Product& product) const { return problem_.pass == Pass::forward && is_tanh(product); }

  /// Can an exponent take the constant in?
  static bool scales(const Product& product) { return product.constant > 0 && std::isfinite(product.constant); }

  bool is_score(const Product& product) const { return product.rest.size() == 1 && program_.code[at(product.rest[0])].op == Op::score; }

  /// The rest and the product of all that is uniform, empty when there is nothing.
  std::pair<std::string, std::string> rest_and_factor(const Product& product) const;

  std::string product_text(const Product& product) const;

  bool is_wide(std::size_t i) const;

  const char* type_text(std::size_t i) const;

  /// A constant, or where the kernel finds it among its arguments: programs that differ in such numbers alone share kernels.
  std::string real_text(double x) const;
  std::optional<std::size_t> number_of(double x) const;
  /// Is a real constant one that changes what is computed from it: a discrete result, or a power?
  bool shows(ValueId constant) const;

  std::string read_text(const Instr& instr) const;

  std::string value_text(std::size_t i) const;

  /// An integer sum with q or kv in it, as what is the same for all pairs of a thread and the step from there, which is known when the
  /// kernel is compiled: indices become one address with offsets, reals one conversion, and pairs on one diagonal share both.
  struct SumOfPlaces {
    std::string origin, step;
  };
  std::optional<SumOfPlaces> sum_of_places(ValueId id) const;

  std::optional<SumOfLines> sum_of_lines(ValueId id) const;
  /// Of an integer whose column part is a sum of kv_idx and of such made of it by `//` and `%`.
  std::optional<ColumnSteps> column_steps(ValueId id) const;
  /// A value made of kv_idx by `//` and `%` by multiples of 8, at another kv; false: it is none. divided: by what kv_idx has been divided.
  bool of_kv(ValueId id, const std::string& kv, std::string& text, std::int64_t& divided, std::vector<std::int64_t>& blocks) const;
  /// Real operations for each pair that a value takes.
  int operations_of_pairs(ValueId id) const;
  /// A value as a product in text, of which one part is the same for all pairs of a row; "1": there is none.
  /// Last the factors of the rest.
  std::tuple<std::string, std::string, std::vector<ValueId>> row_and_rest(const Product& product) const;
  std::int64_t entries_of(const Instr& instr, std::size_t dimension, bool padded) const;
  static std::string text_of(const SumOfLines& sum);

  struct Sum {
    std::int64_t q = 0, kv = 0, constant = 0;
    std::vector<std::pair<ValueId, std::int64_t>> terms{};
  };
  /// None where numbers are too large for 32 bits.
  std::optional<Sum> sum_of(ValueId id) const;

  /// One for each pair, and converted by an addition.
  bool is_small_integer(ValueId id) const;

  std::string operation_text(std::size_t i) const;

  const Problem& problem_;
  const Program& program_;
  const Given given_;
  std::vector<Interval> bounds_;
  std::vector<scoring::Linear> linear_;
  std::vector<scoring::ColumnForm> forms_;
  base::IdVector<char> decides_;
  bool regroups_;
};

}  // namespace foveal::cuda
