#pragma once
// NVRTC, the run-time compiler, loaded when first needed. The environment variable FOVEAL_NVRTC_PATH (the library, its folder, or a virtual
// environment that has the wheel) takes precedence over all else. Otherwise it is searched at an explicit path, by the loader, in a CUDA
// toolkit, and in the PyPI wheel nvidia-cuda-nvrtc, in this order.
#include <string>
#include <vector>

namespace foveal::cuda::jit {

/// The explicit path, of the same kinds as in FOVEAL_NVRTC_PATH; must be set before the first compilation.
void set_nvrtc_path(std::string path);

/// Why there is no NVRTC, naming what was tried and what to install, or "" when there is one.
const std::string& nvrtc_unavailable();

/// Version and build: "13.0 <build id>". Part of every cache key.
const std::string& nvrtc_identity();
const std::vector<int>& nvrtc_archs();  ///< compute capabilities it can write machine code for, e.g. 80, 90, 100

struct Compilation {
  bool ok = false;
  std::string log;
  std::string bytes;  ///< cubin, or PTX for a compute_XX arch
};
/// Throws Error{device} when NVRTC is unavailable.
Compilation nvrtc_compile(const std::string& source, const std::string& name, const std::vector<std::string>& options, bool ptx);

}  // namespace foveal::cuda::jit
