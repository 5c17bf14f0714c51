#pragma once
// Images to functions on a device, and their launch.
#include <memory>

#include "cuda/jit/compile.h"
#include "cuda/jit/driver.h"
#include "foveal/tensor.h"

namespace foveal::cuda::jit {

struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned threads = 1;
  unsigned shared_bytes = 0;  ///< dynamic
  bool cooperative = false;   ///< all CTAs are resident at once, as they wait for each other; otherwise the launch fails
  /// Programmatic dependent launch: CTAs may start before the previous launch in the stream has ended. For kernels that begin with
  /// device::await_previous_launch() (device/ptx/dependent_launch.cuh), which waits for its end.
  bool programmatic = false;
};

/// A kernel loaded on one device. Cheap to copy, not unloaded while copies live; the most recently used stay loaded beyond that.
class Kernel {
 public:
  Kernel() = default;
  /// Loads the image in the device's primary context, once for equal images. Allows `shared_bytes` of dynamic shared memory.
  Kernel(std::shared_ptr<const Image> image, int device, unsigned shared_bytes);

  const Image& image() const { return *image_; }

  /// The kernel takes one struct by value (`const __grid_constant__ Params params`). The device's context is current already
  /// (driver::Current).
  template <class Params>
  void launch(const LaunchShape& shape, const Params& params, Stream stream) const {
    launch_raw(shape, const_cast<Params*>(&params), sizeof params, stream);
  }

 private:
  void launch_raw(const LaunchShape& shape, void* params, std::size_t bytes, Stream stream) const;

  struct Loaded;
  std::shared_ptr<const Image> image_;
  std::shared_ptr<const Loaded> loaded_;
};

}  // namespace foveal::cuda::jit
