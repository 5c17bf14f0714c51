#include "cpu/simd/amx.h"
#include "loops.h"

namespace foveal::micro {
namespace {
constexpr double kFlopsPerDot = 2.0 * 16 * 16 * 32;
}

double loop_bf16_amx(std::int64_t count) {
  cpu::AmxTiles tiles;
  tiles.enter();
  alignas(64) std::uint16_t operand[512];
  for (std::uint16_t& x : operand) x = 0x3a83;  // 1e-3
  tiles.load<4>(operand);
  tiles.load<5>(operand);
  tiles.zero<0>(), tiles.zero<1>(), tiles.zero<2>(), tiles.zero<3>();
  for (std::int64_t i = 0; i < count; ++i) {
    tiles.dot<0, 4, 5>();
    tiles.dot<1, 4, 5>();
    tiles.dot<2, 4, 5>();
    tiles.dot<3, 4, 5>();
  }
  tiles.leave();
  return 4 * kFlopsPerDot * static_cast<double>(count);
}

// Three tile loads for two products, and two pairs of accumulators, each stored while the other works: the shape of the kernels' inner
// loops.
double load_loop_amx(std::int64_t count) {
  cpu::AmxTiles tiles;
  tiles.enter();
  alignas(64) static thread_local std::uint16_t a[2][4][512], b[4][512];
  alignas(64) static thread_local float c[4][256];
  for (auto& row : a)
    for (auto& tile : row)
      for (std::uint16_t& x : tile) x = 0x3a83;
  for (auto& tile : b)
    for (std::uint16_t& x : tile) x = 0x3a83;
  const auto step = [&]<int C>(int k) {
    tiles.load<4>(a[0][k]);
    tiles.load<6>(b[k]);
    tiles.dot<C, 4, 6>();
    tiles.load<5>(a[1][k]);
    tiles.dot<C + 1, 5, 6>();
  };
  tiles.zero<2>(), tiles.zero<3>();
  for (std::int64_t i = 0; i < count; ++i) {
    tiles.zero<0>(), tiles.zero<1>();
    step.template operator()<0>(0), step.template operator()<0>(1);
    tiles.store<2>(c[2]), tiles.store<3>(c[3]);
    step.template operator()<0>(2), step.template operator()<0>(3);
    tiles.zero<2>(), tiles.zero<3>();
    step.template operator()<2>(0), step.template operator()<2>(1);
    tiles.store<0>(c[0]), tiles.store<1>(c[1]);
    step.template operator()<2>(2), step.template operator()<2>(3);
  }
  tiles.leave();
  return 16 * kFlopsPerDot * static_cast<double>(count);
}

}  // namespace foveal::micro
