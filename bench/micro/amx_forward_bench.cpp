// The AMX forward in both orders and its parts, one core, one head, causal: what binds it, and which blocking is best on a machine. Times
// are CPU time; the packing of keys and values is timed apart.
//
//   amx_forward_bench [seqlen [milliseconds for each variant]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cpu/simd/amx.h"
//
#include "cpu/kernels/amx_forward.h"
#include "times.h"

namespace {

using namespace foveal;
using namespace foveal::cpu;

template <bool kScores, bool kProducts, bool kVectors, bool kLazyMax = kVectors>
struct Parts {
  static constexpr bool scores = kScores, products = kProducts, vectors = kVectors, lazy_max = kLazyMax;
};

class Memory {
 public:
  template <class T>
  T* take(std::size_t bytes) {
    bytes = (bytes + 127) / 128 * 128;
    T* p = reinterpret_cast<T*>(memory_.get() + used_);
    used_ += bytes;
    if (used_ > size) std::abort();
    return p;
  }
  void reset() { used_ = 0; }

 private:
  static constexpr std::size_t size = std::size_t{96} << 20;
  std::unique_ptr<char, void (*)(void*)> memory_{static_cast<char*>(std::aligned_alloc(4096, size)), std::free};
  std::size_t used_ = 0;
};

struct Data {
  int seqlen, dim;
  std::vector<std::uint16_t> q, k, v, out;
  Data(int s, int d) : seqlen(s), dim(d) {
    const auto size = static_cast<std::size_t>(s) * static_cast<std::size_t>(d);
    std::uint64_t state = 1;
    for (auto* x : {&q, &k, &v}) {
      x->resize(size);
      for (std::uint16_t& e : *x) {
        double sum = -6;
        for (int i = 0; i < 12; ++i)
          sum += static_cast<double>((state = state * 6364136223846793005u + 1442695040888963407u) >> 40) / 16777216.0;
        const auto f = static_cast<float>(sum);
        std::uint32_t bits;
        __builtin_memcpy(&bits, &f, 4);
        e = static_cast<std::uint16_t>(bits >> 16);
      }
    }
    out.resize(size);
  }
  static double value(std::uint16_t x) {
    const std::uint32_t bits = std::uint32_t{x} << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  }
  const std::uint16_t* row(const std::vector<std::uint16_t>& x, int i) const { return x.data() + static_cast<std::ptrdiff_t>(i) * dim; }

  /// Largest error of some rows of out.
  double error() const {
    double worst = 0;
    std::vector<double> p(static_cast<std::size_t>(seqlen));
    for (int i = 0; i < seqlen; i += seqlen / 23 + 1) {
      double sum = 0;
      for (int j = 0; j <= i; ++j) {
        double dot = 0;
        for (int d = 0; d < dim; ++d) dot += value(row(q, i)[d]) * value(row(k, j)[d]);
        sum += p[static_cast<std::size_t>(j)] = std::exp(dot / std::sqrt(dim));
      }
      for (int d = 0; d < dim; ++d) {
        double o = 0;
        for (int j = 0; j <= i; ++j) o += p[static_cast<std::size_t>(j)] * value(row(v, j)[d]);
        worst = std::max(worst, std::abs(o / sum - value(row(out, i)[d])));
      }
    }
    return worst;
  }
};

struct Blocking {
  int block, tiles = 16, chunk_kb = 512;
};

template <class Forward>
class Pass {
 public:
  Pass(Data& data, const Blocking& b, Memory& memory) : d_(data), b_(b) {
    memory.reset();
    keys_ = (d_.seqlen + b.block - 1) / b.block * b.block;
    k_ = memory.take<char>(AmxForwardLayout::k_bytes(keys_, d_.dim));
    v_ = memory.take<char>(AmxForwardLayout::v_bytes(keys_, d_.dim));
    scratch_ = memory.take<char>(Forward::scratch_bytes(b.block));
    states_.resize(static_cast<std::size_t>(b.tiles));
    for (State& s : states_) {
      s.q = memory.take<char>(AmxForwardLayout::q_bytes(d_.dim));
      s.acc = memory.take<float>(AmxForwardLayout::acc_bytes(d_.dim));
      s.max = memory.take<float>(256);
      s.sum = memory.take<float>(std::size_t{128} * AmxForwardLayout::kRows);
      s.first = memory.take<std::int32_t>(4 * 64 * 8);
    }
  }
  void pack() {
    for (int key = 0; key < keys_; key += b_.block) {
      const int keys = std::min(b_.block, d_.seqlen - key);
      const std::size_t block = static_cast<std::size_t>(key);
      AmxForwardLayout::pack_k({d_.row(d_.k, key), d_.dim, 1, DType::bf16}, keys, b_.block, d_.dim,
                               k_ + block * AmxForwardLayout::k_bytes(1, d_.dim));
      AmxForwardLayout::pack_v({d_.row(d_.v, key), d_.dim, 1, DType::bf16}, keys, b_.block, d_.dim,
                               v_ + block * AmxForwardLayout::v_bytes(1, d_.dim));
    }
  }
  void run() {
    constexpr int rows = AmxForwardLayout::kRows;
    const int chunk =
        std::max(1, static_cast<int>(static_cast<std::size_t>(b_.chunk_kb) * 1024 / (AmxForwardLayout::k_bytes(b_.block, d_.dim) * 2)));
    for (int first = 0; first < d_.seqlen; first += rows * b_.tiles) {
      const int count = std::min(b_.tiles, (d_.seqlen - first + rows - 1) / rows);
      for (int t = 0; t < count; ++t) start(states_[static_cast<std::size_t>(t)], first + t * rows);
      const int blocks = (std::min(first + count * rows, d_.seqlen) + b_.block - 1) / b_.block;
      for (int c = 0; c < blocks; c += chunk)
        for (int t = 0; t < count; ++t) visit(states_[static_cast<std::size_t>(t)], first + t * rows, c, std::min(c + chunk, blocks));
      for (int t = 0; t < count; ++t) finish(states_[static_cast<std::size_t>(t)], first + t * rows);
    }
  }

 private:
  struct State {
    char* q;
    float *acc, *max, *sum;
    std::int32_t* first;
  };
  void start(State& s, int q) {
    const void* rows[64] = {};
    for (int i = 0; i < AmxForwardLayout::kRows && q + i < d_.seqlen; ++i) rows[i] = d_.row(d_.q, q + i);
    AmxForwardLayout::pack_q({rows, AmxForwardLayout::kRows, 1, DType::bf16}, d_.dim, 1, s.q);
    std::fill_n(s.acc, AmxForwardLayout::acc_bytes(d_.dim) / 4, 0.0f);
    std::fill_n(s.sum, 16 * AmxForwardLayout::kRows, 0.0f);
    std::fill_n(s.max, AmxForwardLayout::kRows, -__FLT_MAX__);
  }
  void visit(State& s, int q, int from, int to) {
    KeySpan spans[8];
    int count = 0;
    const int granules = b_.block / 32, full = std::min((q + 1) / b_.block, to);
    if (full > from) spans[count++] = {from * granules, full * granules, full * granules, {}};
    for (int block = std::max(full, from); block < to && block * b_.block < q + AmxForwardLayout::kRows; ++block) {
      std::int32_t *first = s.first + count * 128, *last = first + 64;
      for (int i = 0; i < AmxForwardLayout::kRows; ++i) first[i] = 0, last[i] = std::min(q + i + 1, d_.seqlen) - block * b_.block;
      const int needed = std::min(b_.block, last[AmxForwardLayout::kRows - 1]);
      spans[count++] = {block * granules, (q + 1) / 32, block * granules + (needed + 31) / 32, {first, last}};
    }
    const float scale = static_cast<float>(1.4426950408889634 / std::sqrt(d_.dim));
    Forward::visit({s.q, k_, v_, s.acc, s.max, s.sum, scratch_, spans, count, scale, d_.dim, d_.dim, b_.block});
  }
  void finish(State& s, int q) {
    void* rows[64] = {};
    float sums[64];
    for (int i = 0; i < AmxForwardLayout::kRows && q + i < d_.seqlen; ++i)
      rows[i] = d_.out.data() + static_cast<std::ptrdiff_t>(q + i) * d_.dim;
    AmxForwardLayout::add_sums(s.sum, sums);
    for (int i = 0; i < AmxForwardLayout::kRows; ++i) sums[i] = 1 / sums[i];
    AmxForwardLayout::write(s.acc, d_.dim, sums, {rows, AmxForwardLayout::kRows, 1, DType::bf16});
  }

  Data& d_;
  Blocking b_;
  int keys_;
  char *k_, *v_, *scratch_;
  std::vector<State> states_;
};

double budget = 0.1;

template <class Forward>
void measure(const char* name, Data& data, Memory& memory, const Blocking& b, bool right) {
  Pass<Forward> pass(data, b, memory);
  AmxTiles::enter();
  const micro::Times packing = micro::times_of(0, [&] { pass.pack(); }), whole = micro::times_of(budget, [&] { pass.run(); });
  AmxTiles::leave();
  const double flops = 2.0 * data.seqlen * data.seqlen * data.dim, peak = micro::peak(micro::Unit::bf16_amx, 0.005).best;
  const double granules = 0.5 * data.seqlen / 32.0 * data.seqlen / 32.0;
  std::printf("%-34s %4d %5d %5d %8.0f %8.0f   %4.2f %7.0f %8.1f", name, b.block, b.tiles, b.chunk_kb, flops / whole.median * 1e-9,
              flops / whole.best * 1e-9, flops / whole.median * 1e-9 / peak, whole.median / granules * 1e9, packing.best * 1e6);
  if (right) std::printf("  %.1e", data.error());
  std::printf("\n");
  std::fflush(stdout);
}

template <class Order>
void parts(const char* name, Data& data, Memory& memory) {
  const Blocking b{.block = Order::keys};
  std::printf("products with v %s\n", name);
  measure<AmxForward<AmxTiles, Order>>("whole", data, memory, b, true);
  measure<AmxForward<AmxTiles, Order, Parts<true, true, true, false>>>("no maximum", data, memory, b, true);
  measure<AmxForward<AmxTiles, Order, Parts<true, true, false>>>("tile instructions only", data, memory, b, false);
  measure<AmxForward<AmxTiles, Order, Parts<true, false, false>>>("products for scores only", data, memory, b, false);
  measure<AmxForward<AmxTiles, Order, Parts<false, true, false>>>("products with v only", data, memory, b, false);
  measure<AmxForward<AmxTiles, Order, Parts<true, false, true>>>("scores and vectors only", data, memory, b, false);
  measure<AmxForward<AmxTiles, Order, Parts<false, false, true>>>("vectors only", data, memory, b, false);
  for (const Blocking& other : {Blocking{Order::keys / 2}, Blocking{Order::keys * 2}, Blocking{Order::keys, 8}, Blocking{Order::keys, 32},
                                Blocking{Order::keys, 16, 256}, Blocking{Order::keys, 16, 1024}})
    measure<AmxForward<AmxTiles, Order>>("whole", data, memory, other, true);
}

}  // namespace

int main(int argc, char** argv) {
  if (!amx_bf16_available()) {
    std::puts("no AMX-bf16 here");
    return 0;
  }
  const int seqlen = argc > 1 ? std::atoi(argv[1]) : 4096;
  if (argc > 2) budget = std::atof(argv[2]) * 1e-3;
  _mm_setcsr(_mm_getcsr() | 0x8040u);
  Memory memory;
  std::printf("TDPBF16PS %.0f GFLOP/s, FMA zmm %.0f, load-heavy tiles %.0f\n", micro::peak(micro::Unit::bf16_amx).best,
              micro::peak(micro::Unit::fma_avx512).best, micro::calibrate());
  for (const int dim : {64, 128}) {
    Data data(seqlen, dim);
    std::printf("causal, %d keys, head_dim %d\n%-34s %4s %5s %5s %8s %8s   %4s %7s %8s  %s\n", seqlen, dim, "", "keys", "tiles", "KB",
                "GFLOP/s", "best", "peak", "ns/gran", "pack us", "error");
    parts<BesideVectors>("beside vectors", data, memory);
    parts<AfterVectors>("after vectors", data, memory);
  }
}
