#pragma once
// NumPy's .npz format: a zip archive of .npy files, stored or deflated.
#include <span>
#include <string>

#include "files/tensor.h"

namespace foveal::cli {

/// Throws invalid_argument, naming `source`, when the archive is damaged or holds something else than .npy files.
std::vector<Tensor> parse_npz(std::span<const std::byte> file, const std::string& source);

/// Stored, not deflated. Throws invalid_argument when it would pass 4 GiB, which this plain form of zip cannot say.
std::vector<std::byte> format_npz(const std::vector<Tensor>& tensors);

}  // namespace foveal::cli
