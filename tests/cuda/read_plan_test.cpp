// Who sums the terms of each trained read on Hopper, and in how much shared memory.
#include "cuda/tune/read_plan.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/check.h"
#include "cuda/kernels_of.h"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/backward_sm90.h"
#include "cuda/launch/forward_sm90.h"
#include "cuda/launch/narrow_indices.h"
#include "cuda/score/score_emit.h"
#include "problems.h"

namespace foveal::cuda {
namespace {

using test::problem_of;

std::vector<PlannedRead> plan_of(const std::string& line) {
  const problem::Problem p = problem_of("backward bf16 b4 h4 q4096 " + line);
  return sm90_backward_candidates(p, sm90_read_plan(p)).front().reads;
}
Collector collector_of(const std::string& line) { return plan_of(line).front().collector; }

const std::string image =  // of 64 x 64
    "score=\"score + t[head, (q_idx // 64 - kv_idx // 64 + 63) * 127 + q_idx % 64 - kv_idx % 64 + 63]\" param=\"t: real[4, 16129] grad\"";
const std::string volume =  // of 16 x 16 x 16
    "score=\"score + t[head, (q_idx // 256 - kv_idx // 256 + 15) * 961 + (q_idx // 16 % 16 - kv_idx // 16 % 16 + 15) * 31 + q_idx % 16 - "
    "kv_idx % 16 + 15]\" param=\"t: real[4, 29791] grad\"";
const std::string kinds =
    "score=\"score + e[kind[q_idx, kv_idx], head]\" param=\"e: real[40, 4] grad\" param=\"kind: integer[4096, 4096] i8 integers(0, 39)\"";

TEST(ReadPlan, ReadsOfAnyIndexAreSummedInSharedMemoryWhereTheyFit) {
  for (const char* dim : {"d64 ", "d128 "}) {
    EXPECT_EQ(collector_of(dim + image), Collector::bins) << dim;
    EXPECT_EQ(collector_of(dim + kinds), Collector::bins) << dim;
    EXPECT_EQ(collector_of(dim + volume), Collector::window) << dim;
  }
  EXPECT_EQ(collector_of("d256 " + kinds), Collector::bins);
  EXPECT_EQ(collector_of("d256 " + image), Collector::window);
  EXPECT_STREQ(plan_of("d256 " + image).front().kernel, "collect_sm90");
  EXPECT_STREQ(plan_of("d64 " + image).front().kernel, "backward_sm90");
}

TEST(ReadPlan, TablesForEachKeyAreSummedInAWindow) {
  const auto of_key = [](const std::string& index, int elements) {
    return collector_of("d64 score=\"score + r[batch, head, kv_idx, " + index + "]\" param=\"r: real[4, 4, 4096, " +
                        std::to_string(elements) + "] grad\" param=\"kind: integer[4096, 4096] integers(0, 11)\"");
  };
  EXPECT_EQ(of_key("clamp(q_idx - kv_idx, -32, 32) + 32", 65), Collector::window);
  EXPECT_EQ(of_key("kind[q_idx, kv_idx]", 12), Collector::window);
  EXPECT_EQ(of_key("clamp(q_idx - kv_idx, -100, 100) + 100", 201), Collector::scatter) << "128 keys have more elements than a window";
}

TEST(ReadPlan, ElementsThatLieApartAreSummedInL2) {
  EXPECT_EQ(collector_of("d64 score=\"score + t[(q_idx * 37 + kv_idx * 101) % 100000]\" param=\"t: real[100000] grad\""),
            Collector::scatter);
  EXPECT_EQ(collector_of("d64 score=\"score + r[(q_idx + kv_idx * 7) % 300, kv_idx % 300]\" param=\"r: real[300, 300] grad\""),
            Collector::scatter);
}

TEST(ReadPlan, NarrowBinsWhereWideOnesMightOverflow) {
  const auto bits = [](const std::string& shape, const std::string& score, const std::string& param) {
    return exact_sum_bin_bits(problem_of("backward bf16 " + shape + " d64 score=\"" + score + "\" param=\"t: " + param + "\""));
  };
  const std::string bias = "score + t[head, clamp(kv_idx - q_idx, -64, 64) + 64]", table = "real[8, 129] grad";
  EXPECT_EQ(bits("b4 h8 q4096", bias, table), 16);  // a term for each line of a tile
  EXPECT_EQ(bits("b4 h8 q8192", bias, table), 8);
  EXPECT_EQ(bits("b4 h8 q8192", "score + t[head, kv_idx - q_idx + 8191]", "real[8, 16383] grad"), 16);  // an element is one diagonal
  EXPECT_EQ(bits("b4 h8 q8192", "score + t[batch, head, q_idx, kv_idx // 64]", "real[4, 8, 8192, 128] grad"), 16);
  EXPECT_EQ(bits("b4 h8 q8192", "score * t[head]", "real[8] grad"), 8);
  EXPECT_EQ(bits("b4 h8 q8192", "score * t[batch, head, q_idx]", "real[4, 8, 8192] grad"), 16);
  const std::string scatter = "score + t[ids[q_idx], ids[kv_idx]]", ids = "\" param=\"ids: integer[4096] integers(0, 2047)";
  EXPECT_EQ(bits("b1 h1 q4096", scatter, "real[2048, 2048] grad" + ids),
            16);  // 2^24 pairs, and more elements than have narrow bins for speed
  EXPECT_EQ(bits("b2 h1 q4096", scatter, "real[2048, 2048] grad" + ids), 8);
  EXPECT_EQ(bits("b1 h1 q64", "score + t[(q_idx * kv_idx) % 100]", "real[100] grad"), 8);
  const std::string stored = "\" param=\"full: real[1, 8, 4096, 4096] grad";  // no exact sums, however many elements
  EXPECT_EQ(bits("b1 h8 q4096", "score + t[(q_idx * kv_idx) % 100] + full[batch, head, q_idx, kv_idx]", "real[100] grad" + stored), 8);
}

TEST(ReadPlan, TwoScansAreJudgedByTheirOwnTiles) {
  const problem::Problem p = problem_of(
      "backward f32 b2 h2 q300 d256 strategy=two_scan score=\"score + t[head, clamp(kv_idx - q_idx, -8, 8) + 8]\" param=\"t: real[2, 17] "
      "grad\"");
  const auto executable = executable_of(p, "sm_80", "");
  EXPECT_NE(executable->kernel().find("two_scan"), std::string::npos);
  for (const jit::KernelSource& source : executable->sources()) EXPECT_NE(source.stem, "dq_sm80");  // reads are summed beside dq
}

TEST(ReadPlan, TablesForEachQueryAreSummedByRows) {
  const auto row_of = [](const std::string& index, const std::string& rest = "real[4, 4, 4096, 256] grad") {
    const problem::Problem p =
        problem_of("backward bf16 b4 h4 q4096 d64 score=\"score + r[batch, head, q_idx, " + index + "]\" param=\"r: " + rest + "\"");
    const ReadPlan plan = sm90_read_plan(p);
    EXPECT_EQ(plan.reads.front().collector, Collector::rows) << index;
    EXPECT_EQ(plan.storage.front(), GradientStorage::stored) << index;
    EXPECT_FALSE(plan.hopper);
    return plan.rows->reads.front();
  };
  EXPECT_EQ(row_of("kv_idx // 64").run, 64);
  EXPECT_EQ(row_of("kv_idx // 96 % 64").run, 32);
  EXPECT_EQ(row_of("kv_idx // 20").run, 0);
  EXPECT_TRUE(row_of("kv_idx % 64").repeats);
  EXPECT_TRUE(row_of("(kv_idx % 16) * (kv_idx % 8) // 8").repeats);
  EXPECT_FALSE(row_of("kv_idx % 48").repeats);
  EXPECT_TRUE(row_of("kv_idx % 48").distinct);
  EXPECT_TRUE(row_of("(q_idx + 7 - kv_idx) % 50").distinct);
  EXPECT_FALSE(row_of("clamp(q_idx - kv_idx, -9, 9) + 9").distinct);
  EXPECT_FALSE(row_of("(3 * kv_idx) % 48").distinct);
  EXPECT_EQ(row_of("to_integer(abs(to_real(kv_idx // 32)))").run, 32);
  for (const char* dim : {"d64 ", "d128 ", "d256 "})
    EXPECT_EQ(
        collector_of(std::string(dim) + "score=\"score + r[batch, head, q_idx, kv_idx // 64]\" param=\"r: real[4, 4, 4096, 64] grad\""),
        Collector::rows);
  const auto storage = [](const std::string& line) {
    return sm90_read_plan(problem_of("backward bf16 b4 h4 q4096 d64 " + line)).storage.front();
  };
  EXPECT_EQ(storage("score=\"score + r[head, q_idx, kv_idx // 64]\" param=\"r: real[4, 4096, 64] grad\""), GradientStorage::exact_sums);
  EXPECT_EQ(
      storage(
          "score=\"score + t[perm[q_idx], perm[kv_idx]]\" param=\"t: real[300, 300] grad\" param=\"perm: integer[4096] integers(0, 299)\""),
      GradientStorage::exact_sums);
}

TEST(ReadPlan, RowsOfKeysOfTheirOwnLengthsAreNotWalked) {
  const std::string score = "score=\"score + r[batch, head, q_idx, kv_idx // 64]\" param=\"r: real[2, 4, 300, 64] grad\"";
  const auto collector = [&](const std::string& line) {
    return sm90_read_plan(problem_of("backward bf16 b2 h4 q300:640 d64 " + line + score)).reads.front().collector;
  };
  EXPECT_EQ(collector(""), Collector::rows);
  EXPECT_NE(collector("pages=64 seqlens_kv=640,301 "), Collector::rows);
  EXPECT_NE(collector("dropout=0.1:3 "), Collector::rows);
}

TEST(ReadPlan, TablesForEachQueryComeAsTilesOrStay) {
  const auto tile = [](const char* pass, const std::string& index, const char* type = "") {
    const problem::Problem p = problem_of(std::string(pass) + " bf16 b4 h4 q4096 d64 score=\"score + r[batch, head, q_idx, " + index +
                                          "]\" param=\"r: real[4, 4, 4096, 256] " + type + "\"");
    const std::vector<PairTile> tiles =
        p.pass == Pass::forward ? sm90_forward_candidates(p).front().tiles : sm90_backward_candidates(p, sm90_read_plan(p)).front().tiles;
    return tiles.empty() ? std::optional<PairTile>() : tiles.front();
  };
  EXPECT_FALSE(tile("forward", "kv_idx % 64"));  // in registers, from tile to tile
  EXPECT_TRUE(tile("forward", "kv_idx % 96")->wraps);
  EXPECT_FALSE(tile("forward", "kv_idx % 48"));  // a chunk has 32 columns
  EXPECT_FALSE(tile("forward", "kv_idx % 96", "bf16"));
  EXPECT_FALSE(tile("forward", "kv_idx // 64"));
  EXPECT_EQ(tile("backward", "kv_idx % 64")->keys, 64);
  EXPECT_EQ(tile("backward", "kv_idx % 96")->keys, 0);
  EXPECT_TRUE(tile("backward", "kv_idx % 64", "bf16")->wraps);
  EXPECT_TRUE(tile("backward", "kv_idx // 64")->same);
  EXPECT_TRUE(tile("backward", "kv_idx // 20")->stairs);
  EXPECT_FALSE(tile("backward", "kv_idx // 20")->same);
  EXPECT_FALSE(tile("backward", "kv_idx // 4 % 8"));
  const problem::Problem two = problem_of(
      "backward bf16 b4 h4 q4096 d64 score=\"score + r[batch, head, q_idx, kv_idx // 64] + s[batch, head, q_idx, kv_idx % 64]\" "
      "param=\"r: real[4, 4, 4096, 64] grad\" param=\"s: real[4, 4, 4096, 64] grad\"");
  const Sm90BackwardConfig config = sm90_backward_candidates(two, sm90_read_plan(two)).front();
  EXPECT_EQ(config.tiles.size(), 2u);
  EXPECT_EQ(config.block_q, 128);
  for (const PlannedRead& read : config.reads) EXPECT_EQ(read.collector, Collector::rows);
  EXPECT_EQ(config.reads.size(), 2u);
}

TEST(ReadPlan, LinesOfATileNeedNoBins) {
  EXPECT_EQ(collector_of("d64 score=\"score * g[head]\" param=\"g: real[4] grad\""), Collector::keys);
  EXPECT_EQ(collector_of("d64 score=\"score + b[kv_idx]\" param=\"b: real[4096] grad\""), Collector::registers);
  EXPECT_EQ(collector_of("d64 score=\"score + r[clamp(q_idx - kv_idx, -8, 8) + 8]\" param=\"r: real[17] grad\""), Collector::lines);
  for (const char* dim : {"d64", "d128", "d192", "d256"})
    EXPECT_EQ(collector_of(std::string(dim) + " score=\"score + b[head, q_idx, kv_idx]\" param=\"b: real[4, 4096, 4096] grad\""),
              Collector::pairs);
}

TEST(ReadPlan, RowsTakeLessSharedMemoryThanDiagonals) {
  const auto of_reads = [&](int rows, int diagonals) {
    std::string score = "score", params;
    for (int i = 0; i < rows; ++i) {
      score += base::join(" + a", i, "[q_idx] * b", i, "[kv_idx]");
      params += base::join(" param=\"a", i, ": real[4096] grad\" param=\"b", i, ": real[4096]\"");
    }
    for (int i = 0; i < diagonals; ++i) {
      score += base::join(" + r", i, "[clamp(q_idx - kv_idx, -", 8 + i, ", ", 8 + i, ") + ", 8 + i, "]");
      params += base::join(" param=\"r", i, ": real[40] grad\"");
    }
    const problem::Problem p = problem_of("backward bf16 b4 h4 q4096 d128 score=\"" + score + "\"" + params);
    const ReadPlan plan = sm90_read_plan(p);
    if (plan.hopper) {
      EXPECT_LE(sm90_backward_candidates(p, plan).front().shared_bytes(p), 232448u);
    }
    return plan.reads.front().collector;
  };
  EXPECT_EQ(of_reads(3, 0), Collector::lines);
  EXPECT_EQ(of_reads(0, 2), Collector::lines);
  EXPECT_EQ(of_reads(1, 1), Collector::lines);
  EXPECT_EQ(of_reads(4, 0), Collector::walk);
  EXPECT_EQ(of_reads(2, 1), Collector::walk);
}

TEST(ReadPlan, ThePortableKernelsHaveOneToo) {
  const auto collectors = [](const std::string& line) {
    const problem::Problem p = problem_of("backward " + line);
    std::vector<Collector> found;
    for (const PlannedRead& read : sm80_read_plan(p, sm80_choice(p, Sm80Kernel::dq, 166912)->config).reads) found.push_back(read.collector);
    return found;
  };
  const std::string two = "score=\"score * g[head] + t[q_idx, kv_idx]\" param=\"g: real[4] grad\" param=\"t: real[300, 300] grad\"";
  EXPECT_EQ(collectors("f32 b2 h4 q300 d64 " + two), (std::vector{Collector::beside_dq, Collector::any_pairs}));
  EXPECT_EQ(collectors("f32 b2 h4 q300 d400 " + two), (std::vector{Collector::walk, Collector::any_pairs}));
  EXPECT_TRUE(collectors("f32 b2 h4 q300 d64").empty());
}

TEST(ReadPlan, PackedSequencesHaveHopperKernelsWhereTheyCollect) {
  const auto kernel = [](const std::string& score) {
    return executable_of(problem_of("backward bf16 b2 h4 q300 total=500 d64 " + score), "sm_90a", "")->kernel();
  };
  EXPECT_EQ(kernel("score=\"score * g[head]\" param=\"g: real[4] grad\""), "cuda.sm90.bf16.backward.fused");
  EXPECT_EQ(kernel("score=\"score + t[q_idx, kv_idx]\" param=\"t: real[300, 300] grad\""), "cuda.sm80.bf16.backward.split");
}

TEST(ReadPlan, FewElementsHaveACopyForEachLane) {
  const auto bins_of = [](const std::string& line) {
    const problem::Problem p = problem_of("backward bf16 b4 h4 q4096 d64 " + line);
    return sm90_backward_candidates(p, sm90_read_plan(p)).front().bins.front();
  };
  EXPECT_EQ(bins_of(kinds).copies, 32);
  EXPECT_EQ(bins_of(kinds).entries, 40);
  EXPECT_EQ(bins_of(image).copies, 1);
}

TEST(ReadPlan, WhatPairsReadStandsInSharedMemory) {
  const auto tables = [](const std::string& line) {
    const problem::Problem p = problem_of("forward bf16 b4 h4 q4096 " + line);
    const Sm90ForwardConfig config = sm90_forward_candidates(p).front();
    EXPECT_LE(config.shared_bytes(p), 232448u);
    return config.tables.size();
  };
  const auto untrained = [](std::string line) { return line.erase(line.find(" grad"), 5); };
  EXPECT_EQ(tables("d64 " + untrained(image)), 1u);
  EXPECT_EQ(tables("d128 " + untrained(image)), 1u);
  EXPECT_EQ(tables("d256 " + untrained(image)), 0u);
  EXPECT_EQ(tables("d256 " + untrained(kinds)), 1u);
  EXPECT_EQ(tables("d64"), 0u);
}

TEST(ReadPlan, OffsetsOfTablesThatIntegersChooseFromAreThereBeforeScores) {
  const auto first = [](const std::string& line) {
    const problem::Problem given = problem_of("forward bf16 b4 h4 q4096 " + line);
    const problem::Problem p = narrowed(given).value_or(given);
    const Sm90ForwardConfig config = sm90_forward_candidates(p).front();
    EXPECT_LE(config.shared_bytes(p), 232448u);
    EXPECT_EQ(config.offsets_first, forward_sm90_source(p, config).score.find("kOffsetsFirst = true") != std::string::npos);
    EXPECT_TRUE(!config.offsets_first || config.consumers == 3);
    return config.offsets_first;
  };
  const std::string t = "\" param=\"t: real[128, 128]\" param=\"perm: integer[4096] integers(0, 127)\" param=\"g: real[4096]\"";
  EXPECT_TRUE(first("d64 score=\"score + t[perm[q_idx], perm[kv_idx]]" + t));
  EXPECT_TRUE(first("d64 score=\"2.0 * score - g[head] * t[perm[q_idx], perm[kv_idx]] + g[kv_idx]" + t));
  EXPECT_FALSE(first("d64 score=\"0.5 * score + t[perm[q_idx], perm[kv_idx]]" + t));  // what it divides may overflow
  EXPECT_FALSE(first("d64 score=\"score * g[head] + t[perm[q_idx], perm[kv_idx]]" + t));
  EXPECT_FALSE(first("d128 score=\"score + t[perm[q_idx], perm[kv_idx]]" + t));  // two warpgroups
  EXPECT_FALSE(first("d64 mask=\"causal()\" score=\"score + t[perm[q_idx], perm[kv_idx]]" + t));
  for (const char* kind : {"integers(0, 39)", "i8 integers(0, 39)", "i64 integers(0, 39)", "u8 integers(0, 39)"})
    EXPECT_TRUE(first(base::join(
        "d64 score=\"score + e[kind[q_idx, kv_idx], head]\" param=\"e: real[40, 4]\" param=\"kind: integer[4096, 4096] ", kind, "\"")));
  const std::string image =
      "score=\"score + t[head, (q_idx // 64 - kv_idx // 64 + 63) * 127 + q_idx % 64 - kv_idx % 64 + 63]\" param=\"t: real[4, 16129]\"";
  for (const char* shape : {"d64 ", "d128 ", "d256 ", "d64 mask=\"causal()\" "}) EXPECT_FALSE(first(shape + image));
  EXPECT_FALSE(first("d64 score=\"score + g[kv_idx]" + t));
}

TEST(ReadPlan, OffsetsAreRawOnlyWhereTasksCanBeDoneAgain) {
  const std::string points =
      " score=\"score - c[head] * ((x[q_idx, 0] - x[kv_idx, 0]) * (x[q_idx, 0] - x[kv_idx, 0]) + (x[q_idx, 1] - x[kv_idx, 1]) * (x[q_idx, "
      "1] - "
      "x[kv_idx, 1]) + (x[q_idx, 2] - x[kv_idx, 2]) * (x[q_idx, 2] - x[kv_idx, 2]))\" param=\"c: real[4]\" param=\"x: real[4096, 3]\"";
  const auto raw = [](const std::string& text) { return text.find("kOffsetsInScores = true") != std::string::npos; };
  const auto of_line = [&](const std::string& line) {
    const problem::Problem p = problem_of(line);
    EXPECT_FALSE(raw(emit_score(p)));  // kernels that evaluate scores whole
    return raw(forward_sm90_source(p, sm90_forward_candidates(p).front()).score);
  };
  EXPECT_TRUE(of_line("forward bf16 b4 h4 q4096 d64" + points));
  EXPECT_FALSE(of_line("forward f16 b4 h4 q4096 d64" + points));
  EXPECT_FALSE(of_line("forward bf16 b4 h4 q1:4096 d64" + points));  // parts of keys share units
}

TEST(ReadPlan, IsWhatKernelsFollow) {
  const auto emitted = [](const std::string& score, const std::string& params) {
    const problem::Problem p =
        problem_of("backward bf16 b2 h2 q256 d64 score=\"" + score + "\" param=\"b: real[256, 256] grad\" " + params);
    EXPECT_FALSE(sm90_read_plan(p).of(Collector::pairs).empty()) << score;
    return backward_sm90_source(p, sm90_backward_candidates(p, sm90_read_plan(p)).front()).score;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const std::string of_dk = emitted("score * t[head] + b[q_idx, kv_idx]", "param=\"t: real[2] grad\"");
  EXPECT_TRUE(has(of_dk, ".follows_from_dk = true") && !has(of_dk, ".has_terms = true")) << of_dk;
  const std::string of_keys = emitted("score * (1 + b[q_idx, kv_idx]) + c[kv_idx]", "param=\"c: real[256] grad\"");
  EXPECT_TRUE(has(of_keys, ".has_terms = true") && !has(of_keys, ".is_early = true")) << of_keys;
}

TEST(ReadPlan, OffsetsThatAreProductsAreColumns) {
  const auto steps = [](const std::string& score) {
    const problem::Problem p =
        problem_of("forward bf16 b4 h4 q4096 d64 score=\"" + score + "\" param=\"a: real[4096, 8]\" param=\"b: real[4096, 8]\"");
    const Sm90ForwardConfig config = sm90_forward_candidates(p).front();
    EXPECT_EQ(config.offset_steps > 0,
              emit_score(p, {.lines = config.lines, .offset_columns = config.offset_steps > 0}).find("kOffsetsAreColumns = true") !=
                  std::string::npos);
    return config.offset_steps;
  };
  const auto product = [](int i) { return base::join("a[q_idx, ", i, "] * b[kv_idx, ", i, "]"); };
  EXPECT_EQ(steps("score + " + product(0) + " + " + product(1)), 1);
  EXPECT_EQ(steps("score + " + product(0) + " - " + product(1) + " + " + product(2)), 2);
  EXPECT_EQ(steps("score + " + product(0) + " + b[kv_idx, 1]"), 1);
  EXPECT_EQ(steps("score + " + product(0)), 0);  // costs less as an instruction
  EXPECT_EQ(steps("score * a[head, 0] + " + product(0) + " + " + product(1)), 0);
  EXPECT_EQ(steps("score + " + product(0) + " + exp(" + product(1) + ")"), 0);
}

TEST(ReadPlan, IntegersThatChooseElementsBecomeBytes) {
  const auto narrow = [](const std::string& shape, const std::string& kind, const std::string& score = "e[kind[q_idx, kv_idx], head]") {
    const problem::Problem p = problem_of(base::join("forward bf16 ", shape, " d64 score=\"score + ", score, "\" param=\"e: ", kind));
    const auto bytes = narrowed(p);
    EXPECT_EQ(bytes.has_value(), kernels_of(p, "sm_90", "").back().stem == "narrow_indices");
    return bytes.has_value();
  };
  const std::string kinds = "real[40, 4]\" param=\"kind: integer[512, 512]";
  EXPECT_TRUE(narrow("b4 h4 q512", kinds + " integers(-3, 60)\""));
  EXPECT_TRUE(narrow("b4 h4 q512", kinds + " i64 integers(0, 39)\""));
  EXPECT_TRUE(narrow("b4 h4 q512", kinds + " i8 integers(0, 39)\""));
  EXPECT_FALSE(narrow("b4 h4 q512", kinds + " u8 integers(0, 39)\""));  // they are
  EXPECT_FALSE(narrow("b1 h4 q512", kinds + " integers(0, 39)\""));     // few pairs read each
  EXPECT_FALSE(narrow("b4 h4 q512", "real[400, 4]\" param=\"kind: integer[512, 512] integers(0, 39)\""));
  EXPECT_FALSE(narrow("b4 h4 q512", kinds + " integers(0, 39)\"", "e[kind[q_idx, kv_idx], head] * to_real(kind[q_idx, kv_idx])"));
}

}  // namespace
}  // namespace foveal::cuda
