// Narrows integer parameters that only index small tables to bytes, clamped to 0 .. 255: kernels that read them for each head then load a
// quarter or an eighth, and clamp less.
//
// config.cuh: kConfig (a NarrowConfig); Index (a type).
#include "narrow_args.cuh"

#include "config.cuh"

namespace foveal::device {

struct alignas(4 * sizeof(Index)) FourIndices {
  Index index[4];
};

__device__ inline unsigned narrow(Index index) { return index < 0 ? 0u : index > 255 ? 255u : unsigned(index); }

}  // namespace foveal::device

/// Grid: (any, rows of the last dimension).
extern "C" __global__ void __launch_bounds__(foveal::device::kNarrowThreads)
    narrow_indices(const __grid_constant__ foveal::device::NarrowArgs args) {
  using namespace foveal::device;
  const Index* from = static_cast<const Index*>(args.from.data);
  unsigned char* to = args.to;
  long long row = blockIdx.y;
  for (int d = kConfig.rank - 2; d >= 0; --d) {
    const long long place = row % args.from.size[d];
    row /= args.from.size[d];
    from += place * args.from.stride[d];
    to += place * args.to_stride[d];
  }
  const int count = args.from.size[kConfig.rank - 1];
  const long long stride = args.from.stride[kConfig.rank - 1];
  for (int first = 4 * (blockIdx.x * kNarrowThreads + threadIdx.x); first < count; first += 4 * kNarrowThreads * gridDim.x) {
    FourIndices four{};
    if (kConfig.together && first + 4 <= count) {
      four = *reinterpret_cast<const FourIndices*>(from + first);
    } else {
      for (int i = 0; i < 4 && first + i < count; ++i) four.index[i] = from[(first + i) * stride];
    }
    unsigned word = 0;
    for (int i = 0; i < 4; ++i) word |= narrow(four.index[i]) << 8 * i;
    *reinterpret_cast<unsigned*>(to + first) = word;
  }
}
