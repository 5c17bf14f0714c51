#include "cuda/jit/shipped.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/check.h"
#include "cuda/jit/driver.h"
#include "cuda/jit/image_file.h"

namespace foveal::cuda::jit {
namespace {

/// Whose code we run: root's, the user's, and, for files that came with the library, its owner's.
struct Trust {
  std::optional<struct stat> library;

  std::string refuses(const struct stat& status) const {
    if (status.st_uid != 0 && status.st_uid != geteuid() && !(library && status.st_uid == library->st_uid))
      return base::join("it belongs to user ", status.st_uid);
    const mode_t also = !library ? 0 : library->st_mode & (status.st_gid == library->st_gid ? 022 : 002);  // who may write the library
    return (status.st_mode & 022 & ~also) != 0 ? "others may write into it" : "";
  }
};

struct Shipped {
  ShippedKernels kernels;
  Trust trust;
  File folder{-1};
};

/// The file that holds this code: the library, an extension of Python, or a program, which the
/// loader calls by the name that it was called by.
std::filesystem::path library_path() {
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<const void*>(&library_path), &info) != 0 && info.dli_fname;
  const std::filesystem::path path = known ? info.dli_fname : "";
  std::error_code ignored;
  return path.is_absolute() ? path : std::filesystem::read_symlink("/proc/self/exe", ignored);
}

std::optional<std::string> read_trusted(const Shipped& shipped, const std::string& name) {
  const File file(openat(*shipped.folder, name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(*file, &status) != 0 || !shipped.trust.refuses(status).empty()) return std::nullopt;
  return read_whole(file, status);
}

/// Machine code runs with drivers of its compiler's major version and later ones. Without a driver nothing runs, but kernels are emitted.
std::string too_old_a_driver(const std::string& compiler) {
  if (!driver::unavailable().empty()) return "";
  int version = 0;
  driver::call.driver_version(&version);
  if (version / 1000 >= std::atoi(compiler.c_str())) return "";
  return base::join("compiled by CUDA ", compiler.substr(0, compiler.find(' ')), ", the driver knows CUDA ", version / 1000, ".",
                    version % 1000 / 10);
}

std::string open_shipped(Shipped& shipped) {
  const std::string& path = shipped.kernels.folder;
  if (path.empty()) return "FOVEAL_KERNELS_DIR is empty";
  shipped.folder = File(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!shipped.folder) return std::strerror(errno);
  struct stat status {};
  if (fstat(*shipped.folder, &status) != 0) return std::strerror(errno);
  if (auto why = shipped.trust.refuses(status); !why.empty()) return why;
  const auto compiler = read_trusted(shipped, shipped_compiler_name);
  if (!compiler) return base::join("no file in it names the compiler");
  shipped.kernels.compiler = compiler->substr(0, compiler->find('\n'));
  std::error_code failed;
  for (std::filesystem::directory_iterator item(path, failed), end; !failed && item != end; item.increment(failed))
    shipped.kernels.count += item->path().extension() == image_extension;
  return too_old_a_driver(shipped.kernels.compiler);
}

std::shared_ptr<const Shipped> shipped_in(const std::string& folder, const std::string& library) {
  auto shipped = std::make_shared<Shipped>();
  shipped->kernels.folder = folder;
  struct stat status {};
  if (!library.empty() && stat(library.c_str(), &status) == 0) shipped->trust.library = status;
  shipped->kernels.unusable = open_shipped(*shipped);
  std::error_code ignored;
  if (!library.empty() && std::filesystem::status(folder, ignored).type() == std::filesystem::file_type::not_found)
    shipped->kernels.folder = "", shipped->kernels.unusable = "none came with this build";
  return shipped;
}

std::shared_ptr<const Shipped> find_shipped() {
  if (const char* named = std::getenv("FOVEAL_KERNELS_DIR")) return shipped_in(named, "");
  const std::filesystem::path library = library_path();
  return shipped_in((library.parent_path() / shipped_folder_name).string(), library.string());
}

std::shared_ptr<const Shipped>& current() {
  static auto& shipped = *new std::shared_ptr<const Shipped>(find_shipped());  // never destroyed: threads may compile while a process ends
  return shipped;
}

}  // namespace

const ShippedKernels& shipped_kernels() { return current()->kernels; }
void set_shipped_folder(const std::string& folder, const std::string& library) { current() = shipped_in(folder, library); }

std::optional<Image> shipped_read(const std::string& key) {
  const Shipped& shipped = *current();
  if (!shipped.kernels.usable()) return std::nullopt;
  const auto text = read_trusted(shipped, key + image_extension);
  auto image = text ? decode(*text) : std::nullopt;
  if (!image || image->key != key) return std::nullopt;
  return image;
}

}  // namespace foveal::cuda::jit
