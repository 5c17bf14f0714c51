#pragma once
// Counts what a test program allocates. Replaces operator new of the whole program: include it in one of its files only.
#include <atomic>
#include <cstdlib>
#include <new>

inline std::atomic<long> allocations{0};

#define FOVEAL_REPLACED [[gnu::noinline]]  // inlined, a pair of new and delete looks like new and free
FOVEAL_REPLACED void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  ++allocations;
  const auto align = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}
FOVEAL_REPLACED void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
FOVEAL_REPLACED void* operator new(std::size_t bytes, std::align_val_t alignment) {
  if (void* memory = operator new(bytes, alignment, std::nothrow)) return memory;
  throw std::bad_alloc();
}
FOVEAL_REPLACED void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
FOVEAL_REPLACED void operator delete(void* memory) noexcept { std::free(memory); }
FOVEAL_REPLACED void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
FOVEAL_REPLACED void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
FOVEAL_REPLACED void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#undef FOVEAL_REPLACED
