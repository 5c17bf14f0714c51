#pragma once
// The AMX forward kernel, for scores without score_mod and masks that are ranges of keys. Unlike BlockOps, rows are queries and lanes are
// keys, so that rounded probabilities are the left operand of the product with V in place. Tile and vector units work at the same time:
//
//   for each granule of 32 keys   S' = Q K^T of the next granule             tile instructions, between the rows of
//                                 the exponential of this granule            vector instructions
//
// O += P V runs in one of two places: interleaved with the exponentials, a block of 64 keys later (BesideVectors), or after those of a
// block of 256 keys (AfterVectors). Interleaved, its tile instructions are hidden; afterwards, its accumulators are loaded and stored a
// quarter as often, and four loads serve four products.
//
// What decides its speed, as measured:
// - Every operand of a tile instruction is a contiguous tile of 1 KB. Keys and values are packed once for all queries, in the order in
//   which they are visited; scores are double-buffered in L1.
// - A pair of accumulators is stored while the other pair works (see amx_steps.h).
// - While AMX is busy, floating-point vectors issue once a cycle: the exponential is a table, a shift and a quadratic, accurate to fp32
//   because lse is, with seven floating-point operations for 16 scores, the row sum included.
// - The maximum is lazy, and an overrun shows in the argument of the exponential: a granule that exceeds it is recomputed.
#include "cpu/kernels/amx_forward_layout.h"
#include "cpu/kernels/amx_steps.h"
#include "cpu/kernels/avx512_exp2.h"
#include "cpu/kernels/rows.h"
#include "cpu/simd/avx512.h"

namespace foveal::cpu {
namespace {

/// The product with V of a block is interleaved with the vectors of the next one: for small head dims, where there is time for it.
struct BesideVectors {
  template <class Tiles>
  using Steps = PairSteps<Tiles>;
  static constexpr int keys = 64;      ///< of a block
  static constexpr bool later = true;  ///< the product lags by a block
};
/// The product with V follows the vectors of its own block.
struct AfterVectors {
  template <class Tiles>
  using Steps = SquareSteps<Tiles>;
  static constexpr int keys = 256;
  static constexpr bool later = false;
};

/// Parts can be switched off to time them: bench/micro/amx_forward_bench.cpp.
struct AllParts {
  static constexpr bool scores = true, products = true, vectors = true, lazy_max = true;
};

/// One tile of queries over spans of keys.
template <class Tiles, class Order, class Parts = AllParts>
class AmxForward : AmxForwardLayout {
 public:
  static std::size_t scratch_bytes(int block) { return 2 * kSlot + kHalves * p_bytes(block); }

  [[gnu::noinline]] static void visit(const ForwardVisit& visit) {
    if (visit.count == 0) return;
    AmxForward pass(visit);
    pass.run();
  }

 private:
  using Steps = typename Order::template Steps<Tiles>;

  static constexpr int kHalves = Order::later ? 2 : 1;          ///< blocks whose probabilities are kept
  static constexpr std::size_t kSlot = std::size_t{kTile} * 4;  ///< scores of a granule

  /// Granules [begin, end) of one block whose product with V is pending.
  struct Pending {
    int block = 0, begin = 0, end = 0, half = 0;
  };

  explicit AmxForward(const ForwardVisit& visit)
      : v_(visit),
        k_tiles_(round_up(visit.dim, 32) / 32),
        v_tiles_(round_up(visit.dim_v, 16) / 16),
        v_jobs_((v_tiles_ + Steps::kColumns - 1) / Steps::kColumns),
        granules_(visit.block / kGranule),
        scores_(static_cast<float*>(visit.scratch)),
        p_(static_cast<char*>(visit.scratch) + 2 * kSlot),
        sum_(visit.sums),
        new_sum_(visit.sums + (Parts::lazy_max ? 16 * kRows : 0)),
        multiplier_(splat(visit.multiplier)),
        steps_(&tiles_) {}

  void run() {
    const KeySpan *span = v_.spans, *end = v_.spans + v_.count;
    int granule = span->begin, slot = 0;
    add_scores(granule, slot);
    run_jobs();
    if (v_.max[0] == -__FLT_MAX__) raise(*span, granule, slot);  // first visit: saves a recompute()
    while (span != end) {
      const int block = granule / granules_, start = block * granules_, last = min(span->end, start + granules_);
      now_ = {block, granule - start, granule - start, (now_.half + 1) % kHalves};
      for (const int begin = granule; granule < last; ++granule, slot ^= 1) {
        const KeySpan* next = granule + 1 < span->end ? span : span + 1;
        if (next != end) add_scores(next == span ? granule + 1 : next->begin, slot ^ 1);
        add_products(pending_.begin < pending_.end ? v_jobs_ * (granule + 1 - begin) / (last - begin) : 0);
        if (!exponentials(*span, granule, slot)) recompute(*span, granule, slot);
        now_.end = granule + 1 - start;
      }
      pending_ = now_, done_ = 0;
      if constexpr (!Order::later) multiply_pending();
      if (granule == span->end && ++span != end) granule = span->begin;
    }
    multiply_pending();
    steps_.finish();
    if (sum_ != v_.sums)
      for (int row = 0; row < kRows; ++row) _mm512_store_ps(v_.sums + 16 * row, _mm512_load_ps(sum_ + 16 * row));
  }

  static int min(int a, int b) { return a < b ? a : b; }
  float* scores(int slot) const { return scores_ + slot * (kSlot / 4); }
  char* probabilities(int half) const { return p_ + half * p_bytes(v_.block); }

  void add_scores(int granule, int slot) {
    const std::int64_t row = k_tiles_ * kTile;
    for (int i = 0; i < 2 && Parts::scores; i += Steps::kColumns)
      jobs_.add({scores(slot) + i * 512, static_cast<const char*>(v_.q),
                 static_cast<const char*>(v_.k) + (std::int64_t{granule} * 2 + i) * row, row, row, 2 * kTile, k_tiles_, Steps::kColumns,
                 false});
  }
  /// For Steps::kColumns columns of tiles of the accumulator.
  void add_product(const Pending& w, int job) {
    if (w.begin == w.end || !Parts::products) return;
    const int tile = job * Steps::kColumns;
    const std::int64_t row = granules_ * kTile;
    const char* v = static_cast<const char*>(v_.v) + ((std::int64_t{w.block} * v_tiles_ + tile) * granules_ + w.begin) * kTile;
    jobs_.add({v_.acc + tile * 512, probabilities(w.half) + w.begin * kTile, v, row, row, 2 * kTile, w.end - w.begin,
               min(Steps::kColumns, v_tiles_ - tile), true});
  }
  /// Of the pending product, up to `due` jobs in all.
  void add_products(int due) {
    for (; done_ < due; ++done_) add_product(pending_, done_);
  }
  void multiply_pending() {
    add_products(v_jobs_);
    jobs_.run(steps_);
    pending_ = {}, done_ = 0;
  }
  void run_jobs() {
    jobs_.run(steps_);
    steps_.finish();
  }

  /// Bit mask of the keys of a granule that a row attends to.
  static std::uint32_t kept(const KeySpan& span, int offset, int row) {
    const auto below = [&](int limit) {
      const int n = limit - offset;
      return n <= 0 ? 0 : n >= kGranule ? ~0u : (1u << n) - 1;
    };
    return below(span.ranges.last[row]) & ~below(span.ranges.first[row]);
  }
  /// The exponentials of a granule, interleaved with the queued tile instructions. False where a score exceeds the current maximum
  /// by so much that the granule must be recomputed.
  bool exponentials(const KeySpan& span, int granule, int slot) {
    const bool products = jobs_.count > 2 / Steps::kColumns;
    bool fine = true;
    if constexpr (Parts::vectors) {
      fine = rows(span, granule, slot);
    } else {
      jobs_.run(steps_);
    }
    if (!products) steps_.finish();  // the next granule needs its scores
    jobs_.clear();
    if (fine) swap_sums();
    return fine;
  }
  void swap_sums() {
    float* sum = sum_;
    sum_ = new_sum_, new_sum_ = sum;
  }

  bool rows(const KeySpan& span, int granule, int slot) {
    return granule < span.whole ? rows<false>(span, granule, slot) : rows<true>(span, granule, slot);
  }
  template <bool kRanges>
  [[gnu::noinline]] bool rows(const KeySpan& span, int granule, int slot) {
    constexpr int rows_per_turn = 4, turns = kRows / rows_per_turn, busy = Order::later ? turns : turns * 3 / 4;
    Steps steps = steps_;
    steps.start(jobs_.jobs);
    const float *s = scores(slot), *max = v_.max, *sum = sum_;
    float* new_sum = new_sum_;
    granule -= now_.block * granules_;
    char* p = probabilities(now_.half) + granule * kTile;
    const std::int64_t to_next_tile = (granules_ - 1) * kTile;
    const int step_count = jobs_.steps, offset = granule * kGranule;
    const TableExp exp{};  // without a constructor: its constants stay in registers
    const __m512 multiplier = multiplier_, growth = splat(8.0f), none = splat(-__builtin_inff());
    __mmask16 fine_low = 0xffff, fine_high = 0xffff;
    int due = 0;
    for (int row = 0; row < kRows; row += rows_per_turn, p += 64 * rows_per_turn) {
      if (row > 0 && row % 16 == 0) p += to_next_tile;
      if (row < busy * rows_per_turn) {
        for (due += step_count; due >= busy; due -= busy) steps.step();
      } else if (row == busy * rows_per_turn) {
        steps.finish();
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows_per_turn; ++i) {
        const __m512 m = splat(max[row + i]);
        __m512 low = _mm512_fmsub_ps(_mm512_load_ps(s + (row + i) * 16), multiplier, m);
        __m512 high = _mm512_fmsub_ps(_mm512_load_ps(s + (row + i) * 16 + 512), multiplier, m);
        if constexpr (kRanges) {
          const std::uint32_t keep = kept(span, offset, row + i);
          low = _mm512_mask_mov_ps(none, static_cast<__mmask16>(keep), low);
          high = _mm512_mask_mov_ps(none, static_cast<__mmask16>(keep >> 16), high);
        }
        if constexpr (Parts::lazy_max) {
          fine_low = _mm512_mask_cmp_ps_mask(fine_low, low, growth, _CMP_NGT_UQ);
          fine_high = _mm512_mask_cmp_ps_mask(fine_high, high, growth, _CMP_NGT_UQ);
        }
        low = exp(low), high = exp(high);
        _mm512_store_ps(new_sum + (row + i) * 16, _mm512_add_ps(_mm512_load_ps(sum + (row + i) * 16), _mm512_add_ps(low, high)));
        _mm512_store_si512(p + i * 64, round_bf16(low, high));
      }
    }
    steps_ = steps;
    return (fine_low & fine_high) == 0xffff;
  }

  /// Recomputes a granule with raised maxima. The pending product and that of this block so far come first: they use the old maxima.
  [[gnu::noinline]] void recompute(const KeySpan& span, int granule, int slot) {
    multiply_pending();
    for (int job = 0; job < v_jobs_; ++job) add_product(now_, job);
    run_jobs();
    now_.begin = now_.end;
    raise(span, granule, slot);
    rows(span, granule, slot);
    swap_sums();
  }

  /// Raises maxima that the granule exceeds by more than 2^8, and rescales accumulators and sums.
  [[gnu::noinline]] void raise(const KeySpan& span, int granule, int slot) {
    const __m512 none = splat(-__builtin_inff());
    for (int row = 0; row < kRows; ++row) {
      const std::uint32_t keep = granule < span.whole ? ~0u : kept(span, granule % granules_ * kGranule, row);
      const float* s = scores(slot) + row * 16;
      const __m512 low = _mm512_mask_load_ps(none, static_cast<__mmask16>(keep), s);
      const __m512 high = _mm512_mask_load_ps(none, static_cast<__mmask16>(keep >> 16), s + 512);
      const float top = _mm512_reduce_max_ps(_mm512_max_ps(low, high)) * v_.multiplier;
      const float before = v_.max[row];
      if (!(top > before + 8)) continue;
      v_.max[row] = top;
      if (before == -__FLT_MAX__) continue;  // nothing to rescale
      const __m512 factor = Avx512F32::exp2(splat(before - top));
      _mm512_store_ps(sum_ + row * 16, _mm512_mul_ps(_mm512_load_ps(sum_ + row * 16), factor));
      for (int i = 0; i < v_tiles_; ++i) {
        float* acc = v_.acc + (i * kRows + row) * 16;
        _mm512_store_ps(acc, _mm512_mul_ps(_mm512_load_ps(acc), factor));
      }
    }
  }

  const ForwardVisit& v_;
  const int k_tiles_, v_tiles_, v_jobs_, granules_;
  float* const scores_;  ///< two slots of [16 keys][rows] tiles
  char* const p_;        ///< kHalves times [rows][granules] tiles
  float *sum_, *new_sum_;
  const __m512 multiplier_;
  Tiles tiles_;
  Steps steps_;
  AmxJobs<(2 + max_head_dim / 16) / Steps::kColumns> jobs_;  ///< S of a granule, and O
  Pending pending_, now_;                                    ///< the last block, and this one
  int done_ = 0;                                             ///< jobs of the pending product
};

/// Both orders in one table: head dims decide which, and the size of a block.
template <class Tiles>
class AmxForwards : AmxForwardLayout {
  using Beside = AmxForward<Tiles, BesideVectors>;
  using After = AmxForward<Tiles, AfterVectors>;

  static int block(int dim, int dim_v) { return (dim < dim_v ? dim_v : dim) <= 64 ? BesideVectors::keys : AfterVectors::keys; }
  static std::size_t scratch_bytes(int block) {
    return block == BesideVectors::keys ? Beside::scratch_bytes(block) : After::scratch_bytes(block);
  }
  static void visit(const ForwardVisit& visit) { visit.block == BesideVectors::keys ? Beside::visit(visit) : After::visit(visit); }

 public:
  static constexpr PackedForwardOps table() {
    return {
        .layout = layout_of<AmxForwardLayout>(kRows), .block = block, .scratch_bytes = scratch_bytes, .visit = visit, .add_sums = add_sums};
  }
};

}  // namespace
}  // namespace foveal::cpu
