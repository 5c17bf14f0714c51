#pragma once
// Gradients of parameters on a GPU: f64 sums over the launches of each lane, then over the ranks, then converted to the caller's tensors.
#include <vector>

#include "dist/context.h"
#include "dist/device_rows.h"

namespace foveal::dist {

class DeviceParamSums {
 public:
  using Lane = DeviceBuffers::Lane;
  DeviceParamSums(const Context& context, DeviceBuffers& buffers, const std::vector<ParamBinding>& wanted);

  /// Takes and clears the sums of a lane.
  void prepare(Lane lane);
  /// What one launch of a lane writes: all wanted gradients but the sink's.
  const std::vector<ParamBinding>& parts(Lane lane) const { return of(lane).parts; }
  void add_part(Lane lane);
  /// Adds the sums of these lanes to the caller's.
  void join(const std::vector<Lane>& lanes);
  /// Of a wanted gradient, in the sums of the caller's lane.
  double* sum(std::size_t wanted) { return reinterpret_cast<double*>(of(Lane::caller).sums.data) + first_[wanted]; }
  /// In the order of ranks, on every rank.
  void reduce_and_write();

 private:
  struct LaneSums {
    Rows sums, part;  ///< over all launches, and of one
    std::vector<ParamBinding> parts{};
  };
  LaneSums& of(Lane lane) { return lanes_[static_cast<int>(lane)]; }
  const LaneSums& of(Lane lane) const { return lanes_[static_cast<int>(lane)]; }
  Rows values() { return buffers_.rows(DType::f64, 1, 1, 1, count_); }
  void write(Rows from, const TensorView& to);

  const Context& c_;
  DeviceBuffers& buffers_;
  const std::vector<ParamBinding>& wanted_;
  std::vector<std::int64_t> first_;  ///< value of each wanted gradient
  std::int64_t count_ = 0;           ///< of values
  LaneSums lanes_[1 + DeviceBuffers::sides];
};

}  // namespace foveal::dist
