#pragma once
// The keys that a tile of queries visits, as spans of granules, with a range of keys for each lane of partial blocks.
#include <algorithm>

#include "cpu/lane_ranges.h"
#include "cpu/pass.h"

namespace foveal::cpu {

/// A tile and its position among runs of blocks.
struct RunWalk : TileWalk {
  const mask::Run *run, *run_end;  ///< the first run not yet done

  void start(const Work& work, const Sequence& sequence, const LaneTile& of, const problem::Problem& problem) {
    TileWalk::start(work, sequence, of, problem);
    run = work.runs.data() + of.run_begin, run_end = work.runs.data() + of.run_end;
  }
  /// The end of its last block.
  std::int32_t end() const { return run == run_end ? 0 : run_end[-1].end; }
};

class RowSpans {
 public:
  static constexpr int max_spans = 64, max_ranges = 16;  ///< of a visit

  struct Memory {
    KeySpan* spans = nullptr;
    std::int32_t* ranges = nullptr;  ///< first and last of all lanes, max_ranges times
  };
  static Layout<Memory> layout() {
    Layout<Memory> layout;
    layout.array(&Memory::spans, max_spans);
    layout.array(&Memory::ranges, 2 * max_lanes * max_ranges);
    return layout;
  }

  explicit RowSpans(const Setup<float>& setup) : s_(setup), block_(setup.geometry.block_kv) {}

  /// Runs a tile over its blocks in [begin, end): ops.visit() with as many spans at a time as there is memory for.
  void visit(const PackedForwardOps& ops, const Sequence& sequence, const TapeData& data, std::int32_t begin, std::int32_t end,
             RunWalk& state, const Memory& memory, void* tape_scratch, ForwardVisit& visit) const {
    constexpr int granule = KeySpan::granule;
    const std::int32_t granules = block_ / granule, whole = sequence.seqlen_kv / block_;
    visit.spans = memory.spans, visit.count = 0;
    int partial = 0;
    const auto add = [&](const KeySpan& span) {
      memory.spans[visit.count++] = span;
      if (visit.count < max_spans && partial < max_ranges) return;
      ops.visit(visit);
      visit.count = partial = 0;
    };
    for (; state.run != state.run_end && state.run->begin < end; ++state.run) {
      const mask::Run& run = *state.run;
      std::int32_t block = std::max(run.begin, begin);
      const std::int32_t last = std::min(run.end, end), full = run.full ? std::min(last, whole) : block;
      if (block < full) add({block * granules, full * granules, full * granules, {}});
      for (block = std::max(block, full); block < last; ++block) {
        std::int32_t* first = memory.ranges + 2 * max_lanes * partial;
        const LaneRanges ranges{first, first + max_lanes};
        const KeyRange keys = block_ranges(sequence, data, state, block, run.full, first, first + max_lanes, tape_scratch);
        if (keys.begin == keys.end) continue;
        ++partial;
        const std::int32_t at = block * granules, first_granule = keys.begin / granule, end_granule = base::divide_up(keys.end, granule);
        const std::int32_t kept_by_all = end_of_whole(ranges, state.tile->lanes(), first_granule);
        add({at + first_granule, at + kept_by_all, at + end_granule, ranges});
      }
      if (run.end > end) break;
    }
    if (visit.count > 0) ops.visit(visit);
  }

 private:
  /// The end of the granules from `begin` on that all lanes attend to.
  static std::int32_t end_of_whole(const LaneRanges& ranges, int lanes, std::int32_t begin) {
    constexpr int granule = KeySpan::granule;
    if (*std::max_element(ranges.first, ranges.first + lanes) > begin * granule) return begin;
    return std::max(begin, *std::min_element(ranges.last, ranges.last + lanes) / granule);
  }

  /// The keys of a block that each lane attends to; the result is their union.
  KeyRange block_ranges(const Sequence& sequence, const TapeData& data, const TileWalk& state, std::int32_t block, bool full,
                        std::int32_t* first, std::int32_t* last, void* tape_scratch) const {
    const KeyRange all{0, s_.block_keys(sequence, block)};
    std::fill_n(first, max_lanes, 0);
    std::fill_n(last, max_lanes, full ? all.end : 0);
    if (full) return all;
    s_.tape.lane_ranges(s_.frame(sequence, state.lanes, block, all), data, first, last, tape_scratch);
    return trim({first, last}, state.lanes.count, 1, all);
  }

  const Setup<float>& s_;
  const int block_;
};

}  // namespace foveal::cpu
