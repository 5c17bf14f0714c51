#pragma once
// What all passes on the CPU have in common: the plan of the work, the workspace, threads, and the way of a call through them. A strategy
// says what a call, a thread and a tile hold, which lists of tasks there are, and what is done with them.
//
//   workspace = Call::Memory, then for each thread a Slot and its Tiles, each followed by the arrays that it points to
#include <algorithm>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>

#include "cpu/describe.h"
#include "cpu/setup.h"
#include "cpu/workspace.h"

namespace foveal::cpu {

/// The arrays of every call; a strategy adds its own.
struct CallMemory {
  void* params = nullptr;  ///< values that the tape reads
  void* lists = nullptr;   ///< for work that depends on the data
};

/// One run.
template <class M>
struct CallOf : M {
  using Memory = M;
  explicit CallOf(const problem::Buffers& b) : buffers(b) {}
  const problem::Buffers& buffers;
  const Work* work = nullptr;
  TapeData data;
};

/// A tile of lanes on its way past the blocks of keys.
struct TileWalk {
  const LaneTile* tile;
  BlockCursor cursor;
  std::int32_t block;  ///< the next to visit
  LaneSymbols* symbols;
  LaneView lanes;

  void start(const Work& work, const Sequence& sequence, const LaneTile& of, const problem::Problem& problem) {
    tile = &of;
    cursor = work.blocks(of);
    symbols->fill(of, sequence, problem);
    lanes = {of.lanes(), symbols->head, symbols->q_idx};
  }
};

/// What a thread holds.
template <class T>
struct SlotOf {
  using Tile = T;
  Tile* tiles;
  void* tape_scratch;
};

/// A pass that runs instead of one that found a tensor it does not serve.
struct Otherwise {
  std::unique_ptr<planning::Executable> pass;
  std::string where;
};

/// Call: a CallOf, made of Buffers and Setup. Slot: a SlotOf a TileWalk. Lists: of tasks.
template <class Real, class Call, class Slot, class Lists>
class TiledPass : public planning::Executable {
 public:
  using Tile = typename Slot::Tile;
  using Memory = typename Call::Memory;

  std::size_t workspace_bytes() const final { return workspace_bytes_; }
  std::string kernel() const final {
    const std::string table = std::string("cpu.") + s_.ops.name + ".";
    return table + path() + (otherwise_.pass ? "|" + otherwise_.pass->kernel().substr(table.size()) : "");
  }
  void describe(Explanation& explanation) const final {
    describe_work(s_, explanation, products());
    if (lists_) describe_tasks(*s_.work, *lists_, explanation.schedule);
    describe_strategy(explanation);
    if (otherwise_.pass) explanation.details.emplace_back("otherwise", otherwise_.pass->kernel() + ", " + otherwise_.where);
  }
  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const final {
    Call call(buffers, s_);
    Slot* slots = place(static_cast<char*>(workspace), call);
    call.data = s_.tape.bind(buffers.params, call.params);
    bool served = false;
    if (s_.work) {
      call.work = &*s_.work;
      served = run_lists(call, *lists_, slots);
    } else {
      std::pmr::monotonic_buffer_resource memory(call.lists, list_bytes_);
      const Work work = s_.planner.plan(buffers, &memory);
      call.work = &work;
      served = run_lists(call, make_lists(work), slots);
    }
    if (!served) otherwise_.pass->run(buffers, workspace, stream);
  }

 protected:
  explicit TiledPass(std::unique_ptr<const Setup<Real>> setup, Otherwise otherwise = {})
      : s_(*setup), otherwise_(std::move(otherwise)), setup_(std::move(setup)) {}

  /// The end of planning: tiles of a slot, and bytes of the lists that are made in each run where the work depends on the data.
  void plan(int tiles, std::size_t list_bytes) {
    tiles_ = tiles;
    list_bytes_ = s_.work ? 0 : s_.planner.run_bytes() + list_bytes;
    memory_.bytes(&Memory::params, s_.tape.data_bytes());
    memory_.bytes(&Memory::lists, list_bytes_);
    slot_.bytes(&Slot::tape_scratch, s_.tape.scratch_bytes(s_.geometry.block_kv, s_.geometry.lanes));
    tile_.array(&Tile::symbols, 1);
    const std::size_t of_tile = aligned_bytes(sizeof(Tile)) + tile_.size();
    const std::size_t of_slot = aligned_bytes(sizeof(Slot)) + slot_.size() + static_cast<std::size_t>(tiles_) * of_tile;
    workspace_bytes_ = memory_.size() + static_cast<std::size_t>(s_.slots()) * of_slot;
    if (otherwise_.pass) workspace_bytes_ = std::max(workspace_bytes_, otherwise_.pass->workspace_bytes());
    if (s_.work) lists_.emplace(make_lists(*s_.work));
  }

  /// Of the kernel's name, behind that of the table: "forward.rows".
  virtual std::string path() const = 0;
  /// Matmul flops in units of the forward's two products.
  virtual double products() const = 0;
  virtual void describe_strategy(Explanation& explanation) const = 0;
  virtual Lists make_lists(const Work& work) const = 0;
  /// False where another pass must be the one: what was written by then counts for nothing.
  virtual bool run_lists(const Call& call, const Lists& lists, Slot* slots) const = 0;

  /// fn(task, slot) on all threads.
  template <class Fn>
  void each(std::size_t tasks, Slot* slots, Fn&& fn) const {
    base::parallel_for(s_.executor, static_cast<std::int64_t>(tasks), [&](std::int64_t i, int slot) {
      const TaskMode mode(s_.ops.enter, s_.ops.leave);
      fn(static_cast<std::size_t>(i), slots[slot]);
    });
  }

  const Setup<Real>& s_;
  const Otherwise otherwise_;
  Layout<Memory> memory_;
  Layout<Slot> slot_;
  Layout<Tile> tile_;
  std::optional<Lists> lists_;  ///< when the work is static

 private:
  Slot* place(char* at, Call& call) const {
    const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + aligned_bytes(bytes)); };
    memory_.place(take(memory_.size()), call);
    auto* slots = reinterpret_cast<Slot*>(take(static_cast<std::size_t>(s_.slots()) * sizeof(Slot)));
    for (int i = 0; i < s_.slots(); ++i) {
      Slot& slot = *new (slots + i) Slot{};
      slot_.place(take(slot_.size()), slot);
      slot.tiles = reinterpret_cast<Tile*>(take(static_cast<std::size_t>(tiles_) * sizeof(Tile)));
      for (int t = 0; t < tiles_; ++t) tile_.place(take(tile_.size()), *new (slot.tiles + t) Tile{});
    }
    return slots;
  }

  const std::unique_ptr<const Setup<Real>> setup_;
  int tiles_ = 0;
  std::size_t list_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace foveal::cpu
