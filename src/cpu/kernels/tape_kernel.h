// Runs the programs of tape_code.h on tiles.
#pragma once
#include "cpu/kernels/tape_reals.h"

namespace foveal::cpu {
namespace {

template <class Real>
class TapeRun : TapeReals {
 public:
  explicit TapeRun(const TapeCall& call) : TapeReals(call) {}

  void run() {
    const TapeProgram& program = *call_.program;
    const TapeStep* const strip = program.steps + program.strip_begin;
    const TapeStep* const strip_end = program.steps + program.strip_end;
    for (const TapeStep* step = program.steps; step != strip; ++step) execute_whole(*step);
    if (strip != strip_end) {
      const int strip_rows = tape_strip_rows(call_.lanes);
      columns_ = call_.lanes;
      for (int row0 = 0; row0 < frame_.keys; row0 += strip_rows) {
        rows_ = frame_.keys - row0 < strip_rows ? frame_.keys - row0 : strip_rows;
        move_to_row(row0);
        place(Space::diagonal).first = frame_.keys - 1 - row0;
        place(Space::diagonal).row = -1;
        for (const TapeStep* step = strip; step != strip_end; ++step) execute(*step);
        if (call_.lane_max) raise_lane_max<Real>();
      }
      move_to_row(0);
      place(Space::diagonal).first = 0;
      place(Space::diagonal).row = 0;
    }
    for (const TapeStep* step = strip_end; step != program.steps + program.count; ++step) execute_whole(*step);
  }

 private:
  /// A step outside the strips: its whole array.
  void execute_whole(const TapeStep& step) {
    rows_ = 1;
    switch (step.rank) {
      case Varies::uniform:
        columns_ = 16;
        break;
      case Varies::row:
        columns_ = call_.lanes;
        break;
      case Varies::column:
        columns_ = (frame_.keys + 15) / 16 * 16;
        break;
      case Varies::diagonal:
        columns_ = (frame_.keys + 15) / 16 * 16 + call_.lanes;
        break;
      case Varies::pair:
        return;
    }
    execute(step);
  }

  /// What depends on the tile's type is here alone, so that tiles of both types share the rest.
  void execute(const TapeStep& step) {
    switch (step.op) {
      case TapeOp::round:
        return map<Real, double, double, double, kVectorBytes / 8>(
            step, [](auto a, auto, auto) { return __builtin_convertvector(a, Vec<Real, kVectorBytes / 8>); });
      case TapeOp::zero_r:
        __builtin_memset(ref<Real>(step.out).p, 0, slots_[step.out.space]);
        return;
      case TapeOp::sum_keys:
        return sum_keys<Real>(step);
      case TapeOp::sum_lanes:
        return sum_lanes<Real>(step);
      case TapeOp::sum_diagonals:
        return sum_diagonals<Real>(step);
      case TapeOp::sum_all:
        return sum_all<Real>(step);
      case TapeOp::accumulate:
        return accumulate<Real>(step);
      default:
        return sizeof(Real) == 4 && !step.wide ? reals<float>(step) : reals<double>(step);
    }
  }
};

template <class Real>
void run_tape(const TapeCall& call) {
  TapeRun<Real>(call).run();
}

}  // namespace
}  // namespace foveal::cpu
