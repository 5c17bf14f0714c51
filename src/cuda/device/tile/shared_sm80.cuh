#pragma once
// Views of a portable kernel's shared memory, by the offsets of layout/sm80.cuh.
#include "tile/problem.cuh"

namespace foveal::device {

FOVEAL_DEVICE constexpr Sm80Shape sm80_shape(bool stages_terms = false) {
  return {.block_q = kBlockQ,
          .block_kv = kBlockKv,
          .dim = kHeadDimPadded,
          .dim_v = kHeadDimVPadded,
          .stages = kConfig.stages,
          .warps = kConfig.warps,
          .element_bytes = sizeof(Element),
          .real_bytes = sizeof(R),
          .has_mask = kHasMask,
          .stages_terms = stages_terms};
}

template <class T>
FOVEAL_DEVICE T* shared_at(void* begin, int offset) {
  return reinterpret_cast<T*>(static_cast<char*>(begin) + offset);
}

template <int kRows, int kCols>
FOVEAL_DEVICE SharedTile<Element, kRows, kCols> tile_at(void* begin, int offset) {
  return {shared_at<Element>(begin, offset)};
}

}  // namespace foveal::device
