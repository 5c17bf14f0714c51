#include "cpu/simd/amx.h"

#include "cpu/kernels/bf16_ops.h"
#include "cpu/kernels/tile_products.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

extern constexpr BlockOps<float> amx_bf16 = Bf16Ops<TileProducts<AmxTiles>>::table("amx.bf16");

}  // namespace foveal::cpu::targets
