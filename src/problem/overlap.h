#pragma once
// Whether strided tensors share memory. Exact for layouts that occur in practice (packed qkv views interleave without sharing); if the
// search takes too long the answer is yes, the safe one.
#include <cstdint>

#include "foveal/tensor.h"
#include "problem/problem.h"

namespace foveal::problem {

/// Whether two elements of one tensor have the same address.
bool overlaps_itself(const TensorSpec& spec);

/// The bytes from a tensor's first element to its last.
struct ByteRange {
  std::int64_t begin, end;
};
ByteRange bytes_of(const TensorView& view);

/// Whether an element of `a` shares a byte with an element of `b`.
bool overlap(const TensorView& a, const ByteRange& bytes_of_a, const TensorView& b);

/// The checks of fill_buffers() on the caller's tensors where plans see others instead (gradients that are accumulated, shards of a
/// context): data are aligned, and outputs do not overlap any tensor. Tensors that are absent, empty or without data are passed over.
void check_places(const ForwardInputs& inputs, const ForwardOutputs& outputs);
void check_places(const BackwardInputs& inputs, const BackwardOutputs& outputs);

}  // namespace foveal::problem
