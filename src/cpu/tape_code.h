#pragma once
// Plain data that crosses between Tape (normal code) and the tape kernels of each target (wide instruction flags, no std templates).
#include <cstdint>

#include "foveal/tensor.h"

namespace foveal::cpu {

/// Where a tile of S^T lies. Lanes from `lanes` to padded() are padding: their head and q_idx must hold values that are valid somewhere.
struct TileFrame {
  static constexpr int lane_multiple = 16;

  int keys = 0;    ///< rows
  int lanes = 0;   ///< valid lanes
  int ld = 0;      ///< elements from one row to the next, at least padded(), a multiple of 16; rows are aligned to 64 bytes
  std::int32_t batch = 0;
  std::int32_t seqlen_q = 0, seqlen_kv = 0;  ///< of this sequence: the symbols
  std::int32_t kv_idx = 0;                   ///< global position of row 0; row r is kv_idx + r
  const std::int32_t* head = nullptr;        ///< query head of each lane
  const std::int32_t* q_idx = nullptr;       ///< global position of each lane

  int padded() const { return (lanes + lane_multiple - 1) / lane_multiple * lane_multiple; }
};

/// A bound parameter. Strides in elements.
struct TapeParam {
  const void* data;
  DType dtype;
  int rank;
  std::int64_t sizes[TensorView::max_rank], strides[TensorView::max_rank];
};
struct TapeData {
  const TapeParam* params = nullptr;
};

/// Accumulators of one partition: contiguous in the parameter's shape; double or float; null for parameters without a gradient.
struct TapeGrads {
  struct Sink {
    void* data;
    bool wide;
  };
  static constexpr int max_params = 32;
  Sink params[max_params];
};

}  // namespace foveal::cpu
