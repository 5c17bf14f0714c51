#pragma once
// The kernels that are compiled when the library is built: those of plain attention on Hopper, which most first calls need.
#include <string>
#include <vector>

#include "cuda/jit/source.h"

namespace foveal::cuda {

/// Problem lines of bf16 and f16 at head dims 64, 128 and 256: both passes of full and causal attention over many queries,
/// and decode of one query with one, four and eight heads for each kv head. A kernel serves many lengths, heads and batches; there is a
/// line for each distinct kernel.
std::vector<std::string> plain_lines();

/// The kernels of these lines for sm_90a, each once.
std::vector<jit::KernelSource> plain_kernels();

}  // namespace foveal::cuda
