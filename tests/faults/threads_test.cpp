// Many threads that plan, run, fail and destroy at random, on the CPU and on a device; executors of the caller that throw.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "foveal/foveal_c.h"
#include "on_device.h"

namespace foveal {
namespace {

const char* const programs[] = {"score", "tanh(score / 3)", "score + 0.5 * kv_idx", "score * 0.25 - abs(q_idx - kv_idx)", "score +"};
const char* const masks[] = {"kv_idx <= q_idx", "q_idx - kv_idx < 3", "kv_idx", "head > 0 | kv_idx < 2"};

std::string random_line(std::mt19937& random, const char* dtype) {
  const auto pick = [&](int count) { return std::to_string(1 + random() % static_cast<unsigned>(count)); };
  return std::string(random() % 2 ? "forward " : "backward ") + dtype + " b" + pick(2) + " h" + pick(2) + " q" + pick(9) + ":" + pick(9) +
         " d8 score=\"" + programs[random() % std::size(programs)] + "\" mask=\"" + masks[random() % std::size(masks)] + "\" threads=2";
}

/// 64 threads, each with its own order of calls; wrong ones are errors, right ones run.
template <class Act>
void from_many_threads(Act&& act) {
  std::atomic<int> done{0}, refused{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 64; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 12; ++i) {
        try {
          act(random);
          ++done;
        } catch (const Error&) {
          ++refused;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(done, 64);
  EXPECT_GT(refused, 64);
}

TEST(Threads, PlanRunFailAndDestroyOnTheCpu) {
  from_many_threads([](std::mt19937& random) {
    const problem::CaseData data(problem::parse_line(random_line(random, random() % 2 ? "f32" : "bf16")));
    const problem::Line& line = data.line();
    if (line.pass == Pass::forward) {
      const Plan plan = foveal::plan(line.attention, data.forward_inputs(), data.forward_outputs(), line.options);
      foveal::forward(line.attention, data.forward_inputs(), data.forward_outputs(), {}, line.options);
    } else {
      foveal::backward(line.attention, data.backward_inputs(), data.backward_outputs(), {}, line.options);
    }
    EXPECT_EQ(data.damage(), "");
  });
}

TEST(Threads, PlanRunFailAndDestroyOnADevice) {
  from_many_threads([](std::mt19937& random) {
    test::OnDevice problem(random_line(random, random() % 2 ? "f16" : "bf16"));
    if (random() % 4 == 0) {
      problem.plan();
      cuda::driver::give_back(random() % 2 == 0);
    }
    problem.forward();
  });
}

TEST(Threads, ExceptionsOfACallersExecutorArrive) {
  const problem::CaseData data(problem::parse_line("backward f32 b2 h2 q40 d8 mask=\"kv_idx <= q_idx\""));
  bool throws = true;
  const auto executor = std::make_shared<Executor>(Executor{2, [&](std::int64_t tasks, const std::function<void(std::int64_t, int)>& fn) {
                                                              for (std::int64_t task = 0; task < tasks; ++task) {
                                                                if (throws) throw std::runtime_error("the executor's own");
                                                                fn(task, 0);
                                                              }
                                                            }});
  const PlanOptions options{.executor = executor};
  const auto forward = [&] { foveal::forward({}, data.forward_inputs(), data.forward_outputs(), {}, options); };
  const auto backward = [&] { foveal::backward({}, data.backward_inputs(), data.backward_outputs(), {}, options); };
  for (int i = 0; i < 2; ++i) {
    throws = true;
    for (const std::function<void()>& call : {std::function<void()>(forward), std::function<void()>(backward)}) {
      try {
        call();
        ADD_FAILURE() << "no exception";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "the executor's own");
      }
    }
    throws = false;
    EXPECT_NO_THROW(forward());
    EXPECT_NO_THROW(backward());
  }
}

TEST(Threads, ACallersExecutorThatLeavesOutTasksOrSlotsIsAnError) {
  const problem::CaseData data(problem::parse_line("forward f32 b2 h2 q80 d8"));
  const auto error_with = [&](std::int64_t left_out, std::int64_t beyond, int slot) -> std::string {
    const auto run = [=](std::int64_t tasks, const std::function<void(std::int64_t, int)>& fn) {
      for (std::int64_t task = 0; task < tasks - left_out + beyond; ++task) fn(task, slot);
    };
    try {
      foveal::forward({}, data.forward_inputs(), data.forward_outputs(), {}, {.executor = std::make_shared<Executor>(Executor{2, run})});
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_with(0, 0, 1), "");
  EXPECT_NE(error_with(1, 0, 0).find("options.executor: returned after "), std::string::npos);
  EXPECT_NE(error_with(0, 1, 0).find("options.executor: calls task "), std::string::npos);
  EXPECT_EQ(error_with(0, 0, 2), "options.executor: calls in slot 2; expected one below the concurrency, 2");
  EXPECT_NE(error_with(0, 0, -1), "");
}

/// The passes of one problem on a caller's executor.
struct Passes {
  problem::CaseData data;
  PlanOptions options;

  Passes(const char* line, int concurrency, decltype(Executor::run) run)
      : data(problem::parse_line(line)), options{.executor = std::make_shared<Executor>(Executor{concurrency, std::move(run)})} {}
  void forward() const { foveal::forward(data.line().attention, data.forward_inputs(), data.forward_outputs(), {}, options); }
  void backward() const { foveal::backward(data.line().attention, data.backward_inputs(), data.backward_outputs(), {}, options); }
  /// What the forward pass throws.
  std::string error() const {
    try {
      forward();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
};

using RunTask = std::function<void(std::int64_t, int)>;

TEST(Threads, ACallersExecutorThatRunsTasksAgainIsAnError) {
  const auto error_with = [](std::int64_t again, std::int64_t left_out) {
    return Passes("forward f32 b1 h4 q80 d8", 2,
                  [=](std::int64_t tasks, const RunTask& fn) {
                    for (std::int64_t task = 0; task < tasks; ++task)
                      if (task != left_out) fn(task, 0);
                    if (again >= 0) fn(again, 1);
                  })
        .error();
  };
  EXPECT_EQ(error_with(-1, -1), "");
  EXPECT_EQ(error_with(2, 2), "");
  EXPECT_NE(error_with(0, -1).find("tasks; expected all, each once"), std::string::npos);
  EXPECT_NE(error_with(0, 1).find("tasks again and left out others; expected each once"), std::string::npos);
}

TEST(Threads, CallsInsideACallersExecutorHaveMemoryOfTheirOwn) {
  const char* const line = "backward f32 b1 h4:2 q70 d16 score=\"tanh(score)\"";
  const Passes inner("backward f32 b2 h4 q150 d32 score=\"score - abs(q_idx - kv_idx)\"", 2, [](std::int64_t tasks, const RunTask& fn) {
    for (std::int64_t task = 0; task < tasks; ++task) fn(task, 1);
  });
  const auto nested = [&inner](std::int64_t tasks, const RunTask& fn) {
    for (std::int64_t task = tasks - 1; task >= 0; --task) {
      inner.forward();
      fn(task, 0);
      inner.backward();
    }
  };
  const Passes outer(line, 2, nested), alone(line, 2, [](std::int64_t tasks, const RunTask&fn) {
    for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
  });
  for (const Passes* passes : {&outer, &alone}) passes->forward(), passes->backward();
  const auto bytes = [](const TensorView& view) {
    return std::string_view(static_cast<const char*>(view.data), static_cast<std::size_t>(view.numel()) * sizeof(float));
  };
  EXPECT_EQ(bytes(outer.data.forward_outputs().out), bytes(alone.data.forward_outputs().out));
  const BackwardOutputs a = outer.data.backward_outputs(), b = alone.data.backward_outputs();
  EXPECT_EQ(bytes(a.dq), bytes(b.dq));
  EXPECT_EQ(bytes(a.dk), bytes(b.dk));
  EXPECT_EQ(bytes(a.dv), bytes(b.dv));
}

/// Passes of C that add to their gradients, by one thread; how many threads the process has then, OpenMP's idle ones among them.
long threads_after_adding_passes() {
  set_num_threads(4);
  const int64_t sizes[] = {1, 512, 2, 8}, statistics[] = {1, 2, 512};
  std::vector<float> inputs(1 << 13, 0.5f), gradients(1 << 13), lse(1 << 10, 6.0f);
  foveal_tensor input, gradient, rows;
  foveal_contiguous(&input, inputs.data(), FOVEAL_F32, 4, sizes);
  foveal_contiguous(&gradient, gradients.data(), FOVEAL_F32, 4, sizes);
  foveal_contiguous(&rows, lse.data(), FOVEAL_F32, 3, statistics);
  foveal_attention attention{};
  attention.struct_size = sizeof attention, attention.accumulate = 1;
  foveal_call call{};
  call.struct_size = sizeof call, call.pass = FOVEAL_BACKWARD;
  call.q = call.k = call.v = call.out = call.dout = &input, call.lse = &rows, call.dq = &gradient;
  foveal_options options{};
  options.struct_size = sizeof options, options.threads = 1;
  foveal_plan* plan = nullptr;
  if (foveal_run(&attention, &call, &options, nullptr) != FOVEAL_OK) return -1;
  if (foveal_plan_create(&attention, &call, &options, &plan) != FOVEAL_OK) return -2;
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(256, (foveal_plan_workspace_bytes(plan) / 256 + 1) * 256),
                                                         std::free);
  const int ran = foveal_plan_run(plan, &call, workspace.get(), nullptr);
  foveal_plan_destroy(plan);
  if (ran != FOVEAL_OK) return -3;
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(Threads, GradientsAreAddedByAsManyAsWereAskedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has no threads yet
  EXPECT_EXIT(std::_Exit(threads_after_adding_passes() == 1 ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace foveal
