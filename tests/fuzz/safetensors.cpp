// .safetensors files: refused, or read whole; what was read is written and read again as the same.
#include "files/safetensors.h"

#include "bytes.h"
#include "foveal/error.h"
#include "tensors.h"

using namespace foveal;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const std::vector<cli::Tensor> tensors = cli::parse_safetensors(file, "input");
    for (const cli::Tensor& tensor : tensors) fuzz::check_tensor(tensor);
    fuzz::check_same(tensors, cli::parse_safetensors(cli::format_safetensors(tensors), "input"));
  } catch (const Error&) {
  }
  return 0;
}
