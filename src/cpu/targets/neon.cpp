#include "cpu/simd/neon.h"

#include "cpu/kernels/plain_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> neon_f32 = table_of<PlainOps<NeonF32, 64, 64>>("neon.f32");
extern constexpr BlockOps<double> neon_f64 = table_of<PlainOps<NeonF64, 32, 64>>("neon.f64");

}  // namespace foveal::cpu::targets
