// The interleaved AMX backward and its parts, one core, one head, causal, without packing: what binds it. Times are CPU time for a granule
// of 32 queries and 32 keys. "one tile": the same tile and block again and again, 270 KB at head_dim 64. Without AMX only the vectors are
// timed.
//
//   amx_backward_bench [seqlen [milliseconds for each variant]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cpu/simd/amx.h"
//
#include "cpu/kernels/amx_backward.h"
#include "times.h"

namespace {

using namespace foveal;
using namespace foveal::cpu;

template <bool kScores, bool kProducts, bool kVectors>
struct Parts {
  static constexpr bool scores = kScores, products = kProducts, vectors = kVectors;
};
using Whole = AmxBackward<AmxTiles>;
using Vectors = AmxBackward<AmxTiles, Parts<false, false, true>>;

class Memory {
 public:
  template <class T>
  T* take(std::size_t bytes) {
    pieces_.emplace_back(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), std::free);
    return static_cast<T*>(pieces_.back().get());
  }

 private:
  std::vector<std::unique_ptr<void, void (*)(void*)>> pieces_;
};

/// Packed operands, of random numbers.
class Pass {
 public:
  Pass(int seqlen, int dim) : count_(seqlen / 64), dim_(dim) {
    std::uint64_t state = 1;
    constexpr int most = std::max(Whole::kLanes, Whole::kKeys);
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(most * dim));
    const void* pointers[most];
    for (int i = 0; i < most; ++i) pointers[i] = rows.data() + static_cast<std::ptrdiff_t>(i) * dim;
    const LaneRows lanes{pointers, Whole::kLanes, 1, DType::bf16}, key_rows{pointers, Whole::kKeys, 1, DType::bf16};
    const auto fill = [&] {
      for (std::uint16_t& x : rows) {
        const auto f =
            static_cast<float>(static_cast<double>((state = state * 6364136223846793005u + 1442695040888963407u) >> 40) * 0x1p-23 - 1);
        std::uint32_t bits;
        __builtin_memcpy(&bits, &f, 4);
        x = static_cast<std::uint16_t>(bits >> 16);
      }
    };
    const std::size_t packed = Whole::packed_bytes(Whole::kLanes, dim), dq = Whole::acc_bytes(Whole::kLanes, dim);
    ranges_ = memory_.take<std::int32_t>(4096);
    for (int t = 0; t < kTiles; ++t)
      for (int i = 0; i < 64; ++i) ranges_[128 * t + i] = 0, ranges_[128 * t + 64 + i] = 64 * t + i + 1;
    for (int t = 0; t < count_; ++t) {
      char* queries = memory_.take<char>(4 * packed + dq + 1024);
      QueryTile tile{};
      fill(), Whole::pack_queries(lanes, dim, queries, queries + 2 * packed);
      fill(), Whole::pack_queries(lanes, dim, queries + packed, queries + 3 * packed);
      tile.q_panel = queries, tile.dout_panel = queries + packed, tile.q_pairs = queries + 2 * packed,
      tile.dout_pairs = queries + 3 * packed;
      tile.dq = reinterpret_cast<float*>(queries + 4 * packed);
      float* lse = tile.dq + dq / 4;
      std::fill_n(lse, 64, static_cast<float>(std::log2(seqlen)) * Whole::kUnit);
      std::fill_n(lse + 64, 64, 0.1f);
      tile.lse = lse, tile.delta = lse + 64;
      tiles_.push_back(tile);
    }
    const std::size_t block_packed = Whole::packed_bytes(Whole::kKeys, dim), acc = Whole::acc_bytes(Whole::kKeys, dim);
    for (int b = 0; b < count_ / kTiles; ++b) {
      char* keys = memory_.take<char>(3 * block_packed + 2 * acc);
      fill(), Whole::pack_keys(key_rows, dim, keys, keys + 2 * block_packed);
      fill(), Whole::pack_keys(key_rows, dim, keys + block_packed, nullptr);
      BackwardVisit block{};
      block.k = keys, block.v = keys + block_packed, block.k_columns = keys + 2 * block_packed;
      block.dk = reinterpret_cast<float*>(keys + 3 * block_packed), block.dv = block.dk + acc / 4;
      block.multiplier = 1.4426950f / std::sqrt(static_cast<float>(dim)) * Whole::kUnit;
      block.scratch = nullptr, block.dim = block.dim_v = dim;
      blocks_.push_back(block);
    }
    scratch_ = memory_.take<char>(Whole::table().scratch_bytes);
  }

  /// Steps of so many tiles past the blocks.
  template <class Backward>
  void causal(int step) {
    for (int begin = 0; begin < count_; begin += step) {
      const int end = std::min(count_, begin + step);
      for (int b = 0; kTiles * b < end; ++b) visit<Backward>(b, std::max(kTiles * b, begin), end, 0);
    }
  }
  template <class Backward>
  void one_tile() {
    for (int b = 0; b < count_ / kTiles; ++b) visit<Backward>(0, kTiles * b + 1, count_ + 1, 1);
  }
  double granules() const { return 4.0 * count_ * (count_ + 1) / 2; }

 private:
  static constexpr int kTiles = Whole::kKeys / Whole::kLanes;  ///< of queries, as many as a block has keys

  template <class Backward>
  void visit(int b, int begin, int end, int same) {
    list_.clear();
    for (int t = begin; t < end; ++t) {
      list_.push_back(tiles_[static_cast<std::size_t>(same ? 0 : t)]);
      if (same || t >= kTiles * (b + 1)) continue;
      const std::int32_t* first = ranges_ + 128 * (t - kTiles * b);
      list_.back().ranges = {first, first + 64};
    }
    BackwardVisit v = blocks_[static_cast<std::size_t>(b)];
    v.scratch = scratch_, v.tiles = list_.data(), v.count = static_cast<int>(list_.size());
    v.first = true;
    Backward::visit(v);
  }

  int count_, dim_;
  Memory memory_;
  std::vector<QueryTile> tiles_, list_;
  std::vector<BackwardVisit> blocks_;
  std::int32_t* ranges_;
  void* scratch_;
};

double budget = 0.2;

template <class Fn>
void measure(const char* name, const Pass& pass, int dim, const Fn& fn) {
  if (amx_bf16_available()) AmxTiles::enter();
  const micro::Times times = micro::times_of(budget, fn);
  if (amx_bf16_available()) AmxTiles::leave();  // measuring the peak takes the tiles
  const double flops = pass.granules() * 32 * 32 * dim * 10;
  const double peak = micro::peak(amx_bf16_available() ? micro::Unit::bf16_amx : micro::Unit::bf16_zmm, 0.005).best;
  std::printf("%-34s %8.0f %8.0f %8.2f\n", name, times.median / pass.granules() * 1e9, times.best / pass.granules() * 1e9,
              flops / times.median * 1e-9 / peak);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int seqlen = argc > 1 ? std::atoi(argv[1]) / Whole::kKeys * Whole::kKeys : 4096;
  if (argc > 2) budget = std::atof(argv[2]) * 1e-3;
  _mm_setcsr(_mm_getcsr() | 0x8040u);
  const bool amx = amx_bf16_available();
  std::printf("TDPBF16PS %.0f GFLOP/s, FMA zmm %.0f\n", micro::peak(micro::Unit::bf16_amx).best, micro::peak(micro::Unit::fma_avx512).best);
  for (const int dim : {64, 128}) {
    Pass pass(seqlen, dim);
    std::printf("causal, %d keys, head_dim %d\n%-34s %8s %8s %8s\n", seqlen, dim, "", "ns/gran", "best", "of peak");
    if (amx) {
      for (const int step : {2, 4, 8, 16, 64}) {
        char name[40];
        std::snprintf(name, sizeof name, "whole, %d tiles in a step", step);
        measure(name, pass, dim, [&] { pass.causal<Whole>(step); });
      }
      using Tiles = AmxBackward<AmxTiles, Parts<true, true, false>>;
      using Scores = AmxBackward<AmxTiles, Parts<true, false, false>>;
      using Products = AmxBackward<AmxTiles, Parts<false, true, false>>;
      measure("tile instructions only", pass, dim, [&] { pass.causal<Tiles>(8); });
      measure("S and dP only", pass, dim, [&] { pass.causal<Scores>(8); });
      measure("dV, dK and dQ only", pass, dim, [&] { pass.causal<Products>(8); });
      measure("whole, one tile", pass, dim, [&] { pass.one_tile<Whole>(); });
      measure("tile instructions only, one tile", pass, dim, [&] { pass.one_tile<Tiles>(); });
      measure("S and dP only, one tile", pass, dim, [&] { pass.one_tile<Scores>(); });
      measure("dV, dK and dQ only, one tile", pass, dim, [&] { pass.one_tile<Products>(); });
    }
    measure("vectors only", pass, dim, [&] { pass.causal<Vectors>(8); });
    measure("vectors only, one tile", pass, dim, [&] { pass.one_tile<Vectors>(); });
  }
}
