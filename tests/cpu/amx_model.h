#pragma once
#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {
extern const BlockOps<float> amx_model;  ///< runs where AVX-512-BF16 does
}
