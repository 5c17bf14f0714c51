// Every entry point of the driver and of the compiler failing in turn; many programs; graphs that outlive their plans.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <set>

#include "context.h"
#include "cuda/jit/driver.h"
#include "foveal/foveal_c.h"
#include "on_device.h"

namespace foveal {
namespace {

constexpr const char* lines[] = {
    "backward bf16 b1 h2 q96:160 d64 mask=\"ids[q_idx] == ids[kv_idx % 96]\" score=\"score + rel[kv_idx - q_idx + 96]\" "
    "param=\"rel: real[256] grad\" param=\"ids: integer[96]\"",
    "backward bf16 b2 h2 q9:64 d64 pages=16 mask=\"causal_bottom_right()\" checked"};
constexpr const char* line = lines[0];
constexpr int out_of_memory = 2, launch_failed = 719;
/// Codes of the driver after which it works on: invalid value, out of memory, (de)initialised, no device, invalid image, context, no binary for
/// this GPU, invalid PTX, invalid handle, not found, out of resources, failed launch, not supported, unknown.
constexpr int codes[] = {1, out_of_memory, 3, 4, 100, 200, 201, 209, 218, 400, 500, 701, launch_failed, 801, 999};
/// And after which every call fails: illegal address, time-out, assertion, hardware stack, illegal instruction, misaligned address, address space,
/// program counter, failed launch, system.
constexpr int lost_contexts[] = {700, 702, 710, 714, 715, 716, 717, 718, launch_failed, 802};

/// In a process of its own, as much of the driver is asked for only once.
void in_a_child(const std::string& what, const std::function<void()>& check) {
  const auto failures = [] { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); };
  const int failed_before = failures();
  std::fflush(stdout);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang
    try {
      check();
      std::fflush(stdout);  // what failed
      _exit(failures() > failed_before ? 1 : 0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", what.c_str(), error.what());
      _exit(2);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << what << ": status " << status;
}

void run_both() {
  for (const char* one : lines) {
    test::OnDevice problem(one);
    problem.forward();
    problem.backward();
  }
}

/// Context parallelism of one rank, whose keys are dealt to several launches.
void run_context() {
  const problem::CaseData data(problem::parse_line("backward bf16 h2 q300 d64 mask=\"causal()\""));
  test::Context(data, {DeviceKind::cuda, 0}).begin(dist::thread_ranks(1)[0]).run();
}

using Act = void (*)();

/// The error of act(), "" when there is none.
std::string error_of_running(Act act = run_both) {
  try {
    act();
    return {};
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
}

/// How often each entry point is called by act() in a new process.
std::map<std::string, long> calls_of(Act act) {
  std::map<std::string, long> calls;
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  in_a_child("counting", [&] {
    mock::count_calls();  // of tests before this one
    act();
    std::string text;
    for (const auto& [name, count] : mock::count_calls()) text += name + " " + std::to_string(count) + "\n";
    EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  });
  close(ends[1]);
  std::string text(1 << 14, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(read(ends[0], text.data(), text.size()), 0)));
  close(ends[0]);
  std::istringstream in(text);
  std::string name;
  for (long count = 0; in >> name >> count;) calls[name] = count;
  return calls;
}

/// Whose failure changes no result: what is called when something ends, which may not throw, and what another way is taken for: older launches
/// for a driver that does not say its version, another library for a compiler that does not.
bool may_fail_silently(const std::string& name, long nth, int code, Act act) {
  static const std::set<std::string> ends = {"cuCtxPopCurrent_v2",  "cuThreadExchangeStreamCaptureMode",
                                             "cuStreamDestroy_v2",  "cuEventDestroy_v2",
                                             "cuLibraryUnload",     "cuMemFree_v2",
                                             "cuMemHostUnregister", "cuUserObjectRelease",
                                             "nvrtcDestroyProgram"};
  static const std::set<std::string> questions = {"cuDriverGetVersion", "nvrtcVersion", "nvrtcGetNumSupportedArchs",
                                                  "nvrtcGetSupportedArchs"};
  if (name == "cuMemAlloc_v2" || name == "cuLibraryLoadData") return code == out_of_memory;  // tried again when memory was given back
  if (name == "cuStreamSynchronize") return act == run_context;                              // its end waits
  if (name == "cuCtxGetCurrent") return nth > 1;                                             // asked by what ends, too
  return ends.contains(name) || questions.contains(name);
}

/// The nth of so many calls fails: an error that names it, nothing is left behind, and the next call works.
void expect_error_of(const std::string& name, long nth, long count, int code, Act act = run_both) {
  const std::string what = name + ", call " + std::to_string(nth) + " of " + std::to_string(count) + ", code " + std::to_string(code);
  in_a_child(what, [&] {
    mock::fail(name.c_str(), nth, code);
    const std::string error = error_of_running(act);
    mock::work();
    if (!error.empty() || !may_fail_silently(name, nth, code, act)) {
      EXPECT_NE(error.find(name.substr(0, name.find('_'))), std::string::npos) << error;
    }
    if (name == "cuInit" || name == "nvrtcVersion" || name == "nvrtcGetNumSupportedArchs" || name == "nvrtcGetSupportedArchs") return;
    EXPECT_EQ(error_of_running(act), "") << "the next call works";
    const long kept = name == "nvrtcDestroyProgram" ? 1 : 0;
    EXPECT_LE(mock::compiler_programs(), kept) << "programs of the compiler are destroyed";
  });
}

TEST(Faults, EveryEntryPointThatFailsIsAnErrorThatNamesIt) {
  const std::map<std::string, long> calls = calls_of(run_both);
  ASSERT_GT(calls.size(), 20u);
  EXPECT_TRUE(calls.contains("cuLaunchKernelEx") && calls.contains("nvrtcCompileProgram") && calls.contains("cuMemAlloc_v2"));
  for (const auto& [name, count] : calls)
    for (const int code : {out_of_memory, launch_failed})
      for (const long nth : std::set<long>{1, (count + 1) / 2, count}) expect_error_of(name, nth, count, code);
}

TEST(Faults, EveryEntryPointMayFailWithEveryCode) {
  for (const auto& [name, count] : calls_of(run_both))
    for (const int code : codes) expect_error_of(name, 1, count, code);
}

TEST(Faults, EveryEntryPointOfAContextMayFail) {
  const std::map<std::string, long> calls = calls_of(run_context);
  EXPECT_TRUE(calls.contains("cuLaunchKernelEx") && calls.contains("cuMemAlloc_v2"));
  for (const auto& [name, count] : calls)
    for (const int code : {out_of_memory, launch_failed})
      for (const long nth : std::set<long>{1, (count + 1) / 2, count}) expect_error_of(name, nth, count, code, run_context);
}

TEST(Faults, MemoryOfTheDeviceThatIsFullIsAnErrorAndNothingIsLost) {
  const long count = calls_of(run_both)["cuMemAlloc_v2"];
  ASSERT_GT(count, 1);
  for (long nth = 1; nth <= count; ++nth)
    in_a_child("full from allocation " + std::to_string(nth), [&] {
      mock::fail("cuMemAlloc_v2", nth, out_of_memory, mock::Lasts::on);
      for (int i = 0; i < 3; ++i) {
        const std::string error = error_of_running();
        EXPECT_NE(error.find("cuMemAlloc"), std::string::npos) << error;
      }
      mock::work();
      EXPECT_EQ(error_of_running(), "");
      cuda::driver::give_back(true);
      const long failed = mock::device().allocations;
      EXPECT_EQ(error_of_running(), "");
      cuda::driver::give_back(true);
      EXPECT_EQ(mock::device().allocations, failed);
    });
}

TEST(Faults, ACompilerThatIsNotWhereTheUserSaysIsNotReplacedByAnother) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not looked for a compiler yet
  for (const std::string& path : {std::string("/no/such/folder"), "/" + std::string(5000, 'x')})
    EXPECT_EXIT(
        {
          setenv("FOVEAL_NVRTC_PATH", path.c_str(), 1);
          std::fputs(error_of_running().c_str(), stderr);
          _exit(0);
        },
        testing::ExitedWithCode(0), "FOVEAL_NVRTC_PATH names " + path);
}

TEST(Faults, ALostContextIsAnErrorOfEveryCallAndNoCrash) {
  for (const char* name : {"cuLaunchKernelEx", "cuMemAlloc_v2", "cuLibraryLoadData", "cuMemcpyHtoDAsync_v2", "cuCtxGetCurrent"})
    for (const int code : lost_contexts)
      in_a_child(name + (", code " + std::to_string(code)), [&] {
        run_both();
        test::OnDevice other(line);
        other.attention().score_mod = symbols::score * 0.5;
        mock::fail(name, 1, code, mock::Lasts::for_all);
        for (int i = 0; i < 3; ++i) {
          EXPECT_THROW(other.forward(), Error);
          EXPECT_THROW(other.backward(), Error);
          EXPECT_THROW(other.plan(), Error);
          EXPECT_THROW(run_both(), Error);
        }
      });
}

TEST(Faults, MemoryThatIsHeldByNobodyIsGivenBackBeforeACallFails) {
  in_a_child("out of memory", [] {
    { test::OnDevice(line).plan(); }
    EXPECT_GT(mock::device().allocations, 0);
    mock::fail("cuMemAlloc_v2", 1, out_of_memory);
    test::OnDevice other(line);
    other.attention().score_mod = symbols::score * 0.5;
    EXPECT_NO_THROW(other.plan()) << "the second attempt succeeds";
  });
}

TEST(Devices, MinusOneIsTheDeviceOfTheThreadsContext) {
  in_a_child("device_index -1", [] {
    static int launched_on;
    mock::call_for_launches(
        [](const cuda::driver::LaunchConfig&, const void*, std::size_t) { cuda::driver::call.context_device(&launched_on); });
    alignas(256) static char memory[4][64 * 64 * 2];
    foveal_tensor tensors[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t sizes[] = {1, 64, 1, 64};
      ASSERT_EQ(foveal_contiguous(&tensors[i], memory[i], FOVEAL_BF16, 4, sizes), FOVEAL_OK);
      tensors[i].device_kind = FOVEAL_CUDA;
      tensors[i].device_index = -1;
    }
    foveal_call call = FOVEAL_INIT(foveal_call);
    call.q = &tensors[0], call.k = &tensors[1], call.v = &tensors[2], call.out = &tensors[3];
    const foveal_attention attention = FOVEAL_INIT(foveal_attention);
    for (const int device : {1, 0}) {
      const cuda::driver::Current current(device);
      launched_on = -1;
      EXPECT_EQ(foveal_run(&attention, &call, nullptr, nullptr), FOVEAL_OK) << foveal_last_error();
      EXPECT_EQ(launched_on, device);
    }
  });
}

long resident() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  long pages = 0;
  statm >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(Faults, TenThousandProgramsLeaveMemoryOfHostAndDeviceFlat) {
  in_a_child("many programs", [] {
    alarm(800);
    test::OnDevice problem("forward bf16 b1 h1 q64:64 d64 mask=\"ids[q_idx] == ids[kv_idx]\" param=\"ids: integer[64]\"");
    const auto run = [&](int i) {
      problem.attention().score_mod = symbols::score + (i + 1) * 1e-5 * to_real(symbols::kv_idx);
      problem.forward();
    };
    constexpr int full = 1500, many = 10000;
    for (int i = 0; i < full; ++i) run(i);
    const mock::State before = mock::device();
    [[maybe_unused]] const long host = resident();
    for (int i = full; i < many; ++i) run(i);
    const mock::State after = mock::device();
    EXPECT_LE(after.libraries, before.libraries + 64);
    EXPECT_LT(after.libraries, 1500);
    EXPECT_LE(after.allocations, before.allocations + 192);
    EXPECT_LE(after.bytes, before.bytes + (std::size_t{1} << 20));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep what was freed
    EXPECT_LT(resident(), host + host / 50 + (1 << 20));
#endif
  });
}

TEST(Faults, AGraphKeepsThePlanThatItWasCapturedFrom) {
  in_a_child("graph", [] {
    const Stream stream{reinterpret_cast<void*>(std::uintptr_t{64})};
    test::OnDevice other("forward bf16 b1 h1 q64:64 d64");
    int programs = 0;
    const auto run_others = [&] {  // more than are kept
      for (int i = 0; i < 600; ++i) {
        other.attention().score_mod = symbols::score + ++programs * 1e-5;
        other.forward();
      }
    };
    run_others();
    test::OnDevice problem(line);
    problem.forward(stream);
    cuda::driver::give_back(true);  // what nobody holds any more, also from other tests
    const long launches = mock::device().launches;
    void* graph = mock::begin_capture();
    problem.forward(stream);
    mock::end_capture();
    EXPECT_GT(mock::device().launches, launches);
    const long held = mock::device().allocations;
    run_others();
    cuda::driver::give_back(true);
    EXPECT_EQ(mock::device().allocations, held);
    mock::destroy_graph(graph);
    cuda::driver::give_back(true);
    EXPECT_LT(mock::device().allocations, held) << "tables of the plan";
  });
}

}  // namespace
}  // namespace foveal
