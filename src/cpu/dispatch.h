#pragma once
// Which targets this build has, and which of them this processor can run.
#include <string>
#include <vector>

#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {

struct Target {
  std::string name;
  bool available = false;
  std::string detail;                    ///< what it uses, or what is missing: "CPU lacks avx512f"
  const BlockOps<float>* f32 = nullptr;  ///< null: none
  const BlockOps<double>* f64 = nullptr;
  const BlockOps<float>* bf16 = nullptr;  ///< products of bf16 with fp32 accumulation
  const BlockOps<float>* f16 = nullptr;   ///< of f16
  const DecodeTables* decode = nullptr;
};

/// Best first.
const std::vector<Target>& all_targets();

/// The table for tensors of a type: for bf16 and f16 the target's products of these if it has them, else f32 with conversion. Null: none.
const BlockOps<float>* float_ops(const Target& target, DType dtype);

/// The table for tiles of so many lanes, where the other one is slower; else null.
template <class Real>
const BlockOps<Real>* decode_ops(const Target& target, DType dtype, std::int64_t lanes);

/// Whether automatic selection may pick the target for a type: not where it only borrows the tables of another, and not where its bf16
/// products are slower than fp32 ones (VDPBF16PS runs at a quarter of the rate on some processors), which is measured once.
bool worthwhile(const Target& target, DType dtype);

}  // namespace foveal::cpu
