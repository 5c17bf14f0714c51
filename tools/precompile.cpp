// precompile FOLDER: compiles the kernels that are shipped with the library into FOLDER and removes other files there. Needs NVRTC but no device;
// kernels that are already in the folder are kept.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/check.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/image_file.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/shipped.h"
#include "cuda/plain_kernels.h"

using namespace foveal;

namespace {

constexpr std::uintmax_t most_bytes = std::uintmax_t{8} << 20;  ///< of all: what comes with every installation

void precompile(const std::filesystem::path& folder) {
  cuda::jit::set_shipped_folder("");
  cuda::jit::set_cache_folder(folder.string());
  if (const std::string why = cuda::jit::cache_unusable(); !why.empty())
    base::fail(ErrorCode::invalid_argument, folder.string(), ": ", why);
  std::set<std::string> kept{cuda::jit::shipped_compiler_name};
  for (const auto& image : cuda::jit::compile(cuda::plain_kernels())) kept.insert(image->key + cuda::jit::image_extension);
  std::ofstream compiler(folder / cuda::jit::shipped_compiler_name);
  compiler << cuda::jit::nvrtc_identity() << "\n";
  FOVEAL_CHECK(compiler.flush(), folder.string(), ": cannot be written");
  std::uintmax_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    if (kept.contains(name))
      bytes += file.file_size();
    else
      std::filesystem::remove(file);
  }
  FOVEAL_CHECK(bytes <= most_bytes, "precompiled kernels take ", bytes, " bytes; expected at most ", most_bytes);
  std::printf("%zu kernels, %.1f MB, compiled by NVRTC %s\n", kept.size() - 1, static_cast<double>(bytes) * 1e-6,
              cuda::jit::nvrtc_identity().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: precompile FOLDER\n");
    return 2;
  }
  try {
    precompile(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "precompile: %s\n", error.what());
    return 1;
  }
}
