// Parts of an attention on a GPU: what is checked, what is compiled, and that whole calls are compiled as before.
#include <gtest/gtest.h>

#include "cuda/jit/compile.h"
#include "cuda/kernels_of.h"
#include "cuda/launch/backward_sm80.h"
#include "cuda/launch/backward_sm90.h"
#include "cuda/launch/forward_sm90.h"
#include "cuda/tune/read_plan.h"
#include "nvrtc_here.h"
#include "problem/problem.h"

namespace foveal::cuda {
namespace {

class PartKernels : public test::NeedsNvrtc {};

constexpr std::int64_t batch = 2, heads = 4, heads_kv = 2, rows = 1000, keys = 1500;

struct Call {
  DType dtype = DType::bf16;
  std::int64_t dim = 128, dim_v = 128;
  Attention attention{};
  Part part{};
  std::vector<ParamBinding> params{};
  std::vector<ParamBinding> dparams{};
  bool lse = true;

  DType results() const { return part.whole_rows ? dtype : wide(); }
  DType statistics() const { return part.whole_rows ? wide() : DType::f64; }
  DType wide() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  static TensorView view(DType type, std::initializer_list<std::int64_t> sizes) {
    TensorView v(nullptr, type, sizes);
    v.device = {DeviceKind::cuda, 0};
    return v;
  }
  problem::Problem forward() const {
    ForwardInputs in{.q = view(dtype, {batch, rows, heads, dim}),
                     .k = view(dtype, {batch, keys, heads_kv, dim}),
                     .v = view(dtype, {batch, keys, heads_kv, dim_v}),
                     .params = params};
    in.part = part;
    ForwardOutputs out{.out = view(results(), {batch, rows, heads, dim_v})};
    if (lse) out.lse = view(statistics(), {batch, heads, rows});
    return problem::make_problem(attention, in, out);
  }
  problem::Problem backward() const {
    BackwardInputs in{.q = view(dtype, {batch, rows, heads, dim}),
                      .k = view(dtype, {batch, keys, heads_kv, dim}),
                      .v = view(dtype, {batch, keys, heads_kv, dim_v}),
                      .out = view(dtype, {batch, rows, heads, dim_v}),
                      .lse = view(wide(), {batch, heads, rows}),
                      .dout = view(dtype, {batch, rows, heads, dim_v})};
    in.part = part, in.params = params;
    const BackwardOutputs out{.dq = view(part.keeps_rows ? dtype : wide(), {batch, rows, heads, dim}),
                              .dk = view(part.whole_keys ? dtype : wide(), {batch, keys, heads_kv, dim}),
                              .dv = view(part.whole_keys ? dtype : wide(), {batch, keys, heads_kv, dim_v}),
                              .dparams = dparams};
    return problem::make_problem(attention, in, out);
  }
};

void expect_compiled(const problem::Problem& p, const std::string& arch, const std::string& target) {
  for (jit::KernelSource source : kernels_of(p, arch, target)) {
    source.arch = arch;
    const auto image = jit::compile(source);
    const bool mends =
        source.stem == "backward_convert_sm90" && p.has_mask();  // with the registers that its loads leave (tile/recompute_dq.cuh)
    EXPECT_LE(image->facts.spill_bytes, target == "sm90" && !p.has_score_mod() && !mends ? 16 : 1 << 16) << p.line() << ' ' << source.stem;
  }
}

TEST_F(PartKernels, Compile) {
  Call causal_part{.attention = {.mask = causal()}};
  causal_part.attention.q_offset = 3000, causal_part.part = {.seqlen_q = 8192, .seqlen_kv = 8192};
  expect_compiled(causal_part.forward(), "sm_90a", "sm90");
  expect_compiled(causal_part.backward(), "sm_90a", "sm90");
  Call wide{.dtype = DType::f16, .dim = 256, .dim_v = 256};
  expect_compiled(wide.forward(), "sm_90a", "sm90");
  expect_compiled(wide.backward(), "sm_90a", "sm90");
  for (const DType dtype : {DType::bf16, DType::f32}) {
    Call call{.dtype = dtype, .dim = 64, .dim_v = 40};
    call.attention.dropout_p = 0.1, call.part = {.batch_offset = 3, .head_offset = 4, .heads_q = 8};
    expect_compiled(call.forward(), "sm_80", "sm80");
    expect_compiled(call.backward(), "sm_80", "sm80");
  }
}

TEST_F(PartKernels, ThatKeepRowsCompile) {
  for (const std::int64_t dim : {64, 128, 256}) {
    Call call{.dim = dim, .dim_v = dim, .attention = {.mask = causal()}, .part = {.seqlen_q = 8192, .seqlen_kv = 8192, .keeps_rows = true}};
    call.attention.q_offset = 3000;
    expect_compiled(call.backward(), "sm_90a", "sm90");
    call.part.whole_keys = true;
    expect_compiled(call.backward(), "sm_90a", "sm90");
  }
}

/// dk and dv are of k's type then; what makes dq is the same kernel for all parts of a row.
TEST(Part, WithWholeKeysWritesThemOnce) {
  Call call{.attention = {.mask = causal()}, .part = {.seqlen_q = 8192, .seqlen_kv = 8192, .keeps_rows = true}};
  const auto texts = [&call] {
    const problem::Problem p = call.backward();
    const auto choice = sm90_backward_choice(p, sm90_read_plan(p), "NVIDIA H100");
    return std::pair{jit::assemble(backward_sm90_source(p, choice->config)),
                     jit::assemble(backward_convert_sm90_source(p, choice->config))};
  };
  const problem::Problem parts = call.backward();
  const auto [adds, makes_dq] = texts();
  call.part.whole_keys = true;
  const auto [writes, makes_dq_alike] = texts();
  EXPECT_FALSE(adds == writes);
  EXPECT_TRUE(makes_dq == makes_dq_alike);
  EXPECT_NE(problem::key_of(parts), problem::key_of(call.backward()));
}

/// dq of a row may be mended over the keys of all its parts: what a score's indices may be does not end with a part's keys.
TEST(Part, ThatKeepsRowsAsksTheScoreAboutAllKeys) {
  const Param table("table", {8, 600});
  Call call{.attention = {.mask = causal()}, .part = {.seqlen_q = 8192, .seqlen_kv = 8192, .keeps_rows = true, .first_key = 4000}};
  call.attention.score_mod = parse("score + table[head, clamp(q_idx - kv_idx, 0, 599)]", {table});
  call.attention.q_offset = 5600, call.attention.kv_offset = 4000;
  call.params = {{table, Call::view(DType::f32, {8, 600})}};
  const problem::Problem p = call.backward();
  EXPECT_EQ(p.first_position_kv(), 0);
  EXPECT_EQ(p.positions_kv(), 8192);
  // A factor that is one for all rows of a part would leave dq's sum without it.
  call.attention.score_mod = parse("score * table[0, where(q_idx < 6000, 0, 1)]", {table});
  const auto text_from = [&call](std::int64_t first) {
    call.attention.q_offset = first, call.part.first_query = call.part.keeps_rows ? first : 0;
    const problem::Problem part = call.backward();
    const auto choice = sm90_backward_choice(part, sm90_read_plan(part), "NVIDIA H100");
    return jit::assemble(backward_convert_sm90_source(part, choice->config));
  };
  for (const std::int64_t first : {5500, 7000}) EXPECT_TRUE(text_from(0) == text_from(first)) << first;
  call.part.keeps_rows = false, call.part.first_query = call.part.first_key = 0;
  EXPECT_EQ(call.backward().positions_kv(), keys);
  EXPECT_FALSE(text_from(0) == text_from(5500)) << "the index is settled for the first rows alone";
}

TEST(Part, TheSumOfDqHasRoomForEveryColumn) {
  for (const int head_dim : {8, 64, 80, 128, 136, 200, 256})
    for (const int block_q : {64, 128}) {
      const device::DqSumShape shape(head_dim, block_q);
      EXPECT_GE(shape.columns, head_dim);
      EXPECT_EQ(shape.part_columns % 16, 0);
      EXPECT_EQ(shape.columns, shape.splits_columns ? shape.parts * shape.part_columns : shape.part_columns);
    }
}

TEST_F(PartKernels, OfWholeRowsCompile) {
  for (const std::int64_t spread_keys : {std::int64_t{0}, std::int64_t{3000}})
    for (const std::int64_t dim : {64, 128, 256}) {
      Call call{.dim = dim, .dim_v = dim, .attention = {.mask = causal()}, .part = {.whole_rows = true, .spread_keys = spread_keys}};
      call.attention.q_offset = 2000, call.lse = dim != 64;
      const problem::Problem p = call.forward();
      EXPECT_EQ(p.seqlen_kv, spread_keys > 0 ? spread_keys : keys);
      expect_compiled(p, "sm_90a", "sm90");
    }
  Call wide{.attention = {.mask = causal()},
            .part = {.whole_rows = true, .spread_keys = 32768}};  // tiles of 160 keys, which come in boxes of 32 or as one
  wide.attention.q_offset = 32768 - rows;
  expect_compiled(wide.forward(), "sm_90a", "sm90");
  Call dropped{.part = {.batch_offset = 3, .head_offset = 4, .heads_q = 8, .whole_rows = true, .spread_keys = 3000}};
  dropped.attention.dropout_p = 0.1;
  expect_compiled(dropped.forward(), "sm_90a", "sm90");
}

/// So that bits are those of one device, at its speed.
TEST(Part, KeyRangesAreReadInTheTilesOfACallWithoutThem) {
  for (const std::int64_t dim : {64, 128, 256})
    for (const std::int64_t keys_in_reach : {4096, 32768})
      for (const char* score : {"score", "30 * tanh(score / 30)"}) {
        Call call{.dim = dim, .dim_v = dim, .attention = {.mask = causal()}, .part = {.whole_rows = true, .spread_keys = keys_in_reach}};
        call.attention.q_offset = keys_in_reach - rows, call.attention.score_mod = parse(score);
        problem::Problem p = call.forward();
        const auto spread = sm90_forward_choice(p, "NVIDIA H100");
        p.spread = false;
        const auto together = sm90_forward_choice(p, "NVIDIA H100");
        ASSERT_TRUE(spread && together);
        EXPECT_EQ(spread->config.block_kv, together->config.block_kv) << dim << " " << keys_in_reach << " " << score;
      }
}

TEST_F(PartKernels, TrainedParametersCompile) {
  const Param table("table", {8, 33});
  Call call{.dtype = DType::bf16, .dim = 64, .dim_v = 64};
  call.attention.score_mod = parse("score + table[head, clamp(kv_idx - q_idx, -16, 16) + 16] + seqlen_kv * 0.001", {table});
  call.part = {.head_offset = 4, .heads_q = 8, .seqlen_kv = 4000};
  call.params = {{table, Call::view(DType::f32, {8, 33})}}, call.dparams = call.params;
  call.dparams[0].tensor.dtype = DType::f64;
  for (const auto& [arch, target] : {std::pair{"sm_80", "sm80"}, std::pair{"sm_90a", "sm90"}}) {
    expect_compiled(call.forward(), arch, target);
    expect_compiled(call.backward(), arch, target);
  }
}

TEST(Part, SymbolsAreThoseOfTheWhole) {
  Call call;
  call.attention.mask = parse("kv_idx <= q_idx + seqlen_kv - seqlen_q");
  call.attention.score_mod = parse("score * (head + 1) + batch");
  call.part = {.batch_offset = 5, .head_offset = 8, .heads_q = 16, .seqlen_q = 5000, .seqlen_kv = 6000};
  const problem::Problem p = call.forward();
  EXPECT_EQ(to_string(p.attention.mask), to_string(parse("kv_idx <= q_idx + 1000")));
  EXPECT_EQ(to_string(p.attention.score_mod), to_string(parse("score * (head + 9) + (batch + 5)")));
  Call other = call;
  other.part.heads_q = 32;  // dropout's bits depend on it
  EXPECT_NE(problem::key_of(p), problem::key_of(other.forward()));
}

void expect_refused(const Call& call, const std::string& text) {
  try {
    call.forward();
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(Part, WhatCannotBeAPartIsRefused) {
  Call call;
  call.lse = false;
  expect_refused(call, "lse: absent");
  call = {};
  call.attention.sink = Param("sink", {heads});
  expect_refused(call, "sink: given with a part");
  call = {}, call.part.head_offset = 3, call.part.heads_q = 6;
  expect_refused(call, "part.head_offset");
  call = {}, call.part.seqlen_kv = -1;
  expect_refused(call, "part.seqlen_kv");
  call = {}, call.part.batch_offset = -1;
  expect_refused(call, "part.batch_offset");
  call = {}, call.part.spread_keys = 3000;
  expect_refused(call, "part.spread_keys");
  call = {}, call.part.whole_rows = true;
  EXPECT_THROW(call.backward(), Error);
  call = {}, call.part.whole_keys = true;
  expect_refused(call, "part.whole_keys: given without keeps_rows");
  call = {}, call.part.keeps_rows = true;
  expect_refused(call, "part.keeps_rows: given in a forward pass");
  call.part.first_key = 1;
  EXPECT_THROW(call.backward(), Error);
  call.part.first_key = 0;
  EXPECT_NO_THROW(call.backward());
  call.dtype = DType::f32;
  driver::DeviceFacts ampere;
  ampere.major = 8;
  EXPECT_EQ(backward_sm80.design(call.backward(), ampere).refusal, "rows are not kept from part to part");
}

}  // namespace
}  // namespace foveal::cuda
