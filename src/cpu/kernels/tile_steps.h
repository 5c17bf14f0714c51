#pragma once
// Products of tiles, one step at a time, so that other instructions can stand between the steps.
#include <cstdint>

namespace foveal::cpu {
namespace {

/// The accumulators' turns, and the tile instructions of a list of products one step at a time. Copied to where it is used, so that it
/// stays in registers.
template <class Tiles, int kRowTiles>
class TileSteps {
 public:
  /// C[kRowTiles tiles] = or += A times B over `steps` tiles; the rows of A are `a_below` bytes apart.
  struct Job {
    float* c;
    const char *a, *b;
    std::int64_t a_below;
    int steps;
    bool accumulate;
    std::int64_t b_jump = 0;  ///< from the third on, tiles of B lie so many bytes further on
  };

  explicit TileSteps(Tiles* tiles) : tiles_(tiles) {}
  void start(const Job* jobs) { job_ = jobs, at_ = 0; }

  [[gnu::always_inline]] void step() {
    if (turn_) {
      step_of<kRowTiles>();
    } else {
      step_of<0>();
    }
  }
  /// The last tiles reach memory.
  void finish() {
    if (turn_) {
      store<0>();
    } else {
      store<kRowTiles>();
    }
  }

 private:
  static constexpr int kTile = 1024, kB = kRowTiles == 2 ? 6 : 7;
  static constexpr int a_tile(int row) { return kRowTiles == 2 ? 4 + row : 6; }

  template <int C>
  [[gnu::always_inline]] void step_of() {
    if (at_ == 0) {
      if (job_->accumulate) {
        if (pending_ == job_->c) store<kRowTiles - C>();
        tiles_->template load<C>(job_->c);
        tiles_->template load<C + 1>(job_->c + 256);
        if constexpr (kRowTiles > 2) tiles_->template load<C + 2>(job_->c + 512);
      } else {
        tiles_->template zero<C>();
        tiles_->template zero<C + 1>();
        if constexpr (kRowTiles > 2) tiles_->template zero<C + 2>();
      }
    }
    const char* a = job_->a + at_ * kTile;
    tiles_->template load<a_tile(0)>(a);
    tiles_->template load<kB>(job_->b + at_ * kTile + (at_ < 2 ? 0 : job_->b_jump));
    tiles_->template dot<C, a_tile(0), kB>();
    tiles_->template load<a_tile(1)>(a + job_->a_below);
    tiles_->template dot<C + 1, a_tile(1), kB>();
    if constexpr (kRowTiles > 2) {
      tiles_->template load<a_tile(2)>(a + 2 * job_->a_below);
      tiles_->template dot<C + 2, a_tile(2), kB>();
    }
    if (at_ == (job_->steps - 1) / 2) store<kRowTiles - C>();
    if (++at_ == job_->steps) {
      pending_ = job_->c;
      turn_ = !turn_;
      at_ = 0;
      ++job_;
    }
  }
  template <int C>
  [[gnu::always_inline]] void store() {
    if (!pending_) return;
    tiles_->template store<C>(pending_);
    tiles_->template store<C + 1>(pending_ + 256);
    if constexpr (kRowTiles > 2) tiles_->template store<C + 2>(pending_ + 512);
    pending_ = nullptr;
  }

  Tiles* tiles_;
  const Job* job_ = nullptr;
  int at_ = 0;
  bool turn_ = false;
  float* pending_ = nullptr;
};

}  // namespace
}  // namespace foveal::cpu
