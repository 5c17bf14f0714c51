#pragma once
// Products of tiles, one step at a time, so that other instructions can stand between the steps. Both kinds of steps are copied to where
// they are used, so that they stay in registers.
#include <cstdint>

namespace foveal::cpu {
namespace {

/// C[2 tiles][columns] = or += A times B over `steps` tiles. A column of C is two tiles, one after the other; so many bytes lie between the
/// two rows of A, and between the columns of B and of C.
struct TileJob {
  float* c;
  const char *a, *b;
  std::int64_t a_below, b_beside, c_beside;
  int steps, columns;
  bool accumulate;
  std::int64_t b_jump = 0;  ///< from the third on, tiles of B lie so many bytes further on
};

/// Jobs of one column: two pairs of accumulators take turns, and a pair is stored in the middle of the next job. Three loads for two
/// products, but a job may be as short as two steps.
template <class Tiles>
class PairSteps {
 public:
  static constexpr int kColumns = 1;

  explicit PairSteps(Tiles* tiles) : tiles_(tiles) {}
  void start(const TileJob* jobs) { job_ = jobs, at_ = 0; }

  [[gnu::always_inline]] void step() {
    if (turn_) {
      step_of<2>();
    } else {
      step_of<0>();
    }
  }
  /// The last tiles reach memory.
  void finish() {
    if (turn_) {
      store<0>();
    } else {
      store<2>();
    }
  }

 private:
  static constexpr int kTile = 1024;

  template <int C>
  [[gnu::always_inline]] void step_of() {
    if (at_ == 0) {
      if (job_->accumulate) {
        if (pending_ == job_->c) store<2 - C>();
        tiles_->template load<C>(job_->c);
        tiles_->template load<C + 1>(job_->c + 256);
      } else {
        tiles_->template zero<C>();
        tiles_->template zero<C + 1>();
      }
    }
    const char* a = job_->a + at_ * kTile;
    tiles_->template load<4>(a);
    tiles_->template load<6>(job_->b + at_ * kTile + (at_ < 2 ? 0 : job_->b_jump));
    tiles_->template dot<C, 4, 6>();
    tiles_->template load<5>(a + job_->a_below);
    tiles_->template dot<C + 1, 5, 6>();
    if (at_ == (job_->steps - 1) / 2) store<2 - C>();
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
    pending_ = nullptr;
  }

  Tiles* tiles_;
  const TileJob* job_ = nullptr;
  int at_ = 0;
  bool turn_ = false;
  float* pending_ = nullptr;
};

/// Jobs of one column or two: squares of 2 x 2 accumulators, so that four loads serve four products. A pair of accumulators is stored, and
/// begins with the next job, while the other pair's last products are still under way.
template <class Tiles>
class SquareSteps {
 public:
  static constexpr int kColumns = 2;

  explicit SquareSteps(Tiles* tiles) : tiles_(tiles) {}
  void start(const TileJob* jobs) { job_ = jobs, at_ = 0; }

  [[gnu::always_inline]] void step() {
    const char* a = job_->a + at_ * kTile;
    const char* b = job_->b + at_ * kTile + (at_ < 2 ? 0 : job_->b_jump);
    if (at_ == 0) turn<0>(pending_, job_->c);
    tiles_->template load<4>(a);
    tiles_->template load<6>(b);
    tiles_->template dot<0, 4, 6>();
    tiles_->template load<5>(a + job_->a_below);
    tiles_->template dot<1, 5, 6>();
    if (at_ == 0) turn<2>(pending_beside_, job_->columns > 1 ? job_->c + job_->c_beside / 4 : nullptr);
    if (job_->columns > 1) {
      tiles_->template load<7>(b + job_->b_beside);
      tiles_->template dot<2, 4, 7>();
      tiles_->template dot<3, 5, 7>();
    }
    if (++at_ == job_->steps) at_ = 0, ++job_;
  }
  /// The last tiles reach memory.
  void finish() { store<0>(pending_), store<2>(pending_beside_); }

 private:
  static constexpr int kTile = 1024;

  /// A pair of accumulators goes from one place to the next.
  template <int C>
  [[gnu::always_inline]] void turn(float*& pending, float* c) {
    store<C>(pending);
    if (!c) return;
    if (job_->accumulate) {
      tiles_->template load<C>(c);
      tiles_->template load<C + 1>(c + 256);
    } else {
      tiles_->template zero<C>();
      tiles_->template zero<C + 1>();
    }
    pending = c;
  }
  template <int C>
  [[gnu::always_inline]] void store(float*& pending) {
    if (!pending) return;
    tiles_->template store<C>(pending);
    tiles_->template store<C + 1>(pending + 256);
    pending = nullptr;
  }

  Tiles* tiles_;
  const TileJob* job_ = nullptr;
  int at_ = 0;
  float *pending_ = nullptr, *pending_beside_ = nullptr;
};

}  // namespace
}  // namespace foveal::cpu
