#include "files/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "files/npy.h"
#include "files/npz.h"
#include "files/removed_on_signal.h"
#include "files/safetensors.h"

namespace foveal::cli {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> read_bytes(const std::string& path) {
  std::error_code error;
  FOVEAL_CHECK(fs::exists(path, error), path, ": no such file");
  FOVEAL_CHECK(fs::is_regular_file(path, error), path, ": a folder, a device or a pipe; expected a file");
  std::ifstream file(path, std::ios::binary);
  FOVEAL_CHECK(file, path, ": cannot be opened: ", std::strerror(errno));
  std::vector<std::byte> bytes(fs::file_size(path));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  FOVEAL_CHECK(file.gcount() == static_cast<std::streamsize>(bytes.size()), path, ": cannot be read");
  return bytes;
}

/// Where a path leads, also through links to what is not there.
fs::path followed(fs::path path) {
  constexpr int most_links = 40;  // as Linux has it
  std::error_code ignored;
  for (int links = 0; links < most_links && fs::is_symlink(path, ignored); ++links)
    path = path.parent_path() / fs::read_symlink(path, ignored);
  return path;
}

// New files under temporary names until publish(); what was not published is removed, also by a signal that ends the process.
class Staged {
 public:
  Staged() = default;
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    std::error_code ignored;
    for (const auto& [fresh, path] : files_) fs::remove(fresh, ignored);
  }

  // A link stays, and so do the permissions of a file. What is no file (/dev/stdout, a pipe) cannot be replaced: it is written at once.
  void write(const std::string& path, const std::vector<std::byte>& bytes) {
    std::error_code error;
    const fs::file_status found = fs::status(path, error);
    const bool replaces = fs::is_regular_file(found), other = fs::exists(found) && !replaces;
    FOVEAL_CHECK(!replaces || access(path.c_str(), W_OK) == 0, path, ": cannot be written: ", std::strerror(errno));
    const std::string real = followed(path);
    const std::string fresh = other ? path : base::join(real, ".", getpid(), ".unfinished");  // another process may write the same
    if (!other) RemovedOnSignal::name(fresh);
    std::ofstream file(fresh, std::ios::binary);
    FOVEAL_CHECK(file, path, ": cannot be written: ", std::strerror(errno));
    if (!other) files_.emplace_back(fresh, real);
    if (replaces) fs::permissions(fresh, found.permissions(), error);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) base::fail(ErrorCode::device, path, ": cannot be written: ", std::strerror(errno));  // a full disk
  }

  void publish() {
    for (const auto& [fresh, path] : files_) {
      std::error_code error;
      fs::rename(fresh, path, error);
      if (error) base::fail(ErrorCode::device, path, ": cannot be written: ", error.message());
    }
    files_.clear();
  }

 private:
  RemovedOnSignal signals_;
  std::vector<std::pair<std::string, std::string>> files_;
};

}  // namespace

std::vector<Tensor> read_tensors(const std::string& path) {
  const std::vector<std::byte> bytes = read_bytes(path);
  const std::string ending = fs::path(path).extension();
  if (ending == ".npz") return parse_npz(bytes, path);
  if (ending == ".safetensors") return parse_safetensors(bytes, path);
  FOVEAL_CHECK(ending == ".npy", path, ": ending '", ending, "'; expected .npy, .npz or .safetensors");
  Tensor tensor = parse_npy(bytes, path);
  tensor.name = fs::path(path).stem();
  return {std::move(tensor)};
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  FOVEAL_CHECK(!error, "'", path, "': cannot be made a folder: ", error.message());
}

void check_output_path(const std::string& path) {
  FOVEAL_CHECK(!path.empty(), "--output: ''; expected an .npz or .safetensors file, or a folder for .npy files");
  const fs::path ending = fs::path(path).extension();
  FOVEAL_CHECK(ending == ".npz" || ending == ".safetensors" || ending.empty(), path, ": ending '", ending.string(),
               "'; expected .npz, .safetensors, or a folder for .npy files");
  if (!ending.empty()) check_output_file(path);
}

void check_output_file(const std::string& path) {
  std::error_code ignored;
  FOVEAL_CHECK(!fs::is_directory(path, ignored), path, ": a folder; expected a file");
  const fs::path folder = fs::path(path).parent_path();
  FOVEAL_CHECK(folder.empty() || fs::is_directory(folder, ignored), path, ": no folder '", folder.string(), "'");
}

void write_file(const std::vector<std::byte>& bytes, const std::string& path) {
  Staged staged;
  staged.write(path, bytes);
  staged.publish();
}

std::string output_file(const std::string& tensor, const std::string& path) {
  return fs::path(path).extension().empty() ? (fs::path(path) / (tensor + ".npy")).string() : path;
}

void write_tensors(const std::vector<Tensor>& tensors, const std::string& path) {
  check_output_path(path);
  const std::string ending = fs::path(path).extension();
  Staged staged;
  if (ending == ".npz") {
    staged.write(path, format_npz(tensors));
  } else if (ending == ".safetensors") {
    staged.write(path, format_safetensors(tensors));
  } else {
    make_folder(path);
    for (const Tensor& tensor : tensors) staged.write(output_file(tensor.name, path), format_npy(tensor));
  }
  staged.publish();
}

}  // namespace foveal::cli
