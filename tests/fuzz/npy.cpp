// NumPy's .npy files: refused, or read whole; what was read is written and read again as the same.
#include "files/npy.h"

#include "bytes.h"
#include "foveal/error.h"
#include "tensors.h"

using namespace foveal;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const cli::Tensor tensor = cli::parse_npy(file, "input");
    fuzz::check_tensor(tensor);
    fuzz::check_same({tensor}, {cli::parse_npy(cli::format_npy(tensor), "input")});
  } catch (const Error&) {
  }
  return 0;
}
