#include "cpu/simd/amx.h"

#include "cpu/kernels/bf16_ops.h"
#include "cpu/kernels/row_forward.h"
#include "cpu/kernels/tile_products.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

namespace {
constexpr RowOps rows = RowForward<AmxTiles>::table();
}
extern constexpr BlockOps<float> amx_bf16 = Bf16Ops<TileProducts<AmxTiles>>::table("amx.bf16", &rows);

}  // namespace foveal::cpu::targets
