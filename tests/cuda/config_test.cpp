// The structs that the host prints for kernels: a field that `fields` leaves out would be compiled as its default.
#include <gtest/gtest.h>

#include "cuda/device/group_sums_args.cuh"
#include "cuda/device/narrow_args.cuh"
#include "cuda/device/pages_args.cuh"
#include "cuda/device/param_gradient_args.cuh"
#include "cuda/device/problem_traits.cuh"
#include "cuda/device/rows_args.cuh"
#include "cuda/device/score/traits.cuh"
#include "cuda/device/sm80_config.cuh"
#include "cuda/device/sm90_config.cuh"
#include "cuda/jit/source.h"
#include "cuda/launch/attention_args.h"
#include "cuda/tune/sm80.h"
#include "cuda/tune/sm90.h"

namespace foveal::cuda {
namespace {

struct Anything {
  template <class T>
  operator T() const;
};

/// How many fields an aggregate of numbers has.
template <class Struct, class... Values>
constexpr int fields_of() {
  if constexpr (requires { Struct{Values{}..., Anything{}}; }) {
    return fields_of<Struct, Values..., Anything>();
  } else {
    return sizeof...(Values);
  }
}

template <class Struct>
void expect_every_field() {
  int printed = 0;
  const Struct value{};
  Struct::fields(value, [&](const char*, const auto&) { ++printed; });
  EXPECT_EQ(printed, fields_of<Struct>()) << jit::struct_text(value);
}

TEST(Configs, EveryFieldIsPrinted) {
  expect_every_field<device::ProblemTraits>();
  expect_every_field<device::ForwardConfig>();
  expect_every_field<device::BackwardConfig>();
  expect_every_field<device::BackwardRowsConfig>();
  expect_every_field<device::PairsConfig>();
  expect_every_field<device::RowsConfig>();
  expect_every_field<device::PortableConfig>();
  expect_every_field<device::WantedGradients>();
  expect_every_field<device::PairsRead>();
  expect_every_field<device::ClassifiedMask>();
  expect_every_field<device::GroupSumsConfig>();
  expect_every_field<device::NarrowConfig>();
  expect_every_field<device::GatherPagesConfig>();
  expect_every_field<device::ParamGradientConfig>();
  expect_every_field<device::MoveRowsConfig>();
  expect_every_field<device::FinishRowsConfig>();
  expect_every_field<device::RowReadTraits>();
  expect_every_field<device::PairReadTraits>();
  expect_every_field<device::PairTileTraits>();
  expect_every_field<device::TableTraits>();
  expect_every_field<device::OffsetTraits>();
}

TEST(Configs, ArePrintedAsDeviceText) {
  Sm90ForwardConfig config;
  config.block_kv = 160, config.split_kv = true, config.tile_source = device::TileSource::band;
  jit::Constants constants;
  constants.set_struct("kConfig", "ForwardConfig", "sm90_config.cuh", config);
  EXPECT_EQ(
      constants.text(),
      "#include \"sm90_config.cuh\"\n"
      "constexpr foveal::device::ForwardConfig kConfig{.block_kv = 160, .consumers = 2, .stages = 2, .query_stages = 2, .ping_pong = true, "
      ".intra_warpgroup_overlap = false, .packed_heads = 1, .pair_stages = 0, .split_kv = true, .tile_source = "
      "foveal::device::TileSource::band};\n");
}

}  // namespace
}  // namespace foveal::cuda
