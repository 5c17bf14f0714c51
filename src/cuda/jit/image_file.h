#pragma once
// A compiled kernel as a file: what the disk cache keeps, and what is shipped beside the library.
#include <sys/stat.h>

#include <optional>
#include <string>

#include "cuda/jit/compile.h"

namespace foveal::cuda::jit {

constexpr const char* image_extension = ".kernel";

/// The file: `magic \n sha256 of the rest \n key \n stem arch \n registers spills stack shared serialized \n bytes \n <bytes>`.
std::string encode(const Image& image);
/// None if any bit of it has changed.
std::optional<Image> decode(const std::string& text);

/// An open file or folder.
class File {
 public:
  explicit File(int descriptor = -1) : descriptor_(descriptor) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File() { close(); }
  explicit operator bool() const { return descriptor_ >= 0; }
  int operator*() const { return descriptor_; }
  bool close();

 private:
  int descriptor_;
};

/// The whole text of an open file, none if it is not a regular file.
std::optional<std::string> read_whole(const File& file, const struct stat& status);

}  // namespace foveal::cuda::jit
