#pragma once
// Plans that were made before, by problem and options: bounded, the least recently used goes first, safe from any thread.
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "plan/choose.h"

namespace foveal::planning {

class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}

  /// Null when there is none.
  std::shared_ptr<const PlanState> find(const std::string& key);
  void insert(const std::string& key, std::shared_ptr<const PlanState> state);
  std::size_t size() const;

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const PlanState>>;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;
};

}  // namespace foveal::planning
