#pragma once
// The loops behind peaks.h, one file for each instruction set. Each runs `count` iterations and returns the floating-point operations done.
#include <cstdint>

namespace foveal::micro {

using Loop = double (*)(std::int64_t count);

double loop_fma_scalar(std::int64_t count);
double loop_fma_avx2(std::int64_t count);
double loop_fma_avx512(std::int64_t count);
double loop_bf16_ymm(std::int64_t count);
double loop_bf16_zmm(std::int64_t count);
double loop_bf16_amx(std::int64_t count);

// The same arithmetic fed from L1.
double load_loop_scalar(std::int64_t count);
double load_loop_avx2(std::int64_t count);
double load_loop_avx512(std::int64_t count);
double load_loop_amx(std::int64_t count);

}  // namespace foveal::micro
