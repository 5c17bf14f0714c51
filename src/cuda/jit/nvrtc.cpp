#include "cuda/jit/nvrtc.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace foveal::cuda::jit {
namespace {

using Program = struct ProgramTag*;

// X(name, symbol, parameters)
#define FOVEAL_NVRTC_FUNCTIONS(X)                                                                                       \
  X(error_string, nvrtcGetErrorString, const char*, (int))                                                              \
  X(version, nvrtcVersion, int, (int*, int*))                                                                           \
  X(arch_count, nvrtcGetNumSupportedArchs, int, (int*))                                                                 \
  X(archs, nvrtcGetSupportedArchs, int, (int*))                                                                         \
  X(create, nvrtcCreateProgram, int, (Program*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(destroy, nvrtcDestroyProgram, int, (Program*))                                                                      \
  X(compile, nvrtcCompileProgram, int, (Program, int, const char* const*))                                              \
  X(log_size, nvrtcGetProgramLogSize, int, (Program, std::size_t*))                                                     \
  X(log, nvrtcGetProgramLog, int, (Program, char*))                                                                     \
  X(cubin_size, nvrtcGetCUBINSize, int, (Program, std::size_t*))                                                        \
  X(cubin, nvrtcGetCUBIN, int, (Program, char*))                                                                        \
  X(ptx_size, nvrtcGetPTXSize, int, (Program, std::size_t*))                                                            \
  X(ptx, nvrtcGetPTX, int, (Program, char*))

struct Nvrtc {
#define FOVEAL_X(name, symbol, result, parameters) result(*name) parameters = nullptr;  // NOLINT(bugprone-macro-parentheses): types
  FOVEAL_NVRTC_FUNCTIONS(FOVEAL_X)
#undef FOVEAL_X
  std::string unavailable, identity;
  std::vector<int> supported;
};

std::string explicit_path;  // set before the first use

/// The GNU build id of the loaded library that holds `address`, in hexadecimal, or its file size when it has none.
std::string build_id(const void* address, const std::string& path) {
  struct Search {
    std::uintptr_t address;
    std::string found;
  } search{reinterpret_cast<std::uintptr_t>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* opaque) {
        auto& search = *static_cast<Search*>(opaque);
        bool inside = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
          inside |= header.p_type == PT_LOAD && search.address >= begin && search.address < begin + header.p_memsz;
        }
        if (!inside) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE) continue;
          const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
          const char* end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof note);
            const char* name = at + sizeof note;
            const char* value = name + ((note.n_namesz + 3) & ~3u);
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
              constexpr char digits[] = "0123456789abcdef";
              for (unsigned b = 0; b < note.n_descsz; ++b) {
                search.found.push_back(digits[static_cast<unsigned char>(value[b]) >> 4]);
                search.found.push_back(digits[value[b] & 15]);
              }
              return 1;
            }
            at = value + ((note.n_descsz + 3) & ~3u);
          }
        }
        return 1;
      },
      &search);
  if (!search.found.empty()) return search.found;
  struct stat status {};
  stat(path.c_str(), &status);
  return base::join("size-", status.st_size);
}

void append_libraries_in(const std::filesystem::path& folder, std::vector<std::string>& candidates) {
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / name, ignored)) candidates.push_back((folder / name).string());
  }
}

void append_wheels_in(const std::filesystem::path& environment, std::vector<std::string>& candidates) {
  std::error_code ignored;
  for (const auto& python : std::filesystem::directory_iterator(environment / "lib", ignored)) {
    for (const char* folder : {"cu13", "cuda_nvrtc"})
      append_libraries_in(python.path() / "site-packages" / "nvidia" / folder / "lib", candidates);
  }
}

/// What FOVEAL_NVRTC_PATH names, nullptr when it is not set: then no other compiler is used in its place.
const char* chosen_path() {
  const char* variable = std::getenv("FOVEAL_NVRTC_PATH");
  return variable && *variable ? variable : nullptr;
}

std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  const auto append = [&paths](const std::string& given) {
    std::error_code ignored;  // such as a name that is too long
    if (std::filesystem::is_directory(given, ignored)) {
      append_libraries_in(given, paths);
      append_wheels_in(given, paths);
    } else if (!given.empty()) {
      paths.push_back(given);
    }
  };
  if (const char* chosen = chosen_path()) {
    append(chosen);
    return paths;
  }
  append(explicit_path);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) paths.emplace_back(name);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(name)) append_libraries_in(std::filesystem::path(home) / "lib64", paths);
  }
  append_libraries_in("/usr/local/cuda/lib64", paths);
  if (const char* environment = std::getenv("VIRTUAL_ENV")) append_wheels_in(environment, paths);
  return paths;
}

/// NVRTC opens its builtins by name; outside the loader's path that succeeds only when they are loaded already.
void load_builtins_beside(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (folder.empty()) return;
  for (const auto& item : std::filesystem::directory_iterator(folder, ignored)) {
    if (item.path().filename().string().rfind("libnvrtc-builtins.so", 0) == 0) dlopen(item.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

Nvrtc load() {
  Nvrtc nvrtc;
  std::string tried;
  for (const std::string& path : candidates()) {
    load_builtins_beside(path);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      tried += (tried.empty() ? "" : ", ") + path;
      continue;
    }
    bool complete = true;
// NOLINTBEGIN(bugprone-macro-parentheses): types
#define FOVEAL_X(name, symbol, result, parameters)                              \
  nvrtc.name = reinterpret_cast<result(*) parameters>(dlsym(library, #symbol)); \
  complete = complete && nvrtc.name;
    // NOLINTEND(bugprone-macro-parentheses)
    FOVEAL_NVRTC_FUNCTIONS(FOVEAL_X)
#undef FOVEAL_X
    int major = 0, minor = 0;
    if (complete && nvrtc.version(&major, &minor) != 0) {
      tried += base::join(tried.empty() ? "" : ", ", path, " (nvrtcVersion failed)");
      continue;
    }
    if (!complete || major < 12) {
      tried += base::join(tried.empty() ? "" : ", ", path, " (version ", major, ".", minor, ", too old)");
      continue;
    }
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(nvrtc.version), &info);
    const std::string loaded = info.dli_fname ? info.dli_fname : path;
    nvrtc.identity = base::join(major, ".", minor, " ", build_id(reinterpret_cast<void*>(nvrtc.version), loaded));
    int count = 0;
    if (nvrtc.arch_count(&count) == 0) nvrtc.supported.resize(static_cast<std::size_t>(std::max(count, 0)));
    if (nvrtc.supported.empty() || nvrtc.archs(nvrtc.supported.data()) != 0) {
      nvrtc.supported.clear();
      tried += base::join(tried.empty() ? "" : ", ", path, " (nvrtcGetNumSupportedArchs or nvrtcGetSupportedArchs failed)");
      continue;
    }
    std::sort(nvrtc.supported.begin(), nvrtc.supported.end());
    return nvrtc;
  }
  if (const char* chosen = chosen_path()) {
    nvrtc.unavailable = base::join("FOVEAL_NVRTC_PATH names ", chosen, ", where no NVRTC 12 or 13 is (tried ",
                                   tried.empty() ? "nothing" : tried, "); set it to a library or its folder, or unset it");
  } else {
    nvrtc.unavailable =
        base::join("no NVRTC 12 or 13 found (tried ", tried,
                   "); install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, or set FOVEAL_NVRTC_PATH to its folder");
  }
  return nvrtc;
}

const Nvrtc& nvrtc() {
  static const Nvrtc value = load();
  return value;
}

}  // namespace

void set_nvrtc_path(std::string path) { explicit_path = std::move(path); }
const std::string& nvrtc_unavailable() { return nvrtc().unavailable; }
const std::string& nvrtc_identity() { return nvrtc().identity; }
const std::vector<int>& nvrtc_archs() { return nvrtc().supported; }

Compilation nvrtc_compile(const std::string& source, const std::string& name, const std::vector<std::string>& options, bool ptx) {
  const Nvrtc& lib = nvrtc();
  if (!lib.unavailable.empty()) base::fail(ErrorCode::device, lib.unavailable);
  const auto check = [&lib, &name](int result, const char* call) {
    if (result != 0) base::fail(ErrorCode::compile_failed, call, " for ", name, ": ", lib.error_string(result), " (", result, ")");
  };
  struct Owner {
    const Nvrtc& lib;
    Program program = nullptr;
    ~Owner() {
      if (program) lib.destroy(&program);
    }
  } owner{lib};
  check(lib.create(&owner.program, source.c_str(), name.c_str(), 0, nullptr, nullptr), "nvrtcCreateProgram");
  auto* const program = owner.program;
  std::vector<const char*> flags;
  flags.reserve(options.size());
  for (const auto& option : options) flags.push_back(option.c_str());
  const int result = lib.compile(program, static_cast<int>(flags.size()), flags.data());
  Compilation compilation;
  compilation.ok = result == 0;
  std::size_t size = 0;
  check(lib.log_size(program, &size), "nvrtcGetProgramLogSize");
  if (size > 1) {
    compilation.log.resize(size);
    check(lib.log(program, compilation.log.data()), "nvrtcGetProgramLog");
    compilation.log.resize(std::strlen(compilation.log.c_str()));
  }
  if (!compilation.ok) {
    compilation.log = base::join("nvrtcCompileProgram: ", lib.error_string(result), "\n", compilation.log);
    return compilation;
  }
  check((ptx ? lib.ptx_size : lib.cubin_size)(program, &size), ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize");
  compilation.bytes.resize(size);
  check((ptx ? lib.ptx : lib.cubin)(program, compilation.bytes.data()), ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN");
  return compilation;
}

}  // namespace foveal::cuda::jit
