#pragma once
// Interval evaluation: bounds of a program's value over a box of positions.
#include <cstdint>
#include <vector>

#include "foveal/tensor.h"
#include "score/program.h"

namespace foveal::scoring {

/// Closed bounds of a real, integer (exact in a double up to 2^53) or boolean (0, 1) value. `maybe_nan` when a NaN is possible.
struct Interval {
  double low, high;
  bool maybe_nan = false;
};

struct Box {
  Interval batch, head, q_idx, kv_idx, seqlen_q, seqlen_kv;  ///< integer bounds, inclusive
  Interval score{-1.0 / 0.0, 1.0 / 0.0, false};
};

/// Answers: over these index ranges (already clamped into the shape), what can the parameter be? The default knows nothing.
class ReadRanges {
 public:
  virtual ~ReadRanges() = default;
  virtual Interval range(std::int32_t param, const std::vector<Interval>& index) const;
};

/// Ranges from the data of CPU tensors: min and max over the index box, through block summaries of 1-D and 2-D slices built once in O(size).
/// Parameters without data stay unknown.
class DataReadRanges : public ReadRanges {
 public:
  DataReadRanges(const std::vector<ParamInfo>& params, const std::vector<TensorView>& tensors);
  ~DataReadRanges() override;
  Interval range(std::int32_t param, const std::vector<Interval>& index) const override;

 private:
  struct Summary;
  std::vector<Summary> summaries_;
};

/// Bounds of every value of the program over the box.
std::vector<Interval> evaluate(const Program& program, const Box& box, const ReadRanges& reads);

}  // namespace foveal::scoring
