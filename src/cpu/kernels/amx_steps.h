#pragma once
// AMX products one step at a time, so that vector instructions can be interleaved. Steps are copied into
// the loop that uses them, to stay in registers.
#include <cstdint>

namespace foveal::cpu {
namespace {

/// C[2 tiles][columns] = or += A times B over `steps` tiles. A column of C is two tiles, one below the other. Strides in bytes: between
/// the two rows of A, and between the columns of B and of C.
struct AmxJob {
  float* c;
  const char *a, *b;
  std::int64_t a_below, b_beside, c_beside;
  int steps, columns;
  bool accumulate;
  std::int64_t b_jump = 0;  ///< tiles of B from the third on are this many bytes further
};

/// What both kinds of steps below share: the place in the list of jobs, and pairs of accumulators, C and C + 1, whose rows of 16 are kLd
/// floats apart in memory.
template <class Tiles, int kLd>
class AmxSteps {
 public:
  explicit AmxSteps(Tiles* tiles) : tiles_(tiles) {}
  void start(const AmxJob* jobs) { job_ = jobs, at_ = 0; }

 protected:
  static constexpr int kTile = 1024, kBelow = 16 * kLd;
  static constexpr std::int64_t kRowBytes = 4 * kLd;

  const char* a() const { return job_->a + at_ * kTile; }
  const char* b() const { return job_->b + at_ * kTile + (at_ < 2 ? 0 : job_->b_jump); }
  /// Of the job's result at c.
  template <int C>
  [[gnu::always_inline]] void begin(const float* c) {
    if (job_->accumulate) {
      tiles_->template load<C>(c, kRowBytes);
      tiles_->template load<C + 1>(c + kBelow, kRowBytes);
    } else {
      tiles_->template zero<C>();
      tiles_->template zero<C + 1>();
    }
  }
  template <int C>
  [[gnu::always_inline]] void store(float*& pending) {
    if (!pending) return;
    tiles_->template store<C>(pending, kRowBytes);
    tiles_->template store<C + 1>(pending + kBelow, kRowBytes);
    pending = nullptr;
  }

  Tiles* tiles_;
  const AmxJob* job_ = nullptr;
  int at_ = 0;
};

/// Jobs of one column: two pairs of accumulators take turns, and a pair is stored in the middle of the next job. Three loads for two
/// products, but a job may be as short as two steps.
template <class Tiles, int kLd = 16>
class PairSteps : public AmxSteps<Tiles, kLd> {
  using Base = AmxSteps<Tiles, kLd>;
  using Base::at_;
  using Base::job_;
  using Base::tiles_;

 public:
  static constexpr int kColumns = 1;
  using Base::Base;

  [[gnu::always_inline]] void step() {
    if (turn_) {
      step_of<2>();
    } else {
      step_of<0>();
    }
  }
  /// Stores the last tiles.
  void finish() {
    if (turn_) {
      this->template store<0>(pending_);
    } else {
      this->template store<2>(pending_);
    }
  }

 private:
  template <int C>
  [[gnu::always_inline]] void step_of() {
    if (at_ == 0) {
      if (job_->accumulate && pending_ == job_->c) this->template store<2 - C>(pending_);
      this->template begin<C>(job_->c);
    }
    const char* a = this->a();
    tiles_->template load<4>(a);
    tiles_->template load<6>(this->b());
    tiles_->template dot<C, 4, 6>();
    tiles_->template load<5>(a + job_->a_below);
    tiles_->template dot<C + 1, 5, 6>();
    if (at_ == (job_->steps - 1) / 2) this->template store<2 - C>(pending_);
    if (++at_ == job_->steps) {
      pending_ = job_->c;
      turn_ = !turn_;
      at_ = 0;
      ++job_;
    }
  }

  bool turn_ = false;
  float* pending_ = nullptr;
};

/// Jobs of one column or two: squares of 2 x 2 accumulators, so that four loads serve four products. A pair of accumulators is stored, and
/// begins the next job, while the last products of the other pair are in flight.
template <class Tiles, int kLd = 16>
class SquareSteps : public AmxSteps<Tiles, kLd> {
  using Base = AmxSteps<Tiles, kLd>;
  using Base::at_;
  using Base::job_;
  using Base::tiles_;

 public:
  static constexpr int kColumns = 2;
  using Base::Base;

  [[gnu::always_inline]] void step() {
    const char *a = this->a(), *b = this->b();
    if (at_ == 0) next<0>(pending_, job_->c);
    tiles_->template load<4>(a);
    tiles_->template load<6>(b);
    tiles_->template dot<0, 4, 6>();
    tiles_->template load<5>(a + job_->a_below);
    tiles_->template dot<1, 5, 6>();
    if (at_ == 0) next<2>(pending_beside_, job_->columns > 1 ? job_->c + job_->c_beside / 4 : nullptr);
    if (job_->columns > 1) {
      tiles_->template load<7>(b + job_->b_beside);
      tiles_->template dot<2, 4, 7>();
      tiles_->template dot<3, 5, 7>();
    }
    if (++at_ == job_->steps) at_ = 0, ++job_;
  }
  /// Stores the last tiles.
  void finish() { this->template store<0>(pending_), this->template store<2>(pending_beside_); }

 private:
  /// Stores a pair of accumulators and begins the next; null: none.
  template <int C>
  [[gnu::always_inline]] void next(float*& pending, float* c) {
    this->template store<C>(pending);
    if (!c) return;
    this->template begin<C>(c);
    pending = c;
  }

  float *pending_ = nullptr, *pending_beside_ = nullptr;
};

/// The jobs of a kernel, at most kMost at a time.
template <int kMost>
struct AmxJobs {
  AmxJob jobs[kMost];
  int count = 0, steps = 0;

  void add(const AmxJob& job) {
    if (count == kMost) __builtin_trap();  // rather than write beyond the list, which is on the stack
    jobs[count++] = job;
    steps += job.steps;
  }
  void clear() { count = steps = 0; }
  /// All steps, nothing between them. Leaves the last tiles in registers.
  template <class Steps>
  void run(Steps& tiles) {
    tiles.start(jobs);
    for (int i = 0; i < steps; ++i) tiles.step();
    clear();
  }
};

}  // namespace
}  // namespace foveal::cpu
