// Copies, converts or adds rows of heads.
//
// config.cuh: kConfig (a MoveRowsConfig); From, To (types).
#include "element.cuh"
#include "rows_args.cuh"

#include "config.cuh"

namespace foveal::device {

template <class T>
struct alignas(sizeof(T) * kConfig.vector) Piece {
  T value[kConfig.vector];
};

template <class A, class B>
FOVEAL_DEVICE void convert(A& to, B from) {
  from_real(to, to_real(from));
}
template <class A>
FOVEAL_DEVICE void convert(A& to, A from) {
  to = from;  // the same bits
}

}  // namespace foveal::device

/// Grid: (any, batch); threads stride over pieces of rows.
extern "C" __global__ void __launch_bounds__(foveal::device::kRowThreads)
    move_rows(const __grid_constant__ foveal::device::MoveRowsArgs args) {
  using namespace foveal::device;
  const From* from = static_cast<const From*>(args.from.data) + blockIdx.y * args.from.batch;
  To* to = static_cast<To*>(args.to.data) + blockIdx.y * args.to.batch;
  const u32 pieces = args.dim / kConfig.vector;
  const u64 all = static_cast<u64>(args.tokens) * args.heads * pieces;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += static_cast<u64>(gridDim.x) * blockDim.x) {
    u32 token, head, piece;
    if constexpr (kConfig.tokens_last) {
      token = i % args.tokens;
      head = i / args.tokens;
      piece = 0;
    } else {
      const u64 row = i / pieces;
      piece = i % pieces;
      head = row % args.heads;
      token = row / args.heads;
    }
    const From* source = from + token * args.from.token + head * args.from.head + piece * kConfig.vector * args.from.dim;
    To* target = to + token * args.to.token + head * args.to.head + piece * kConfig.vector * args.to.dim;
    auto value = *reinterpret_cast<const Piece<From>*>(source);
    if (args.more_count > 0) {
      Piece<From> other[kMaxMoreRows];
#pragma unroll
      for (int m = 0; m < kMaxMoreRows; ++m) {
        if (m >= args.more_count) break;
        const RowsView& more = args.more[m];
        other[m] = *reinterpret_cast<const Piece<From>*>(static_cast<const From*>(more.data) + blockIdx.y * more.batch +
                                                         token * more.token + head * more.head + piece * kConfig.vector * more.dim);
      }
#pragma unroll
      for (int m = 0; m < kMaxMoreRows; ++m) {
        if (m >= args.more_count) break;
#pragma unroll
        for (int e = 0; e < kConfig.vector; ++e) from_real(value.value[e], to_real(value.value[e]) + to_real(other[m].value[e]));
      }
    }
    Piece<To> result;
    if (args.adds) result = *reinterpret_cast<const Piece<To>*>(target);
#pragma unroll
    for (int e = 0; e < kConfig.vector; ++e) {
      if (args.adds) {
        from_real(result.value[e], to_real(result.value[e]) + to_real(value.value[e]));
      } else {
        convert(result.value[e], value.value[e]);
      }
    }
    *reinterpret_cast<Piece<To>*>(target) = result;
  }
}
