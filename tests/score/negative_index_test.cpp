// Negative indices, and their simplification by lengths and masks.
#include "score/negative_index.h"

#include <gtest/gtest.h>

#include "foveal/masks.h"

namespace foveal {
namespace {

using namespace symbols;

const Param table{"table", {33}}, ids{"ids", {128}, Type::integer};

std::string settled(const Expr& index, const Expr& mask = {}) {
  const scoring::Box box{{0, 1}, {0, 3}, {0, 127}, {0, 127}, {128, 128}, {128, 128}};
  return to_string(scoring::simplify_indices(score + table(index), mask, {table, ids}, box));
}

Expr wrap(const Expr& index) { return scoring::wrapped_index(index, 33); }

TEST(Wraps, WhatHoldsForAllLengthsIsDecidedAtOnce) {
  EXPECT_EQ(to_string(wrap(q_idx)), "q_idx");
  EXPECT_EQ(to_string(wrap(abs(q_idx - kv_idx))), to_string(abs(q_idx - kv_idx)));
  EXPECT_EQ(to_string(wrap(-1 - head)), "32 - head");
  EXPECT_EQ(to_string(wrap(ids(q_idx) % 33)), "ids[q_idx] % 33");
  EXPECT_NE(to_string(wrap(q_idx - kv_idx)), to_string(q_idx - kv_idx));
  EXPECT_NE(to_string(wrap(ids(q_idx))), "ids[q_idx]");
}

TEST(Wraps, LengthsAndTheMaskDecideTheRest) {
  const auto plain = [](const Expr& index) { return to_string(score + table(index)); };
  EXPECT_EQ(settled(wrap(kv_idx - q_idx + 127)), plain(kv_idx - q_idx + 127));
  EXPECT_EQ(settled(wrap(q_idx - 128)), plain(q_idx - 95));
  EXPECT_EQ(settled(wrap(q_idx - kv_idx), causal()), plain(q_idx - kv_idx));
  EXPECT_EQ(settled(wrap(q_idx - kv_idx)), plain(wrap(q_idx - kv_idx)));
  EXPECT_EQ(settled(wrap(ids(wrap(q_idx - 1)))), plain(wrap(ids(wrap(q_idx - 1)))));
  EXPECT_EQ(settled(wrap(ids(wrap(kv_idx + 1)))), plain(wrap(ids(kv_idx + 1))));
}

TEST(Wraps, ChoicesOutsideOfIndicesStay) {
  const Expr choice = score + where(q_idx < 128, 1, 2);
  const scoring::Box box{{0, 1}, {0, 3}, {0, 127}, {0, 127}, {128, 128}, {128, 128}};
  EXPECT_EQ(to_string(scoring::simplify_indices(choice, {}, {}, box)), to_string(choice));
}

}  // namespace
}  // namespace foveal
