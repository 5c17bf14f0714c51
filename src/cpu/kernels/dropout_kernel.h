// Dropout on tiles: Philox of the global position, the bits of base::dropout_bits, for one vector of lanes at a time.
#pragma once
#include "cpu/kernels/vector.h"
#include "cpu/tape_code.h"

namespace foveal::cpu {
namespace {

/// 32 x 32 -> 64 bit products of all lanes, as two vectors.
template <class U>
inline void multiply_wide(U a, std::uint32_t b, U& high, U& low) {
  using L = Vec<std::uint64_t, sizeof(U) / 8>;
  const U factor = splat<U>(b);
  const L even = bits<L>(multiply_even(a, factor)), odd = bits<L>(multiply_even(bits<U>(bits<L>(a) >> 32), factor));
  low = bits<U>((even & 0xFFFFFFFFu) | (odd << 32));
  high = bits<U>((even >> 32) | (odd & ~std::uint64_t{0xFFFFFFFFu}));
}

template <class U>
inline void philox_lanes(U (&c)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    U high0, low0, high1, low1;
    multiply_wide(c[0], 0xD2511F53u, high0, low0);
    multiply_wide(c[2], 0xCD9E8D57u, high1, low1);
    const U first = high1 ^ c[1] ^ key0, third = high0 ^ c[3] ^ key1;
    c[0] = first;
    c[1] = low1;
    c[2] = third;
    c[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// The four words of a counter are for four consecutive keys: four rows of a tile.
template <class Real>
void drop_tile(const TileFrame& frame, const TileDropout& dropout, Real* tile, Real* second) {
  constexpr int lanes = kVectorBytes / 4;
  constexpr int parts = sizeof(Real) / 4;  // vectors of reals per vector of bits
  using U = Vec<std::uint32_t, lanes>;
  using V = Vec<Real, lanes / parts>;
  using Part = Vec<std::uint32_t, lanes / parts>;
  using Mask = Vec<typename IntegerOf<sizeof(Real)>::type, lanes / parts>;
  const Real scale = static_cast<Real>(dropout.scale);
  const std::uint32_t key0 = static_cast<std::uint32_t>(dropout.seed);
  const std::uint32_t key1 = static_cast<std::uint32_t>(dropout.seed >> 32) ^ static_cast<std::uint32_t>(dropout.offset >> 32);
  const auto drop = [scale](Real* at, Mask keep) { store(at, keep ? load<V>(at) * scale : V{}); };
  for (int i = 0; i < frame.padded(); i += lanes) {
    const U q = load<U>(frame.q_idx + i),
            row = load<U>(frame.head + i) + static_cast<std::uint32_t>(frame.batch) * static_cast<std::uint32_t>(dropout.heads_q);
    for (int r = -(frame.kv_idx & 3); r < frame.keys; r += 4) {
      U words[4] = {splat<U>(static_cast<std::uint32_t>(frame.kv_idx + r) / 4), q, row,
                    splat<U>(static_cast<std::uint32_t>(dropout.offset))};
      philox_lanes(words, key0, key1);
      for (int w = r < 0 ? -r : 0; w < 4 && r + w < frame.keys; ++w) {
        const U keep = words[w] >= dropout.threshold;
        for (int part = 0; part < parts; ++part) {
          Part piece;
          __builtin_memcpy(&piece, reinterpret_cast<const char*>(&keep) + part * sizeof piece, sizeof piece);
          const Mask mask = __builtin_convertvector(bits<Vec<std::int32_t, lanes / parts>>(piece), Mask);
          const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r + w) * frame.ld + i + part * (lanes / parts);
          drop(tile + at, mask);
          if (second) drop(second + at, mask);
        }
      }
    }
  }
}

}  // namespace
}  // namespace foveal::cpu
