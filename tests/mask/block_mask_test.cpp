// Block masks against brute force: every mask of the catalogue at odd sizes, and the cost of a large one.
#include "mask/block_mask.h"

#include <gtest/gtest.h>
#include <time.h>

#include "mask/catalogue.h"
#include "score/evaluate.h"

namespace foveal {
namespace {

using mask::BlockMask;
using mask::Run;
using mask::Tiling;

enum class State { empty, partial, full };

scoring::ScoreProgram compiled(const Expr& mask, const std::vector<Param>& params = {}) {
  return scoring::compile({.score_mod = {}, .mask = mask, .params = params, .wants_gradient = {}, .backward = false});
}

/// The state of each tile, [rows][columns], from a block mask of either direction.
std::vector<State> states(const BlockMask& mask) {
  const Tiling& t = mask.tiling;
  const auto rows = (t.seqlen_q + t.block_q - 1) / t.block_q, columns = (t.seqlen_kv + t.block_kv - 1) / t.block_kv;
  std::vector<State> result(static_cast<std::size_t>(rows * columns), State::empty);
  const std::int64_t lines = mask.transposed ? columns : rows;
  EXPECT_EQ(static_cast<std::int64_t>(mask.row_begin.size()), lines + 1);
  for (std::int64_t line = 0; line < lines; ++line) {
    std::int32_t last = -1;
    for (auto i = mask.row_begin[static_cast<std::size_t>(line)]; i < mask.row_begin[static_cast<std::size_t>(line) + 1]; ++i) {
      const Run& run = mask.runs[static_cast<std::size_t>(i)];
      EXPECT_LT(run.begin, run.end);
      EXPECT_GE(run.begin, last) << "runs must ascend";
      last = run.end;
      for (std::int64_t at = run.begin; at < run.end; ++at) {
        const auto tile = mask.transposed ? at * columns + line : line * columns + at;
        result.at(static_cast<std::size_t>(tile)) = run.full ? State::full : State::partial;
      }
    }
  }
  return result;
}

std::vector<State> brute_force(const scoring::Program& program, const Tiling& t, std::int64_t batch, std::int64_t head,
                               const scoring::ParamReader& reader) {
  const auto rows = (t.seqlen_q + t.block_q - 1) / t.block_q, columns = (t.seqlen_kv + t.block_kv - 1) / t.block_kv;
  std::vector<int> kept(static_cast<std::size_t>(rows * columns), 0), pairs = kept;
  std::vector<scoring::Scalar> values(program.code.size());
  for (std::int64_t q = 0; q < t.seqlen_q; ++q)
    for (std::int64_t kv = 0; kv < t.seqlen_kv; ++kv) {
      const auto tile = static_cast<std::size_t>(q / t.block_q * columns + kv / t.block_kv);
      ++pairs[tile];
      const scoring::Point point{.batch = batch,
                                 .head = head,
                                 .q_idx = q + t.q_offset,
                                 .kv_idx = kv + t.kv_offset,
                                 .seqlen_q = t.seqlen_q,
                                 .seqlen_kv = t.seqlen_kv};
      kept[tile] += program.empty() || scoring::evaluate(program, point, reader, values.data()) != 0;
    }
  std::vector<State> result;
  for (std::size_t i = 0; i < kept.size(); ++i)
    result.push_back(kept[i] == 0 ? State::empty : kept[i] == pairs[i] ? State::full : State::partial);
  return result;
}

class Catalogue : public testing::TestWithParam<test::MaskCase> {};

TEST_P(Catalogue, AgreesWithBruteForce) {
  const test::MaskCase& mask_case = GetParam();
  const scoring::ScoreProgram compiled_mask = compiled(mask_case.mask, mask_case.params());
  const scoring::DataReadRanges ranges(compiled_mask.params, mask_case.tensors());
  const test::TensorReader reader(mask_case.tensors());
  for (const auto& [block_q, block_kv] : {std::pair{16, 16}, {17, 8}, {64, 48}}) {
    for (std::int64_t batch : {0, 1}) {
      const Tiling tiling{test::seqlen_q, test::seqlen_kv, block_q, block_kv};
      const BlockMask found = mask::classify(compiled_mask.mask, tiling, batch, 1, ranges);
      const std::vector<State> expected = brute_force(compiled_mask.mask, tiling, batch, 1, reader);
      const std::vector<State> actual = states(found);
      ASSERT_EQ(actual.size(), expected.size());
      int needlessly_partial = 0;
      for (std::size_t i = 0; i < actual.size(); ++i) {
        if (actual[i] == State::partial) {
          needlessly_partial += expected[i] != State::partial;
        } else {
          ASSERT_EQ(actual[i], expected[i]) << mask_case.name << " tile " << i;
        }
      }
      if (mask_case.exact == test::Exact::yes) {
        EXPECT_EQ(needlessly_partial, 0) << mask_case.name << " " << block_q << "x" << block_kv << " of " << actual.size();
      }
      RecordProperty("needlessly_partial", needlessly_partial);
      EXPECT_EQ(states(mask::transpose(found)), actual);
      const BlockMask back = mask::transpose(mask::transpose(found));
      EXPECT_EQ(back.row_begin, found.row_begin);
      EXPECT_EQ(states(back), actual);
      EXPECT_EQ(found.full + found.partial + found.empty, static_cast<std::int64_t>(actual.size()));
      EXPECT_EQ(found.full, std::count(actual.begin(), actual.end(), State::full));
      EXPECT_EQ(found.empty, std::count(actual.begin(), actual.end(), State::empty));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BlockMask, Catalogue, testing::ValuesIn(test::mask_catalogue()), [](const auto& info) { return info.param.name; });

TEST(BlockMask, OffsetsShiftThePositions) {
  const auto program = compiled(causal());
  const Tiling tiling{5, 40, 4, 8, 20, 3};
  const test::TensorReader none({});
  EXPECT_EQ(states(mask::classify(program.mask, tiling, 0, 0, scoring::ReadRanges())), brute_force(program.mask, tiling, 0, 0, none));
}

TEST(BlockMask, NoMaskKeepsEverything) {
  const BlockMask all = mask::classify({}, {100, 300, 64, 64}, 0, 0, scoring::ReadRanges());
  EXPECT_EQ(all.full, 10);
  EXPECT_EQ(all.runs.size(), 2u);
}

TEST(BlockMask, UnknownParametersMakeTheirTilesPartial) {
  const Param ids{"ids", {64}, Type::integer};
  const auto program = compiled(causal() & document(ids), {ids});
  const BlockMask found = mask::classify(program.mask, {64, 64, 16, 16}, 0, 0, scoring::ReadRanges());
  EXPECT_EQ(found.full, 0);
  EXPECT_EQ(found.partial, 10);  // causality alone still empties the upper triangle
  EXPECT_EQ(found.empty, 6);
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(BlockMask, AMillionPositionsAreClassifiedInMilliseconds) {
  const auto program = compiled(causal() & window(4096));
  const double start = thread_seconds();
  const BlockMask found = mask::classify(program.mask, {1 << 20, 1 << 20, 128, 128}, 0, 0, scoring::ReadRanges());
  const double classified = thread_seconds();
  const BlockMask turned = mask::transpose(found);
  const double transposed = thread_seconds();
  RecordProperty("classify_ms", std::to_string((classified - start) * 1e3));
  RecordProperty("transpose_ms", std::to_string((transposed - classified) * 1e3));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(FOVEAL_EMULATED)
  constexpr double most = 1;
#else
  constexpr double most = 0.05;
#endif
  EXPECT_LT(transposed - start, most) << "classify " << classified - start << " s, transpose " << transposed - classified << " s";
  EXPECT_EQ(found.partial, 8192 + (8192 - 32));  // the diagonal, and the far border from row 32 on
  EXPECT_EQ(found.full, 31 * (8192 - 32) + 31 * 32 / 2 + 0);
  EXPECT_LE(found.runs.size(), 3u * 8192);
  EXPECT_EQ(turned.full, found.full);
}

}  // namespace
}  // namespace foveal
