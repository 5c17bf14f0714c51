#pragma once
// Integers of a program as sums of positions, and the elements that reads address by them.
#include <cstdint>
#include <optional>
#include <vector>

#include "score/interval.h"
#include "score/linear.h"
#include "score/program.h"

namespace foveal::scoring {

/// The element of a read.
struct Address {
  explicit(false) Address(const Instr& read) : param(read.param), index(read.index) {}
  explicit(false) Address(const TrainableRead& read) : param(read.param), index(read.index) {}
  std::int32_t param;
  const std::vector<ValueId>& index;
};

class IndexForms {
 public:
  /// bounds: of the program's values.
  IndexForms(const Program& program, const std::vector<ParamInfo>& params, base::IdVector<Interval> bounds);

  const Program& program() const { return program_; }
  const Interval& bounds(ValueId id) const { return bounds_[id]; }
  bool is_uniform(ValueId id) const { return scoring::is_uniform(program_, id); }
  /// Does an integer need 64 bits?
  bool is_wide(ValueId id) const;

  // ---- sums; null where 32 bits may overflow ----

  const Linear* sum_of(ValueId id) const;
  /// With q_idx or kv_idx in it: neighbouring pairs are a known step apart.
  const Linear* sum_of_places(ValueId id) const;
  /// Of row values and column values, which can be summed apart.
  const Linear* sum_of_lines(ValueId id) const;

  std::int64_t of_q(const Linear& sum) const { return sum.of(q_); }
  std::int64_t of_kv(const Linear& sum) const { return sum.of(kv_); }
  bool is_place(ValueId atom) const { return atom == q_ || atom == kv_; }
  /// Does it vary with q_idx and kv_idx alone, beside what is the same for all pairs?
  bool is_of_places(const Linear& sum) const;
  /// Is an index such a sum with a multiple of this position (q_idx or kv_idx) in it?
  bool steps_with(ValueId index, Op position) const;
  /// Of a column part that sums kv_idx and values derived from it by `//` and `%` of multiples of 8, where the first key is at 0: block
  /// sizes such that for key tiles that are multiples or divisors of them it is its value at the tile's first key plus that at the step
  /// from there.
  std::optional<std::vector<std::int64_t>> column_blocks(ValueId id) const;

  // ---- elements of reads ----

  std::int64_t size(const Address& read, std::size_t dimension) const;
  /// Is the index certain to be in bounds?
  bool is_inside(const Address& read, std::size_t dimension) const;
  /// Is no index clamped, so that different indices are different elements?
  bool is_inside(const Address& read) const;
  /// Is the number of the element a sum of a row's and a column's part?
  bool is_element_of_lines(const Address& read) const;
  /// Positions such that pairs which differ in these alone touch different elements.
  std::vector<Op> own_positions(const Address& read) const;
  /// Do pairs that differ in this position (batch, head, q_idx or kv_idx) touch different elements, whatever else they differ in? By any of
  /// these reads of one parameter: all have the position, or the same sum of it and a constant, in one dimension.
  bool separates(Op position, const std::vector<Address>& reads) const;
  /// Do the pairs of each batch entry and head touch every element exactly once? Of a read with own_elements.
  bool covers(const Address& read) const;
  /// How many elements the pairs of one batch entry and head may touch, at most 2^30.
  std::int64_t elements(const Address& read) const;

 private:
  /// The block sizes of a value derived from kv_idx by `//` and `%`; false for others. divided: the divisor so far.
  bool append_blocks(ValueId id, std::int64_t& divided, std::vector<std::int64_t>& blocks) const;

  const Program& program_;
  const std::vector<ParamInfo>& params_;
  const base::IdVector<Interval> bounds_;
  const base::IdVector<Linear> linear_;
  const ValueId q_, kv_;
};

}  // namespace foveal::scoring
