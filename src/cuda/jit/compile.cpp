#include "cuda/jit/compile.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "base/lru_cache.h"
#include "base/parallel.h"
#include "cuda/arch.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/sha256.h"
#include "cuda/jit/shipped.h"

namespace foveal::cuda::jit {
namespace {

/// 117 and 940 make a missing return value an error: in generated code it would be undefined behaviour and only a warning.
std::vector<std::string> options_for(const std::string& arch) {
  return {"--gpu-architecture=" + arch, "--std=c++20",         "-default-device",     "--ptxas-options=-v",
          "--diag-suppress=177",        "--diag-suppress=550", "--diag-error=117,940"};
}

/// "12 bytes spill stores" -> 12; 0 when the words are not there.
int number_before(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return 0;
  std::size_t begin = at;
  while (begin > 0 && (text[begin - 1] == ' ' || (text[begin - 1] >= '0' && text[begin - 1] <= '9'))) --begin;
  return std::atoi(text.c_str() + begin);
}

Facts read_facts(const std::string& log) {
  Facts facts;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    facts.registers = std::max(facts.registers, number_before(line, " registers"));
    facts.spill_bytes += number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    facts.stack_bytes = std::max(facts.stack_bytes, number_before(line, " bytes stack frame"));
    facts.shared_bytes = std::max(facts.shared_bytes, number_before(line, " bytes smem"));
    const bool serialized = line.find("serialized") != std::string::npos;
    facts.serialized = facts.serialized || serialized;
    if (serialized || line.find("(C75") != std::string::npos || line.find("warning") != std::string::npos) facts.notes += line + "\n";
  }
  return facts;
}

Image compile_now(const KernelSource& source, const std::string& text, const std::string& key) {
  const bool ptx = source.arch.rfind("compute_", 0) == 0;
  Compilation compilation = nvrtc_compile(text, source.stem + ".cu", options_for(source.arch), ptx);
  if (!compilation.ok) {
    const std::string kept = cache_keep(base::join(source.stem, ".", key.substr(0, 16)), text);
    base::fail(ErrorCode::compile_failed, "kernel ", source.stem, " for ", source.arch, " does not compile",
               kept.empty() ? "" : "; source kept in ", kept, "\n", compilation.log);
  }
  return {key, source.stem, source.arch, read_facts(compilation.log), std::move(compilation.bytes)};
}

using Future = std::shared_future<std::shared_ptr<const Image>>;
std::mutex images_mutex;
std::map<std::string, Future> underway;  // compilations, by parts_of(source)
Compilations counted;

/// The most recently used images, by parts_of(source).
base::LruCache<Image>& images() {
  static base::LruCache<Image> recent(256);
  return recent;
}

/// Identifies a source without assembling its text, so that a plan for another length finds its kernels quickly.
std::string parts_of(const KernelSource& source) {
  return base::join(source.stem, "\n", source.arch, "\n", source.constants.text(), "\n", source.score);
}

std::string key_for(const KernelSource& source, const std::string& text, const std::string& compiler) {
  std::string identity = base::join("foveal kernel abi 1\n", compiler, "\n", source.stem, "\n");
  for (const auto& option : options_for(source.arch)) identity += option + "\n";
  return sha256(identity + text);
}

void count(int Compilations::*kind) {
  const std::lock_guard lock(images_mutex);
  ++(counted.*kind);
}

std::shared_ptr<const Image> find_or_compile(const KernelSource& source) {
  const std::string text = assemble(source);
  if (const ShippedKernels& shipped = shipped_kernels(); shipped.usable()) {
    if (auto image = shipped_read(key_for(source, text, shipped.compiler))) {
      count(&Compilations::shipped);
      return std::make_shared<Image>(std::move(*image));
    }
  }
  if (!nvrtc_unavailable().empty()) base::fail(ErrorCode::device, nvrtc_unavailable());
  const std::string key = key_for(source, text, nvrtc_identity());
  auto cached = cache_read(key);
  std::optional<CompileTurn> turn;
  if (!cached) {
    turn.emplace(key);
    cached = cache_read(key);  // by another process, meanwhile
  }
  count(cached ? &Compilations::read : &Compilations::compiled);
  if (cached) return std::make_shared<Image>(std::move(*cached));
  auto image = std::make_shared<Image>(compile_now(source, text, key));
  cache_write(*image);
  return image;
}

}  // namespace

std::string key_of(const KernelSource& source, const std::string& compiler) { return key_for(source, assemble(source), compiler); }

bool is_shipped(const KernelSource& source) {
  const ShippedKernels& shipped = shipped_kernels();
  return shipped.usable() && shipped_read(key_of(source, shipped.compiler));
}

Compilations compilations() {
  std::lock_guard lock(images_mutex);
  return counted;
}

std::shared_ptr<const Image> compile(const KernelSource& source) {
  const std::string parts = parts_of(source);
  if (auto image = images().find(parts)) return image;
  std::promise<std::shared_ptr<const Image>> promise;
  {
    std::unique_lock lock(images_mutex);
    const auto [place, is_new] = underway.try_emplace(parts);
    if (!is_new) {
      const Future future = place->second;
      lock.unlock();
      return future.get();
    }
    place->second = promise.get_future().share();
  }
  const auto ended = [&] {
    const std::lock_guard lock(images_mutex);
    underway.erase(parts);
  };
  try {
    auto image = images().find(parts);  // another thread may just have finished it
    if (!image) image = find_or_compile(source);
    images().insert(parts, image);
    promise.set_value(image);
    ended();
    return image;
  } catch (...) {
    promise.set_exception(std::current_exception());
    ended();
    throw;
  }
}

std::vector<std::shared_ptr<const Image>> compile(const std::vector<KernelSource>& sources) {
  std::vector<std::shared_ptr<const Image>> results(sources.size());
  std::vector<std::size_t> missing;          // only these take threads,
  std::map<std::string, std::size_t> first;  // one of equal sources
  std::vector<std::pair<std::size_t, std::size_t>> equal;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::string parts = parts_of(sources[i]);
    results[i] = images().find(parts);
    if (results[i]) continue;
    const auto [known, is_new] = first.emplace(std::move(parts), i);
    if (is_new) {
      missing.push_back(i);
    } else {
      equal.emplace_back(i, known->second);
    }
  }
  if (const auto count = static_cast<std::int64_t>(missing.size()); count > 0) {
    const int threads = static_cast<int>(std::min<std::int64_t>(base::available_threads(), count));
    // Ranks of one host want the same kernels: each begins at another one.
    std::rotate(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(getpid() % count), missing.end());
    base::parallel_for(base::default_executor(threads), count, [&](std::int64_t i, int) {
      const std::size_t at = missing[static_cast<std::size_t>(i)];
      results[at] = compile(sources[at]);
    });
  }
  for (const auto& [at, like] : equal) results[at] = results[like];
  return results;
}

std::string arch_of(int major, int minor) {
  const int capability = major * 10 + minor;
  const auto& known = nvrtc_archs();
  if (known.empty() || std::find(known.begin(), known.end(), capability) != known.end()) return arch_of_device(capability);
  int newest = 80;
  for (const int arch : known)
    if (arch <= capability) newest = std::max(newest, arch);
  return base::join("compute_", newest);
}

}  // namespace foveal::cuda::jit
