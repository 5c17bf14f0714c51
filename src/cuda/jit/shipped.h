#pragma once
// Kernels that were compiled when the library was built: a folder of entries like those of the disk cache, which is read and never written.
// It holds the name of the compiler that made them, which is part of their keys; what compiler is here, if any, does not matter to them.
#include <optional>
#include <string>

#include "cuda/jit/compile.h"

namespace foveal::cuda::jit {

constexpr const char* shipped_folder_name = "foveal-kernels";
constexpr const char* shipped_compiler_name = "compiler";  ///< the file that names it

struct ShippedKernels {
  std::string folder;    ///< "" for none: no folder is named, and none lies beside the library
  std::string unusable;  ///< why none of them is used: there are none, others could have written them, or the driver is too old
  std::string compiler;  ///< as nvrtc_identity() says it
  int count = 0;
  bool usable() const { return unusable.empty(); }
};

/// Those in $FOVEAL_KERNELS_DIR, which must belong to the user or to root and be writable by no one else; otherwise those beside the
/// library, which must not be writable by anyone who cannot write the library. Searched for once.
const ShippedKernels& shipped_kernels();
/// Another folder from now on, as if the variable named it, or as if it lay beside this library; "" for none. While nothing is compiled.
void set_shipped_folder(const std::string& folder, const std::string& library = "");

/// None unless the entry is there, whole, and closed to writers as the folder must be.
std::optional<Image> shipped_read(const std::string& key);

}  // namespace foveal::cuda::jit
