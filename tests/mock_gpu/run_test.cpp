// What a plan promises about its runs: they neither allocate nor lock. Counted over the problem lines of the kernels' tests.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <fstream>

#include "counted_allocations.h"
#include "cuda/cuda_memory.h"
#include "cuda/device/outside_args.cuh"
#include "cuda/device/rows_args.cuh"
#include "foveal/foveal_c.h"
#include "mock_driver.h"
#include "mock_plan.h"

namespace {
std::atomic<long> locks{0};
}

/// Takes the place of the C library's, also for std::mutex.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks;
  return next(mutex);
}

namespace foveal {
namespace {

std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream file(std::string(FOVEAL_SOURCE_DIR) + "/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

/// The second run of each line, on kernels of two architectures; returns how many plans there were.
int expect_quiet_runs(const std::string& name, std::size_t step) {
  int plans = 0;
  const std::vector<std::string> lines = lines_of(name);
  for (std::size_t i = 0; i < lines.size(); i += step) {
    if (problem::parse_line(lines[i]).attention.checked) continue;  // such a run reads the device's memory
    for (const char* arch : {"sm_90a", "sm_80"}) {
      std::unique_ptr<test::MockPlan> plan;
      try {
        plan = std::make_unique<test::MockPlan>(problem::parse_line(lines[i]), arch);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported) << lines[i] << ": " << error.what();
        continue;
      }
      plan->run();
      const long launches_before = mock::device().launches, allocations_before = allocations, locks_before = locks;
      plan->run();
      EXPECT_EQ(allocations - allocations_before, 0) << arch << ": " << lines[i];
      EXPECT_EQ(locks - locks_before, 0) << arch << ": " << lines[i];
      EXPECT_GT(mock::device().launches, launches_before) << arch << ": " << lines[i];
      ++plans;
    }
  }
  return plans;
}

TEST(GpuRun, TheCountersCount) {
  const long allocations_before = allocations, locks_before = locks;
  std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto memory = std::make_unique<int>(7);
  EXPECT_EQ(*memory, 7);
  EXPECT_GE(locks - locks_before, 1);
  EXPECT_GE(allocations - allocations_before, 1);
}

TEST(GpuRun, NeitherAllocatesNorLocks) {
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/shapes.txt", 2), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/programs.txt", 5), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/few_queries.txt", 10), 20);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/pages.txt", 1), 90);
}

TEST(GpuRun, NeitherAllocatesNorLocksWhereParametersAreTrained) {
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/trained_dims.txt", 7), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/reads.txt", 1), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/wide.txt", 10), 10);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/reproducible.txt", 1), 10);
}

/// What a run throws, or "".
std::string error_of(const test::MockPlan& plan) {
  try {
    plan.run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(Runs, TensorsThatAreStoredToIn16BytesBeginThere) {
  const auto expect_refused = [](test::MockPlan& plan, TensorView& view, const char* name) {
    EXPECT_EQ(error_of(plan), "");
    void* const aligned = view.data;
    view.data = static_cast<char*>(aligned) + 2;
    EXPECT_NE(error_of(plan).find(name), std::string::npos) << name << ": " << error_of(plan);
    EXPECT_NE(error_of(plan).find("no multiple of 16 bytes"), std::string::npos) << name << ": " << error_of(plan);
    view.data = aligned;
  };
  test::MockPlan forward(problem::parse_line("forward bf16 b2 h2 q256 d64"), "sm_90a");
  expect_refused(forward, forward.buffers.out, "out: begins at");
  test::MockPlan backward(problem::parse_line("backward bf16 b2 h2 q256 d64"), "sm_90a");
  problem::Buffers& b = backward.buffers;
  for (const auto& [name, view] : {std::pair{"out", &b.out}, {"dq", &b.dq}, {"dk", &b.dk}, {"dv", &b.dv}, {"q", &b.q}, {"dout", &b.dout}})
    expect_refused(backward, *view, name[0] == 'q' || std::string(name) == "dout" ? "a tensor begins at" : name);
  test::MockPlan narrow(problem::parse_line("forward bf16 b1 h8 q2048 d64 score=\"score + t[head, ids[q_idx, kv_idx]]\" param=\"t: real[8, "
                                            "100]\" param=\"ids: integer[2048, 2048] i32 integers(0, 99)\""),
                        "sm_90a");
  ASSERT_EQ(narrow.executable->sources().back().stem, "narrow_indices");
  expect_refused(narrow, narrow.buffers.params[1], "parameter ids: begins at");
  test::MockPlan portable(problem::parse_line("forward bf16 b2 h2 q256 d64"), "sm_80");  // its kernels look at the address
  portable.buffers.out.data = static_cast<char*>(portable.buffers.out.data) + 2;
  EXPECT_EQ(error_of(portable), "");
}

TEST(Runs, TablesAreCopiedBesideTheLegacyStream) {
  mock::count_calls();
  const test::MockPlan plan(problem::parse_line("forward bf16 b2 h2 q256 d64 mask=\"kv_idx // 100 == q_idx // 100\""), "sm_90a");
  auto calls = mock::count_calls();
  EXPECT_EQ(calls["cuMemcpyHtoD_v2"], 0);  // ends the capture of any blocking stream
  EXPECT_EQ(calls["cuMemcpyHtoDAsync_v2"], 2);
  EXPECT_EQ(calls["cuStreamCreate"], calls["cuStreamDestroy_v2"]);
}

TEST(Runs, CheckedOnesLookAtMoreRowsThanAGridHas) {
  test::MockPlan plan(problem::parse_line("forward bf16 b1024 h64 q131072:16 d8 score=\"score + t[q_idx]\" param=\"t: real[7]\" checked"),
                      "sm_80");
  static long long blocks, rows;
  blocks = rows = 0;
  mock::call_for_launches([](const cuda::driver::LaunchConfig& config, const void* argument, std::size_t bytes) {
    if (bytes != sizeof(device::OutsideArgs)) return;
    const auto& args = *static_cast<const device::OutsideArgs*>(argument);
    blocks = static_cast<long long>(config.grid_x) * config.grid_y * config.grid_z;
    rows = static_cast<long long>(args.attention.batch) * args.attention.heads_q * args.attention.seqlen_q;
  });
  std::vector<unsigned char> workspace(plan.executable->workspace_bytes() + 256, 0xff);  // nothing was found
  plan.executable->run(plan.buffers, workspace.data(), {});
  mock::call_for_launches(nullptr);
  EXPECT_EQ(rows, 1ll << 33);
  EXPECT_GT(blocks, 0);
}

/// Of launches that add rows to others.
std::vector<device::MoveRowsArgs> added;

/// Tensors in the memory of the mock device.
class DeviceTensors {
 public:
  foveal_tensor make(std::initializer_list<std::int64_t> sizes, std::int32_t dtype = FOVEAL_BF16) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    memory_.emplace_back(cuda::cuda_memory(0).allocate(static_cast<std::size_t>(4 * count)),
                         [](void* memory) { cuda::cuda_memory(0).release(memory); });
    foveal_tensor tensor{};
    EXPECT_EQ(foveal_contiguous(&tensor, memory_.back().get(), dtype, static_cast<std::int32_t>(sizes.size()), sizes.begin()), FOVEAL_OK);
    tensor.device_kind = FOVEAL_CUDA;
    return tensor;
  }

 private:
  std::vector<std::shared_ptr<void>> memory_;
};

TEST(Runs, GradientsAreAddedOnTheDevice) {
  DeviceTensors memory;
  foveal_tensor q = memory.make({2, 300, 4, 64}), k = memory.make({2, 300, 2, 64}), v = memory.make({2, 300, 2, 64}),
                out = memory.make({2, 300, 4, 64}), lse = memory.make({2, 4, 300}, FOVEAL_F32), dout = memory.make({2, 300, 4, 64}),
                dq = memory.make({2, 300, 4, 64}), dv = memory.make({2, 300, 2, 64}), table = memory.make({2, 3, 4, 5, 6}, FOVEAL_F32),
                dtable = memory.make({2, 3, 4, 5, 6}, FOVEAL_F32);
  std::swap(dtable.strides[3], dtable.strides[4]), dtable.strides[3] = 1,
                                                   dtable.strides[4] = 5;  // another order than that of what is added
  const foveal_param param{"t: real[2, 3, 4, 5, 6]", &table, &dtable};
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.accumulate = 1;
  attention.score_mod = "score + t[batch, q_idx % 3, head, kv_idx % 5, q_idx % 6]";
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.pass = FOVEAL_BACKWARD;
  call.q = &q, call.k = &k, call.v = &v, call.out = &out, call.lse = &lse, call.dout = &dout, call.dq = &dq, call.dv = &dv;
  call.params = &param, call.param_count = 1;

  added.clear();
  mock::call_for_launches([](const cuda::driver::LaunchConfig&, const void* argument, std::size_t bytes) {
    if (bytes == sizeof(device::MoveRowsArgs)) added.push_back(*static_cast<const device::MoveRowsArgs*>(argument));
  });
  ASSERT_EQ(foveal_run(&attention, &call, nullptr, nullptr), FOVEAL_OK) << foveal_last_error();
  ASSERT_EQ(added.size(), 2u + 2);  // dq, dv, and the parameter's gradient for each index of its first dimension
  for (const device::MoveRowsArgs& one : added) EXPECT_EQ(one.adds, 1);
  EXPECT_EQ(added[0].to.data, dq.data);
  EXPECT_NE(added[0].from.data, dq.data);
  EXPECT_EQ(std::vector({added[0].batch, added[0].tokens, added[0].heads, added[0].dim}), std::vector({2, 300, 4, 64}));
  EXPECT_EQ(added[1].to.data, dv.data);
  for (const int index : {0, 1}) {
    const device::MoveRowsArgs& one = added[static_cast<std::size_t>(2 + index)];
    EXPECT_EQ(one.to.data, static_cast<float*>(dtable.data) + 360 * index);
    EXPECT_EQ(std::vector({one.batch, one.tokens, one.heads, one.dim}), std::vector({3, 4, 5, 6}));
    EXPECT_EQ(std::vector({one.to.head, one.to.dim}), (std::vector<long long>{1, 5}));
    EXPECT_EQ(std::vector({one.from.head, one.from.dim}), (std::vector<long long>{6, 1}));
  }

  int stream = 0;
  void* const graph = mock::begin_capture();
  EXPECT_EQ(foveal_run(&attention, &call, nullptr, &stream), FOVEAL_UNSUPPORTED);
  EXPECT_NE(std::string(foveal_last_error()).find("accumulate: the stream is being captured"), std::string::npos) << foveal_last_error();
  mock::end_capture();
  mock::destroy_graph(graph);
  EXPECT_EQ(added.size(), 4u);
  mock::call_for_launches(nullptr);
}

TEST(Runs, CheckedOnesNameAPageOrALengthThatCannotBe) {
  test::MockPlan plan(problem::parse_line("forward bf16 b2 h2 q9:64 d64 pages=16:8 checked"), "sm_80");
  std::vector<std::int32_t> pages{0, 1, 2, 3, 4, 99, 5, 6}, lengths{64, 40};
  plan.buffers.block_table.data = pages.data(), plan.buffers.seqlens_kv.data = lengths.data();  // the mock device's memory is the host's
  const auto message = [&] {
    try {
      plan.run();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  EXPECT_EQ(plan.problem.pages(), 8);
  EXPECT_NE(message().find("block_table: page 99 at [1, 1]; expected 0 to 7"), std::string::npos) << message();
  pages[5] = 7, lengths[1] = 65;
  EXPECT_NE(message().find("seqlens_kv: 65 of sequence 1; expected 0 to 64"), std::string::npos) << message();
  lengths[1] = -1;
  EXPECT_NE(message().find("seqlens_kv: -1 of sequence 1"), std::string::npos) << message();
  lengths[1] = 40;
  EXPECT_EQ(message(), "nothing thrown");
}

}  // namespace
}  // namespace foveal
