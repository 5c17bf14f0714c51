#include "cpu/simd/avx2.h"

#include "cpu/kernels/decode_ops.h"
#include "cpu/kernels/plain_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> avx2_f32 = table_of<PlainOps<Avx2F32, 64, 64>>("avx2.f32");
extern constexpr BlockOps<double> avx2_f64 = table_of<PlainOps<Avx2F64, 32, 64>>("avx2.f64");
extern constexpr DecodeTables avx2_decode = decode_tables<Avx2F32, Avx2F64>("avx2.f32", "avx2.bf16", "avx2.f16", "avx2.f64");

}  // namespace foveal::cpu::targets
