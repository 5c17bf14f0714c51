// The nth allocation fails, for every n of a plan, a run and a backward pass, also of those of context parallelism: an error, nothing leaked,
// and the next call works.
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "context.h"
#include "counted_allocations.h"
#include "cuda/jit/driver.h"
#include "foveal/foveal_c.h"
#include "on_device.h"

namespace foveal {
namespace {

constexpr const char* lines[] = {
    "backward f32 b1 h2:1 q5:7 d8 mask=\"kv_idx <= q_idx + 2 & ids[kv_idx % 4] != 3\" score=\"tanh(score / 3) + rel[head, kv_idx - q_idx + "
    "5]\" param=\"rel: real[2, 12] grad\" param=\"ids: integer[4]\" dlse threads=1",
    "backward f32 b2 h2:1 q5:32 d8 pages=16 seqlens_kv=9,32 mask=\"causal_bottom_right()\" checked threads=1",
};

/// What a failed call may leave behind.
enum class Leaves { nothing, what_messages_may_reach, what_caches_hold };

/// How many allocations act() has, each of which has failed once.
template <class Act>
long fail_each(const std::string& what, Act&& act, Leaves leaves = Leaves::nothing) {
  for (int i = 0; i < 3; ++i) act();  // what is kept for the next call
  for (long n = 1;; ++n) {
    const long before = living_allocations;
    failing_allocation = n;
    try {
      act();  // what can do without, as a stable sort, need not fail
    } catch (const std::bad_alloc&) {
    } catch (const Error&) {
    }
    const bool failed = failing_allocation <= 0;
    failing_allocation = 0;
    if (leaves == Leaves::nothing) {
      EXPECT_EQ(living_allocations, before) << what << ": allocation " << n << " failed and something was left behind";
    }
    const long left = living_allocations;
    EXPECT_NO_THROW(act()) << what << " after allocation " << n << " failed";
    if (leaves != Leaves::what_caches_hold) {
      EXPECT_EQ(living_allocations, left) << what << ", the call after allocation " << n << " failed";
    }
    if (!failed) return n - 1;
    if (testing::Test::HasFailure()) return n;
  }
}

TEST(Allocation, EveryOneOfAPlanMayFail) {
  for (const char* line : lines) {
    const problem::CaseData data(problem::parse_line(line));
    const Attention& attention = data.line().attention;
    for (const char* backend : {"cpu", "reference"}) {
      const PlanOptions options{.backend = backend, .threads = 1};
      EXPECT_GT(fail_each("forward plan", [&] { foveal::plan(attention, data.forward_inputs(), data.forward_outputs(), options); }), 20);
      EXPECT_GT(fail_each("backward plan", [&] { foveal::plan(attention, data.backward_inputs(), data.backward_outputs(), options); }), 20);
    }
  }
}

TEST(Allocation, EveryOneOfARunMayFail) {
  for (const char* line : lines) {
    const problem::CaseData data(problem::parse_line(line));
    const Attention& attention = data.line().attention;
    for (const char* backend : {"cpu", "reference"}) {
      const PlanOptions options{.backend = backend, .threads = 1};
      const ForwardInputs in = data.forward_inputs();
      const ForwardOutputs out = data.forward_outputs();
      const BackwardInputs backward_in = data.backward_inputs();
      const BackwardOutputs backward_out = data.backward_outputs();
      const Plan forward = foveal::plan(attention, in, out, options),
                 backward = foveal::plan(attention, backward_in, backward_out, options);
      const std::size_t bytes = std::max(forward.workspace_bytes(), backward.workspace_bytes());
      const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(256, (bytes + 255) / 256 * 256), std::free);
      fail_each("forward run", [&] { forward.run(in, out, workspace.get()); });
      fail_each("backward run", [&] { backward.run(backward_in, backward_out, workspace.get()); });
      fail_each("forward()", [&] { foveal::forward(attention, in, out, {}, options); });
      fail_each("backward()", [&] { foveal::backward(attention, backward_in, backward_out, {}, options); });
    }
  }
}

TEST(Allocation, EveryOneOfAnExpressionMayFail) {
  const std::vector<Param> params{Param("rel", {2, 12})};
  EXPECT_GT(fail_each("parse", [&] { to_string(parse("score + rel[head, clamp(kv_idx - q_idx, -5, 5) + 5] ** 2 // 3", params)); }), 20);
  EXPECT_GT(fail_each("an error",
                      [&] {
                        try {
                          parse("score + rel[head", params);
                          ADD_FAILURE() << "parsed";
                        } catch (const Error&) {
                        }
                      }),
            5);
}

TEST(Allocation, EveryOneOfACallOfCMayFail) {
  float numbers[4 * 8] = {};
  const int64_t sizes[] = {1, 2, 2, 8};
  foveal_tensor tensor, table;
  const int64_t extent[] = {32};
  ASSERT_EQ(foveal_contiguous(&tensor, numbers, FOVEAL_F32, 4, sizes), FOVEAL_OK);
  ASSERT_EQ(foveal_contiguous(&table, numbers, FOVEAL_F32, 1, extent), FOVEAL_OK);
  const foveal_param param{"rel: real[32]", &table, nullptr};
  foveal_attention attention{};
  attention.struct_size = sizeof attention, attention.score_mod = "score + rel[kv_idx]";
  foveal_call call{};
  call.struct_size = sizeof call, call.pass = FOVEAL_FORWARD, call.params = &param, call.param_count = 1;
  call.q = call.k = call.v = &tensor;
  float results[4 * 8];
  foveal_tensor out = tensor;
  out.data = results, call.out = &out;
  foveal_options options{};
  options.struct_size = sizeof options, options.threads = 1;
  const auto expect = [](int code) {
    if (code == FOVEAL_OK) return;
    EXPECT_STRNE(foveal_last_error(), "");
    throw std::bad_alloc();
  };
  fail_each("a plan of C", [&] {
    foveal_plan* plan = nullptr;
    const int code = foveal_plan_create(&attention, &call, &options, &plan);
    foveal_plan_destroy(plan);
    expect(code);
  });
  fail_each("a run of C", [&] { expect(foveal_run(&attention, &call, &options, nullptr)); });
  foveal_attention wrong = attention;
  wrong.score_mod = "score +";
  fail_each("an error of C", [&] { EXPECT_NE(foveal_run(&wrong, &call, &options, nullptr), FOVEAL_OK); });
  // Texts that were never said: each takes the place of another of the same size in caches that are full. A call that fails reaches some of the
  // caches only; what it left there goes as any other.
  int said = 0;
  const auto run_another = [&] {
    const std::string score = "score * 0.25 + rel[kv_idx] * 0.0" + std::to_string(10001 + ++said % 80000);
    attention.score_mod = score.c_str();
    expect(foveal_run(&attention, &call, &options, nullptr));
  };
  const auto fill_caches = [&] {
    for (int i = 0; i < 1200; ++i) run_another();
    return living_allocations.load();
  };
  const long full = fill_caches();
  EXPECT_GT(fail_each("a new text of C", run_another, Leaves::what_caches_hold), 100);
  EXPECT_EQ(fill_caches(), full);
}

TEST(Allocation, EveryOneOfAContextMayFail) {
  for (const char* line : test::context_lines) {
    const problem::CaseData data(problem::parse_line(line));
    const auto begin = [&] { test::Context(data).begin(dist::thread_ranks(1)[0]); };
    EXPECT_GT(fail_each("a context", begin, Leaves::what_messages_may_reach), 50);
    const auto run = [&] { test::Context(data).begin(dist::thread_ranks(1)[0]).run(); };
    EXPECT_GT(fail_each("passes of a context", run, Leaves::what_messages_may_reach), 50);
  }
}

/// A context and its passes on ranks that are threads. An allocation that is to fail is one of theirs. The first error is rethrown when all have ended.
void run_ranks(const problem::CaseData& data, std::size_t ranks, double time_limit) {
  const long failing = failing_allocation.exchange(0);
  auto transports = dist::thread_ranks(static_cast<int>(ranks), {.time_limit = time_limit});
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::unique_ptr<test::Context>> contexts;
  for (std::size_t rank = 0; rank < ranks; ++rank) contexts.push_back(std::make_unique<test::Context>(data));
  std::vector<std::thread> threads;
  std::latch begin(1);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      begin.wait();
      try {
        contexts[rank]->begin(std::move(transports[rank])).run();
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find(" waited "), std::string::npos) << error.what();
        errors[rank] = std::current_exception();
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  failing_allocation = failing;
  begin.count_down();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

TEST(Allocation, OfOneRankMayFailAndNoOtherWaitsForIt) {
  for (const char* line : test::context_lines) {
    const problem::CaseData data(problem::parse_line(line));
    EXPECT_GT(fail_each(
                  "two ranks", [&] { run_ranks(data, 2, 10); }, Leaves::what_messages_may_reach),
              50);
  }
}

/// Memory may be why a rank cannot go on: to say so takes none.
TEST(Allocation, ARankThatFailsNeedsNone) {
  const auto transports = dist::thread_ranks(2);
  const std::string why(1000, 'x');
  failing_allocation = 1;
  transports[0]->fail(why);
  EXPECT_EQ(failing_allocation, 1);
  failing_allocation = 0;
  char word = 0, all[2] = {};
  try {
    transports[1]->all_gather(&word, 1, all);
    ADD_FAILURE() << "a gather with one that failed came to an end";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 failed: xxx"), std::string::npos) << error.what();
  }
}

constexpr const char* device_lines[] = {
    "backward bf16 b1 h1 q64 d64 mask=\"ids[q_idx] == ids[kv_idx]\" score=\"tanh(score / 3) + rel[q_idx]\" param=\"ids: integer[64]\" "
    "param=\"rel: real[64] grad\"",
    "backward bf16 b2 h2:1 q9:64 d64 pages=16 mask=\"causal_bottom_right()\" checked",
};

/// Plans are made anew each time: nobody holds what they had on the device.
template <class Act>
void fail_each_on_device(const char* what, Act&& act) {
  const auto act_and_give_back = [&] {
    struct GiveBack {
      ~GiveBack() { cuda::driver::give_back(true); }
    } after;
    act();
  };
  act_and_give_back();
  const long before = mock::device().allocations;
  EXPECT_GT(fail_each(what, act_and_give_back), 1);
  EXPECT_EQ(mock::device().allocations, before) << what;
}

TEST(Allocation, EveryOneOfAPlanOnADeviceMayFail) {
  for (const char* line : device_lines) {
    test::OnDevice problem(line);
    fail_each_on_device("a forward plan on a device", [&] { problem.plan(); });
    fail_each_on_device("a backward plan on a device", [&] { problem.backward_plan(); });
  }
}

TEST(Allocation, EveryOneOfARunOnADeviceMayFail) {
  for (const char* line : device_lines) {
    test::OnDevice problem(line);
    const Stream stream{reinterpret_cast<void*>(std::uintptr_t{64})};
    problem.forward(stream), problem.backward(stream);
    const long before = mock::device().allocations;
    fail_each("forward() on a device", [&] { problem.forward(stream); });
    fail_each("backward() on a device", [&] { problem.backward(stream); });
    void* graph = mock::begin_capture();  // which holds the plan
    problem.forward(stream), problem.backward(stream);
    mock::end_capture();
    mock::destroy_graph(graph);
    cuda::driver::give_back(true);
    EXPECT_EQ(mock::device().allocations, before);
  }
}

}  // namespace
}  // namespace foveal
