#include "plan/cache.h"

namespace foveal::planning {

std::shared_ptr<const PlanState> PlanCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

void PlanCache::insert(const std::string& key, std::shared_ptr<const PlanState> state) {
  const std::lock_guard lock(mutex_);
  if (index_.contains(key)) return;  // another thread made the same plan meanwhile
  entries_.emplace_front(key, std::move(state));
  index_.emplace(entries_.front().first, entries_.begin());
  if (entries_.size() > capacity_) {
    index_.erase(entries_.back().first);
    entries_.pop_back();
  }
}

std::size_t PlanCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace foveal::planning
