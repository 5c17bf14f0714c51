#include "cuda/jit/disk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <thread>
#include <tuple>

#include "base/check.h"
#include "base/size_signal.h"

namespace foveal::cuda::jit {
namespace {

constexpr std::int64_t cache_limit = std::int64_t{1} << 30;  ///< bytes

std::mutex folder_mutex;
std::optional<std::string> chosen_folder;

/// The folder, when nobody else can have written into it: a directory and no link, the user's own, whose mode lets nobody else write.
/// Kernels of it run with the user's rights. It may be any folder of the user's, and stays as it is. `why`: what is wrong with it.
File open_folder(bool make, std::string* why = nullptr) {
  const auto refuse = [why](const std::string& reason) {
    if (why) *why = reason;
    return File(-1);
  };
  const std::string path = cache_folder();
  if (path.empty()) return refuse("there is none");
  if (make) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    mkdir(path.c_str(), 0700);
  }
  File folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder)
    return refuse(errno == ELOOP || errno == ENOTDIR ? "it is a link or no directory; expected a directory" : std::strerror(errno));
  struct stat status {};
  if (fstat(*folder, &status) != 0) return refuse(std::strerror(errno));
  if (status.st_uid != geteuid()) return refuse(base::join("it belongs to user ", status.st_uid, "; expected your own directory"));
  if ((status.st_mode & 022) != 0) return refuse("others may write into it; expected a mode such as 0700");
  return folder;
}

/// The contents of the user's own file of this name.
std::optional<std::string> read_file(const File& folder, const std::string& name) {
  const File file(openat(*folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(*file, &status) != 0 || status.st_uid != geteuid()) return std::nullopt;
  auto text = read_whole(file, status);
  if (text) futimens(*file, nullptr);  // used now: the oldest go first
  return text;
}

/// Written beside its place, then renamed: there whole, or not at all.
bool write_file(const File& folder, const std::string& name, const std::string& text) {
  static std::atomic<unsigned> counter{0};
  const std::string aside = base::join(name, ".", getpid(), ".", counter++, ".tmp");
  File file(openat(*folder, aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return false;
  const base::NoSizeSignal no_signal;
  bool written = true;
  for (std::size_t at = 0; at < text.size() && written;) {
    const ssize_t count = write(*file, text.data() + at, text.size() - at);
    written = count > 0;
    if (written) at += static_cast<std::size_t>(count);
  }
  written = written && fsync(*file) == 0;
  written = file.close() && written;
  written = written && renameat(*folder, aside.c_str(), *folder, name.c_str()) == 0;
  if (!written) unlinkat(*folder, aside.c_str(), 0);
  return written;
}

const std::string lock_extension = std::string(image_extension) + ".lock";

/// Files of these names are removed, so they are ones that nothing else would take.
bool is_of_the_cache(const std::string& name, bool only_entries) {
  if (name.ends_with(image_extension)) return true;
  if (only_entries) return false;
  const bool aside = name.ends_with(".tmp") && (name.find(image_extension + std::string(".")) != name.npos ||
                                                name.find(kept_extension + std::string(".")) != name.npos);
  return aside || name.ends_with(lock_extension) || name.ends_with(kept_extension);
}

/// Names in the folder that are of the cache.
std::vector<std::string> names_in(const std::string& path, bool only_entries) {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator item(path, failed), end; !failed && item != end; item.increment(failed))
    if (std::string name = item->path().filename().string(); is_of_the_cache(name, only_entries)) names.push_back(std::move(name));
  return names;
}

/// The least recently used go until the rest is within the limit; files that writers left behind when they were killed, after a day.
void keep_within_limit(const File& folder) {
  struct Entry {
    std::string name;
    std::int64_t used, bytes;
  };
  std::vector<Entry> entries;
  std::int64_t bytes = 0;
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  for (const std::string& name : names_in(cache_folder(), false)) {
    struct stat status {};
    if (fstatat(*folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const auto used = static_cast<std::int64_t>(status.st_mtime);
    if (!name.ends_with(image_extension) && now - used > 24 * 3600) {
      unlinkat(*folder, name.c_str(), 0);
      continue;
    }
    entries.push_back({name, used, status.st_size});
    bytes += status.st_size;
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (bytes <= cache_limit) return;
    if (unlinkat(*folder, entry.name.c_str(), 0) == 0) bytes -= entry.bytes;
  }
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
    } else if (xdg && *xdg == '/') {  // its specification: relative paths are to be ignored
      chosen_folder = std::string(xdg) + "/foveal";
    } else {
      chosen_folder = home && *home == '/' ? std::string(home) + "/.cache/foveal" : "";
    }
  }
  return *chosen_folder;
}

void set_cache_folder(std::string folder) {
  std::lock_guard lock(folder_mutex);
  chosen_folder = std::move(folder);
}

std::string cache_unusable() {
  std::string why;
  open_folder(true, &why);
  return why;
}

std::optional<Image> cache_read(const std::string& key) {
  const File folder = open_folder(false);
  if (!folder) return std::nullopt;
  const auto text = read_file(folder, key + image_extension);
  if (!text) return std::nullopt;
  auto image = decode(*text);
  if (!image || image->key != key) return std::nullopt;
  return image;
}

void cache_write(const Image& image) {
  const File folder = open_folder(true);
  if (!folder || !write_file(folder, image.key + image_extension, encode(image))) return;
  constexpr unsigned often = 64;
  static std::atomic<unsigned> writes{0};
  if (writes++ % often == 0) keep_within_limit(folder);
}

/// The system releases the lock of a process that dies; its file stays, which means nothing. Who ends its turn removes the file: another
/// process that waited for this one then holds a lock of no file, and asks again.
CompileTurn::CompileTurn(const std::string& key, std::chrono::milliseconds longest)
    : name_(key + lock_extension), folder_(open_folder(true)) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (folder_ && !lock_) {
    File file(openat(*folder_, name_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!file) return;
    while (flock(*file, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= end) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    struct stat status {};
    if (fstat(*file, &status) == 0 && status.st_nlink > 0) lock_ = std::move(file);
    if (!lock_ && std::chrono::steady_clock::now() >= end) return;
  }
}

CompileTurn::~CompileTurn() {
  if (!lock_) return;
  unlinkat(*folder_, name_.c_str(), 0);
  flock(*lock_, LOCK_UN);  // a child process that was forked meanwhile has the file open, too
}

std::string cache_keep(const std::string& stem, const std::string& text) {
  const File folder = open_folder(true);
  const std::string name = stem + kept_extension;
  return folder && write_file(folder, name, text) ? cache_folder() + "/" + name : "";
}

std::vector<CacheEntry> cache_list() {
  std::vector<CacheEntry> entries;
  const File folder = open_folder(false);
  if (!folder) return entries;
  for (const std::string& name : names_in(cache_folder(), true)) {
    const auto text = read_file(folder, name);
    const auto image = text ? decode(*text) : std::nullopt;
    if (image) entries.push_back({cache_folder() + "/" + name, image->key, image->stem, image->arch, image->bytes.size(), image->facts});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return std::tie(a.stem, a.key) < std::tie(b.stem, b.key); });
  return entries;
}

int cache_clear() {
  int removed = 0;
  const File folder = open_folder(false);
  if (!folder) return removed;
  for (const std::string& name : names_in(cache_folder(), false)) removed += unlinkat(*folder, name.c_str(), 0) == 0;
  return removed;
}

}  // namespace foveal::cuda::jit
