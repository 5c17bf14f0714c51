#pragma once
// NumPy's .npy format, versions 1 to 3.
#include <span>
#include <string>

#include "files/tensor.h"

namespace foveal::cli {

/// Throws invalid_argument, naming `source`, when the bytes are no whole .npy file of a type that foveal knows.
Tensor parse_npy(std::span<const std::byte> file, const std::string& source);

/// Version 1, little-endian, C order.
std::vector<std::byte> format_npy(const Tensor& tensor);

}  // namespace foveal::cli
