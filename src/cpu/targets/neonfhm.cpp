#include "cpu/kernels/neon_f16_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> neonfhm_f16 = table_of<NeonF16Ops>("neonfhm.f16");

}  // namespace foveal::cpu::targets
