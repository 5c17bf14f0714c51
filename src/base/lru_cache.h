#pragma once
// A bounded LRU cache by key, thread-safe.
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace foveal::base {

template <class Value>
class LruCache {
 public:
  explicit LruCache(std::size_t capacity) : capacity_(capacity) {}

  /// Null when there is none.
  std::shared_ptr<const Value> find(std::string_view key) {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->second;
  }

  /// Keeps an existing entry: another thread may have made the same in the meantime.
  void insert(std::string key, std::shared_ptr<const Value> value) {
    std::list<Entry> fresh, evicted;  // allocated before the lock, and destroyed after it
    fresh.emplace_front(std::move(key), std::move(value));
    const std::lock_guard lock(mutex_);
    if (!index_.try_emplace(fresh.front().first, fresh.begin()).second) return;
    entries_.splice(entries_.begin(), fresh);
    if (entries_.size() <= capacity_) return;
    index_.erase(entries_.back().first);
    evicted.splice(evicted.begin(), entries_, std::prev(entries_.end()));
  }

  /// The cached value, or that of make(), which runs outside the lock; nothing is cached if it throws.
  template <class Make>
  std::shared_ptr<const Value> find_or_make(std::string_view key, Make&& make) {
    if (auto found = find(key)) return found;
    auto made = std::make_shared<const Value>(make());
    insert(std::string(key), made);
    return made;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const Value>>;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string_view, typename std::list<Entry>::iterator> index_;
};

}  // namespace foveal::base
