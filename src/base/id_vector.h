#pragma once
// A vector indexed by the signed ids of program values (ValueId, NodeId), -1 being no id, without casts at call sites.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace foveal::base {

template <class T>
class IdVector {
 public:
  IdVector() = default;
  explicit IdVector(std::int32_t count, const T& value = T()) : items_(static_cast<std::size_t>(count), value) {}

  T& operator[](std::int32_t id) { return items_[static_cast<std::size_t>(id)]; }
  const T& operator[](std::int32_t id) const { return items_[static_cast<std::size_t>(id)]; }
  std::int32_t size() const { return static_cast<std::int32_t>(items_.size()); }

  /// The new element's id.
  std::int32_t add(T value) {
    items_.push_back(std::move(value));
    return size() - 1;
  }
  void pop_back() { items_.pop_back(); }
  const T& back() const { return items_.back(); }
  void assign(std::int32_t count, const T& value) { items_.assign(static_cast<std::size_t>(count), value); }

  std::span<T> span() { return items_; }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<T> items_;
};

}  // namespace foveal::base
