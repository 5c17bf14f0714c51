#pragma once
// GEMM on AMX tiles: AmxTiles on the hardware, ScalarTiles in the tests.
//
// The order of the tile instructions decides its speed:
// - A job is a pair of C tiles, one above the other, so that a tile of B serves two products: three loads for two products.
// - Two pairs of accumulators alternate, and a pair is stored in the middle of the next job, which hides the wait for its last product.
// - An accumulator is zeroed before the operands are loaded, because a product right after the zeroing of its tile waits for it.
#include <cstdint>

namespace foveal::cpu {

/// C[rows][columns] fp32 = or += A[rows][32 * steps] bf16 times B[16 * steps][columns][2] bf16. Rows and columns are multiples of 16;
/// strides from a row to the next in bytes: anything from 64 to about 1 KB costs the same, large powers of two cost several times as much.
struct AmxProduct {
  float* c;
  const void* a;
  const void* b;
  std::int64_t c_stride, a_stride, b_stride;
  int rows, columns, steps;
  bool accumulate;
};

template <class Tiles>
class AmxMultiply {
 public:
  explicit AmxMultiply(Tiles& tiles) : tiles_(tiles) {}
  AmxMultiply(const AmxMultiply&) = delete;
  AmxMultiply& operator=(const AmxMultiply&) = delete;

  /// The last tiles of C are stored by the next product or by finish().
  void operator()(const AmxProduct& p) {
    for (int column = 0; column < p.columns; column += 16) {
      for (int row = 0; row < p.rows; row += 32) {
        const Pair pair{p.c + row * (p.c_stride / 4) + column, p.c_stride, row + 16 < p.rows};
        const char* a = static_cast<const char*>(p.a) + row * p.a_stride;
        const char* b = static_cast<const char*>(p.b) + column * 4;
        if (turn_) {
          job<2>(p, pair, a, b);
        } else {
          job<0>(p, pair, a, b);
        }
        pending_ = pair;
        turn_ = !turn_;
      }
    }
  }

  void finish() {
    if (turn_) {
      store_pending<0>();
    } else {
      store_pending<2>();
    }
  }

 private:
  struct Pair {
    float* c = nullptr;
    std::int64_t stride = 0;
    bool two = false;
    float* second() const { return c + 16 * (stride / 4); }
  };

  template <int C>
  void job(const AmxProduct& p, const Pair& pair, const char* a, const char* b) {
    if (p.accumulate) {
      if (pending_.c == pair.c) store_pending<C ^ 2>();
      tiles_.template load<C>(pair.c, p.c_stride);
      if (pair.two) tiles_.template load<C + 1>(pair.second(), p.c_stride);
    } else {
      tiles_.template zero<C>();
      tiles_.template zero<C + 1>();
    }
    const char* a_below = a + 16 * p.a_stride;
    for (int step = 0; step < p.steps; ++step) {
      tiles_.template load<4>(a + 64 * step, p.a_stride);
      tiles_.template load<6>(b + 16 * step * p.b_stride, p.b_stride);
      tiles_.template dot<C, 4, 6>();
      if (pair.two) {
        tiles_.template load<5>(a_below + 64 * step, p.a_stride);
        tiles_.template dot<C + 1, 5, 6>();
      }
      if (step == p.steps / 2) store_pending<C ^ 2>();
    }
  }

  template <int C>
  void store_pending() {
    if (!pending_.c) return;
    tiles_.template store<C>(pending_.c, pending_.stride);
    if (pending_.two) tiles_.template store<C + 1>(pending_.second(), pending_.stride);
    pending_ = {};
  }

  Tiles& tiles_;
  Pair pending_{};
  bool turn_ = false;
};

}  // namespace foveal::cpu
