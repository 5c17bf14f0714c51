#pragma once
// The AMX forward kernel for scores and masks by programs. Tiles are S^T, as a tape wants them: lanes are queries, rows are keys.
//
//   for each block of 64 keys   tape of this block                  scores, maxima
//                               S'^T = K Q^T of the next block      tile instructions, between the rows of
//                               O^T += V^T P^T of the last block
//                               the exponential of this block       vector instructions
//
// Unlike the phased form (amx_products.h), which serves every problem, operands are tiles of 1 KB that are packed once for all queries of
// a kv head, and products run beside the exponentials. P^T is rounded in pairs of keys, which makes it a right operand where it is.
#include "cpu/kernels/amx_pack.h"
#include "cpu/kernels/amx_steps.h"
#include "cpu/kernels/avx512_exp2.h"
#include "cpu/kernels/rows.h"
#include "cpu/simd/avx512.h"

namespace foveal::cpu {
namespace {

struct AmxScoredLayout {
  static constexpr int kLanes = 32, kKeys = 64;

  static std::size_t q_bytes(int dim) { return std::size_t{kTile} * 2 * (round_up(dim, 32) / 32); }
  static std::size_t acc_bytes(int dim_v) { return std::size_t{kLanes} * 4 * round_up(dim_v, 32); }
  static std::size_t k_bytes(int keys, int dim) { return static_cast<std::size_t>(keys) * 2 * round_up(dim, 32); }
  static std::size_t v_bytes(int keys, int dim_v) { return static_cast<std::size_t>(keys) * 2 * round_up(dim_v, 32); }

  /// For every 16 queries, tiles of pairs of dims by queries.
  static void pack_q(const LaneRows& rows, int dim, float sign, void* packed) {
    const __m512i flip = _mm512_set1_epi32(sign < 0 ? static_cast<int>(0x80008000u) : 0);
    const auto row = [&](int i) { return i < rows.lanes ? rows.row[i] : nullptr; };
    pack_row_tiles(kLanes, dim, row, rows.stride, packed, [&](__m512i(&tile)[16]) {
      for (__m512i& x : tile) x = _mm512_xor_si512(x, flip);
      transpose(tile);
    });
  }
  /// For every 16 keys, tiles of keys by dims.
  static void pack_k(const KeyRows& rows, int keys, int block, int dim, void* packed) {
    pack_row_tiles(block, dim, BlockRow{rows, keys}, rows.stride, packed, [](__m512i(&)[16]) {});
  }
  /// For every 16 dims, tiles of dims by keys. False where an element is infinite or NaN.
  static bool pack_v(const KeyRows& rows, int keys, int block, int dim, void* packed) {
    FiniteBf16 finite;
    pack_pair_tiles(block, dim, round_up(dim, 32), BlockRow{rows, keys}, rows.stride, packed, [&](__m512i(&tile)[16]) {
      for (const __m512i x : tile) finite.look(x);
      transpose(tile);
    });
    return finite.all();
  }
  /// row[i] = acc[][i] * factor[i], zeros where the factor is 0.
  static void write(const float* acc, int dim, const float* factor, const LaneRowsOut& rows) {
    for (int lane = 0; lane < rows.lanes; lane += 16) {
      const __m512 f = _mm512_load_ps(factor + lane);
      const __mmask16 any = _mm512_cmp_ps_mask(f, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      for (int d = 0; d < dim; d += 32) {
        __m512i x[2][16];
        for (int half = 0; half < 2; ++half) {
          for (int i = 0; i < 16; ++i)
            x[half][i] = _mm512_castps_si512(_mm512_maskz_mul_ps(any, f, _mm512_load_ps(acc + (d + 16 * half + i) * kLanes + lane)));
          transpose(x[half]);
        }
        for (int i = 0; i < 16 && lane + i < rows.lanes; ++i)
          if (rows.row[lane + i]) store_row(rows.row[lane + i], rows, d, dim, _mm512_castsi512_ps(x[0][i]), _mm512_castsi512_ps(x[1][i]));
      }
    }
  }
};

/// One tile of queries over blocks of keys.
template <class Tiles>
class AmxScoredForward : AmxScoredLayout {
 public:
  static constexpr ScoredForwardOps table() {
    return {.layout = layout_of<AmxScoredLayout>(kLanes), .block = kKeys, .scratch_bytes = 2 * (kTileBytes + kWeightBytes), .visit = visit};
  }

 private:
  using Steps = SquareSteps<Tiles, kLanes>;
  static constexpr int kColumns = Steps::kColumns, kKeySteps = kKeys / 32;
  static constexpr std::size_t kTileBytes = std::size_t{kKeys} * kLanes * 4, kWeightBytes = std::size_t{kKeys} * kLanes * 2;
  static constexpr int kSlots = 2;
  static constexpr float kHeadroom = 16;

  [[gnu::noinline]] static void visit(const ScoredVisit& visit) {
    if (visit.count == 0) return;
    AmxScoredForward pass(visit);
    pass.run();
  }

  explicit AmxScoredForward(const ScoredVisit& visit)
      : v_(visit),
        k_tiles_(round_up(visit.dim, 32) / 32),
        v_tiles_(round_up(visit.dim_v, 32) / 16),
        tile_(static_cast<float*>(visit.scratch)),
        weights_(static_cast<char*>(visit.scratch) + kSlots * kTileBytes),
        steps_(&tiles_) {}

  void run() {
    add_dots(0);
    run_jobs();
    for (int i = 0; i < v_.count; ++i) {
      score(i);
      add_products(i);
      if (i + 1 < v_.count) add_dots(i + 1);
      exponentials(i);
    }
    add_products(v_.count);
    run_jobs();
  }

  float* tile(int i) const { return tile_ + i % kSlots * (kTileBytes / 4); }
  char* weights(int i) const { return weights_ + i % kSlots * kWeightBytes; }

  /// S^T of the i-th block.
  void add_dots(int i) {
    const std::int64_t row = std::int64_t{k_tiles_} * kTile;
    const char *k = static_cast<const char*>(v_.k) + v_.blocks[i].block * (kKeys / 16 * row), *q = static_cast<const char*>(v_.q);
    for (int key = 0; key < kKeys; key += 32, k += 2 * row)
      for (int half = 0; half < 2; half += kColumns)
        jobs_.add({tile(i) + key * kLanes + half * 16, k, q + half * row, row, row, 64, k_tiles_, kColumns, false});
  }
  /// O^T += V^T P^T of the blocks before the i-th, as far as that is to be done.
  void add_products(int i) {
    constexpr std::int64_t row = kKeySteps * kTile;
    for (; multiplied_ < i; ++multiplied_) {
      const char* v = static_cast<const char*>(v_.v) + v_.blocks[multiplied_].block * (v_tiles_ * row);
      for (int t = 0; t < v_tiles_; t += 2, v += 2 * row)
        for (int half = 0; half < 2; half += kColumns)
          jobs_.add({v_.acc + t * 16 * kLanes + half * 16, v, weights(multiplied_) + half * row, row, row, 64, kKeySteps, kColumns, true});
    }
  }
  void run_jobs() {
    jobs_.run(steps_);
    steps_.finish();
  }

  /// The program of the i-th block, and maxima raised to its scores.
  void score(int i) {
    alignas(64) float largest[kLanes];
    const ScoredBlock& block = v_.blocks[i];
    float* s = tile(i);
    for (int half = 0; half < kLanes; half += 16) _mm512_store_ps(largest + half, splat(-__builtin_inff()));
    const bool known = v_.score(v_.context, block, s, largest);
    for (int at = block.keys * kLanes; at < kKeys * kLanes; at += 16) _mm512_store_ps(s + at, splat(-__builtin_inff()));
    for (int half = 0; half < kLanes; half += 16) {
      __m512 top = _mm512_load_ps(largest + half);
      for (int key = 0; !known && key < block.keys; ++key) top = _mm512_max_ps(top, _mm512_load_ps(s + key * kLanes + half));
      raise(i, half, top);
    }
  }
  /// Raises the maxima of 16 lanes that are exceeded by more than 2^8, and rescales their sums and accumulators. All but the first of a
  /// lane rise by 2^kHeadroom more: scores that grow along the keys would raise them at each block.
  void raise(int i, int half, __m512 top) {
    const __m512 max = _mm512_load_ps(v_.max + half), by = _mm512_mul_ps(_mm512_sub_ps(top, max), splat(v_.log2));
    const __mmask16 higher = _mm512_cmp_ps_mask(by, splat(8), _CMP_GT_OQ);
    if (!higher) return;
    const __m512 sum = _mm512_load_ps(v_.sum + half);
    const __mmask16 used = _mm512_mask_cmp_ps_mask(higher, sum, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512 headroom = _mm512_maskz_mov_ps(used, splat(kHeadroom / v_.log2)), raised = _mm512_add_ps(top, headroom);
    _mm512_store_ps(v_.max + half, _mm512_mask_mov_ps(max, higher, raised));
    if (!used) return;
    add_products(i);  // these use the old maxima
    run_jobs();
    const __m512 fall = _mm512_mul_ps(_mm512_sub_ps(max, raised), splat(v_.log2));
    const __m512 factor = _mm512_mask_mov_ps(splat(1), used, Avx512F32::exp2(fall));
    _mm512_store_ps(v_.sum + half, _mm512_mul_ps(sum, factor));
    for (int d = 0; d < v_tiles_ * 16; ++d) {
      float* acc = v_.acc + d * kLanes + half;
      _mm512_store_ps(acc, _mm512_mul_ps(_mm512_load_ps(acc), factor));
    }
  }

  /// P^T of the i-th block and its sums, interleaved with the queued tile instructions.
  [[gnu::noinline]] void exponentials(int i) {
    constexpr int turns = kKeys / 2;
    Steps steps = steps_;
    steps.start(jobs_.jobs);
    const float* s = tile(i);
    char* p = weights(i);
    const int step_count = jobs_.steps;
    const TableExp exp{};
    const __m512 log2 = splat(v_.log2), max_0 = _mm512_load_ps(v_.max), max_1 = _mm512_load_ps(v_.max + 16);
    __m512 sum_0 = _mm512_load_ps(v_.sum), sum_1 = _mm512_load_ps(v_.sum + 16);
    int due = 0;
    for (int turn = 0; turn < turns; ++turn, s += 2 * kLanes) {
      for (due += step_count; due >= turns; due -= turns) steps.step();
      const auto power = [&](int at, __m512 max) { return exp(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(s + at), max), log2)); };
      char* to = p + turn / 16 * kTile + turn % 16 * 64;
      const __m512 even_0 = power(0, max_0), odd_0 = power(kLanes, max_0);
      sum_0 = _mm512_add_ps(sum_0, _mm512_add_ps(even_0, odd_0));
      _mm512_store_si512(to, round_pairs(even_0, odd_0));
      const __m512 even_1 = power(16, max_1), odd_1 = power(kLanes + 16, max_1);
      sum_1 = _mm512_add_ps(sum_1, _mm512_add_ps(even_1, odd_1));
      _mm512_store_si512(to + kKeySteps * kTile, round_pairs(even_1, odd_1));
    }
    steps.finish();
    steps_ = steps;
    jobs_.clear();
    _mm512_store_ps(v_.sum, sum_0);
    _mm512_store_ps(v_.sum + 16, sum_1);
  }

  const ScoredVisit& v_;
  const int k_tiles_, v_tiles_;
  float* const tile_;    ///< kSlots times [key][lane]
  char* const weights_;  ///< kSlots times [16 lanes][tiles of 16 pairs of keys]
  Tiles tiles_;
  Steps steps_;
  AmxJobs<(kKeys / 32 + max_head_dim / 32) * 2 / kColumns> jobs_;
  int multiplied_ = 0;  ///< blocks whose product with V is done or queued
};

}  // namespace
}  // namespace foveal::cpu
