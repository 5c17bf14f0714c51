#pragma once
// A kernel before compilation: which file, which constants, which score text. Kernels are real files under device/, embedded in the
// library; assembling one gives a single text without includes.
//
// In a kernel file, #include "x/y.cuh" names files relative to device/. Two names are virtual and stand for what a source carries:
//   #include "config.cuh"   the constants, e.g. `constexpr ForwardConfig kConfig{.block_kv = 128, ...};`
//   #include "emit.cuh"     the functions that score_emit wrote for this score and mask
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/jit/struct_text.h"
#include "foveal/tensor.h"

namespace foveal::cuda::jit {

/// Compile-time values of a kernel, in order. Equal settings give equal text.
class Constants {
 public:
  Constants& set_shared_bytes(std::size_t bytes);                         ///< kSharedBytes: what the host sets aside, for kernels to check
  Constants& set_type(const std::string& name, const std::string& type);  ///< `using Element = bf16;`
  Constants& include(const std::string& file);                            ///< of device/, which declares what follows
  /// `constexpr TYPE name{.field = value, ...};` of a struct of foveal::device that lists its `fields`; `file` of device/ declares it.
  template <class Config>
  Constants& set_struct(const std::string& name, const char* type, const char* file, const Config& config) {
    include(file);
    text_ += base::join("constexpr foveal::device::", type, " ", name, struct_text(config), ";\n");
    return *this;
  }
  const std::string& text() const { return text_; }  ///< the body of config.cuh

 private:
  std::string text_;
};

/// How device code calls it: "foveal::device::bf16", "int", ...
const char* device_type(DType dtype);

struct KernelSource {
  std::string stem;       ///< of device/kernels/<stem>.cuh, and the name of the extern "C" kernel in it
  Constants constants{};  ///< config.cuh
  std::string score{};    ///< emit.cuh
  std::string arch{};     ///< "sm_80", "sm_90a", or "compute_90" for PTX
};

/// The whole text, ready for the compiler. Throws invalid_argument when an include names no embedded file.
std::string assemble(const KernelSource& source);

/// An embedded file by its path under device/, e.g. "kernels/delta_sm80.cuh"; empty when there is none.
std::string_view embedded_file(std::string_view path);
std::vector<std::string_view> embedded_files();

}  // namespace foveal::cuda::jit
