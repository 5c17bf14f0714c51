#pragma once
// Tensors from and to files of any known format, chosen by the file's ending.
#include <string>
#include <vector>

#include "files/tensor.h"

namespace foveal::cli {

/// The tensors of an .npy (named after the file), .npz or .safetensors file. Throws invalid_argument, naming the file.
std::vector<Tensor> read_tensors(const std::string& path);

/// An .npz or .safetensors file, or a folder of .npy files when the path has no ending. Everything is written beside its place first and
/// renamed when all of it is there: an error, or a signal that ends the process, leaves the old files, or none.
void write_tensors(const std::vector<Tensor>& tensors, const std::string& path);

/// Written beside its place and renamed. Throws invalid_argument when it cannot be.
void write_file(const std::vector<std::byte>& bytes, const std::string& path);

/// The folder and those above it, where they do not exist. Throws invalid_argument when they cannot be made.
void make_folder(const std::string& path);

/// The file in which write_tensors() puts the tensor of this name.
std::string output_file(const std::string& tensor, const std::string& path);

/// Throws invalid_argument when write_file() could not take this path.
void check_output_file(const std::string& path);

/// Throws invalid_argument when write_tensors() could not take this path: so that no work is done before that is known.
void check_output_path(const std::string& path);

}  // namespace foveal::cli
