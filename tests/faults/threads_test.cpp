// Many threads that plan, run, fail and destroy at random, on the CPU and on a device; executors of the caller that throw.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

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

}  // namespace
}  // namespace foveal
