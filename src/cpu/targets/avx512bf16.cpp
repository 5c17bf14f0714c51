#include "cpu/kernels/avx512_bf16_ops.h"
#include "cpu/kernels/dpbf16_products.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> avx512bf16_bf16 = Bf16Ops<Dpbf16Products>::table("avx512bf16.bf16");

}  // namespace foveal::cpu::targets
