#pragma once
// The safetensors format: the length of a JSON header, the header, and the bytes of all tensors.
#include <span>
#include <string>

#include "files/tensor.h"

namespace foveal::cli {

/// Throws invalid_argument, naming `source`, when the header is damaged or points outside the file.
std::vector<Tensor> parse_safetensors(std::span<const std::byte> file, const std::string& source);
std::vector<std::byte> format_safetensors(const std::vector<Tensor>& tensors);

}  // namespace foveal::cli
