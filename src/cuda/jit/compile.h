#pragma once
// Sources to images: through the memory cache, what is shipped beside the library, the disk cache,
// and NVRTC, in this order. No device is needed.
#include <memory>
#include <string>
#include <vector>

#include "cuda/jit/source.h"

namespace foveal::cuda::jit {

/// What the compiler said about a kernel.
struct Facts {
  int registers = 0;
  int spill_bytes = 0;  ///< stores plus loads
  int stack_bytes = 0;
  int shared_bytes = 0;     ///< static
  bool serialized = false;  ///< a wgmma pipeline was serialised
  std::string notes;        ///< lines of the compiler's log that report something to mend
};

/// A compiled kernel: machine code (or PTX text when the source's arch is a compute_XX).
struct Image {
  std::string key;         ///< hex digest of everything that can change the bits
  std::string stem, arch;  ///< stem: the kernel's name, too
  Facts facts;
  std::string bytes;
};

/// Throws compile_failed with the log; the source is kept beside the cache and named in the message.
std::shared_ptr<const Image> compile(const KernelSource& source);

/// The same for many, on several threads; the order is kept.
std::vector<std::shared_ptr<const Image>> compile(const std::vector<KernelSource>& sources);

/// The key of a kernel that this compiler (nvrtc_identity()) makes of a source.
std::string key_of(const KernelSource& source, const std::string& compiler);

/// Was the kernel shipped with the library?
bool is_shipped(const KernelSource& source);

/// Where this process's kernels came from when they were not in memory: shipped with the library, read from the disk cache, compiled.
struct Compilations {
  int shipped = 0, read = 0, compiled = 0;
};
Compilations compilations();

/// The arch to compile for: the device's own ("sm_90a" for 9.0) or, when NVRTC does not know it, the newest PTX it can write.
/// Without NVRTC the device's own: kernels may have come with the library.
std::string arch_of(int major, int minor);

}  // namespace foveal::cuda::jit
