// The interleaved AMX backward and its parts, one core, one head, causal, without packing: what binds it. Times are CPU time for a granule
// of 32 queries and 32 keys. "one tile": the same tile and block again and again, 150 KB at head_dim 64. Without AMX only the vectors are
// timed.
//
//   tile_backward_bench [seqlen [milliseconds for each variant]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cpu/simd/amx.h"
//
#include "cpu/kernels/tile_backward.h"
#include "peaks.h"

namespace {

using namespace foveal;
using namespace foveal::cpu;

template <bool kScores, bool kProducts, bool kVectors>
struct Parts {
  static constexpr bool scores = kScores, products = kProducts, vectors = kVectors;
};
using Whole = TileBackward<AmxTiles>;
using Vectors = TileBackward<AmxTiles, Parts<false, false, true>>;

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
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(64 * dim));
    const void* pointers[64];
    for (int i = 0; i < 64; ++i) pointers[i] = rows.data() + static_cast<std::ptrdiff_t>(i) * dim;
    const LaneRows lanes{pointers, 64, 1, DType::bf16};
    const auto fill = [&] {
      for (std::uint16_t& x : rows) {
        const auto f =
            static_cast<float>(static_cast<double>((state = state * 6364136223846793005u + 1442695040888963407u) >> 40) * 0x1p-23 - 1);
        std::uint32_t bits;
        __builtin_memcpy(&bits, &f, 4);
        x = static_cast<std::uint16_t>(bits >> 16);
      }
    };
    const std::size_t packed = Whole::packed_bytes(dim), acc = Whole::acc_bytes(dim);
    const auto many = static_cast<std::size_t>(count_);
    char* queries = memory_.take<char>(many * (4 * packed + acc + 1024));
    char* keys = memory_.take<char>(many * (3 * packed + 2 * acc));
    ranges_ = memory_.take<std::int32_t>(512);
    for (int i = 0; i < 64; ++i) ranges_[i] = 0, ranges_[64 + i] = i + 1;
    for (int t = 0; t < count_; ++t, queries += 4 * packed + acc + 1024, keys += 3 * packed + 2 * acc) {
      QueryTile tile{};
      fill(), Whole::pack_queries(lanes, dim, queries, queries + 2 * packed);
      fill(), Whole::pack_queries(lanes, dim, queries + packed, queries + 3 * packed);
      tile.q_panel = queries, tile.dout_panel = queries + packed, tile.q_pairs = queries + 2 * packed,
      tile.dout_pairs = queries + 3 * packed;
      tile.dq = reinterpret_cast<float*>(queries + 4 * packed);
      float* lse = tile.dq + acc / 4;
      std::fill_n(lse, 64, static_cast<float>(std::log2(seqlen)) * Whole::kUnit);
      std::fill_n(lse + 64, 64, 0.1f);
      tile.lse = lse, tile.delta = lse + 64;
      tiles_.push_back(tile);
      fill(), Whole::pack_keys(lanes, dim, keys, keys + 2 * packed);
      fill(), Whole::pack_keys(lanes, dim, keys + packed, nullptr);
      KeyVisit block{};
      block.k = keys, block.v = keys + packed, block.k_columns = keys + 2 * packed;
      block.dk = reinterpret_cast<float*>(keys + 3 * packed), block.dv = block.dk + acc / 4;
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
      for (int b = 0; b < end; ++b) visit<Backward>(b, std::max(b, begin), end, 0);
    }
  }
  template <class Backward>
  void one_tile() {
    for (int b = 0; b < count_; ++b) visit<Backward>(0, b + 1, count_ + 1, 1);
  }
  double granules() const { return 4.0 * count_ * (count_ + 1) / 2; }

 private:
  template <class Backward>
  void visit(int b, int begin, int end, int same) {
    list_.clear();
    for (int t = begin; t < end; ++t) {
      list_.push_back(tiles_[static_cast<std::size_t>(same ? 0 : t)]);
      if (t == b && !same) list_.back().ranges = {ranges_, ranges_ + 64};
    }
    KeyVisit v = blocks_[static_cast<std::size_t>(b)];
    v.scratch = scratch_, v.tiles = list_.data(), v.count = static_cast<int>(list_.size());
    v.first = true;
    Backward::visit(v);
  }

  int count_, dim_;
  Memory memory_;
  std::vector<QueryTile> tiles_, list_;
  std::vector<KeyVisit> blocks_;
  std::int32_t* ranges_;
  void* scratch_;
};

double budget = 0.2;

template <class Fn>
void measure(const char* name, const Pass& pass, int dim, const Fn& fn) {
  std::vector<double> times;
  if (amx_bf16_available()) AmxTiles::enter();
  fn();
  for (double spent = 0; spent < budget || times.size() < 3;) {
    const double start = micro::thread_seconds();
    fn();
    times.push_back(micro::thread_seconds() - start);
    spent += times.back();
  }
  if (amx_bf16_available()) AmxTiles::leave();  // measuring the peak takes the tiles
  std::ranges::sort(times);
  const double seconds = times[times.size() / 2], flops = pass.granules() * 32 * 32 * dim * 10;
  const double peak = micro::peak(amx_bf16_available() ? micro::Unit::bf16_amx : micro::Unit::bf16_zmm, 0.005).best;
  std::printf("%-34s %8.0f %8.0f %8.2f\n", name, seconds / pass.granules() * 1e9, times.front() / pass.granules() * 1e9,
              flops / seconds * 1e-9 / peak);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int seqlen = argc > 1 ? std::atoi(argv[1]) / 64 * 64 : 4096;
  if (argc > 2) budget = std::atof(argv[2]) * 1e-3;
  _mm_setcsr(_mm_getcsr() | 0x8040u);
  const bool amx = amx_bf16_available();
  std::printf("TDPBF16PS %.0f GFLOP/s, FMA zmm %.0f\n", micro::peak(micro::Unit::bf16_amx).best, micro::peak(micro::Unit::fma_avx512).best);
  for (const int dim : {64, 128}) {
    Pass pass(seqlen, dim);
    std::printf("causal, %d keys, head_dim %d\n%-34s %8s %8s %8s\n", seqlen, dim, "", "ns/gran", "best", "of peak");
    if (amx) {
      for (const int step : {1, 2, 4, 8, 16, 64}) {
        char name[40];
        std::snprintf(name, sizeof name, "whole, %d tiles in a step", step);
        measure(name, pass, dim, [&] { pass.causal<Whole>(step); });
      }
      using Tiles = TileBackward<AmxTiles, Parts<true, true, false>>;
      using Scores = TileBackward<AmxTiles, Parts<true, false, false>>;
      using Products = TileBackward<AmxTiles, Parts<false, true, false>>;
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
