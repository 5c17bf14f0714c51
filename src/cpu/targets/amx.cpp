#include "cpu/simd/amx.h"

#include "cpu/kernels/amx_backward.h"
#include "cpu/kernels/amx_forward.h"
#include "cpu/kernels/amx_products.h"
#include "cpu/kernels/amx_scored_backward.h"
#include "cpu/kernels/amx_scored_forward.h"
#include "cpu/kernels/avx512_bf16_ops.h"
#include "cpu/targets.h"

namespace foveal::cpu::targets {

namespace {
constexpr PackedOps packed{.forward = AmxForwards<AmxTiles>::table(),
                           .scored_forward = AmxScoredForward<AmxTiles>::table(),
                           .backward = AmxBackward<AmxTiles>::table(),
                           .scored_backward = AmxScoredBackward<AmxTiles>::table()};
}  // namespace
extern constexpr BlockOps<float> amx_bf16 = Bf16Ops<AmxProducts<AmxTiles>>::table("amx.bf16", &packed);

}  // namespace foveal::cpu::targets
