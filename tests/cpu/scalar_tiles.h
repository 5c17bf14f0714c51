#pragma once
// A model of the AMX tile machine in plain C++: tiles are arrays, and the product follows the manual's pseudo-code: denormals are zero on
// input and output, sums are rounded to nearest even, the even and the odd elements of the pairs are summed apart and added to C at the
// end.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace foveal::cpu {

class ScalarTiles {
 public:
  static constexpr int kRows = 16, kRowBytes = 64;

  static void enter() {}
  static void leave() {}

  template <int T>
  void zero() {
    std::memset(tile_[T], 0, sizeof tile_[T]);
  }
  template <int T>
  void load(const void* tile, std::int64_t stride_bytes = kRowBytes) {
    for (int row = 0; row < kRows; ++row) std::memcpy(tile_[T][row], static_cast<const char*>(tile) + row * stride_bytes, kRowBytes);
  }
  template <int T>
  void store(void* tile, std::int64_t stride_bytes = kRowBytes) {
    for (int row = 0; row < kRows; ++row) std::memcpy(static_cast<char*>(tile) + row * stride_bytes, tile_[T][row], kRowBytes);
  }
  template <int C, int A, int B>
  void dot() {
    for (int row = 0; row < kRows; ++row) {
      std::fill_n(even_, 16, 0.0f);
      std::fill_n(odd_, 16, 0.0f);
      for (int pair = 0; pair < 16; ++pair) {
        for (int column = 0; column < 16; ++column) {
          const std::uint32_t a = tile_[A][row][pair], b = tile_[B][pair][column];
          even_[column] = flush(even_[column] + flush(low(a) * low(b)));
          odd_[column] = flush(odd_[column] + flush(high(a) * high(b)));
        }
      }
      for (int column = 0; column < 16; ++column) {
        const float c = flush(std::bit_cast<float>(tile_[C][row][column]));
        tile_[C][row][column] = std::bit_cast<std::uint32_t>(flush(c + flush(even_[column] + odd_[column])));
      }
    }
  }

 private:
  static float flush(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }
  static float low(std::uint32_t pair) { return flush(std::bit_cast<float>(pair << 16)); }
  static float high(std::uint32_t pair) { return flush(std::bit_cast<float>(pair & 0xffff0000u)); }

  std::uint32_t tile_[8][kRows][16];
  float even_[16], odd_[16];  // not on the stack: g++ 12 misplaces arrays of vectors when AddressSanitizer watches frames that were left
};

}  // namespace foveal::cpu
