// Ranks on GPUs: every feature against the reference, ranks being threads that share one GPU; and NCCL between GPUs. Skipped where there is
// no device. What needs none: the order of parts, and kernels that move rows.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "check/check.h"
#include "cuda/jit/driver.h"
#include "cuda/launch/move_rows.h"
#include "cuda/nvrtc_here.h"
#include "dist/device_pass.h"
#include "dist/features.h"
#include "dist/ranks.h"
#include "problem/line.h"
#include "problem/line_problem.h"

namespace foveal::dist {
namespace {

using test::Feature;

/// With random plans: rows of a launch that writes have met no launch before, and every row is written or cleared before it is added to.
TEST(PartOrder, RowsAreWrittenOrClearedBeforeTheyAreAddedTo) {
  const OrderRequest requests[] = {{.forward = false},
                                   {.forward = false, .transfer_pairs = 10000, .leaves_multiprocessors = true},
                                   {.forward = false, .transfer_pairs = 10000, .returns_early = true},
                                   {.forward = false, .closed_sequences = true, .transfer_pairs = 1000, .returns_early = true},
                                   {.forward = false, .closed_sequences = true, .transfer_pairs = 1000, .leaves_multiprocessors = true}};
  for (const char* text :
       {"forward f32 h2 q1000 d16 mask=\"causal()\"", "forward f32 h2 q1000 d16 mask=\"window(100)\"",
        "forward f32 h2 q700:900 d16 mask=\"abs(q_idx - kv_idx) > 300\"", "forward f32 h4 d16 lengths=300,10,500,0,90 mask=\"causal()\""})
    for (const int ranks : {1, 2, 3, 8})
      for (const OrderRequest& request : requests) {
        const problem::Line line = problem::parse_line(text);
        const problem::Problem problem = problem::problem_of(line, {});
        const Workload work = make_workload(problem, line.lengths, {}, 16);
        const ContextPlan plan = make_plan(work, {.ranks = ranks, .head_groups = 1});
        for (int rank = 0; rank < ranks; ++rank) {
          const RankPlan mine = rank_plan(plan, rank);
          const PartOrder order = part_order(plan, work, mine, request);
          std::vector<bool> q(static_cast<std::size_t>(mine.q_rows), false);
          std::vector<std::vector<bool>> kv;
          for (const Step& step : mine.steps) kv.emplace_back(static_cast<std::size_t>(step.rows), false);
          const auto set = [](std::vector<bool>& rows, Range r) {
            for (std::int64_t i = r.begin; i < r.end; ++i) rows[static_cast<std::size_t>(i)] = true;
          };
          std::vector<bool> q_clear = q;
          for (const Range& r : order.clear_q) set(q_clear, r);
          q = q_clear;
          std::vector<std::vector<bool>> kv_clear = kv;
          for (std::size_t step = 0; step < kv.size(); ++step)
            for (const Range& r : order.clear_kv[step]) set(kv_clear[step], r);
          kv = kv_clear;
          std::size_t launches = 0;
          const auto meets = [](std::vector<bool>& rows, std::int64_t begin, std::int64_t count, bool adds) {
            for (std::int64_t i = begin; i < begin + count; ++i) {
              const auto at = static_cast<std::size_t>(i);
              if (adds) {
                EXPECT_TRUE(rows[at]) << "nothing to add to";
              } else {
                EXPECT_FALSE(rows[at]) << "a result is lost, or was cleared for nothing";
              }
              rows[at] = true;
            }
          };
          for (const PartLaunch& launch : order.launches) {
            const Segment& s = launch.segment;
            meets(q, s.q_row, s.q_rows, launch.adds_to_q);
            meets(kv[launch.step], s.kv_row, s.kv_rows, launch.adds_to_kv);
            ++launches;
          }
          for (const bool row : q) EXPECT_TRUE(row);
          for (const auto& rows : kv)
            for (const bool row : rows) EXPECT_TRUE(row);
          std::size_t segments = 0;
          for (const Step& step : mine.steps)
            for (const auto& launch : step.launches) segments += launch.size();
          std::size_t closed = 0;
          for (const PartLaunch& launch : order.launches) closed += launch.closed.size();
          const bool alone = ranks == 1 && request.closed_sequences;  // then every sequence is
          if (alone) {
            EXPECT_EQ(closed, line.lengths.empty() ? 1u : 4u);  // but those without tokens
          }
          if (!request.closed_sequences) {
            EXPECT_EQ(closed, 0u);
          }
          if (closed > 0) {
            std::int64_t rows = 0;
            for (const Range& r : order.merged_q) rows += r.size();
            for (const PartLaunch& launch : order.launches)
              if (!launch.closed.empty()) rows += launch.segment.q_rows;
            EXPECT_EQ(rows, mine.q_rows);
          } else if (!request.leaves_multiprocessors) {
            EXPECT_EQ(launches, segments);
          } else {
            EXPECT_GE(launches, segments);
          }
        }
      }
}

/// Launches of different queues run at once, unless they have rows of queries or own keys in common: then the later one follows. Closed sequences
/// stay in the first queue.
TEST(PartOrder, LaunchesWithRowsInCommonFollowEachOther) {
  std::size_t queues[own_queues]{}, following = 0, beside = 0;
  struct Case {
    const char* text;
    int unit;
  };
  for (const Case& c :
       {Case{"forward f32 h2 q3000 d16 mask=\"causal()\"", 16},
        Case{"forward bf16 h16 d128 lengths=9363,606,7250,1795,5206,3441,11876,285,2117,4402,6031,899,3650,5188,2609,818 mask=\"causal()\"",
             128},
        Case{"forward f32 h4 d16 lengths=900,10,500,0,700,300,800 mask=\"window(100)\"", 16}})
    for (const int ranks : {1, 2, 4})
      for (const bool closed : {false, true}) {
        const problem::Line line = problem::parse_line(c.text);
        const Workload work = make_workload(problem::problem_of(line, {}), line.lengths, {}, c.unit);
        const ContextPlan plan = make_plan(work, {.ranks = ranks, .head_groups = 1});
        for (int rank = 0; rank < ranks; ++rank) {
          const PartOrder order = part_order(
              plan, work, rank_plan(plan, rank),
              {.forward = false, .closed_sequences = closed && !line.lengths.empty(), .returns_early = true, .keeps_rows = true});
          for (std::size_t later = 0; later < order.launches.size(); ++later) {
            const PartLaunch& b = order.launches[later];
            ++queues[b.queue];
            EXPECT_TRUE(b.queue == 0 || (b.step == 0 && b.closed.empty()));
            for (std::size_t earlier = 0; earlier < later; ++earlier) {
              const PartLaunch& a = order.launches[earlier];
              if (a.queue == b.queue || a.step > 0 || b.step > 0) continue;
              const bool meet = a.segment.rows().meets(b.segment.rows()) || a.segment.keys().meets(b.segment.keys());
              EXPECT_TRUE(!meet || b.follows[a.queue]);
              (meet ? following : beside) += 1;
            }
          }
        }
      }
  for (const std::size_t launches : queues) EXPECT_GT(launches, 0u);
  EXPECT_GT(following, 0u);
  EXPECT_GT(beside, 0u);
}

/// dk and dv of an own key are final in one launch, which has all that this rank computes of it and that nobody else needs, or they are summed up.
TEST(PartOrder, WholeKeysAreNobodyElses) {
  std::size_t whole = 0, sums = 0;
  for (const char* text : {"forward f32 h2 q3000 d16 mask=\"causal()\"", "forward f32 h2 q4000 d16 mask=\"causal() & window(400)\"",
                           "forward f32 h2 q2000 d16", "forward f32 h4 d16 lengths=3000,10,500,0,900 mask=\"causal()\""})
    for (const int ranks : {1, 2, 3, 8}) {
      const problem::Line line = problem::parse_line(text);
      const Workload work = make_workload(problem::problem_of(line, {}), line.lengths, {}, 128);
      const ContextPlan plan = make_plan(work, {.ranks = ranks, .head_groups = 1});
      for (int rank = 0; rank < ranks; ++rank) {
        const RankPlan mine = rank_plan(plan, rank);
        if (mine.steps[0].rows != plan.kv.tokens(rank)) continue;
        std::vector<Range> sent;
        for (int other = 0; other < ranks; ++other) {
          if (other == rank) continue;
          for (const Step& step : rank_plan(plan, other).steps)
            for (const Transfer& t : step.keys)
              if (t.source == rank) sent.push_back({t.place, t.place + t.tokens.size()});
        }
        const PartOrder order =
            part_order(plan, work, mine, {.forward = false, .returns_early = true, .keeps_rows = true, .whole_keys = true, .sent = sent});
        std::vector<int> ways(static_cast<std::size_t>(plan.kv.tokens(rank)), 0), launches = ways, others = ways;
        const auto add = [](std::vector<int>& to, Range r) {
          for (std::int64_t row = r.begin; row < r.end; ++row) ++to[static_cast<std::size_t>(row)];
        };
        for (const Range& r : order.summed_kv) add(ways, r), sums += static_cast<std::size_t>(r.size());
        for (const Range& r : sent) add(others, r);
        for (const PartLaunch& launch : order.launches) {
          if (launch.step > 0) continue;
          const Range keys{launch.segment.kv_row, launch.segment.kv_row + launch.segment.kv_rows};
          add(launches, keys);
          if (launch.whole_keys) add(ways, keys), whole += static_cast<std::size_t>(keys.size());
        }
        for (const int count : ways) EXPECT_EQ(count, 1) << text << " " << ranks;
        for (const PartLaunch& launch : order.launches)
          for (std::int64_t row = launch.segment.kv_row; launch.whole_keys && row < launch.segment.kv_row + launch.segment.kv_rows; ++row) {
            EXPECT_EQ(launches[static_cast<std::size_t>(row)], 1);
            EXPECT_EQ(others[static_cast<std::size_t>(row)], 0);
          }
      }
    }
  EXPECT_GT(whole, 5000u);
  EXPECT_GT(sums, 5000u);
}

/// Launches that keep what is found of rows have all rows that any of them meets between them, in whole tiles, and one has them all: dq of these is final.
TEST(PartOrder, KeptRowsAreMetByLaunchesThatKeepThem) {
  std::size_t kept = 0, of_several = 0, left = 0;
  for (const char* text : {"forward f32 h2 q3000 d16 mask=\"causal()\"", "forward f32 h2 q4000 d16 mask=\"causal() & window(400)\"",
                           "forward f32 h2 q2000 d16", "forward f32 h2 q1700:1900 d16 mask=\"abs(q_idx - kv_idx) > 300\"",
                           "forward f32 h4 d16 lengths=3000,10,500,0,900 mask=\"causal()\""})
    for (const int ranks : {1, 2, 3, 8})
      for (const std::int64_t unit : {64, 128})
        for (const bool closed : {false, true}) {
          const problem::Line line = problem::parse_line(text);
          const Workload work = make_workload(problem::problem_of(line, {}), line.lengths, {}, unit);
          const ContextPlan plan = make_plan(work, {.ranks = ranks, .head_groups = 1});
          for (int rank = 0; rank < ranks; ++rank) {
            const RankPlan mine = rank_plan(plan, rank);
            const PartOrder order = part_order(plan, work, mine,
                                               {.forward = false,
                                                .closed_sequences = closed && !line.lengths.empty(),
                                                .transfer_pairs = 10000,
                                                .returns_early = true,
                                                .keeps_rows = true});
            std::vector<std::uint32_t> met(order.kept.size(), 0);
            for (std::size_t number = 0; number < order.launches.size(); ++number) {
              const PartLaunch& launch = order.launches[number];
              const Range rows{launch.segment.q_row, launch.segment.q_row + launch.segment.q_rows};
              for (std::size_t of = 0; of < order.kept.size(); ++of) {
                const KeptRange& range = order.kept[of];
                if (static_cast<int>(of) != launch.kept) {
                  EXPECT_TRUE(rows.end <= range.rows.begin || range.rows.end <= rows.begin) << text;
                  continue;
                }
                EXPECT_TRUE(range.rows.begin <= rows.begin && rows.end <= range.rows.end);
                EXPECT_EQ((rows.begin - range.rows.begin) % 128, 0);
                EXPECT_TRUE(rows.end == range.rows.end || (rows.end - range.rows.begin) % 128 == 0);
                EXPECT_EQ(launch.kept_number, met[of]++);
                EXPECT_TRUE(range.first <= number && number <= range.last);
                EXPECT_EQ(order.launches[range.whole].kept, launch.kept);
                EXPECT_EQ(order.launches[range.whole].segment.q_rows, range.rows.size());
              }
              if (launch.kept < 0 && launch.closed.empty()) ++left;
            }
            for (const std::uint32_t count : met) ++kept, of_several += count > 1;
            std::vector<int> final(static_cast<std::size_t>(mine.q_rows), 0);  // by which way dq of a row is made
            const auto add = [&](Range r) {
              for (std::int64_t row = r.begin; row < r.end; ++row) ++final[static_cast<std::size_t>(row)];
            };
            for (const KeptRange& range : order.kept) add(range.rows);
            for (const Range& range : order.merged_q) add(range);
            for (const PartLaunch& launch : order.launches)
              if (!launch.closed.empty()) add({launch.segment.q_row, launch.segment.q_row + launch.segment.q_rows});
            for (const int ways : final) EXPECT_EQ(ways, 1) << text;
          }
        }
  EXPECT_GT(kept, 200u);
  EXPECT_GT(of_several, 100u);
  EXPECT_EQ(left, 0u);
}

/// Forward: every pair of the mask is computed once, by launches whose rows are final, or by parts; keys lie where ranges say.
TEST(PartOrder, WholeRowsAndPartsMeetEveryPairOnce) {
  for (const char* text :
       {"forward f32 h2 q1000 d16 mask=\"causal()\"", "forward f32 h2 q1000 d16 mask=\"causal() & window(100)\"",
        "forward f32 h2 q1000 d16", "forward f32 h2 q700:900 d16 mask=\"abs(q_idx - kv_idx) > 300\"",
        "forward f32 h4 d16 lengths=300,10,500,0,90 mask=\"causal()\"", "forward f32 h2 q1000 d16 mask=\"kv_idx < 64 | kv_idx > 900\""})
    for (const int ranks : {1, 2, 3, 8})
      for (const bool spread : {false, true}) {
        const problem::Line line = problem::parse_line(text);
        const problem::Problem problem = problem::problem_of(line, {});
        const Workload work = make_workload(problem, line.lengths, {}, 128);
        const ContextPlan plan = make_plan(work, {.ranks = ranks, .head_groups = 1});
        std::size_t of_key_ranges = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const RankPlan mine = rank_plan(plan, rank);
          const PartOrder order =
              part_order(plan, work, mine, {.whole_rows = true, .spread = spread, .closed_sequences = spread && !line.lengths.empty()});
          std::vector<char> merged(static_cast<std::size_t>(mine.q_rows), 0), final = merged;
          for (const Range& r : order.merged_q)
            for (std::int64_t row = r.begin; row < r.end; ++row) merged[static_cast<std::size_t>(row)] = 1;
          std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, int> met;  // sequence, query, key
          for (const PartLaunch& launch : order.launches) {
            const Segment& s = launch.segment;
            const auto key_at = [&](std::int64_t key) -> std::int64_t {  // the token that lies where the launch looks for this one
              std::size_t step = launch.step;
              std::int64_t row = s.kv_row + key;
              if (launch.spread()) {
                std::size_t at = launch.key_ranges.size();
                while (launch.key_ranges[at - 1].place.first > key) --at;
                const Part::KeyRange& range = launch.key_ranges[at - 1].place;
                EXPECT_EQ(range.first % Part::key_range_unit, 0);
                EXPECT_EQ(range.received, launch.key_ranges[at - 1].step > 0);
                step = launch.key_ranges[at - 1].step, row = range.row + key - range.first;
              }
              for (const Transfer& t : mine.steps[step].keys)
                if (t.row <= row && row < t.row + t.tokens.size() && t.sequence == s.sequence) return t.tokens.begin + row - t.row;
              return -1;
            };
            of_key_ranges += launch.spread() ? 1 : 0;
            if (!launch.closed.empty()) {
              std::int64_t rows = 0;
              for (const Transfer& t : mine.queries) {
                if (t.row < s.q_row || t.row + t.tokens.size() > s.q_row + s.q_rows) continue;
                rows += t.tokens.size();
                for (std::int64_t q = 0; q < t.tokens.size(); ++q) {
                  EXPECT_EQ(merged[static_cast<std::size_t>(t.row + q)], 0);
                  for (std::int64_t key = 0; key < work.lengths_kv[static_cast<std::size_t>(t.sequence)]; ++key)
                    ++met[{t.sequence, q, key}];
                }
              }
              EXPECT_EQ(rows, s.q_rows);
              EXPECT_EQ(std::accumulate(launch.closed.begin(), launch.closed.end(), std::int64_t{0}), rows);
              continue;
            }
            for (std::int64_t row = 0; row < s.q_rows; ++row) {
              const auto at = static_cast<std::size_t>(s.q_row + row);
              EXPECT_EQ(merged[at], launch.whole ? 0 : 1);
              if (launch.whole) {
                EXPECT_EQ(final[at]++, 0) << "rows of two launches that are final";
              }
              for (std::int64_t key = 0; key < s.kv_rows; ++key) ++met[{s.sequence, s.q_first + row, s.kv_first + key}];
            }
            for (std::int64_t key = 0; key < s.kv_rows; ++key)
              EXPECT_EQ(key_at(key), s.kv_first + key) << text << ", " << ranks << " ranks";
          }
          for (const Transfer& queries : mine.queries)
            for (std::int64_t q = queries.tokens.begin; q < queries.tokens.end; ++q)
              for (const KeyRun& run : work.sequences[static_cast<std::size_t>(queries.sequence)]->keys({q, q + 1}))
                for (std::int64_t key = run.kv.begin; key < run.kv.end; ++key) {
                  const int times = met[{queries.sequence, q, key}];
                  if (times != 1)
                    ADD_FAILURE() << text << ", " << ranks << " ranks: pair " << q << ", " << key << " is met " << times << " times";
                  if (times != 1) return;
                }
        }
        if (!spread) {
          EXPECT_EQ(of_key_ranges, 0u);
        } else if (ranks == 2 && std::string(text).find("q1000 d16 mask=\"causal()") != std::string::npos) {
          EXPECT_GT(of_key_ranges, 0u) << text;
        }
      }
}

class RowKernels : public foveal::test::NeedsNvrtc {};

TEST_F(RowKernels, Compile) {
  for (const DType dtype : {DType::bf16, DType::f64})
    for (cuda::jit::KernelSource source : cuda::row_kernel_sources(dtype)) {
      source.arch = dtype == DType::f64 ? "sm_90a" : "sm_80";
      EXPECT_LE(cuda::jit::compile(source)->facts.spill_bytes, 64) << source.stem;
    }
}

class RanksOnGpu : public foveal::test::NeedsNvrtc {
 protected:
  void SetUp() override {
    NeedsNvrtc::SetUp();
    if (IsSkipped()) return;
    if (cuda::driver::device_count() == 0) GTEST_SKIP() << "no device: " << cuda::driver::unavailable();
  }
};

class GpuRanks : public RanksOnGpu, public testing::WithParamInterface<Feature> {};

/// What carries messages. host: between ranks that share one GPU, each with a stream of its own. The others use every GPU that there is: more ranks than
/// GPUs share them over peer copies; NCCL wants a GPU for each rank.
enum class Engine : std::uint8_t { host, peer, nccl };
const char* to_string(Engine engine) { return engine == Engine::host ? "host" : engine == Engine::peer ? "peer copies" : "NCCL"; }

std::string run_on_gpu(const problem::CaseData& data, int ranks, const ContextOptions& options, Engine engine) {
  std::vector<std::shared_ptr<Transport>> transports(static_cast<std::size_t>(ranks));
  if (engine == Engine::host) transports = thread_ranks(ranks, {.time_limit = 120});
  const std::string id = engine == Engine::peer ? peer_id() : engine == Engine::nccl ? nccl_id() : "";
  test::on_threads(ranks, [&](int rank) {
    std::shared_ptr<Transport>& mine = transports[static_cast<std::size_t>(rank)];
    const Device device{DeviceKind::cuda, engine == Engine::host ? 0 : rank % cuda::driver::device_count()};
    if (engine == Engine::peer) mine = peer_ranks(id, rank, ranks, device, {.time_limit = 120});
    if (engine == Engine::nccl) mine = nccl_ranks(id, rank, ranks, device, {.time_limit = 120});
    const cuda::driver::Current current(device.index);
    cuda::driver::StreamHandle stream = nullptr;
    cuda::driver::call.stream_create(&stream, 1);
    test::run_rank(std::move(mine), data, options, {}, {}, device, {stream});
    cuda::driver::api().stream_destroy(stream);
  });
  return "dist.cuda." + std::to_string(ranks);
}

void expect_right(const std::string& text, int ranks, const ContextOptions& options, Engine engine) {
  const problem::Line line = problem::parse_line(text);
  const check::Checker checker(line);
  const check::Report report = checker.judge([&](problem::CaseData& data) { return run_on_gpu(data, ranks, options, engine); });
  EXPECT_TRUE(report.pass) << text << "\n" << ranks << " ranks, " << to_string(engine) << ": " << report.failure;
}

TEST_P(GpuRanks, AreOneDevice) {
  if (std::string(GetParam().name) == "checked") GTEST_SKIP() << "checked reads run on the CPU";
  for (const char* pass : {"forward", "backward"}) {
    const std::string text = test::line_of(GetParam(), pass);
    const bool even_heads = problem::parse_line(text).heads_kv % 2 == 0;
    for (const int ranks : {1, 2, 3, 4, 8}) {
      ContextOptions options;
      options.unit = ranks == 2 ? 16 : 8;
      options.head_groups = ranks % 4 == 2 && even_heads ? 2 : 1;
      options.deal = ranks == 3 ? "pieces" : "automatic";
      expect_right(text, ranks, options, ranks >= 3 ? Engine::peer : Engine::host);
    }
    ContextOptions of_both{.head_groups = even_heads ? 2 : 1, .unit = 8};  // heads and rows are divided
    expect_right(text, 4, of_both, Engine::peer);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuRanks, testing::ValuesIn(test::features), [](const auto& info) { return std::string(info.param.name); });

/// Sizes at which the kernels of Hopper have several tiles, and chunks that are no multiples of them.
const Feature large[] = {
    {"causal", "bf16 h4:2 q1500 d128 mask=\"causal()\""},
    {"window", "bf16 h2 q2000 d64 mask=\"causal() & window(300)\""},
    {"f16_full", "f16 h2 q1100 d128"},
    {"wide", "bf16 h2:1 q900 d192 mask=\"causal()\""},
    {"softcap", "bf16 h2 q1200 d128 mask=\"causal()\" score=\"30 * tanh(score / 30)\""},
    {"alibi", "bf16 h4 q1200 d64 mask=\"causal()\" score=\"score - 0.05 * (head + 1) * to_real(q_idx - kv_idx)\""},
    {"large_scores", "bf16 h2 q1200 d64 mask=\"causal()\" score=\"score * to_real(q_idx + kv_idx) * 0.2\""},
    {"table",
     "bf16 h2 q1200 d64 mask=\"causal()\" score=\"score + rel[head, clamp(q_idx - kv_idx, 0, 255)]\" param=\"rel: real[2, 256] f32 "
     "normal(0.5) grad\""},
    {"documents", "bf16 h2 q1300 d64 mask=\"(ids[q_idx] == ids[kv_idx]) & causal()\" param=\"ids: integer[1300] i32 segments(5)\""},
    {"packed", "bf16 h4:2 d128 lengths=700,1,333,0,250 mask=\"causal()\""},
    {"dropout_sink", "bf16 h4:2 q900 d64 mask=\"causal()\" dropout=0.2:5 sink=s param=\"s: real[4] f32 normal(1) grad\" dlse"},
};

class GpuRanksLarge : public GpuRanks {};

TEST_P(GpuRanksLarge, AreOneDevice) {
  for (const char* pass : {"forward", "backward"})
    for (const int ranks : {2, 4, 8}) {
      ContextOptions options;
      options.unit = ranks == 2 ? 128 : 64;
      options.head_groups = 1, options.remote_steps = ranks == 4 ? 2 : 1;
      for (const Engine engine : {Engine::host, Engine::peer}) expect_right(test::line_of(GetParam(), pass), ranks, options, engine);
    }
}

class NcclRanks : public GpuRanks {};

TEST_P(NcclRanks, AreOneDevice) {
  const int gpus = cuda::driver::device_count();
  if (gpus < 2) GTEST_SKIP() << "one GPU; expected two or more";
  try {
    nccl_id();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (const char* pass : {"forward", "backward"})
    for (const int ranks : std::set{2, gpus})
      for (const int head_groups : {1, 2}) {
        const std::string text = test::line_of(GetParam(), pass);
        if (problem::parse_line(text).heads_kv % head_groups != 0) continue;
        expect_right(text, ranks, {.head_groups = head_groups, .unit = 64}, Engine::nccl);
      }
}

/// What stands in keys that a mask hides is not seen, in tiles that it cuts either: dq is mended where they met, over the keys of all launches of a row.
TEST_F(RanksOnGpu, HiddenKeysOfNanAreNotSeen) {
  const problem::Line line = problem::parse_line("backward bf16 h4:2 q1500 d128 mask=\"causal()\"");
  constexpr std::int64_t strange[] = {701, 1100, 1499};  // seen by themselves and by those after them
  problem::CaseData clean(line), data(line);
  const Rows keys =
      rows_of(data.forward_inputs().k);  // values that a tile shows to some of its queries alone reach others' out (docs/numerics.md)
  for (const std::int64_t token : strange)
    for (std::int64_t head = 0; head < keys.heads; ++head)
      for (std::int64_t d = 0; d < keys.dim; ++d) {
        const std::uint16_t nan = 0x7fc0;
        std::memcpy(keys.at(0, token, head) + d * keys.dim_stride, &nan, sizeof nan);
      }
  ContextOptions options;
  options.unit = 128, options.head_groups = 1;
  run_on_gpu(clean, 2, options, Engine::peer), run_on_gpu(data, 2, options, Engine::peer);
  const Rows expected = rows_of(clean.backward_outputs().dq), found = rows_of(data.backward_outputs().dq);
  for (std::int64_t token = 0; token < strange[0]; ++token)
    for (std::int64_t head = 0; head < found.heads; ++head)
      for (std::int64_t d = 0; d < found.dim; ++d) {
        std::uint16_t a = 0, b = 0;
        std::memcpy(&a, expected.at(0, token, head) + d * expected.dim_stride, 2),
            std::memcpy(&b, found.at(0, token, head) + d * found.dim_stride, 2);
        const auto real = [](std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); };
        ASSERT_NEAR(real(a), real(b), 0.02 * std::abs(real(a)) + 0.002) << token << " " << head << " " << d;
      }
}

/// Keys so many that they travel in slices. Memory is used again: keys of the call before are there until those of this one arrive.
TEST_F(RanksOnGpu, KeysInSlicesGiveWhatOneDeviceGives) {
  ASSERT_GT(slices_of(16, 16 * 128 * 2, 2048 * 16 * 128 * 2), 1);
  ContextOptions options;
  options.unit = 128, options.head_groups = 1, options.deal = "zigzag";
  for (const char* seed : {"1", "2", "3", "4"}) {
    const problem::Line line = problem::parse_line(std::string("forward bf16 h16 q8192 d128 mask=\"causal()\" seed=") + seed);
    problem::CaseData one(line);
    run_on_gpu(one, 1, options, Engine::peer);
    const Rows expected = rows_of(one.forward_outputs().out);
    for (const int ranks : {2, 4}) {
      problem::CaseData data(line);
      run_on_gpu(data, ranks, options, Engine::peer);
      const Rows found = rows_of(data.forward_outputs().out);
      std::int64_t wrong = 0;
      for (std::int64_t token = 0; token < found.tokens; ++token)
        for (std::int64_t head = 0; head < found.heads; ++head)
          for (std::int64_t d = 0; d < found.dim; ++d) {
            const auto real = [&](const Rows& rows) {
              std::uint16_t bits = 0;
              std::memcpy(&bits, rows.at(0, token, head) + d * rows.dim_stride, sizeof bits);
              return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
            };
            const float a = real(expected), b = real(found);
            if (!(std::abs(a - b) <= 0.02f * std::abs(a) + 0.002f)) ++wrong;
          }
      EXPECT_EQ(wrong, 0) << line.seed << ": elements on " << ranks << " ranks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuRanksLarge, testing::ValuesIn(large), [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Gpu, NcclRanks, testing::ValuesIn(large), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foveal::dist
