// Work that is planned in a run: inside the memory that was set aside, and sound where rows have more runs than places.
#include "cpu/work.h"

#include <gtest/gtest.h>

#include "problem/case_data.h"

namespace foveal::cpu {
namespace {

struct Planned {
  explicit Planned(const std::string& line)
      : data(problem::parse_line(line)),
        problem(problem::make_problem(data.line().attention, data.forward_inputs(), data.forward_outputs())),
        planner(problem, {64, 64}),
        bytes(planner.run_bytes()),
        memory(bytes.data(), bytes.size(), std::pmr::null_memory_resource()) {
    problem::fill_buffers(problem, data.forward_inputs(), data.forward_outputs(), buffers);
  }
  /// Throws std::bad_alloc when run_bytes() was too little.
  Work plan() { return planner.plan(buffers, &memory); }

  problem::CaseData data;
  problem::Problem problem;
  WorkPlanner planner;
  problem::Buffers buffers;
  std::vector<std::byte> bytes;
  std::pmr::monotonic_buffer_resource memory;
};

TEST(CpuWork, StaysInsideTheMemorySetAside) {
  for (const char* line :
       {"forward f32 h4:2 d8 lengths=70,3,0,200:50", "forward f32 h6:2 d8 lengths=1,1,1,65:900 mask=\"causal() & window(100)\"",
        "forward f32 h6:2 d8 lengths=65:9,1 mask=\"(head + batch) % 3 != 0\"",
        "forward f32 b3 h4 q130:700 d8 mask=\"doc[batch, kv_idx] != head\" param=\"doc: integer[3, 700] segments(5)\"",
        "forward f32 b3 h4:1 q70:700 d8 mask=\"t[q_idx, kv_idx]\" param=\"t: boolean[70, 700]\""}) {
    Planned planned(line);
    EXPECT_FALSE(planned.planner.is_static()) << line;
    const Work work = planned.plan();
    EXPECT_FALSE(work.tiles.empty()) << line;
    EXPECT_LE(static_cast<std::int64_t>(work.tiles.size()), planned.planner.max_tiles()) << line;
    EXPECT_LE(static_cast<std::int64_t>(work.groups.size()), planned.planner.max_groups()) << line;
  }
}

TEST(CpuWork, RowsWithMoreRunsThanPlacesTakeInWhatLiesBetween) {
  // Every second block of 64 keys is kept: 130 runs in each of 2048 rows of tiles, which have 128 places each.
  Planned planned(
      "forward f32 b32 h64:1 q1:16640 d1 mask=\"(kv_idx // 64 % 2 == 0) & keep[head]\" param=\"keep: boolean[64] constant(1)\"");
  const Work work = planned.plan();
  ASSERT_EQ(work.tiles.size(), 2048u);
  for (const LaneTile& tile : work.tiles) {
    ASSERT_EQ(tile.run_end - tile.run_begin, 128);
    std::vector<int> visited(260, 0);  // 1: partial, 2: full
    for (std::int64_t r = tile.run_begin; r < tile.run_end; ++r) {
      const mask::Run& run = work.runs[static_cast<std::size_t>(r)];
      for (std::int32_t block = run.begin; block < run.end; ++block) visited[static_cast<std::size_t>(block)] = run.full ? 2 : 1;
    }
    for (int block = 0; block < 260; ++block) {
      const int expected = block >= 254 ? (block <= 258) : block % 2 == 0 ? 2 : 0;
      ASSERT_EQ(visited[static_cast<std::size_t>(block)], expected) << block;
    }
  }
}

}  // namespace
}  // namespace foveal::cpu
