#include "cpu/work.h"

#include <algorithm>
#include <cstddef>

#include "base/dtype.h"

namespace foveal::cpu {
namespace {

/// GQA packing: how many query heads share a tile. The choice with the fewest tiles, then the fewest heads.
struct TileShape {
  std::int32_t heads, queries;
};
TileShape choose_shape(std::int64_t group_size, std::int64_t seqlen_q, int lanes, bool mask_reads_head) {
  TileShape best{1, static_cast<std::int32_t>(std::min<std::int64_t>(seqlen_q, lanes))};
  if (mask_reads_head) return best;
  std::int64_t fewest = group_size * base::divide_up(seqlen_q, best.queries);
  for (std::int32_t heads = 2; heads <= std::min<std::int64_t>(group_size, lanes); ++heads) {
    const auto queries = static_cast<std::int32_t>(std::min<std::int64_t>(seqlen_q, lanes / heads));
    const std::int64_t tiles = base::divide_up(group_size, heads) * base::divide_up(seqlen_q, queries);
    if (tiles < fewest) best = {heads, queries}, fewest = tiles;
  }
  return best;
}

std::int64_t length_at(const TensorView& view, std::int64_t i) { return base::load_integer(view.data, view.dtype, i * view.strides[0]); }

void find_sequences(const problem::Problem& problem, const problem::Buffers* buffers, std::pmr::vector<Sequence>& sequences) {
  sequences.resize(static_cast<std::size_t>(problem.batch));
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    Sequence& s = sequences[static_cast<std::size_t>(b)];
    s.index = s.symbol = static_cast<std::int32_t>(b);
    s.q_first = problem.attention.q_offset, s.kv_first = problem.attention.kv_offset;
    if (problem.segments) {
      const std::int64_t* row = static_cast<const std::int64_t*>(buffers->segments.data) + 9 * b;
      s.q_begin = row[0], s.seqlen_q = static_cast<std::int32_t>(row[1]);
      s.kv_begin = row[2], s.seqlen_kv = static_cast<std::int32_t>(row[3]);
      s.symbol = static_cast<std::int32_t>(row[4]);
      s.q_first += row[5], s.kv_first += row[6];
      s.whole_q = static_cast<std::int32_t>(row[7]), s.whole_kv = static_cast<std::int32_t>(row[8]);
      continue;
    }
    if (!problem.varlen) {
      s.batch = b;
      s.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
      s.seqlen_kv = static_cast<std::int32_t>(problem.seqlen_kv);
    } else {
      s.q_begin = length_at(buffers->cu_seqlens_q, b);
      s.seqlen_q = static_cast<std::int32_t>(length_at(buffers->cu_seqlens_q, b + 1) - s.q_begin);
    }
    if (problem.paged || problem.gathered) {
      s.kv_begin = problem.gathered ? b * problem.seqlen_kv : 0;
      s.seqlen_kv = static_cast<std::int32_t>(length_at(buffers->seqlens_kv, b));
    } else if (problem.varlen) {
      s.kv_begin = length_at(buffers->cu_seqlens_kv, b);
      s.seqlen_kv = static_cast<std::int32_t>(length_at(buffers->cu_seqlens_kv, b + 1) - s.kv_begin);
    }
    s.whole_q = s.seqlen_q, s.whole_kv = s.seqlen_kv;
  }
}

/// A fixed capacity of runs for each row of tiles. A row with more extends its last run over the gaps.
class RunPlaces final : public mask::RunSink {
 public:
  RunPlaces(mask::Run* places, std::int32_t per_row, std::int64_t* ends) : places_(places), per_row_(per_row), ends_(ends) {}

  void append(std::int64_t row, const mask::Run& run) override {
    std::int64_t& end = ends_[row];
    mask::Run* runs = places_ + row * per_row_;
    if (end > 0 && runs[end - 1].end == run.begin && runs[end - 1].full == run.full)
      runs[end - 1].end = run.end;
    else if (end == per_row_)
      runs[end - 1] = {runs[end - 1].begin, run.end, false};
    else
      runs[end++] = run;
  }

 private:
  mask::Run* places_;
  std::int32_t per_row_;
  std::int64_t* ends_;
};

constexpr std::size_t gap = alignof(std::max_align_t);  // padding between two allocations of a memory resource
template <class T>
std::size_t bytes_of(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(T) + gap;
}

void sort_longest_first(Tasks& tasks) {
  std::sort(tasks.begin(), tasks.end(),
            [](const Task& a, const Task& b) { return a.cost != b.cost ? a.cost > b.cost : a.tile_begin < b.tile_begin; });
}

/// A row of tiles, as offsets into Work::runs.
struct Row {
  std::int64_t begin, end, blocks;
};

}  // namespace

WorkPlanner::WorkPlanner(const problem::Problem& problem, const Geometry& geometry) : problem_(problem), geometry_(geometry) {
  const scoring::Program& mask = problem.score->mask;
  reads_head_ = mask.uses(scoring::Op::head), reads_batch_ = mask.uses(scoring::Op::batch), reads_params_ = mask.uses(scoring::Op::read);
  is_static_ = !problem.varlen && !problem.ragged_kv() && !reads_params_;
  if (!mask.empty()) classifier_.emplace(mask);
  // Rows of one head in all sequences: of queries, or with heads side by side, which is chosen where it takes fewer tiles in all.
  const std::int64_t rows_of_one =
      problem.varlen ? problem.total_q / geometry.lanes + problem.batch : base::divide_up(problem.seqlen_q, geometry.lanes);
  const std::int64_t batches = problem.varlen ? 1 : problem.batch;  // rows_of_one counts all sequences of a packed batch
  max_tiles_ = problem.heads_q * rows_of_one * batches;
  max_rows_ = reads_head_ ? max_tiles_ : problem.group_size * rows_of_one * (reads_batch_ || problem.ragged_kv() ? batches : 1);
  constexpr std::int64_t fewest = 128, places = 1 << 18;
  const std::int64_t most = base::divide_up(problem.longest_kv(), geometry.block_kv);
  runs_per_row_ = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(std::max(fewest, places / std::max<std::int64_t>(max_rows_, 1)), 1, std::max<std::int64_t>(most, 1)));
}

std::int64_t WorkPlanner::likely_tiles() const {
  const std::int64_t queries = problem_.varlen ? base::divide_up(problem_.total_q, problem_.batch) : problem_.seqlen_q;
  const TileShape shape = choose_shape(problem_.group_size, queries, geometry_.lanes, reads_head_);
  return problem_.batch * problem_.heads_kv * base::divide_up(problem_.group_size, shape.heads) * base::divide_up(queries, shape.queries);
}

std::int64_t WorkPlanner::max_groups() const { return problem_.batch * problem_.heads_kv; }

std::int64_t WorkPlanner::max_blocks() const {
  const std::int64_t of_one = problem_.varlen ? problem_.total_kv / geometry_.block_kv + problem_.batch
                                              : problem_.batch * base::divide_up(problem_.seqlen_kv, geometry_.block_kv);
  return problem_.heads_kv * of_one;
}

std::int64_t WorkPlanner::max_tiles_per_group() const {
  const std::int64_t seqlen_q = problem_.seqlen_q > 0 ? problem_.seqlen_q : problem_.total_q;
  return problem_.group_size * base::divide_up(std::max<std::int64_t>(seqlen_q, 1), geometry_.lanes);
}

std::size_t WorkPlanner::run_bytes() const {
  if (is_static_) return 0;
  const std::int64_t runs = classifier_ ? max_rows_ * runs_per_row_ : problem_.batch;
  std::size_t bytes = bytes_of<Sequence>(problem_.batch) + bytes_of<LaneTile>(max_tiles_) + bytes_of<TileGroup>(max_groups()) +
                      bytes_of<mask::Run>(runs) + bytes_of<Row>(max_rows_) + bytes_of<std::int64_t>(max_rows_);
  if (classifier_) bytes += bytes_of<scoring::Interval>(static_cast<std::int64_t>(classifier_->scratch_size()));
  if (reads_params_) bytes += scoring::DataReadRanges::bytes(problem_.score->mask, problem_.score->params) + gap;
  return bytes;
}

/// Makes one plan. With buffers it is the plan of a run, in preallocated memory.
class WorkPlanner::Planning {
 public:
  Planning(const WorkPlanner& planner, const problem::Buffers* buffers, std::pmr::memory_resource* memory)
      : planner_(planner),
        problem_(planner.problem_),
        block_kv_(planner.geometry_.block_kv),
        buffers_(buffers),
        work_(memory),
        rows_(memory),
        ends_(memory),
        scratch_(planner.classifier_ ? planner.classifier_->scratch_size() : 0, memory) {
    if (planner.reads_params_ && buffers) known_.emplace(problem_.score->params, buffers->params, memory);
    if (buffers) {
      const std::int64_t runs = planner.classifier_ ? planner.max_rows_ * planner.runs_per_row_ : problem_.batch;
      work_.tiles.reserve(static_cast<std::size_t>(planner.max_tiles_));
      work_.groups.reserve(static_cast<std::size_t>(planner.max_groups()));
      work_.runs.reserve(static_cast<std::size_t>(runs));
      rows_.reserve(static_cast<std::size_t>(planner.max_rows_));
      ends_.reserve(static_cast<std::size_t>(planner.max_rows_));
    }
    find_sequences(problem_, buffers, work_.sequences);
  }

  Work operator()() && {
    bool classified = false;
    for (std::size_t i = 0; i < work_.sequences.size(); ++i) {
      const Sequence& s = work_.sequences[i];
      if (s.seqlen_q == 0) continue;
      const TileShape shape = choose_shape(problem_.group_size, s.seqlen_q, planner_.geometry_.lanes, planner_.reads_head_);
      if (!planner_.reads_head_ && (!classified || planner_.reads_batch_ || problem_.ragged_kv())) classify(s, 0, shape), classified = true;
      for (std::int32_t kv_head = 0; kv_head < problem_.heads_kv; ++kv_head) add_group(static_cast<std::int32_t>(i), kv_head, shape);
    }
    return std::move(work_);
  }

 private:
  const scoring::ReadRanges& ranges() const { return known_ ? static_cast<const scoring::ReadRanges&>(*known_) : unknown_; }

  /// Classifies the rows of tiles of a sequence; heads and batch rows share them where the mask does not read these.
  void classify(const Sequence& s, std::int32_t head, const TileShape& shape) {
    rows_.clear();
    const std::int64_t row_count = base::divide_up(s.seqlen_q, shape.queries), blocks = base::divide_up(s.seqlen_kv, block_kv_);
    const auto at = static_cast<std::int64_t>(work_.runs.size());
    if (!planner_.classifier_) {
      if (blocks > 0) work_.runs.push_back({0, static_cast<std::int32_t>(blocks), true});
      rows_.assign(static_cast<std::size_t>(row_count), {at, static_cast<std::int64_t>(work_.runs.size()), blocks});
      return;
    }
    const mask::Tiling tiling{s.seqlen_q, s.seqlen_kv, shape.queries, block_kv_, s.q_first, s.kv_first, s.whole_q, s.whole_kv};
    head += static_cast<std::int32_t>(problem_.head_offset);
    if (buffers_) {
      const std::int32_t per_row = planner_.runs_per_row_;
      ends_.assign(static_cast<std::size_t>(row_count), 0);
      work_.runs.resize(static_cast<std::size_t>(at + row_count * per_row));
      RunPlaces places(work_.runs.data() + at, per_row, ends_.data());
      (*planner_.classifier_)(tiling, s.symbol, head, ranges(), scratch_, places);
      for (std::int64_t r = 0; r < row_count; ++r) {
        const std::int64_t begin = at + r * per_row;
        rows_.push_back({begin, begin + ends_[static_cast<std::size_t>(r)], 0});
      }
    } else {
      const mask::BlockMask block_mask = mask::classify(problem_.score->mask, tiling, s.symbol, head, ranges());
      work_.runs.insert(work_.runs.end(), block_mask.runs.begin(), block_mask.runs.end());
      for (std::size_t r = 0; r < static_cast<std::size_t>(row_count); ++r)
        rows_.push_back({at + block_mask.row_begin[r], at + block_mask.row_begin[r + 1], 0});
    }
    for (Row& row : rows_)
      for (std::int64_t i = row.begin; i < row.end; ++i) row.blocks += blocks_of(i);
  }

  /// The tiles of all queries of a kv head.
  void add_group(std::int32_t sequence, std::int32_t kv_head, const TileShape& shape) {
    const Sequence& s = work_.sequences[static_cast<std::size_t>(sequence)];
    const auto tile_begin = static_cast<std::int64_t>(work_.tiles.size());
    const auto group_size = static_cast<std::int32_t>(problem_.group_size), first_head = kv_head * group_size;
    std::int64_t blocks = 0;
    if (planner_.reads_head_) {
      for (std::int32_t h = 0; h < group_size; ++h) {
        classify(s, first_head + h, shape);
        for (std::int32_t q = 0; q < s.seqlen_q; q += shape.queries) blocks += add_tile(s, shape, first_head + h, 1, q);
      }
    } else {
      for (std::int32_t q = 0; q < s.seqlen_q; q += shape.queries)
        for (std::int32_t h = 0; h < group_size; h += shape.heads)
          blocks += add_tile(s, shape, first_head + h, std::min(shape.heads, group_size - h), q);
    }
    work_.groups.push_back({sequence, kv_head, tile_begin, static_cast<std::int64_t>(work_.tiles.size()), blocks});
  }

  std::int64_t add_tile(const Sequence& s, const TileShape& shape, std::int32_t first, std::int32_t heads, std::int32_t q) {
    const Row& row = rows_[static_cast<std::size_t>(q / shape.queries)];
    work_.tiles.push_back({first, heads, q, std::min(shape.queries, s.seqlen_q - q), row.begin, row.end, row.blocks});
    for (std::int64_t r = row.begin; r < row.end; ++r)
      (work_.runs[static_cast<std::size_t>(r)].full ? work_.full : work_.partial) += blocks_of(r);
    work_.empty += base::divide_up(s.seqlen_kv, block_kv_) - row.blocks;
    return row.blocks;
  }

  std::int64_t blocks_of(std::int64_t run) const {
    const mask::Run& found = work_.runs[static_cast<std::size_t>(run)];
    return found.end - found.begin;
  }

  const WorkPlanner& planner_;
  const problem::Problem& problem_;
  const std::int32_t block_kv_;
  const problem::Buffers* buffers_;
  const scoring::ReadRanges unknown_{};
  std::optional<scoring::DataReadRanges> known_;
  Work work_;
  std::pmr::vector<Row> rows_;  ///< of the last classification
  std::pmr::vector<std::int64_t> ends_;
  std::pmr::vector<scoring::Interval> scratch_;
};

Work WorkPlanner::plan() const { return plan(nullptr, std::pmr::get_default_resource()); }
Work WorkPlanner::plan(const problem::Buffers& buffers, std::pmr::memory_resource* memory) const { return plan(&buffers, memory); }
Work WorkPlanner::plan(const problem::Buffers* buffers, std::pmr::memory_resource* memory) const {
  return Planning(*this, buffers, memory)();
}

std::int64_t Work::number_blocks(int block_kv, std::int64_t* first) const {
  std::int64_t blocks = 0, longest = 0;
  for (const TileGroup& group : groups) {
    *first++ = blocks;
    const std::int64_t of_group = sequence(group).blocks(block_kv);
    blocks += of_group, longest = std::max(longest, of_group);
  }
  return longest;
}

Tasks Work::tasks(int tiles_per_task) const {
  std::pmr::vector<Task> tasks(memory());
  std::int64_t count = 0;
  for (const TileGroup& group : groups) count += base::divide_up(group.tile_end - group.tile_begin, tiles_per_task);
  tasks.reserve(static_cast<std::size_t>(count));
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::int64_t t = groups[g].tile_begin; t < groups[g].tile_end; t += tiles_per_task) {
      Task task{static_cast<std::int64_t>(g), t, std::min(groups[g].tile_end, t + tiles_per_task), 0, 0};
      for (std::int64_t i = t; i < task.tile_end; ++i) task.cost += tiles[static_cast<std::size_t>(i)].blocks;
      tasks.push_back(task);
    }
  sort_longest_first(tasks);
  return tasks;
}

Tasks Work::tasks_of_groups(int most) const {
  std::pmr::vector<Task> tasks(memory());
  tasks.reserve(groups.size());
  for (std::size_t g = 0; g < groups.size();) {
    Task task{static_cast<std::int64_t>(g), groups[g].tile_begin, groups[g].tile_end, 0, 0};
    const std::size_t first = g;
    for (; g < groups.size() && g - first < static_cast<std::size_t>(most) && groups[g].sequence == groups[first].sequence; ++g)
      task.tile_end = groups[g].tile_end, task.cost += groups[g].blocks;
    tasks.push_back(task);
  }
  sort_longest_first(tasks);
  return tasks;
}

Tasks Work::shares(std::int64_t shares) const {
  std::pmr::vector<Task> tasks(memory());
  tasks.reserve(groups.size() * static_cast<std::size_t>(shares));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const TileGroup& group = groups[g];
    std::int64_t t = group.tile_begin, done = 0;
    for (std::int64_t share = 0; share < shares; ++share) {
      Task task{static_cast<std::int64_t>(g), t, t, share, 0};
      const std::int64_t goal = group.blocks * (share + 1) / shares;
      while (t < group.tile_end && (share + 1 == shares || done < goal)) {
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

}  // namespace foveal::cpu
