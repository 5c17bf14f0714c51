// Sharded results against the reference by the tolerance rule, for every feature and 1 to 8 ranks; what travels and what is allocated as
// planned; bits that do not depend on timing; ranks that disagree, stall or die.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "check/check.h"
#include "dist/features.h"
#include "dist/plan.h"
#include "dist/ranks.h"
#include "problem/line.h"

namespace foveal::dist {
namespace {

using test::Feature;
using test::features;
using test::run_line;
using test::run_rank;

class EveryFeature : public testing::TestWithParam<Feature> {};

TEST_P(EveryFeature, IsThatOfOneDevice) {
  for (const char* pass : {"forward", "backward"}) {
    const std::string text = test::line_of(GetParam(), pass);
    const problem::Line line = problem::parse_line(text);
    const check::Checker checker(line);
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const int head_groups : {1, 2}) {
        if (ranks % head_groups != 0 || line.heads_kv % head_groups != 0) continue;
        ContextOptions options;
        options.unit = ranks == 2 ? 16 : 8;
        options.head_groups = head_groups;
        options.deal = ranks == 3 ? "pieces" : ranks == 8 ? "zigzag" : "automatic";
        const check::Report report = checker.judge([&](problem::CaseData& data) { return run_line(data, ranks, options); });
        EXPECT_TRUE(report.pass) << text << "\n" << ranks << " ranks, " << head_groups << " head groups: " << report.failure;
        EXPECT_GE(report.tensors.size(), 2u);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Dist, EveryFeature, testing::ValuesIn(features), [](const auto& info) { return std::string(info.param.name); });

/// Counts what passes through.
class Counting final : public Transport {
 public:
  explicit Counting(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::uint64_t start(const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    for (const Message& m : sends) out += static_cast<std::int64_t>(m.bytes);
    for (const Message& m : receives) in += static_cast<std::int64_t>(m.bytes);
    return inner_->start(sends, receives);
  }
  void wait(std::uint64_t ticket) override { inner_->wait(ticket); }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { inner_->all_gather(mine, bytes, all); }
  std::int64_t in = 0, out = 0;

 private:
  std::shared_ptr<Transport> inner_;
};

TEST(Dist, BytesAndMemoryAreThosePlanned) {
  for (const char* text :
       {"backward bf16 b2 h4:2 q200 d16:8 mask=\"causal()\"", "backward f64 h4:2 d16 lengths=70,30,51 mask=\"window(11)\" dlse"})
    for (const int head_groups : {1, 2}) {
      problem::CaseData data(problem::parse_line(text));
      auto transports = thread_ranks(4);
      test::on_threads(4, [&](int rank) {
        const auto counting = std::make_shared<Counting>(transports[static_cast<std::size_t>(rank)]);
        ContextOptions options;
        options.unit = 8, options.head_groups = head_groups;
        const auto compare = [&](const ContextAttention& attention, Pass pass) {
          EXPECT_EQ(attention.used_bytes(), attention.memory_bytes(pass)) << text << " rank " << rank;
          const auto [in, out] = attention.planned_bytes(pass);
          EXPECT_EQ(counting->in, in) << text << " rank " << rank;
          EXPECT_EQ(counting->out, out) << text << " rank " << rank;
          counting->in = counting->out = 0;
        };
        run_rank(
            counting, data, options, [&](const ContextAttention& attention) { compare(attention, Pass::forward); },
            [&](const ContextAttention& attention) {
              if (data.line().pass == Pass::backward) compare(attention, Pass::backward);
            });
      });
    }
}

std::vector<double> bits_of(problem::CaseData& data) {
  std::vector<double> all;
  for (const char* role : {"out", "lse", "dq", "dk", "dv"})
    if (data.view(role).present()) {
      const std::vector<double> values = problem::values_of(data.view(role));
      all.insert(all.end(), values.begin(), values.end());
    }
  for (std::size_t i = 0; i < data.line().params.size(); ++i)
    if (data.line().params[i].grad) {
      const std::vector<double> values = problem::values_of(data.dparam(i));
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

TEST(Dist, TimingChangesNoBit) {
  const std::string rest =
      "bf16 h4:2 q200 d16 mask=\"causal()\" score=\"score + rel[q_idx - kv_idx]\" param=\"rel: real[200] f32 normal(0.5) ";
  for (const std::string& text : {"forward " + rest + "\"", "backward " + rest + "grad\""}) {
    problem::CaseData data(problem::parse_line(text));
    ContextOptions options;
    options.unit = 8, options.remote_steps = 3;
    std::vector<double> first;
    for (const std::uint64_t seed : {0, 1, 2, 3}) {
      data.clear_outputs(data.line().pass);
      run_line(data, 4, options, {.time_limit = 60, .delay_seed = seed});
      const std::vector<double> now = bits_of(data);
      if (first.empty()) first = now;
      ASSERT_EQ(now.size(), first.size());
      EXPECT_EQ(std::memcmp(now.data(), first.data(), now.size() * sizeof(double)), 0) << "delays " << seed;
    }
  }
}

std::vector<std::string> errors_of(int ranks, const ThreadOptions& threads,
                                   const std::function<void(int, std::shared_ptr<Transport>)>& fn) {
  auto transports = thread_ranks(ranks, threads);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  test::on_threads(ranks, [&](int rank) {
    auto mine = std::move(transports[static_cast<std::size_t>(rank)]);
    try {
      fn(rank, std::move(mine));
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(rank)] = std::string(to_string(error.code())) + ": " + error.what();
    }
  });
  return errors;
}

TEST(Dist, RanksThatDisagreeAreToldWhereOnEveryRank) {
  using namespace symbols;
  const auto made = [](int rank, const std::function<void(Attention&, WholeShapes&, ContextOptions&)>& change,
                       std::shared_ptr<Transport> t) {
    Attention attention{.mask = causal()};
    WholeShapes shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = 64, .seqlen_kv = 64, .head_dim = 8, .head_dim_v = 8};
    ContextOptions options;
    if (rank == 1) change(attention, shapes, options);
    ContextAttention(std::move(t), attention, shapes, {}, options);
  };
  const std::pair<const char*, std::function<void(Attention&, WholeShapes&, ContextOptions&)>> changes[] = {
      {"description", [](Attention& a, WholeShapes&, ContextOptions&) { a.mask = window(3); }},
      {"description", [](Attention& a, WholeShapes&, ContextOptions&) { a.scale = 0.5; }},
      {"description", [](Attention& a, WholeShapes&, ContextOptions&) { a.checked = true; }},
      {"description", [](Attention& a, WholeShapes&, ContextOptions&) { a.determinism = Determinism::reproducible; }},
      {"description", [](Attention& a, WholeShapes&, ContextOptions&) { a.backward = BackwardStrategy::split; }},
      {"description", [](Attention& a, WholeShapes&, ContextOptions&) { a.kv_offset = 1; }},
      {"shapes", [](Attention&, WholeShapes& s, ContextOptions&) { s.seqlen_q = 65; }},
      {"shapes", [](Attention&, WholeShapes& s, ContextOptions&) { s.dtype = DType::bf16; }},
      {"options", [](Attention&, WholeShapes&, ContextOptions& o) { o.unit = 64; }},
  };
  for (const auto& [name, change] : changes) {
    const std::vector<std::string> errors = errors_of(
        3, {.time_limit = 10}, [&, &change = change](int rank, std::shared_ptr<Transport> t) { made(rank, change, std::move(t)); });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("ranks 0 and 1 differ in"), std::string::npos) << error;
      EXPECT_NE(error.find(name), std::string::npos) << error;
    }
  }
  // One rank whose call is wrong: it says why, and the others do not wait.
  const std::vector<std::string> errors = errors_of(2, {.time_limit = 10}, [&](int rank, std::shared_ptr<Transport> t) {
    made(
        rank, [](Attention&, WholeShapes&, ContextOptions& o) { o.deal = "ring"; }, std::move(t));
  });
  EXPECT_EQ(errors[1].rfind("invalid_argument: deal: ring", 0), 0u) << errors[1];
  EXPECT_EQ(errors[0].rfind("invalid_argument: context parallelism: rank 1: deal: ring", 0), 0u) << errors[0];
}

TEST(Dist, SetsOfParametersThatDifferAreFound) {
  using namespace symbols;
  const Param row("row", {64}, Type::real), other("other", {64}, Type::real);
  std::vector<float> data(64, 0.5f);
  std::vector<std::uint16_t> halves(64);
  const WholeShapes shapes{.seqlen_q = 64, .seqlen_kv = 64, .head_dim = 8, .head_dim_v = 8};
  const auto errors = [&](const ParamBinding& of_one) {
    return errors_of(2, {.time_limit = 10}, [&](int rank, std::shared_ptr<Transport> t) {
      const ParamBinding mine = rank == 1 ? of_one : ParamBinding{row, TensorView(data.data(), DType::f32, {64})};
      ContextAttention(std::move(t), {.score_mod = score + mine.param(q_idx)}, shapes, {mine});
    });
  };
  for (const std::string& error : errors({row, TensorView(halves.data(), DType::bf16, {64})}))
    EXPECT_NE(error.find("differ in parameters: rank 0 has row: f32[64]; rank 1 has row: bf16[64]"), std::string::npos) << error;
  for (const std::string& error : errors({other, TensorView(data.data(), DType::f32, {64})}))
    EXPECT_NE(error.find("ranks 0 and 1 differ in description"), std::string::npos) << error;
}

/// Passes of one attention on three ranks, of which rank 1 makes another call.
class DifferentPasses : public testing::Test {
 protected:
  std::vector<std::string> run(const std::function<void(ContextAttention&, const BackwardInputs&, const BackwardOutputs&)>& of_one) {
    return errors_of(3, {.time_limit = 20}, [&](int rank, std::shared_ptr<Transport> t) {
      const Param row("row", {48}, Type::real);
      std::vector<float> bias(48, 0.5f), dbias(48);
      const std::vector<ParamBinding> params{{row, TensorView(bias.data(), DType::f32, {48})}};
      const WholeShapes shapes{.seqlen_q = 48, .seqlen_kv = 48, .head_dim = 4, .head_dim_v = 4};
      ContextOptions options;
      options.unit = 8;
      const Attention description{.score_mod = symbols::score + row(symbols::q_idx), .mask = causal()};
      ContextAttention attention(std::move(t), description, shapes, params, options);
      const auto rows = static_cast<std::int64_t>(attention.q_tokens().size());
      std::vector<std::vector<float>> memory;
      memory.reserve(16);
      const auto tensor = [&] { return TensorView(memory.emplace_back(rows * 4, 0.1f).data(), DType::f32, {1, rows, 1, 4}); };
      const auto statistics = [&] { return TensorView(memory.emplace_back(rows).data(), DType::f32, {1, 1, rows}); };
      BackwardInputs in{.q = tensor(), .k = tensor(), .v = tensor(), .out = tensor(), .lse = statistics(), .dout = tensor()};
      in.params = params;
      const BackwardOutputs out{
          .dq = tensor(), .dk = tensor(), .dv = tensor(), .dparams = {{row, TensorView(dbias.data(), DType::f32, {48})}}};
      const ForwardInputs forward_in{.q = in.q, .k = in.k, .v = in.v, .params = params};
      attention.forward(forward_in, {.out = in.out, .lse = in.lse});
      std::exception_ptr failed;
      try {
        if (rank == 1)
          of_one(attention, in, out);
        else
          attention.backward(in, out);
      } catch (const Error&) {
        failed = std::current_exception();
      }
      attention.forward(forward_in, {.out = in.out, .lse = in.lse});  // nothing was under way: ranks go on
      if (failed) std::rethrow_exception(failed);
    });
  }
};

TEST_F(DifferentPasses, AreNamedOnEveryRank) {
  for (const std::string& error : run([](ContextAttention&a, const BackwardInputs&in, const BackwardOutputs&) {
         a.forward({.q = in.q, .k = in.k, .v = in.v, .params = in.params}, {.out = in.out});
       }))
    EXPECT_TRUE(error.find("differ in call: rank 0 has a backward pass on CPUs: ") != std::string::npos &&
                error.find("; rank 1 has a forward pass on CPUs: ") != std::string::npos)
        << error;
  for (const std::string& error : run([](ContextAttention&a, const BackwardInputs&in, BackwardOutputs out) {
         out.dparams.clear();
         a.backward(in, out);
       }))
    EXPECT_NE(error.find("differ in gradients that are asked for: rank 0 has row: f32[48]; rank 1 has none"), std::string::npos) << error;
  for (const std::string& error : run([](ContextAttention&a, BackwardInputs in, const BackwardOutputs&out) {
         in.k.dtype = DType::i32;
         a.backward(in, out);
       }))
    EXPECT_NE(error.find("k: i32["), std::string::npos) << error;
  for (const std::string& error : run([](ContextAttention&a, const BackwardInputs&in, const BackwardOutputs&out) { a.backward(in, out); }))
    EXPECT_EQ(error, "");
}

/// Where ranks share out heads, dlse travels with the queries.
TEST(Dist, GradientsOfLseAreGivenByAllRanksOrNone) {
  const auto errors = errors_of(2, {.time_limit = 20}, [](int rank, std::shared_ptr<Transport> t) {
    ContextOptions options;
    options.unit = 8, options.head_groups = 2;
    const WholeShapes shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = 48, .seqlen_kv = 48, .head_dim = 4, .head_dim_v = 4};
    ContextAttention attention(std::move(t), {.mask = causal()}, shapes, {}, options);
    const auto rows = static_cast<std::int64_t>(attention.q_tokens().size());
    std::vector<std::vector<float>> memory;
    memory.reserve(16);
    const auto tensor = [&] { return TensorView(memory.emplace_back(rows * 8, 0.1f).data(), DType::f32, {1, rows, 2, 4}); };
    const auto statistics = [&] { return TensorView(memory.emplace_back(rows * 2, 0.1f).data(), DType::f32, {1, 2, rows}); };
    BackwardInputs in{.q = tensor(), .k = tensor(), .v = tensor(), .out = tensor(), .lse = statistics(), .dout = tensor()};
    const BackwardOutputs out{.dq = tensor(), .dk = tensor(), .dv = tensor()};
    attention.forward({.q = in.q, .k = in.k, .v = in.v}, {.out = in.out, .lse = in.lse});
    attention.backward(in, out);
    if (rank == 1) in.dlse = statistics();
    attention.backward(in, out);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("ranks 0 and 1 differ in dlse: rank 0 has absent; rank 1 has given"), std::string::npos) << error;
}

TEST(Dist, AnErrorWithinAPassReachesTheOthersAtOnce) {
  problem::CaseData data(problem::parse_line("backward f32 h2 q64 d8 mask=\"causal()\""));
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = errors_of(3, {.time_limit = 60}, [&](int rank, std::shared_ptr<Transport> t) {
    ContextOptions options;
    options.unit = 8;
    if (rank == 1) options.plan.backend = "cuda";  // what a rank computes with is its own affair: it fails at its first launch
    run_rank(std::move(t), data, options);
  });
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20.0);
  EXPECT_EQ(errors[1].rfind("unsupported: ", 0), 0u) << errors[1];
  for (const int rank : {0, 2})
    EXPECT_EQ(errors[static_cast<std::size_t>(rank)].rfind("communication: context parallelism: rank 1 failed: ", 0), 0u)
        << errors[static_cast<std::size_t>(rank)];
}

/// An executor may throw anything.
TEST(Dist, WhatIsNoStandardExceptionReachesTheOthersAtOnce) {
  problem::CaseData data(problem::parse_line("forward f32 h2 q64 d8 mask=\"causal()\""));
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> odd = 0;
  const std::vector<std::string> errors = errors_of(2, {.time_limit = 60}, [&](int rank, std::shared_ptr<Transport> t) {
    ContextOptions options;
    options.unit = 8;
    if (rank == 0) return run_rank(std::move(t), data, options);
    const auto executor = std::make_shared<Executor>();
    executor->concurrency = 2;
    executor->run = [](std::int64_t, const std::function<void(std::int64_t, int)>&) { throw 42; };
    options.plan.executor = executor;
    try {
      run_rank(std::move(t), data, options);
    } catch (int number) {
      odd = number;
    }
  });
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20.0);
  EXPECT_EQ(odd, 42);
  EXPECT_EQ(errors[0], "communication: context parallelism: rank 1 failed: an exception of another language or library");
}

TEST(Dist, RanksOfATransportAreChecked) {
  struct Lost final : Transport {
    Lost(int rank, int size) : rank_(rank), size_(size) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    std::uint64_t start(const std::vector<Message>&, const std::vector<Message>&) override { return 0; }
    void wait(std::uint64_t) override {}
    void all_gather(const void*, std::size_t, void*) override { ADD_FAILURE() << "it was called"; }
    int rank_, size_;
  };
  for (const auto& [rank, size] : {std::pair{0, 0}, {-1, 2}, {2, 2}, {0, -3}, {0, 100000}}) {
    try {
      ContextAttention(std::make_shared<Lost>(rank, size), {}, {.seqlen_q = 8, .seqlen_kv = 8});
      ADD_FAILURE() << rank << " of " << size;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind("transport: rank " + std::to_string(rank) + " of ", 0), 0u) << error.what();
    }
  }
}

/// Also where they give the same plan.
TEST(Dist, MasksOfDifferentDataAreFound) {
  const Param ids("ids", {64}, Type::integer);
  for (const std::int32_t last : {2, 3}) {
    const std::vector<std::string> errors = errors_of(2, {.time_limit = 10}, [&](int rank, std::shared_ptr<Transport> t) {
      std::vector<std::int32_t> data(64, 2);
      if (rank == 1) data[62] = 1, data[63] = last;
      WholeShapes shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = 64, .seqlen_kv = 64, .head_dim = 8, .head_dim_v = 8};
      ContextOptions options;
      options.unit = 8;
      ContextAttention(std::move(t), {.mask = document(ids)}, shapes, {{ids, TensorView(data.data(), DType::i32, {64})}}, options);
    });
    for (const std::string& error : errors) EXPECT_NE(error.find("differ in values that the mask reads"), std::string::npos) << error;
  }
}

/// Whatever their strides, and in every pass.
TEST(Dist, ScoresOfDifferentDataAreFound) {
  const Param bias("bias", {40000, 2});
  const auto errors = [&](bool contiguous, int differs) {
    return errors_of(2, {.time_limit = 10}, [&](int rank, std::shared_ptr<Transport> t) {
      std::vector<float> data(80000), transposed(80000);
      const WholeShapes shapes{.seqlen_q = 16, .seqlen_kv = 16, .head_dim = 4, .head_dim_v = 4};
      const TensorView here(data.data(), DType::f32, {40000, 2});
      TensorView there(transposed.data(), DType::f32, {40000, 2});
      there.strides[0] = 1, there.strides[1] = 40000;
      ContextOptions options;
      options.unit = 4;
      ContextAttention attention(t, {.score_mod = symbols::score + bias(symbols::q_idx, 0)}, shapes, {{bias, here}}, options);
      std::vector<float> rows(32, 0.5f), out(32);
      const TensorView tensor(rows.data(), DType::f32, {1, 8, 1, 4}), result(out.data(), DType::f32, {1, 8, 1, 4});
      for (int pass = 0; pass < 2; ++pass) {
        for (int i = 0; i < 80000; ++i) {
          const float value = static_cast<float>(i * 7 % 1000) + (rank == 1 && pass == 1 && i == differs ? 1.0f : 0.0f);
          data[static_cast<std::size_t>(i)] = transposed[static_cast<std::size_t>(i % 2 * 40000 + i / 2)] = value;
        }
        attention.forward({.q = tensor, .k = tensor, .v = tensor, .params = {{bias, contiguous || rank == 0 ? here : there}}},
                          {.out = result});
      }
    });
  };
  for (const bool contiguous : {true, false}) {
    for (const std::string& error : errors(contiguous, -1)) EXPECT_EQ(error, "");
    for (const int element : {0, 1, 16384, 79999})
      for (const std::string& error : errors(contiguous, element))
        EXPECT_NE(error.find("ranks 0 and 1 differ in values of parameters, which are those of the whole on every rank: rank 0 has bias: "),
                  std::string::npos)
            << error;
  }
}

TEST(Dist, PassesWithOtherDataOfTheMaskAreRefused) {
  const Param ids("ids", {8}, Type::integer);
  std::vector<std::int32_t> data{0, 0, 0, 0, 1, 1, 1, 1};
  std::vector<float> memory(8 * 4, 0.5f), results(8 * 4);
  const std::vector<ParamBinding> params{{ids, TensorView(data.data(), DType::i32, {8})}};
  const WholeShapes shapes{.seqlen_q = 8, .seqlen_kv = 8, .head_dim = 4, .head_dim_v = 4};
  ContextAttention attention(thread_ranks(1)[0], {.mask = document(ids)}, shapes, params);
  const TensorView rows(memory.data(), DType::f32, {1, 8, 1, 4}), out(results.data(), DType::f32, {1, 8, 1, 4});
  attention.forward({.q = rows, .k = rows, .v = rows, .params = params}, {.out = out});
  data[3] = 1;
  try {
    attention.forward({.q = rows, .k = rows, .v = rows, .params = params}, {.out = out});
    FAIL() << "a plan for other documents computed something";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the mask reads ids, whose data differ"), std::string::npos) << error.what();
  }
}

TEST(Dist, SoftlyMaskedRowsOverSeveralLaunchesAreRefusedOnEveryRank) {
  const auto run = [](const char* text) {
    problem::CaseData data(problem::parse_line(text));
    ContextOptions options;
    options.unit = 8, options.deal = "contiguous";
    return errors_of(2, {.time_limit = 20}, [&](int, std::shared_ptr<Transport> t) { run_rank(std::move(t), data, options); });
  };
  for (const std::string& error : run("forward f32 h2 q64 d8 score=\"where(kv_idx > q_idx, score, -1000000000.0)\""))
    EXPECT_EQ(error.rfind("unsupported: score_mod: ", 0), 0u) << error;  // the last row's scores are all -1e9, on both ranks
  // Where some launch has ordinary scores, it decides; and f64 can tell.
  for (const std::string& error : run("forward f32 h2 q64 d8 score=\"where(kv_idx <= q_idx, score, -1000000000.0)\"")) EXPECT_EQ(error, "");
  for (const std::string& error : run("forward f64 h2 q64 d8 score=\"where(kv_idx > q_idx, score, -1000000000.0)\"")) EXPECT_EQ(error, "");
}

TEST(Dist, LayersOfDifferentMasksShareALayout) {
  const std::string packed = "backward f32 h4:2 d16 lengths=90,7,41,33 mask=";
  const problem::Line lines[] = {problem::parse_line(packed + "\"causal()\""), problem::parse_line(packed + "\"causal() & window(9)\"")};
  ContextOptions options;
  options.unit = 8;
  const std::vector<LayoutUse> uses{{lines[0].attention}, {lines[1].attention}};
  options.layout = std::make_shared<const ContextLayout>(uses, test::whole_shapes(lines[0]), 3, options);
  for (const problem::Line& line : lines) {
    const check::Report report = check::Checker(line).judge([&](problem::CaseData& data) {
      auto transports = thread_ranks(3);
      test::on_threads(3, [&](int rank) {
        run_rank(std::move(transports[static_cast<std::size_t>(rank)]), data, options, [&](const ContextAttention& attention) {
          EXPECT_EQ(attention.q_tokens(), options.layout->q_tokens(rank));
          EXPECT_THROW((void)attention.q_tokens(3), Error);
          EXPECT_THROW((void)attention.kv_tokens(-1), Error);
          EXPECT_EQ(attention.kv_tokens(), options.layout->kv_tokens(rank));
        });
      });
      return "dist.3";
    });
    EXPECT_TRUE(report.pass) << report.failure;
  }
  EXPECT_THROW((void)options.layout->q_tokens(3), Error);
  EXPECT_THROW(ContextLayout({}, test::whole_shapes(lines[0]), 3), Error);
}

TEST(Dist, ARankThatStallsOrDiesIsAnErrorOnTheOthers) {
  problem::CaseData data(problem::parse_line("backward f32 h2 q64 d8 mask=\"causal()\""));
  ContextOptions options;
  options.unit = 8;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = errors_of(3, {.time_limit = 0.5}, [&](int rank, std::shared_ptr<Transport> t) {
    if (rank == 1) {  // makes the plan and goes away
      ContextAttention(std::move(t), data.line().attention, test::whole_shapes(data.line()), {}, options);
      return;
    }
    run_rank(std::move(t), data, options);
  });
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 10.0);
  EXPECT_TRUE(errors[1].empty());
  for (const int rank : {0, 2})
    EXPECT_EQ(errors[static_cast<std::size_t>(rank)].rfind("communication: ", 0), 0u) << errors[static_cast<std::size_t>(rank)];
}

TEST(Dist, WrongShardsAreRefused) {
  auto transports = thread_ranks(1);
  WholeShapes shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = 64, .seqlen_kv = 64, .head_dim = 8, .head_dim_v = 8};
  ContextAttention attention(transports[0], {}, shapes);
  std::vector<float> memory(64 * 2 * 8);
  const TensorView right(memory.data(), DType::f32, {1, 64, 2, 8}), wrong(memory.data(), DType::f32, {1, 32, 2, 8});
  try {
    attention.forward({.q = right, .k = wrong, .v = right}, {.out = right});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "k: f32[1, 32, 2, 8]; rank 0 of 1 holds f32[1, 64, 2, 8]");
  }
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
}

/// One rank; `gathering` is called in each of its exchanges.
struct Alone final : Transport {
  std::function<void()> gathering;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::uint64_t start(const std::vector<Message>&, const std::vector<Message>&) override { return 0; }
  void wait(std::uint64_t) override {}
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    std::memcpy(all, mine, bytes);
    if (gathering) gathering();
  }
};

TEST(Dist, WrongCallsOfAContextAreRefused) {
  const WholeShapes shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = 64, .seqlen_kv = 64, .head_dim = 8, .head_dim_v = 8};
  std::vector<float> memory(64 * 2 * 8), results(64 * 2 * 8);
  const TensorView rows(memory.data(), DType::f32, {1, 64, 2, 8}), out(results.data(), DType::f32, {1, 64, 2, 8});
  const auto transport = std::make_shared<Alone>();
  ContextAttention attention(transport, {}, shapes);
  const auto run = [&](ForwardInputs inputs) { attention.forward(inputs, {.out = out}); };
  const auto with = [&](auto field, auto value) {
    ForwardInputs inputs{.q = rows, .k = rows, .v = rows};
    inputs.*field = value;
    return refusal_of([&] { run(inputs); });
  };
  EXPECT_EQ(with(&ForwardInputs::varlen, Varlen{}).rfind("varlen: given", 0), 0U);
  EXPECT_EQ(with(&ForwardInputs::segments, Segments{}).rfind("segments: given", 0), 0U);
  EXPECT_EQ(with(&ForwardInputs::part, Part{}).rfind("part: given", 0), 0U);

  std::string second;
  transport->gathering = [&] {
    if (second.empty()) second = refusal_of([&] { run({.q = rows, .k = rows, .v = rows}); });
  };
  run({.q = rows, .k = rows, .v = rows});
  const std::string one_at_a_time = "context: a call while another one runs on another thread; expected one at a time";
  EXPECT_EQ(second, one_at_a_time);
  std::string made_meanwhile;
  transport->gathering = [&] {
    if (made_meanwhile.empty()) made_meanwhile = refusal_of([&] { ContextAttention(transport, {}, shapes); });
  };
  run({.q = rows, .k = rows, .v = rows});
  EXPECT_EQ(made_meanwhile, one_at_a_time);
  transport->gathering = {};

  ContextAttention other(std::move(attention));
  EXPECT_EQ(refusal_of([&] { run({.q = rows, .k = rows, .v = rows}); }),  // NOLINT(bugprone-use-after-move)
            "context: empty, as it was moved to another; expected one that was made");
  EXPECT_NE(refusal_of([&] { (void)attention.explain(); }), "");
  EXPECT_EQ(other.q_tokens().size(), 64U);
}

/// What one rank gets wrong is refused by all of them before anything is under way, as an ordinary call refuses it; then all go on.
TEST(Dist, TensorsOfAPassAreCheckedAsThoseOfACall) {
  struct Call {
    ForwardInputs in;
    ForwardOutputs out;
    BackwardInputs back;
    BackwardOutputs gradients;
  };
  struct Case {
    std::function<void(Call&)> change;
    const char *forward, *backward;  ///< what they say; null: nothing is wrong
  };
  const auto byte = [](TensorView& view) { view.data = static_cast<std::byte*>(view.data) + 1; };
  const std::vector<Case> cases{
      {[](Call& c) { c.out.out.strides[1] = c.gradients.dq.strides[1] = 0; }, "out: strides [0, 0, 16, 1] put two",
       "dq: strides [0, 0, 16, 1] put two"},
      {[](Call& c) { c.out.out.data = c.gradients.dq.data = c.in.q.data; }, "out: overlaps q in memory", "dq: overlaps q in memory"},
      {[](Call& c) { c.out.lse.data = c.out.out.data, c.gradients.dk.data = c.gradients.dv.data; }, "out: overlaps lse", "dk: overlaps dv"},
      {[&](Call& c) { byte(c.in.k), byte(c.back.dout); }, "k: address is not a multiple of 4", "dout: address is not a multiple of 4"},
      {[](Call& c) { c.in.params.pop_back(), c.back.params.pop_back(); }, "sink: parameter s is not bound",
       "gradient of parameter s: the parameter is not bound"},
      {[](Call& c) { c.in.params.push_back(c.in.params[0]); }, "parameter rel: bound twice", nullptr},
      {[](Call& c) { c.in.params[1].tensor.dtype = DType::i32; }, "parameter s: dtype i32; expected f64, f32", nullptr},
      {[](Call& c) { c.gradients.dparams[1].tensor.dtype = DType::i32; }, nullptr, "gradient of parameter s: dtype i32; expected f32"},
      {[](Call& c) { c.gradients.dparams[0].tensor.strides[0] = 0; }, nullptr, "gradient of parameter rel: strides [0] put two elements"},
      {[](Call& c) { c.gradients.dparams[0].tensor.data = c.back.params[0].tensor.data; }, nullptr, "gradient of rel: overlaps rel"},
      {[](Call& c) { c.gradients.dparams[0].param = Param("other", {64}); }, nullptr,
       "gradient of parameter other: the parameter is not bound"},
  };
  const Param rel("rel", {64}), sink("s", {2});
  Attention attention{.score_mod = symbols::score + rel(symbols::kv_idx), .mask = causal()};
  attention.sink = sink;
  const WholeShapes shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = 64, .seqlen_kv = 64, .head_dim = 16, .head_dim_v = 16};
  const auto transports = thread_ranks(2, {.time_limit = 20});
  test::on_threads(2, [&](int rank) {
    std::vector<std::vector<float>> memory(13, std::vector<float>(32 * 2 * 16 + 1, 0.5f));
    const auto rows = [&](std::size_t i) { return TensorView(memory[i].data(), DType::f32, {1, 32, 2, 16}); };
    const auto values = [&](std::size_t i, std::int64_t size) { return TensorView(memory[i].data(), DType::f32, {size}); };
    const std::vector<ParamBinding> params{{rel, values(9, 64)}, {sink, values(10, 2)}};
    const TensorView lse(memory[4].data(), DType::f32, {1, 2, 32});
    Call right{{.q = rows(0), .k = rows(1), .v = rows(2), .params = params},
               {.out = rows(3), .lse = lse},
               {.q = rows(0), .k = rows(1), .v = rows(2), .out = rows(3), .lse = lse, .dout = rows(5), .params = params},
               {.dq = rows(6), .dk = rows(7), .dv = rows(8), .dparams = {{rel, values(11, 64)}, {sink, values(12, 2)}}}};
    ContextOptions options;
    options.unit = 16;
    ContextAttention context(transports[static_cast<std::size_t>(rank)], attention, shapes, params, options);
    for (const Case& wrong : cases) {
      Call call = right;
      if (rank == 1) wrong.change(call);
      const auto expect = [&](const char* expected, const std::string& found) {
        EXPECT_NE(found.find(expected), std::string::npos) << rank << ": " << found << "; expected " << expected;
      };
      if (wrong.forward != nullptr) expect(wrong.forward, refusal_of([&] { context.forward(call.in, call.out); }));
      if (wrong.backward != nullptr) expect(wrong.backward, refusal_of([&] { context.backward(call.back, call.gradients); }));
    }
    EXPECT_EQ(refusal_of([&] { context.forward(right.in, right.out), context.backward(right.back, right.gradients); }), "");
  });
}

TEST(Dist, WrongTransportsAndTokensAreRefused) {
  for (const double limit : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e10})
    EXPECT_NE(refusal_of([&] { thread_ranks(2, {.time_limit = limit}); }).find("thread_ranks: time_limit: "), std::string::npos) << limit;
  EXPECT_NE(refusal_of([] { thread_ranks(1 << 30); }), "");
  EXPECT_EQ(thread_ranks(4096).size(), 4096U);
  EXPECT_NE(refusal_of([] { (void)tokens_of(100, 1 << 30, 0, "zigzag"); }), "");
  EXPECT_NE(refusal_of([] { (void)tokens_of(INT64_MAX, 2, 0, "zigzag", 4); }).find("tokens_of: seqlen"), std::string::npos);
  EXPECT_NE(refusal_of([] { (void)tokens_of(100, 2, 0, "zigzag", INT64_MAX); }).find("tokens_of: seqlen"), std::string::npos);
}

TEST(Dist, MoreRanksThanChunksIsLegal) {
  const problem::Line line = problem::parse_line("backward f32 h2 q20 d8 mask=\"causal()\"");
  ContextOptions options;
  options.unit = 16;
  const check::Report report = check::Checker(line).judge([&](problem::CaseData& data) { return run_line(data, 8, options); });
  EXPECT_TRUE(report.pass) << report.failure;
}

}  // namespace
}  // namespace foveal::dist
