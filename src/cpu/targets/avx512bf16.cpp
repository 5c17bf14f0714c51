#include "cpu/kernels/bf16_ops.h"
#include "cpu/kernels/pair_products.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> avx512bf16_bf16 = Bf16Ops<PairProducts>::table("avx512bf16.bf16");

}  // namespace foveal::cpu::targets
