#include "cpu/simd/amx.h"

#include "cpu/kernels/bf16_ops.h"
#include "cpu/kernels/row_forward.h"
#include "cpu/kernels/tile_backward.h"
#include "cpu/kernels/tile_products.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

namespace {
constexpr RowOps rows = RowForwards<AmxTiles>::table();
constexpr TileBackwardOps backward = TileBackward<AmxTiles>::table();
}  // namespace
extern constexpr BlockOps<float> amx_bf16 = Bf16Ops<TileProducts<AmxTiles>>::table("amx.bf16", &rows, &backward);

}  // namespace foveal::cpu::targets
