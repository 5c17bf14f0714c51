#pragma once
// Interval evaluation: bounds of a program's value over a box of positions.
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <vector>

#include "foveal/tensor.h"
#include "score/linear.h"
#include "score/program.h"

namespace foveal::scoring {

/// Closed bounds of a real, integer or boolean (0, 1) value. `maybe_nan` when a NaN is possible.
struct Interval {
  double low, high;
  bool maybe_nan = false;
};

struct Box {
  Interval batch, head, q_idx, kv_idx, seqlen_q, seqlen_kv;  ///< integer bounds, inclusive
  Interval score{-1.0 / 0.0, 1.0 / 0.0, false};
};

/// Answers: over these index ranges (ends outside the shape are clamped into it), what can the parameter be? The default knows nothing.
class ReadRanges {
 public:
  virtual ~ReadRanges() = default;
  virtual Interval range(std::int32_t param, std::span<const Interval> index) const;
};

/// Ranges from the data of CPU tensors: min and max over the index box, through block summaries of the last two dimensions, built in
/// O(size) when the parameter is first asked for. Parameters without data, or with data on another device, stay unknown. The tensors must
/// outlive it unchanged. All its memory comes from `memory`.
class DataReadRanges : public ReadRanges {
 public:
  DataReadRanges(const std::vector<ParamInfo>& params, const std::vector<TensorView>& tensors,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource());
  ~DataReadRanges() override;
  DataReadRanges(const DataReadRanges&) = delete;
  DataReadRanges& operator=(const DataReadRanges&) = delete;
  Interval range(std::int32_t param, std::span<const Interval> index) const override;

  /// At most so much memory is taken for these shapes, when all the parameters that `program` reads are asked for.
  static std::size_t bytes(const Program& program, const std::vector<ParamInfo>& params);

 private:
  class Summary;
  std::pmr::vector<Summary*> summaries_;  ///< null: unknown
};

/// A program prepared for many interval evaluations. Integers are compared by the bounds of their difference as a sum, so that
/// kv_idx <= q_idx + 4 is decided by how far q_idx - kv_idx reaches in the box, not by where q_idx and kv_idx are.
class IntervalProgram {
 public:
  /// `assumed` is a mask program: bounds hold where it keeps the pair. What its comparisons say of sums of symbols is used.
  explicit IntervalProgram(const Program& program, const Program& assumed = {});
  /// Bounds of every value over the box, in `values`, which has room for size() of them.
  void evaluate(const Box& box, const ReadRanges& reads, std::span<Interval> values) const;
  /// Of an integer comparison: the sum of the sizes of all terms, which none exceeds that moves from one side to the other. 0 of others.
  double reach(ValueId id, std::span<const Interval> values) const;
  std::size_t size() const { return program_.code.size(); }
  ValueId output() const { return program_.outputs.front(); }

 private:
  Program program_;
  std::vector<Linear> gaps_;            ///< for integer comparisons: left - right
  std::vector<std::int32_t> gap_of_;    ///< position in gaps_, or -1
  std::vector<Interval> assumed_;       ///< bounds that hold by assumption, one for each value; empty without assumptions
  std::vector<Interval> assumed_gaps_;  ///< likewise, one for each gap
};

/// Bounds of every value of the program over the box.
std::vector<Interval> evaluate(const Program& program, const Box& box, const ReadRanges& reads);

}  // namespace foveal::scoring
