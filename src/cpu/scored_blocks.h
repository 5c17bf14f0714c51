#pragma once
// The blocks of keys that a tile of queries visits with scores by a program, and the program's part in it.
#include <algorithm>

#include "cpu/pass.h"

namespace foveal::cpu {

class ScoredBlocks {
 public:
  static constexpr int max_blocks = 64;  ///< of a visit

  explicit ScoredBlocks(const Setup<float>& setup) : s_(setup) {}

  /// Runs a tile over its blocks in [begin, end): ops.visit() with as many at a time as there is memory for. `visit` has the rest.
  void visit(const ScoredForwardOps& ops, const Sequence& sequence, const TapeData& data, std::int32_t begin, std::int32_t end,
             TileWalk& state, void* tape_scratch, ScoredVisit visit) const {
    const Program program{s_, sequence, data, state.lanes, tape_scratch};
    ScoredBlock blocks[max_blocks];
    visit.blocks = blocks, visit.count = 0;
    visit.score = &Program::score, visit.context = &program;
    for (std::int32_t block = begin; (block = state.cursor.next(block)) < end; ++block) {
      blocks[visit.count++] = {block, s_.block_keys(sequence, block), !state.cursor.full()};
      if (visit.count < max_blocks) continue;
      ops.visit(visit);
      visit.count = 0;
    }
    if (visit.count > 0) ops.visit(visit);
  }

 private:
  struct Program {
    const Setup<float>& s;
    const Sequence& sequence;
    const TapeData& data;
    const LaneView& lanes;
    void* scratch;

    static bool score(const void* context, const ScoredBlock& block, float* tile, float* largest) {
      const auto& [s, sequence, data, lanes, scratch] = *static_cast<const Program*>(context);
      const bool has_score = s.tape.has_score();
      if (has_score || block.partial)
        s.tape.apply(s.frame(sequence, lanes, block.block, {0, block.keys}), data, tile, tile, block.partial, has_score ? largest : nullptr,
                     scratch);
      return has_score;
    }
  };

  const Setup<float>& s_;
};

}  // namespace foveal::cpu
