#pragma once
// The products of attention on mma.sync, for one warp with kM x 16 rows of the result. All element types share the accumulator layout of
// m16n8: acc[m][n][e] is row 16 m + g + 8 (e / 2), column 8 n + 2 t + e % 2, with lane = 4 g + t. So scores, masks and softmax are written
// once; 16-bit types use the tensor cores, f32 and f64 FMAs.
#include "tile/shared_tile.cuh"

namespace foveal::device {

template <class T>
using Real = typename ElementFacts<T>::Real;

template <class T>
constexpr bool kTensorCores = sizeof(T) == 2;

/// Accumulators converted to the left operand of the next product.
template <class T, int kM, int kK>
struct Operand {
  u32 a[kM][kK / 16][4];
};
template <int kM, int kK>
struct Operand<float, kM, kK> {
  float a[kM][kK / 8][4];
};
template <int kM, int kK>
struct Operand<double, kM, kK> {
  double a[kM][kK / 8][4];
};

template <class T, int kM, int kK>
FOVEAL_DEVICE void to_operand(Operand<T, kM, kK>& operand, const Real<T> (&x)[kM][kK / 8][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    if constexpr (kTensorCores<T>) {
#pragma unroll
      for (int k = 0; k < kK / 16; ++k) {
        operand.a[m][k][0] = pack(T{}, x[m][2 * k][0], x[m][2 * k][1]);
        operand.a[m][k][1] = pack(T{}, x[m][2 * k][2], x[m][2 * k][3]);
        operand.a[m][k][2] = pack(T{}, x[m][2 * k + 1][0], x[m][2 * k + 1][1]);
        operand.a[m][k][3] = pack(T{}, x[m][2 * k + 1][2], x[m][2 * k + 1][3]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kK / 8; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) operand.a[m][k][e] = x[m][k][e];
    }
  }
}

template <class R, int kM, int kN8>
FOVEAL_DEVICE void clear(R (&acc)[kM][kN8][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[m][n][e] = 0;
}

/// acc = a b^T: a has the warp's rows from `row`, b has kN rows; both have kK columns.
template <int kM, int kN, class T, int kRowsA, int kRowsB, int kK>
FOVEAL_DEVICE void multiply_nt(Real<T> (&acc)[kM][kN / 8][4], SharedTile<T, kRowsA, kK> a, int row, SharedTile<T, kRowsB, kK> b) {
  clear(acc);
  const int lane = lane_id();
  if constexpr (kTensorCores<T>) {
    const T* a_lane = a.row(row + lane % 16) + lane / 16 * 8;
    const T* b_lane = b.row(lane % 8 + lane / 16 * 8) + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
      u32 a_frag[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) ldmatrix<false>(a_frag[m], shared_address(a_lane + m * 16 * a.kPitch + k));
#pragma unroll
      for (int n = 0; n < kN; n += 16) {
        u32 b_frag[4];
        ldmatrix<false>(b_frag, shared_address(b_lane + n * b.kPitch + k));
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma(T{}, acc[m][n / 8], a_frag[m], b_frag[0], b_frag[1]);
          mma(T{}, acc[m][n / 8 + 1], a_frag[m], b_frag[2], b_frag[3]);
        }
      }
    }
  } else {
    struct alignas(16) Piece {
      T x[16 / sizeof(T)];
    };
    constexpr int kStep = 16 / int(sizeof(T));
    const int g = lane / 4, t = lane % 4;
#pragma unroll 2
    for (int k = 0; k < kK; k += kStep) {
      Piece a_piece[kM][2];
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i) a_piece[m][i] = *reinterpret_cast<const Piece*>(a.row(row + 16 * m + g + 8 * i) + k);
#pragma unroll
      for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Piece b_piece = *reinterpret_cast<const Piece*>(b.row(8 * n + 2 * t + j) + k);
#pragma unroll
          for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
              for (int x = 0; x < kStep; ++x) acc[m][n][2 * i + j] = fma_real(a_piece[m][i].x[x], b_piece.x[x], acc[m][n][2 * i + j]);
        }
      }
    }
  }
}

/// acc += p b: p in registers (kK columns), b has kK rows; columns [col, col + kN) of b.
template <int kM, int kN, class T, int kK, int kCols>
FOVEAL_DEVICE void multiply_rn(Real<T> (&acc)[kM][kN / 8][4], const Operand<T, kM, kK>& p, SharedTile<T, kK, kCols> b, int col = 0) {
  const int lane = lane_id();
  if constexpr (kTensorCores<T>) {
    const T* b_lane = b.row(lane % 16) + col + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
#pragma unroll
      for (int n = 0; n < kN; n += 16) {
        u32 b_frag[4];
        ldmatrix<true>(b_frag, shared_address(b_lane + k * b.kPitch + n));
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma(T{}, acc[m][n / 8], p.a[m][k / 16], b_frag[0], b_frag[1]);
          mma(T{}, acc[m][n / 8 + 1], p.a[m][k / 16], b_frag[2], b_frag[3]);
        }
      }
    }
  } else {
    struct alignas(2 * sizeof(T)) Pair {
      T x[2];
    };
    const int t = lane % 4, quad = lane & ~3;
#pragma unroll
    for (int k8 = 0; k8 < kK / 8; ++k8) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        T left[kM][2];
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int i = 0; i < 2; ++i) left[m][i] = __shfl_sync(~0u, p.a[m][k8][2 * i + k % 2], quad + k / 2);
        const T* b_row = b.row(8 * k8 + k) + col + 2 * t;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) {
          const Pair right = *reinterpret_cast<const Pair*>(b_row + 8 * n);
#pragma unroll
          for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[m][n][e] = fma_real(left[m][e / 2], right.x[e % 2], acc[m][n][e]);
        }
      }
    }
  }
}

/// Writes the warp's accumulators, times `factor`, to its rows of a tile.
template <int kM, int kN8, class T, int kRows, int kCols>
FOVEAL_DEVICE void put_rows(SharedTile<T, kRows, kCols> tile, int row, int col, const Real<T> (&acc)[kM][kN8][4], Real<T> factor) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) from_real(tile.row(row + 16 * m + g + e / 2 * 8)[col + 8 * n + 2 * t + e % 2], acc[m][n][e] * factor);
}

}  // namespace foveal::device
