// Declarations of parameters: what is accepted is an identifier with positive sizes.
#include <cctype>

#include "bytes.h"
#include "foveal/error.h"
#include "foveal/score.h"

using namespace foveal;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Param param = parse_param({reinterpret_cast<const char*>(data), size});
    for (const char c : param.name())
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') fuzz::found("a name that is no identifier");
    for (const std::int64_t extent : param.shape())
      if (extent <= 0) fuzz::found("a size that is not positive");
  } catch (const Error&) {
  }
  return 0;
}
