#pragma once
// From a problem and its buffers to what the kernels read: constants when compiling, arguments when running.
#include <optional>
#include <string>

#include "cuda/device/args.cuh"
#include "cuda/device/problem_traits.cuh"
#include "cuda/jit/source.h"
#include "problem/problem.h"

namespace foveal::device {
std::string value_text(KeyRows rows);  ///< as device text
}

namespace foveal::cuda {

device::BlockTable block_table(const problem::Buffers& buffers);

/// Why kernels cannot take the parameters, or nothing.
std::optional<std::string> refuses_params(const problem::Problem& problem);

/// kProblem and the types beside it (device/problem_traits.cuh), which every attention kernel has.
jit::Constants attention_constants(const problem::Problem& problem);

/// Everything but tiles, tables, workspace and gradients of parameters.
device::AttentionArgs attention_args(const problem::Problem& problem, const problem::Buffers& buffers);

/// ExactSum's width of a bin: narrow ones take more terms and more memory.
int exact_sum_bin_bits(const problem::Problem& problem);

}  // namespace foveal::cuda
