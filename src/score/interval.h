#pragma once
// Interval evaluation: bounds of a program's values over a box of positions.
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <vector>

#include "foveal/tensor.h"
#include "score/linear.h"
#include "score/program.h"

namespace foveal::scoring {

/// Closed bounds of a real, integer or boolean (0, 1) value; maybe_nan: it may also be NaN.
struct Interval {
  double low, high;
  bool maybe_nan = false;
};

struct Box {
  Interval batch, head, q_idx, kv_idx, seqlen_q, seqlen_kv;  ///< inclusive integer bounds
  Interval score{-1.0 / 0.0, 1.0 / 0.0, false};
};

/// Bounds of what a parameter holds. This base class assumes nothing.
class ReadRanges {
 public:
  virtual ~ReadRanges() = default;
  /// Over these ranges of indices, clamped into the shape.
  virtual Interval range(std::int32_t param, std::span<const Interval> index) const;
};

/// One range for each parameter, whatever the indices.
class WholeRanges : public ReadRanges {
 public:
  explicit WholeRanges(std::span<const Interval> ranges) : ranges_(ranges) {}
  Interval range(std::int32_t param, std::span<const Interval>) const override { return ranges_[static_cast<std::size_t>(param)]; }

 private:
  std::span<const Interval> ranges_;
};

/// Bounds from the data of CPU tensors: minima and maxima over a box of indices, found through a hierarchy of blocks of the last two
/// dimensions that is built in O(size) at the first query of a parameter. Parameters without data on the CPU stay unknown. The tensors must
/// outlive it unchanged. All memory comes from `memory`.
class DataReadRanges : public ReadRanges {
 public:
  DataReadRanges(const std::vector<ParamInfo>& params, const std::vector<TensorView>& tensors,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource());
  ~DataReadRanges() override;
  DataReadRanges(const DataReadRanges&) = delete;
  DataReadRanges& operator=(const DataReadRanges&) = delete;
  Interval range(std::int32_t param, std::span<const Interval> index) const override;

  /// Upper bound of the memory taken when every parameter that `program` reads is queried.
  static std::size_t bytes(const Program& program, const std::vector<ParamInfo>& params);

 private:
  class Summary;
  std::pmr::vector<Summary*> summaries_;  ///< null: not known
};

/// A program prepared for many interval evaluations. Integers are compared through the bounds of the linear form of their difference, so
/// that kv_idx <= q_idx + 4 is decided by the range of q_idx - kv_idx, not by the separate ranges of q_idx and kv_idx.
class IntervalProgram {
 public:
  /// `assumed`: a mask program; bounds then hold at the pairs that it keeps. Its comparisons of linear forms of symbols are used.
  explicit IntervalProgram(const Program& program, const Program& assumed = {});
  /// Writes bounds over the box of all size() values to `values`.
  void evaluate(const Box& box, const ReadRanges& reads, std::span<Interval> values) const;
  /// For an integer comparison: a bound on every partial sum of its terms, on whichever side they are written. 0 for other values.
  double reach(ValueId id, std::span<const Interval> values) const;
  std::size_t size() const { return program_.code.size(); }
  ValueId output() const { return program_.outputs.front(); }

 private:
  Program program_;
  std::vector<Linear> gaps_;             ///< left - right of each integer comparison
  base::IdVector<std::int32_t> gap_of_;  ///< position of each value's gap, or -1
  base::IdVector<Interval> assumed_;     ///< bounds of each value that follow from `assumed`; empty without it
  std::vector<Interval> assumed_gaps_;   ///< the same for each gap
};

/// Bounds of every value of the program over the box; `assumed` as for IntervalProgram.
base::IdVector<Interval> evaluate(const Program& program, const Box& box, const ReadRanges& reads, const Program& assumed = {});

}  // namespace foveal::scoring
