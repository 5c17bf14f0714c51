#include "cuda/jit/disk_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#include "base/check.h"
#include "cuda/jit/sha256.h"

namespace foveal::cuda::jit {
namespace {

constexpr const char* magic = "foveal-kernel 1";
constexpr const char* extension = ".kernel";

std::mutex folder_mutex;
std::optional<std::string> chosen_folder;

/// The file: `magic \n sha256 of the rest \n key \n stem entry arch \n registers spills stack shared serialized \n bytes \n <bytes>`.
std::string encode(const Image& image) {
  const Facts& f = image.facts;
  const std::string rest =
      base::join(image.key, "\n", image.stem, " ", image.entry, " ", image.arch, "\n", f.registers, " ", f.spill_bytes, " ", f.stack_bytes,
                 " ", f.shared_bytes, " ", f.serialized ? 1 : 0, "\n", image.bytes.size(), "\n", image.bytes);
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
  in >> image.key >> image.stem >> image.entry >> image.arch >> f.registers >> f.spill_bytes >> f.stack_bytes >> f.shared_bytes >>
      serialized >> size;
  f.serialized = serialized != 0;
  if (!in || in.get() != '\n') return std::nullopt;
  const auto at = static_cast<std::size_t>(in.tellg());
  if (rest.size() - at != size) return std::nullopt;
  image.bytes = rest.substr(at);
  return image;
}

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

}  // namespace

std::string cache_folder() {
  std::lock_guard lock(folder_mutex);
  if (!chosen_folder) {
    const char* own = std::getenv("FOVEAL_CACHE_DIR");
    const char* xdg = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (own) {
      chosen_folder = own;
    } else if (xdg && *xdg) {
      chosen_folder = std::string(xdg) + "/foveal";
    } else {
      chosen_folder = home && *home ? std::string(home) + "/.cache/foveal" : "";
    }
  }
  return *chosen_folder;
}

void set_cache_folder(std::string folder) {
  std::lock_guard lock(folder_mutex);
  chosen_folder = std::move(folder);
}

std::optional<Image> cache_read(const std::string& key) {
  const std::string folder = cache_folder();
  if (folder.empty()) return std::nullopt;
  const auto text = read_file(std::filesystem::path(folder) / (key + extension));
  if (!text) return std::nullopt;
  auto image = decode(*text);
  if (!image || image->key != key) return std::nullopt;
  return image;
}

void cache_write(const Image& image) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return;
  static std::atomic<unsigned> counter{0};
  const auto aside = folder / base::join(image.key, ".", getpid(), ".", counter++, ".tmp");
  const int file = open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return;
  const std::string text = encode(image);
  bool written = true;
  for (std::size_t at = 0; at < text.size() && written;) {
    const ssize_t count = write(file, text.data() + at, text.size() - at);
    written = count > 0;
    if (written) at += static_cast<std::size_t>(count);
  }
  written = written && fsync(file) == 0;
  written = close(file) == 0 && written;
  if (written) std::filesystem::rename(aside, folder / (image.key + extension), failed);
  if (!written || failed) std::filesystem::remove(aside, failed);
}

std::vector<CacheEntry> cache_list() {
  std::vector<CacheEntry> entries;
  std::error_code ignored;
  for (const auto& item : std::filesystem::directory_iterator(cache_folder(), ignored)) {
    if (item.path().extension() != extension) continue;
    const auto text = read_file(item.path());
    const auto image = text ? decode(*text) : std::nullopt;
    if (image)
      entries.push_back({item.path().string(), image->key, image->stem, image->entry, image->arch, image->bytes.size(), image->facts});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return std::tie(a.stem, a.key) < std::tie(b.stem, b.key); });
  return entries;
}

int cache_clear() {
  int removed = 0;
  std::error_code ignored;
  std::vector<std::filesystem::path> doomed;
  for (const auto& item : std::filesystem::directory_iterator(cache_folder(), ignored)) {
    const auto kind = item.path().extension();
    if (kind == extension || kind == ".tmp" || kind == ".cu") doomed.push_back(item.path());
  }
  for (const auto& path : doomed) removed += std::filesystem::remove(path, ignored);
  return removed;
}

}  // namespace foveal::cuda::jit
