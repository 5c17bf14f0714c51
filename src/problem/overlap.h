#pragma once
// Do strided tensors share memory? Exact for every layout met in practice (packed qkv views interleave without sharing); where the search
// would be long the answer is yes, which is the safe one.
#include "foveal/tensor.h"
#include "problem/problem.h"

namespace foveal::problem {

/// Two elements of one tensor in one place.
bool overlaps_itself(const TensorSpec& spec);

/// An element of `a` shares a byte with an element of `b`.
bool overlap(const TensorView& a, const TensorView& b);

/// Part of fill_buffers(), for gradients that are added to what is there, which no plan sees: each has data, aligned ones, and a place of
/// its own. Before anything is run.
void check_places(const BackwardInputs& inputs, const BackwardOutputs& outputs);

}  // namespace foveal::problem
