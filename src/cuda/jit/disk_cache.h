#pragma once
// Compiled kernels on disk, one file per key. Files are published by renaming and verified by a checksum when they are read.
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cuda/jit/compile.h"
#include "cuda/jit/image_file.h"

namespace foveal::cuda::jit {

/// Where entries live: set_cache_folder(), else $FOVEAL_CACHE_DIR, else $XDG_CACHE_HOME/foveal, else $HOME/.cache/foveal; the latter two
/// count only if they are absolute paths. "" means no disk cache.
std::string cache_folder();
void set_cache_folder(std::string folder);

/// Why the folder is not used: it is not a directory that belongs to the user and that nobody else may write into. "" if it can be used.
std::string cache_unusable();

std::optional<Image> cache_read(const std::string& key);
/// Publishes the entry; beyond 1 GiB the least recently used entries are removed. A failure (read-only or full disk) is no
/// error: the kernel is compiled again next time.
void cache_write(const Image& image);

/// While it lives, this process is the one that compiles a kernel: others that want it wait for the entry instead of compiling it, too.
/// Nobody waits for a process that has died, or for any longer than `longest`; where the folder is not used, nobody waits at all.
class CompileTurn {
 public:
  explicit CompileTurn(const std::string& key, std::chrono::milliseconds longest = std::chrono::minutes(1));
  ~CompileTurn();
  CompileTurn(const CompileTurn&) = delete;
  CompileTurn& operator=(const CompileTurn&) = delete;

 private:
  std::string name_;
  File folder_, lock_;
};

constexpr const char* kept_extension = ".failed.cu";
/// Keeps a text that did not compile beside the entries; its path, "" when it could not be written.
std::string cache_keep(const std::string& stem, const std::string& text);

struct CacheEntry {
  std::string path, key, stem, arch;
  std::size_t bytes = 0;
  Facts facts;
};
std::vector<CacheEntry> cache_list();  ///< valid entries, by stem and key
int cache_clear();                     ///< removes every entry and kept source, valid or not; returns how many files

}  // namespace foveal::cuda::jit
