#pragma once
// What tests ask of the mock driver beside the driver's own functions.
#include <cstddef>

#include "cuda/jit/driver.h"

namespace foveal::test {

/// What the one device says of itself: an H100 until it is set. Set it before anything else asks for the device.
struct MockDevice {
  int major = 9, minor = 0, multiprocessors = 132;
  int shared_bytes_per_block = 232448, l2_bytes = 50 << 20;
};
extern "C" MockDevice mock_device;

/// Called for each launch, if set; `argument` is the kernel's struct.
using OnLaunch = void (*)(const cuda::driver::LaunchConfig& config, const void* argument, std::size_t bytes);
extern "C" OnLaunch mock_on_launch;

/// Launches so far.
extern "C" long mock_launches;

}  // namespace foveal::test
