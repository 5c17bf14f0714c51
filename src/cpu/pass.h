#pragma once
// The frame of all CPU passes: work plan, workspace, threads, and the steps of a run. A strategy declares the state of a call, of a worker
// (thread) and of a tile, and the lists of tasks; then it runs the lists.
//
//   workspace = Call::Memory, then for each worker a Worker and its Tiles, each followed by the arrays that it points to
#include <algorithm>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>

#include "cpu/describe.h"
#include "cpu/setup.h"
#include "cpu/task_mode.h"
#include "cpu/workspace.h"

namespace foveal::cpu {

/// The arrays of every call; strategies add theirs.
struct CallMemory {
  void* params = nullptr;  ///< bound parameters of the tape
  void* lists = nullptr;   ///< for work plans that depend on the data
};

/// One run: its tensors, and what a strategy adds as Memory.
template <class Real, class M>
struct CallOf : M {
  using Memory = M;
  CallOf(const problem::Buffers& b, const Setup<Real>& s)
      : buffers(b), q(b.q), out(b.out), k(s.problem, b, b.k), v(s.problem, b, b.v), dropout(s.dropout(b.rng)) {}
  const problem::Buffers& buffers;
  const Work* work = nullptr;
  TapeData data;
  HeadRows q, out;
  KeyBlocks k, v;
  TileDropout dropout;
};

/// A tile of lanes and its position among the blocks of keys.
struct TileWalk {
  const LaneTile* tile;
  BlockCursor cursor;
  std::int32_t block;  ///< to visit next
  LaneSymbols* symbols;
  LaneView lanes;

  void start(const Work& work, const Sequence& sequence, const LaneTile& of, const problem::Problem& problem) {
    tile = &of;
    cursor = work.blocks(of);
    symbols->fill(of, sequence, problem);
    lanes = {of.lanes(), symbols->head, symbols->q_idx};
  }
};

/// The state of a thread.
template <class T>
struct WorkerOf {
  using Tile = T;
  Tile* tiles;
  void* tape_scratch;
};

/// The pass that runs where another one finds, during the run, that it cannot handle the tensors.
struct Fallback {
  std::unique_ptr<planning::Executable> pass;
  std::string where;
};

/// Call: a CallOf. Worker: a WorkerOf of a TileWalk. Lists: of tasks.
template <class Real, class Call, class Worker, class Lists>
class TiledPass : public planning::Executable {
 public:
  using Tile = typename Worker::Tile;
  using Memory = typename Call::Memory;

  std::size_t workspace_bytes() const final { return workspace_bytes_; }
  std::string kernel() const final {
    const std::string table = std::string("cpu.") + s_.ops.name + ".";
    return table + path() + (fallback_.pass ? "|" + fallback_.pass->kernel().substr(table.size()) : "");
  }
  void describe(Explanation& explanation) const final {
    describe_work(s_, explanation, products());
    if (lists_) describe_tasks(*s_.work, *lists_, explanation.schedule);
    describe_strategy(explanation);
    if (fallback_.pass) explanation.details.emplace_back("otherwise", fallback_.pass->kernel() + ", " + fallback_.where);
  }
  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const final {
    Call call(buffers, s_);
    Worker* workers = place(static_cast<char*>(workspace), call);
    call.data = s_.tape.bind(buffers.params, call.params);
    bool done = false;
    if (s_.work) {
      call.work = &*s_.work;
      done = run_lists(call, *lists_, workers);
    } else {
      std::pmr::monotonic_buffer_resource memory(call.lists, list_bytes_);
      const Work work = s_.planner.plan(buffers, &memory);
      call.work = &work;
      done = run_lists(call, make_lists(work), workers);
    }
    if (!done) fallback_.pass->run(buffers, workspace, stream);
  }

 protected:
  explicit TiledPass(std::unique_ptr<const Setup<Real>> setup, Fallback fallback = {})
      : s_(*setup), fallback_(std::move(fallback)), setup_(std::move(setup)) {}

  /// Ends planning. tiles: of a worker; list_bytes: of the lists, which are made in each run where the work depends on the data.
  void plan(int tiles, std::size_t list_bytes) {
    tiles_ = tiles;
    list_bytes_ = s_.work ? 0 : s_.planner.run_bytes() + list_bytes;
    memory_.bytes(&Memory::params, s_.tape.data_bytes());
    memory_.bytes(&Memory::lists, list_bytes_);
    worker_.bytes(&Worker::tape_scratch, s_.tape.scratch_bytes(s_.geometry.block_kv, s_.geometry.lanes));
    tile_.array(&Tile::symbols, 1);
    const std::size_t of_tile = aligned_bytes(sizeof(Tile)) + tile_.size();
    const std::size_t of_worker = aligned_bytes(sizeof(Worker)) + worker_.size() + static_cast<std::size_t>(tiles_) * of_tile;
    workspace_bytes_ = memory_.size() + static_cast<std::size_t>(s_.workers()) * of_worker;
    if (fallback_.pass) workspace_bytes_ = std::max(workspace_bytes_, fallback_.pass->workspace_bytes());
    if (s_.work) lists_.emplace(make_lists(*s_.work));
  }

  /// The kernel's name after that of the table: "forward.rows".
  virtual std::string path() const = 0;
  /// Matmul flops relative to the forward's two products.
  virtual double products() const = 0;
  virtual void describe_strategy(Explanation& explanation) const = 0;
  virtual Lists make_lists(const Work& work) const = 0;
  /// False: run the fallback instead, which overwrites all outputs.
  virtual bool run_lists(const Call& call, const Lists& lists, Worker* workers) const = 0;

  /// fn(task, worker) on all threads.
  template <class Fn>
  void each(std::size_t tasks, Worker* workers, Fn&& fn) const {
    base::parallel_for(s_.executor, static_cast<std::int64_t>(tasks), [&](std::int64_t i, int worker) {
      const TaskMode mode(s_.ops.enter, s_.ops.leave);
      fn(static_cast<std::size_t>(i), workers[worker]);
    });
  }

  const Setup<Real>& s_;
  const Fallback fallback_;
  Layout<Memory> memory_;
  Layout<Worker> worker_;
  Layout<Tile> tile_;
  std::optional<Lists> lists_;  ///< of static work

 private:
  Worker* place(char* at, Call& call) const {
    const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + aligned_bytes(bytes)); };
    memory_.place(take(memory_.size()), call);
    auto* workers = reinterpret_cast<Worker*>(take(static_cast<std::size_t>(s_.workers()) * sizeof(Worker)));
    for (int i = 0; i < s_.workers(); ++i) {
      Worker& worker = *new (workers + i) Worker{};
      worker_.place(take(worker_.size()), worker);
      worker.tiles = reinterpret_cast<Tile*>(take(static_cast<std::size_t>(tiles_) * sizeof(Tile)));
      for (int t = 0; t < tiles_; ++t) tile_.place(take(tile_.size()), *new (worker.tiles + t) Tile{});
    }
    return workers;
  }

  const std::unique_ptr<const Setup<Real>> setup_;
  int tiles_ = 0;
  std::size_t list_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace foveal::cpu
