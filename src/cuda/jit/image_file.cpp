#include "cuda/jit/image_file.h"

#include <unistd.h>

#include <sstream>
#include <utility>

#include "base/check.h"
#include "cuda/jit/sha256.h"

namespace foveal::cuda::jit {
namespace {

constexpr const char* magic = "foveal-kernel 2";

}  // namespace

std::string encode(const Image& image) {
  const Facts& f = image.facts;
  const std::string rest =
      base::join(image.key, "\n", image.stem, " ", image.arch, "\n", f.registers, " ", f.spill_bytes, " ", f.stack_bytes, " ",
                 f.shared_bytes, " ", f.serialized ? 1 : 0, "\n", image.bytes.size(), "\n", image.bytes);
  return base::join(magic, "\n", sha256(rest), "\n", rest);
}

std::optional<Image> decode(const std::string& text) {
  const std::size_t first = text.find('\n');
  if (first == std::string::npos || text.compare(0, first, magic) != 0) return std::nullopt;
  const std::size_t second = text.find('\n', first + 1);
  if (second == std::string::npos) return std::nullopt;
  const std::string rest = text.substr(second + 1);
  if (text.substr(first + 1, second - first - 1) != sha256(rest)) return std::nullopt;
  std::istringstream in(rest);
  Image image;
  std::size_t size = 0;
  int serialized = 0;
  Facts& f = image.facts;
  in >> image.key >> image.stem >> image.arch >> f.registers >> f.spill_bytes >> f.stack_bytes >> f.shared_bytes >> serialized >> size;
  f.serialized = serialized != 0;
  if (!in || in.get() != '\n') return std::nullopt;
  const auto at = static_cast<std::size_t>(in.tellg());
  if (rest.size() - at != size) return std::nullopt;
  image.bytes = rest.substr(at);
  return image;
}

File::File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool File::close() { return descriptor_ < 0 || ::close(std::exchange(descriptor_, -1)) == 0; }

std::optional<std::string> read_whole(const File& file, const struct stat& status) {
  constexpr off_t most = off_t{1} << 28;  // kernels have some hundred kilobytes
  if (!S_ISREG(status.st_mode) || status.st_size > most) return std::nullopt;
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = read(*file, text.data() + at, text.size() - at);
    if (count <= 0) return std::nullopt;
    at += static_cast<std::size_t>(count);
  }
  return text;
}

}  // namespace foveal::cuda::jit
