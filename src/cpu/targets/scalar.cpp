#include "cpu/simd/scalar.h"

#include "cpu/kernels/plain_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> scalar_f32 = PlainOps<ScalarF32, 64, 64>::table("scalar.f32");
extern constexpr BlockOps<double> scalar_f64 = PlainOps<ScalarF64, 32, 64>::table("scalar.f64");

}  // namespace foveal::cpu::targets
