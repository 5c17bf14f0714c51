#include "cpu/simd/avx512.h"

#include "cpu/kernels/decode_ops.h"
#include "cpu/kernels/plain_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> avx512_f32 = table_of<PlainOps<Avx512F32, 64, 64>>("avx512.f32");
extern constexpr BlockOps<double> avx512_f64 = table_of<PlainOps<Avx512F64, 32, 64>>("avx512.f64");
extern constexpr DecodeTables avx512_decode = decode_tables<Avx512F32, Avx512F64>("avx512.f32", "avx512.bf16", "avx512.f16", "avx512.f64");

}  // namespace foveal::cpu::targets
