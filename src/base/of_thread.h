#pragma once
// Objects of a thread.
#include <utility>

namespace foveal::base {

/// The calling thread's T. Destructors of static objects run after the thread's objects are gone; for them it is made anew, and stays.
template <class T>
T& of_thread() {
  thread_local T* own = nullptr;
  struct Owner {
    ~Owner() { delete std::exchange(own, nullptr); }
  };
  if (own == nullptr) {
    own = new T();
    thread_local const Owner owner;
    static_cast<void>(owner);
  }
  return *own;
}

}  // namespace foveal::base
