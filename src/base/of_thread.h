#pragma once
// Thread-local objects that survive static destruction.
#include <cstddef>
#include <new>

namespace foveal::base {

/// The calling thread's T. Destructors of static objects run after the thread's objects are gone; for them it is made anew, and stays.
template <class T>
T& of_thread() {
  alignas(T) thread_local std::byte place[sizeof(T)];
  thread_local T* own = nullptr;
  struct Owner {
    ~Owner() {
      own->~T();
      own = nullptr;
    }
  };
  T* object = own;
  if (object == nullptr) {
    object = own = new (place) T();
    thread_local const Owner owner;
    static_cast<void>(owner);
  }
  return *object;
}

}  // namespace foveal::base
