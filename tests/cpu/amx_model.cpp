// The AMX table over the scalar model of its tiles. Its vector half is real: this unit needs the flags of the amx target, see
// CMakeLists.txt.
#include "amx_model.h"

#include "cpu/kernels/bf16_ops.h"
#include "cpu/kernels/row_forward.h"
#include "cpu/kernels/tile_backward.h"
#include "cpu/kernels/tile_products.h"
#include "scalar_tiles.h"

namespace foveal::cpu {

namespace {
constexpr RowOps rows = RowForwards<ScalarTiles>::table();
constexpr TileBackwardOps backward = TileBackward<ScalarTiles>::table();
}  // namespace
extern constexpr BlockOps<float> amx_model = Bf16Ops<TileProducts<ScalarTiles>>::table("amx_model.bf16", &rows, &backward);

}  // namespace foveal::cpu
