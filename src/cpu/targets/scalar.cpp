#include "cpu/simd/scalar.h"

#include "cpu/kernels/plain_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> scalar_f32 = table_of<PlainOps<ScalarF32, 64, 64>>("scalar.f32");
extern constexpr BlockOps<double> scalar_f64 = table_of<PlainOps<ScalarF64, 32, 64>>("scalar.f64");

}  // namespace foveal::cpu::targets
