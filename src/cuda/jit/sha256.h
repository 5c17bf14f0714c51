#pragma once
// SHA-256 (FIPS 180-4): names the entries of the kernel cache by content.
#include <string>
#include <string_view>

namespace foveal::cuda::jit {

/// 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace foveal::cuda::jit
