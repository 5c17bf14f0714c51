// The AMX table over the scalar model of its tiles. Its vector half is real: this unit needs the flags of the amx target, see
// CMakeLists.txt.
#include "amx_model.h"

#include "cpu/kernels/amx_backward.h"
#include "cpu/kernels/amx_forward.h"
#include "cpu/kernels/amx_products.h"
#include "cpu/kernels/amx_scored_backward.h"
#include "cpu/kernels/amx_scored_forward.h"
#include "cpu/kernels/avx512_bf16_ops.h"
#include "scalar_tiles.h"

namespace foveal::cpu {

namespace {
constexpr PackedOps packed{.forward = AmxForwards<ScalarTiles>::table(),
                           .scored_forward = AmxScoredForward<ScalarTiles>::table(),
                           .backward = AmxBackward<ScalarTiles>::table(),
                           .scored_backward = AmxScoredBackward<ScalarTiles>::table()};
}  // namespace
extern constexpr BlockOps<float> amx_model = Bf16Ops<AmxProducts<ScalarTiles>>::table("amx_model.bf16", &packed);

}  // namespace foveal::cpu
