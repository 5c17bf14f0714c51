#include "cpu/work.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/check.h"

namespace foveal::cpu {
namespace {

bool uses(const scoring::Program& program, scoring::Op op) {
  return std::any_of(program.code.begin(), program.code.end(), [op](const scoring::Instr& instr) { return instr.op == op; });
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// How many heads share a tile: the choice with the fewest tiles, then the fewest heads (their block masks differ less).
struct TileShape {
  std::int32_t heads, queries;
};
TileShape choose_shape(std::int64_t group_size, std::int64_t seqlen_q, int lanes, bool mask_reads_head) {
  TileShape best{1, static_cast<std::int32_t>(std::min<std::int64_t>(seqlen_q, lanes))};
  if (mask_reads_head) return best;
  std::int64_t fewest = group_size * ceil_div(seqlen_q, best.queries);
  for (std::int32_t heads = 2; heads <= std::min<std::int64_t>(group_size, lanes); ++heads) {
    const auto queries = static_cast<std::int32_t>(std::min<std::int64_t>(seqlen_q, lanes / heads));
    const std::int64_t tiles = ceil_div(group_size, heads) * ceil_div(seqlen_q, queries);
    if (tiles < fewest) best = {heads, queries}, fewest = tiles;
  }
  return best;
}

std::int64_t cu_seqlen(const TensorView& view, std::int64_t i) {
  return view.dtype == DType::i64 ? static_cast<const std::int64_t*>(view.data)[i * view.strides[0]]
                                  : static_cast<const std::int32_t*>(view.data)[i * view.strides[0]];
}

std::vector<Sequence> find_sequences(const problem::Problem& problem, const problem::Buffers* buffers) {
  std::vector<Sequence> sequences(static_cast<std::size_t>(problem.batch));
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    Sequence& s = sequences[static_cast<std::size_t>(b)];
    s.index = static_cast<std::int32_t>(b);
    if (!problem.varlen) {
      s.batch = b;
      s.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
      s.seqlen_kv = static_cast<std::int32_t>(problem.seqlen_kv);
      continue;
    }
    s.q_begin = cu_seqlen(buffers->cu_seqlens_q, b);
    s.kv_begin = cu_seqlen(buffers->cu_seqlens_kv, b);
    s.seqlen_q = static_cast<std::int32_t>(cu_seqlen(buffers->cu_seqlens_q, b + 1) - s.q_begin);
    s.seqlen_kv = static_cast<std::int32_t>(cu_seqlen(buffers->cu_seqlens_kv, b + 1) - s.kv_begin);
  }
  return sequences;
}

}  // namespace

bool work_is_static(const problem::Problem& problem) { return !problem.varlen && !uses(problem.score->mask, scoring::Op::read); }

Work plan_work(const problem::Problem& problem, const Geometry& geometry, const problem::Buffers* buffers) {
  const scoring::Program& mask = problem.score->mask;
  const bool reads_head = uses(mask, scoring::Op::head), reads_batch = uses(mask, scoring::Op::batch);
  std::unique_ptr<scoring::ReadRanges> ranges;
  if (uses(mask, scoring::Op::read) && buffers)
    ranges = std::make_unique<scoring::DataReadRanges>(problem.score->params, buffers->params);
  else
    ranges = std::make_unique<scoring::ReadRanges>();

  Work work;
  work.sequences = find_sequences(problem, buffers);
  // Rows of runs of the last classification, as offsets into work.runs: shared by all heads and batch rows that cannot differ.
  struct Row {
    std::int64_t begin, end, blocks;
  };
  std::vector<Row> rows;
  const auto classify = [&](const Sequence& s, std::int32_t head, const TileShape& shape) {
    rows.clear();
    const std::int64_t row_count = ceil_div(s.seqlen_q, shape.queries), blocks = ceil_div(s.seqlen_kv, geometry.block_kv);
    if (mask.empty()) {
      const auto at = static_cast<std::int64_t>(work.runs.size());
      if (blocks > 0) work.runs.push_back({0, static_cast<std::int32_t>(blocks), true});
      rows.assign(static_cast<std::size_t>(row_count), {at, static_cast<std::int64_t>(work.runs.size()), blocks});
      return;
    }
    mask::Tiling tiling{s.seqlen_q, s.seqlen_kv, shape.queries, geometry.block_kv, problem.attention.q_offset, problem.attention.kv_offset};
    const mask::BlockMask block_mask = mask::classify(mask, tiling, s.index, head, *ranges);
    const auto at = static_cast<std::int64_t>(work.runs.size());
    work.runs.insert(work.runs.end(), block_mask.runs.begin(), block_mask.runs.end());
    for (std::int64_t r = 0; r < row_count; ++r) {
      Row row{at + block_mask.row_begin[static_cast<std::size_t>(r)], at + block_mask.row_begin[static_cast<std::size_t>(r) + 1], 0};
      for (std::int64_t i = row.begin; i < row.end; ++i)
        row.blocks += work.runs[static_cast<std::size_t>(i)].end - work.runs[static_cast<std::size_t>(i)].begin;
      rows.push_back(row);
    }
  };

  const Sequence* classified = nullptr;
  for (std::size_t i = 0; i < work.sequences.size(); ++i) {
    const Sequence& s = work.sequences[i];
    if (s.seqlen_q == 0) continue;
    const TileShape shape = choose_shape(problem.group_size, s.seqlen_q, geometry.lanes, reads_head);
    if (!classified || reads_batch || problem.varlen) classify(s, 0, shape), classified = &s;
    for (std::int32_t kv_head = 0; kv_head < problem.heads_kv; ++kv_head) {
      const auto tile_begin = static_cast<std::int64_t>(work.tiles.size());
      std::int64_t group_blocks = 0;
      const auto add_tiles = [&](std::int32_t first, std::int32_t heads, std::int32_t q) {
        const Row& row = rows[static_cast<std::size_t>(q / shape.queries)];
        work.tiles.push_back({first, heads, q, std::min(shape.queries, s.seqlen_q - q), row.begin, row.end, row.blocks});
        group_blocks += row.blocks;
        for (std::int64_t r = row.begin; r < row.end; ++r) {
          const mask::Run& run = work.runs[static_cast<std::size_t>(r)];
          (run.full ? work.full : work.partial) += run.end - run.begin;
        }
        work.empty += ceil_div(s.seqlen_kv, geometry.block_kv) - row.blocks;
      };
      const auto first_head = static_cast<std::int32_t>(kv_head * problem.group_size);
      const auto group_size = static_cast<std::int32_t>(problem.group_size);
      if (reads_head) {
        for (std::int32_t h = 0; h < group_size; ++h) {
          classify(s, first_head + h, shape);
          for (std::int32_t q = 0; q < s.seqlen_q; q += shape.queries) add_tiles(first_head + h, 1, q);
        }
      } else {
        for (std::int32_t q = 0; q < s.seqlen_q; q += shape.queries)
          for (std::int32_t h = 0; h < group_size; h += shape.heads) add_tiles(first_head + h, std::min(shape.heads, group_size - h), q);
      }
      work.groups.push_back(
          {static_cast<std::int32_t>(i), kv_head, tile_begin, static_cast<std::int64_t>(work.tiles.size()), group_blocks});
    }
  }
  return work;
}

std::vector<Task> Work::tasks(int tiles_per_task) const {
  std::vector<Task> tasks;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::int64_t t = groups[g].tile_begin; t < groups[g].tile_end; t += tiles_per_task) {
      Task task{static_cast<std::int64_t>(g), t, std::min(groups[g].tile_end, t + tiles_per_task), 0, 0};
      for (std::int64_t i = t; i < task.tile_end; ++i) task.cost += tiles[static_cast<std::size_t>(i)].blocks;
      tasks.push_back(task);
    }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  return tasks;
}

std::vector<Task> Work::splits(std::int64_t splits) const {
  std::vector<Task> tasks;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const TileGroup& group = groups[g];
    std::int64_t t = group.tile_begin, done = 0;
    for (std::int64_t split = 0; split < splits; ++split) {
      Task task{static_cast<std::int64_t>(g), t, t, split, 0};
      const std::int64_t goal = group.blocks * (split + 1) / splits;
      while (t < group.tile_end && (split + 1 == splits || done < goal)) {
        done += tiles[static_cast<std::size_t>(t)].blocks;
        task.cost += tiles[static_cast<std::size_t>(t)].blocks;
        ++t;
      }
      task.tile_end = t;
      tasks.push_back(task);
    }
  }
  return tasks;
}

std::int64_t max_tiles_per_group(const problem::Problem& problem, const Geometry& geometry) {
  const std::int64_t seqlen_q = problem.seqlen_q > 0 ? problem.seqlen_q : problem.total_q;
  return problem.group_size * ceil_div(std::max<std::int64_t>(seqlen_q, 1), geometry.lanes);
}

}  // namespace foveal::cpu
