#include "cpu/simd/avx2.h"

#include "cpu/kernels/plain_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> avx2_f32 = table_of<PlainOps<Avx2F32, 64, 64>>("avx2.f32");
extern constexpr BlockOps<double> avx2_f64 = table_of<PlainOps<Avx2F64, 32, 64>>("avx2.f64");

}  // namespace foveal::cpu::targets
