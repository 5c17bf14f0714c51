#pragma once
// Counts what a test program allocates, and lets an allocation fail. Replaces operator new of the whole program: include it in one of its files only.
#include <atomic>
#include <cstdlib>
#include <new>

inline std::atomic<long> allocations{0};         ///< so far
inline std::atomic<long> living_allocations{0};  ///< that were not freed yet
inline std::atomic<long> failing_allocation{0};  ///< 1: the next one fails, 2: the one after it; 0 or less: none

#define FOVEAL_REPLACED [[gnu::noinline]]  // inlined, a pair of new and delete looks like new and free
FOVEAL_REPLACED void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  ++allocations;
  if (failing_allocation > 0 && --failing_allocation == 0) return nullptr;
  ++living_allocations;
  const auto align = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}
FOVEAL_REPLACED void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  if (failing_allocation > 0 && --failing_allocation == 0) return nullptr;
  ++living_allocations;
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
FOVEAL_REPLACED inline void freed(void* memory) noexcept {
  if (memory != nullptr) --living_allocations;
  std::free(memory);
}
FOVEAL_REPLACED void operator delete(void* memory) noexcept { freed(memory); }
FOVEAL_REPLACED void operator delete(void* memory, std::size_t) noexcept { freed(memory); }
FOVEAL_REPLACED void operator delete(void* memory, std::align_val_t) noexcept { freed(memory); }
FOVEAL_REPLACED void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { freed(memory); }
#undef FOVEAL_REPLACED
