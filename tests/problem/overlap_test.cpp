// Strided tensors in one memory: exact against marking every byte.
#include "problem/overlap.h"

#include <gtest/gtest.h>

#include <set>

#include "base/random.h"
#include "base/strided.h"

namespace foveal::problem {
namespace {

std::set<std::int64_t> bytes_of(const TensorView& view) {
  std::set<std::int64_t> bytes;
  base::each_element(view, [&](std::int64_t, std::int64_t offset) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(size_of(view.dtype)); ++i)
      bytes.insert(reinterpret_cast<std::intptr_t>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype)) + i);
  });
  return bytes;
}

bool overlap(const TensorView& a, const TensorView& b) { return problem::overlap(a, problem::bytes_of(a), b); }

TensorView random_view(base::Random& random) {
  static char memory[161];  // nothing is read of it
  TensorView view;
  view.dtype = random.chance(0.5) ? DType::f32 : random.chance(0.5) ? DType::bf16 : DType::f64;
  view.rank = static_cast<int>(random.integer(1, 4));
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    view.sizes[d] = random.integer(1, 5);
    view.strides[d] = random.integer(-12, 30);
  }
  view.data = memory + 80 + random.integer(-40, 40) * 2;
  return view;
}

TEST(Overlap, RandomViewsAgreeWithEveryByte) {
  base::Random random(1);
  int overlapping = 0, apart = 0, itself = 0;
  for (int i = 0; i < 20000; ++i) {
    const TensorView a = random_view(random), b = random_view(random);
    const auto bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    const bool shared = std::any_of(bytes_a.begin(), bytes_a.end(), [&](std::int64_t byte) { return bytes_b.contains(byte); });
    ASSERT_EQ(overlap(a, b), shared);
    (shared ? overlapping : apart)++;
    const bool repeats = bytes_a.size() < static_cast<std::size_t>(a.numel()) * size_of(a.dtype);
    const TensorSpec spec{.present = true, .dtype = a.dtype, .rank = a.rank, .sizes = a.sizes, .strides = a.strides};
    ASSERT_EQ(overlaps_itself(spec), repeats);
    itself += repeats;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(apart, 1000);
  EXPECT_GT(itself, 1000);
}

TEST(Overlap, PackedViewsInterleaveWithoutSharing) {
  std::vector<float> memory(2 * 1000 * 3 * 8 * 64);
  const auto view = [&](int which) {
    return TensorView(memory.data() + which * 8 * 64, DType::f32, {2, 1000, 8, 64}, {1000 * 3 * 8 * 64, 3 * 8 * 64, 64, 1});
  };
  EXPECT_FALSE(overlap(view(0), view(1)));
  EXPECT_FALSE(overlap(view(2), view(0)));
  EXPECT_TRUE(overlap(view(1), view(1)));
  TensorView shifted = view(1);
  shifted.data = static_cast<float*>(shifted.data) - 1;
  EXPECT_TRUE(overlap(view(0), shifted));
  EXPECT_FALSE(overlap(shifted, view(2)));
}

}  // namespace
}  // namespace foveal::problem
