#include "base/dtype.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/strided.h"

namespace foveal::base {
namespace {

TEST(DType, NamesAreReadBack) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
    EXPECT_TRUE(is_floating(dtype) + is_integral(dtype) + (dtype == DType::boolean) == 1);
  }
  EXPECT_EQ(parse_dtype("float"), std::nullopt);
}

TEST(DType, EpsilonIsTheDistanceFromOne) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(round_to(dtype, 1 + epsilon(dtype)), 1 + epsilon(dtype)) << to_string(dtype);
    const double half = 1 + epsilon(dtype) / 2;  // f64 itself cannot hold it
    EXPECT_EQ(round_to(dtype, half), 1) << to_string(dtype);
  }
}

TEST(DType, ElementsAreStoredAndLoaded) {
  unsigned char memory[64];
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    store(memory, dtype, 3, 1);
    EXPECT_EQ(load(memory, dtype, 3), 1) << to_string(dtype);
    EXPECT_EQ(load_integer(memory, dtype, 3), 1) << to_string(dtype);
    if (is_floating(dtype) || (is_integral(dtype) && dtype != DType::u8)) {
      store(memory, dtype, 2, -100);
      EXPECT_EQ(load(memory, dtype, 2), -100) << to_string(dtype);
      EXPECT_EQ(load(memory, dtype, 3), 1) << to_string(dtype) << ": a neighbour changed";
    }
  }
}

TEST(DType, IntegersHoldTheNearestOfWhatIsTooLarge) {
  const auto stored = [](DType dtype, double value) {
    std::int64_t element = 0;
    base::store(&element, dtype, 0, value);
    return base::load_integer(&element, dtype, 0);
  };
  EXPECT_EQ(stored(DType::u8, -3.5), 0);
  EXPECT_EQ(stored(DType::u8, 1e6), 255);
  EXPECT_EQ(stored(DType::i8, -1e6), -128);
  EXPECT_EQ(stored(DType::i32, 1e30), 2147483647);
  EXPECT_EQ(stored(DType::i64, 1e30), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(stored(DType::i64, -1e30), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(stored(DType::i16, std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(stored(DType::i16, -7.9), -7);
  EXPECT_EQ(stored(DType::f64, 1e30), std::numeric_limits<std::int64_t>::max()) << "read as an integer";
}

TEST(TensorView, DescribesAndCounts) {
  const TensorView view(nullptr, DType::bf16, {2, 3, 4});
  EXPECT_EQ(view.describe(), "bf16[2, 3, 4]");
  EXPECT_EQ(view.numel(), 24);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_TRUE(view.present());
  EXPECT_FALSE(TensorView().present());
}

TEST(TensorView, ElementsAreVisitedInRowMajorOrder) {
  TensorView view(nullptr, DType::f32, {2, 3}, {-7, 2});
  std::vector<std::int64_t> offsets;
  each_element(view, [&](std::int64_t i, std::int64_t offset) {
    EXPECT_EQ(i, static_cast<std::int64_t>(offsets.size()));
    offsets.push_back(offset);
  });
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 2, 4, -7, -5, -3}));
  int scalars = 0;
  each_element(TensorView{}, [&](std::int64_t, std::int64_t offset) { scalars += offset == 0; });
  EXPECT_EQ(scalars, 1);
}

}  // namespace
}  // namespace foveal::base
