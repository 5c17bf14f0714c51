// Ranks that are threads of one process: messages are copied through boxes, one for each pair of ranks.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/random.h"
#include "dist/failure_text.h"
#include "dist/plan.h"
#include "dist/time_limit.h"
#include "foveal/dist.h"

namespace foveal::dist {
namespace {

struct Hub {
  explicit Hub(int size_, ThreadOptions options_) : size(size_), options(options_), random(options_.delay_seed) {}

  std::deque<std::vector<std::byte>>& box(int from, int to) { return boxes[{from, to}]; }

  const int size;
  const ThreadOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> boxes;  ///< of the pairs that exchange anything
  FailureText failure;                                                      ///< of some rank: all others fail with it
  base::Random random;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadTransport() override {
    const std::lock_guard lock(hub_->mutex);
    if (waiting_.empty()) return;
    hub_->failure.set("rank %d left with messages under way", rank_);
    hub_->changed.notify_all();
  }

  int rank() const override { return rank_; }
  std::string name() const override { return "threads"; }
  int size() const override { return hub_->size; }

  std::uint64_t start(const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    delay();
    const std::lock_guard lock(hub_->mutex);
    for (const Message& m : sends) {
      const auto* bytes = static_cast<const std::byte*>(m.data);
      hub_->box(rank_, m.peer).emplace_back(bytes, bytes + m.bytes);
    }
    hub_->changed.notify_all();
    waiting_[++last_] = receives;
    return last_;
  }

  void wait(std::uint64_t ticket) override {
    delay();
    // Messages of earlier tickets come first.
    while (!waiting_.empty() && waiting_.begin()->first <= ticket) {
      for (const Message& m : waiting_.begin()->second) receive(m);
      waiting_.erase(waiting_.begin());
    }
  }

  void all_gather(const void* mine, std::size_t bytes, void* all) override { all_gather_by_messages(*this, mine, bytes, all); }
  void fail(const std::string& why) noexcept override {
    const std::lock_guard lock(hub_->mutex);
    hub_->failure.set("rank %d failed: %s", rank_, why.c_str());
    hub_->changed.notify_all();
  }

 private:
  void delay() {
    if (hub_->options.delay_seed == 0) return;
    std::int64_t microseconds = 0;
    {
      const std::lock_guard lock(hub_->mutex);
      microseconds = hub_->random.integer(0, 300);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }

  void receive(const Message& m) {
    std::unique_lock lock(hub_->mutex);
    auto& box = hub_->box(m.peer, rank_);
    const bool came = hub_->changed.wait_for(lock, std::chrono::duration<double>(hub_->options.time_limit),
                                             [&] { return !box.empty() || !hub_->failure.empty(); });
    if (box.empty()) {
      if (!came) hub_->failure.set("rank %d waited %g s for rank %d", rank_, hub_->options.time_limit, m.peer);
      hub_->changed.notify_all();
      base::fail(ErrorCode::communication, "context parallelism: ", hub_->failure.data());
    }
    if (box.front().size() != m.bytes)
      base::fail(ErrorCode::communication, "context parallelism: rank ", m.peer, " sent ", box.front().size(), " bytes; rank ", rank_,
                 " expects ", m.bytes);
    if (m.bytes > 0) std::memcpy(m.data, box.front().data(), m.bytes);
    box.pop_front();
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::vector<Message>> waiting_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> thread_ranks(int ranks, const ThreadOptions& options) {
  FOVEAL_CHECK(ranks >= 1 && ranks <= most_ranks, "thread_ranks: ", ranks, " ranks; expected 1 to ", most_ranks);
  check_time_limit("thread_ranks", options.time_limit);
  const auto hub = std::make_shared<Hub>(ranks, options);
  std::vector<std::shared_ptr<Transport>> all;
  all.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) all.push_back(std::make_shared<ThreadTransport>(hub, rank));
  return all;
}

}  // namespace foveal::dist
