#include "cpu/kernels/neon_bf16_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> neonbf16_bf16 = table_of<NeonBf16Ops>("neonbf16.bf16");

}  // namespace foveal::cpu::targets
