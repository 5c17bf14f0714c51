#pragma once
// Memory for runs, made once: that of every call by itself would cost AddressSanitizer more than the call. What lies beside it is poisoned all the same.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#define FOVEAL_FUZZ_ADDRESSES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FOVEAL_FUZZ_ADDRESSES 1
#endif
#endif
#ifdef FOVEAL_FUZZ_ADDRESSES
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#endif

namespace foveal::fuzz {

class Workspace {
 public:
  Workspace() : memory_(static_cast<std::byte*>(std::aligned_alloc(256, margin + most + margin)), std::free) {
    ASAN_POISON_MEMORY_REGION(memory_.get(), margin);
    ASAN_POISON_MEMORY_REGION(memory_.get() + margin, margin);
  }

  static constexpr std::size_t size() { return most; }

  /// So many bytes, aligned to 256; what was given before ends.
  void* of(std::size_t bytes) {
    std::byte* const first = memory_.get() + margin;
    ASAN_UNPOISON_MEMORY_REGION(first + given_, margin);
    ASAN_POISON_MEMORY_REGION(first + bytes, margin);
    given_ = bytes;
    std::memset(first, 0xbe, bytes < margin ? bytes : margin);  // as AddressSanitizer's own memory begins
    return first;
  }

 private:
  static constexpr std::size_t margin = 4096, most = std::size_t{16} << 20;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  std::size_t given_ = 0;
};

}  // namespace foveal::fuzz
