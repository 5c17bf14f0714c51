#pragma once
// Which targets this build has, and which of them this processor can run.
#include <string>
#include <vector>

#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {

struct Target {
  std::string name;
  bool available = false;
  std::string detail;                    ///< what is there, or what is missing: "CPU lacks avx512f"
  const BlockOps<float>* f32 = nullptr;  ///< null where the target has nothing of its own for a type
  const BlockOps<double>* f64 = nullptr;
  const BlockOps<float>* bf16 = nullptr;  ///< products of bf16 with fp32 accumulation
};

/// Best first.
const std::vector<Target>& all_targets();

/// The table for tensors of a type: bf16 takes the target's bf16 products when it has them, else f32 with conversion. Null when there is
/// none.
const BlockOps<float>* float_ops(const Target& target, DType dtype);

/// Whether a target that nobody asked for by name should serve a type: not where it only borrows the tables of another, and not where its
/// bf16 products are slower than fp32 ones (VDPBF16PS runs at a quarter of the rate on some processors), which is measured once.
bool worthwhile(const Target& target, DType dtype);

}  // namespace foveal::cpu
