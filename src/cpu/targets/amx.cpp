#include "cpu/simd/amx.h"

#include "cpu/kernels/amx_backward.h"
#include "cpu/kernels/amx_forward.h"
#include "cpu/kernels/amx_products.h"
#include "cpu/kernels/avx512_bf16_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

namespace {
constexpr PackedForwardOps packed_forward = AmxForwards<AmxTiles>::table();
constexpr PackedBackwardOps packed_backward = AmxBackward<AmxTiles>::table();
}  // namespace
extern constexpr BlockOps<float> amx_bf16 = Bf16Ops<AmxProducts<AmxTiles>>::table("amx.bf16", &packed_forward, &packed_backward);

}  // namespace foveal::cpu::targets
