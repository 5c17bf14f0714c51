// What a plan on a GPU promises: the caller's stream, capture into a graph, many threads and streams, the same bits every time. Skipped
// where there is no device.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <thread>

#include "api/gradient_sum.h"
#include "check/check.h"
#include "cuda/jit/driver.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/record/recording.h"
#include "emitted_program.h"
#include "nvrtc_here.h"
#include "on_gpu.h"
#include "problem/case_data.h"
#include "problem/line_problem.h"

namespace foveal::cuda {
namespace {

class Gpu : public test::NeedsNvrtc {
 protected:
  void SetUp() override {
    NeedsNvrtc::SetUp();
    if (IsSkipped()) return;
    if (driver::device_count() == 0) GTEST_SKIP() << "no device: " << driver::unavailable();
  }
};

using test::OnGpu;

/// Only Hopper has kernels of its own.
void expect_kernel(const OnGpu& gpu, const std::string& kernel) {
  if (driver::device_facts(0).capability() == 90) {
    EXPECT_EQ(gpu.plan.kernel(), kernel) << problem::to_string(gpu.data.line());
  }
}

Stream new_stream(int ordinal = 0) {
  const driver::Current current(ordinal);
  driver::StreamHandle stream = nullptr;
  driver::call.stream_create(&stream, 1);
  return {stream};
}

constexpr const char* forward_line = "forward bf16 b2 h4:2 q300 d64 mask=\"causal()\"";
constexpr const char* backward_line =
    "backward bf16 b2 h4:2 q300 d64 mask=\"doc[q_idx] == doc[kv_idx]\" score=\"score + rel[head, clamp(q_idx - kv_idx, -8, 8) + 8] + "
    "t[dist[q_idx, kv_idx]]\" param=\"doc: integer[300] segments(4)\" param=\"rel: real[4, 17] grad\" param=\"t: real[9] grad\" "
    "param=\"dist: integer[300, 300] integers(0, 8)\"";

// What a run launches differs most between these: one kernel; clusters of CTAs; heads of a group in one tile and parts of the keys, merged;
// gradients of parameters beside the others and by kernels of their own; the portable kernels. At most two CTAs add to an element of dq, so
// that its bits are the same in whatever order they come.
constexpr std::pair<const char*, const char*> kinds_of_runs[] = {
    {"cuda.sm90.bf16.forward", forward_line},
    {"cuda.sm90.bf16.decode.packed.split", "forward bf16 b1 h8:2 q2:3000 d128 mask=\"kv_idx - 2998 <= q_idx\""},
    {"cuda.sm90.bf16.decode.packed.split",
     "forward bf16 b2 h8:2 q2:3000 d64 mask=\"kv_idx < n[batch]\" score=\"tanh(score / (20 + t[head])) * 20\" "
     "param=\"n: integer[2] integers(1, 3000)\" param=\"t: real[8]\""},
    {"cuda.sm90.bf16.backward.fused", backward_line},
    {"cuda.sm90.bf16.backward.fused", "backward bf16 b2 h4:2 q250 d256 mask=\"causal()\""},
    {"cuda.sm90.bf16.backward.fused",
     "backward bf16 b2 h4 q256 d64 mask=\"causal()\" score=\"score + bias[head, q_idx, kv_idx]\" param=\"bias: real[4, 256, 256] grad\" "
     "sink=s param=\"s: real[4] grad\""},
    {"cuda.sm90.bf16.backward.fused",
     "backward bf16 b2 h4 q250 d256 mask=\"causal()\" score=\"score * g[head] + t[head, clamp(q_idx - kv_idx, -8, 8) + 8]\" "
     "param=\"g: real[4] grad\" param=\"t: real[4, 17] grad\""},
    {"cuda.sm80.f32.backward.split", "backward f32 b2 h4:2 q200 d40 mask=\"causal()\" score=\"score * t[head]\" param=\"t: real[4] grad\""},
};

// The same bits in every run, by the kernels that are meant to give them.
constexpr std::pair<const char*, const char*> reproducible_lines[] = {
    {"cuda.sm90.bf16.backward.fused.reproducible", "backward bf16 b2 h4:2 q1500 d64 determinism=reproducible"},
    {"cuda.sm90.bf16.backward.fused.reproducible", "backward bf16 b2 h4:2 q1500 d128 mask=\"kv_idx <= q_idx\" determinism=reproducible"},
    {"cuda.sm90.f16.backward.fused.reproducible",
     "backward f16 b1 h9 q2100 d80 mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < 300)\" determinism=reproducible"},
    {"cuda.sm90.bf16.backward.fused.reproducible", "backward bf16 b1 h3 q900:1700 d256 mask=\"kv_idx <= q_idx\" determinism=reproducible"},
    {"cuda.sm90.bf16.backward.fused.reproducible",
     "backward bf16 b3 h4 q900 lengths=900,1,333 d64 mask=\"kv_idx <= q_idx\" score=\"score * t[head]\" param=\"t: real[4] grad\" "
     "determinism=reproducible"},
    {"cuda.sm80.bf16.backward.split", "backward bf16 b1 h4 q700 d64 mask=\"(kv_idx <= q_idx) | (kv_idx < 9)\" determinism=reproducible"},
};

TEST_F(Gpu, RunsAreBitwiseEqual) {
  std::vector<std::pair<const char*, const char*>> lines(std::begin(reproducible_lines), std::end(reproducible_lines));
  lines.insert(lines.end(), std::begin(kinds_of_runs), std::end(kinds_of_runs));
  for (const auto& [kernel, line] : lines) {
    OnGpu gpu(line);
    expect_kernel(gpu, kernel);
    gpu.run();
    const std::string first = gpu.bytes();
    for (int i = 0; i < 100; ++i) {
      gpu.data.clear_outputs(gpu.data.line().pass);
      gpu.device.upload();
      gpu.run();
      ASSERT_TRUE(gpu.bytes() == first) << line << " run " << i;
    }
  }
}

TEST_F(Gpu, ReproducibleResultsAreRight) {
  for (const auto& [kernel, text] : reproducible_lines) {
    const check::Report report = check::check_line(test::on_gpu(problem::parse_line(text)));
    EXPECT_TRUE(report.pass) << text << "\n" << report.failure;
  }
}

TEST_F(Gpu, EmittedProgramsGiveTheSameBits) {
  const driver::DeviceFacts& facts = driver::device_facts(0);
  const std::string arch = jit::arch_of(facts.major, facts.minor);
  ASSERT_NE(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), nullptr);  // what a program links
  for (const char* line :
       {forward_line, "forward f32 b2 h4 q100 d40 mask=\"doc[q_idx] == doc[kv_idx]\" param=\"doc: integer[100] segments(4)\"",
        "forward bf16 b1 h2 q300:500 d192:128 mask=\"(kv_idx <= q_idx) | (kv_idx < 40)\"", reproducible_lines[1].second,
        reproducible_lines[4].second, reproducible_lines[5].second, kinds_of_runs[1].second, kinds_of_runs[3].second,
        kinds_of_runs[4].second, kinds_of_runs[5].second, backward_line}) {
    OnGpu planned(line), emitted(line);
    planned.run();

    const problem::Problem problem = problem::problem_of(emitted.data.line(), {DeviceKind::cuda, 0});
    test::EmittedProgram program(record(problem, arch, ""));
    problem::Buffers buffers;
    if (problem.pass == Pass::forward) {
      problem::fill_buffers(problem, emitted.device.forward_inputs(), emitted.device.forward_outputs(), buffers);
    } else {
      problem::fill_buffers(problem, emitted.device.backward_inputs(), emitted.device.backward_outputs(), buffers);
    }
    std::map<std::string, void*> addresses{{"q", buffers.q.data},
                                           {"k", buffers.k.data},
                                           {"v", buffers.v.data},
                                           {"out", buffers.out.data},
                                           {"lse", buffers.lse.data},
                                           {"dout", buffers.dout.data},
                                           {"dlse", buffers.dlse.data},
                                           {"dq", buffers.dq.data},
                                           {"dk", buffers.dk.data},
                                           {"dv", buffers.dv.data},
                                           {"cu_seqlens_q", buffers.cu_seqlens_q.data},
                                           {"cu_seqlens_kv", buffers.cu_seqlens_kv.data},
                                           {"rng_state", buffers.rng.state.data}};
    for (std::size_t i = 0; i < problem.params.size(); ++i) {
      addresses["param_" + problem.params[i].param.name()] = buffers.params[i].data;
      addresses["dparam_" + problem.params[i].param.name()] = buffers.dparams[i].data;
    }
    const driver::Current current(0);
    const Stream stream = new_stream();
    ASSERT_EQ(program.load(), 0) << line;
    ASSERT_EQ(program.run(addresses, emitted.workspace.data(), stream.handle), 0) << line;
    cuda_memory(0).synchronize(stream);
    EXPECT_TRUE(emitted.bytes() == planned.bytes()) << line;
    EXPECT_EQ(program.unload(), 0);
  }
}

/// A run captured into a graph, and replayed.
class Graph {
 public:
  Graph(const OnGpu& call, Stream stream) : stream_(stream) {
    const auto begin = find<int (*)(void*, int)>("cuStreamBeginCapture_v2");
    const auto end = find<int (*)(void*, void**)>("cuStreamEndCapture");
    const auto instantiate = find<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags");
    void* graph = nullptr;
    EXPECT_EQ(begin(stream.handle, 0), 0);  // global mode: a forbidden call anywhere fails the capture
    call.run(stream);
    EXPECT_EQ(end(stream.handle, &graph), 0);
    EXPECT_EQ(instantiate(&executable_, graph, 0), 0);
  }
  void replay() const {
    EXPECT_EQ(find<int (*)(void*, void*)>("cuGraphLaunch")(executable_, stream_.handle), 0);
    cuda_memory(0).synchronize(stream_);
  }

 private:
  template <class Function>
  static Function find(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Function>(dlsym(library, name));
  }
  Stream stream_;
  void* executable_ = nullptr;
};

TEST_F(Gpu, CapturedIntoAGraph) {
  for (const auto& [kernel, line] : kinds_of_runs) {
    OnGpu eager(line), captured(line);
    expect_kernel(eager, kernel);
    eager.run();
    const driver::Current current(0);
    const Graph graph(captured, new_stream());
    graph.replay();
    graph.replay();
    EXPECT_TRUE(captured.bytes() == eager.bytes()) << line;
  }
}

TEST_F(Gpu, AReplayedGraphDropsByTheNumbersOnTheDevice) {
  for (const char* text : {"forward bf16 b2 h4 q300 d64 mask=\"causal()\"", "backward bf16 b1 h4 q300 d64", "backward f32 b1 h2 q100 d40",
                           "backward bf16 b1 h2 q200 d192 strategy=split"}) {
    const std::string line = text;
    OnGpu captured(line + " dropout=0.3:1:2:memory");
    const driver::Current current(0);
    const Graph graph(captured, new_stream());
    for (const std::uint64_t number : {1, 7, 9}) {
      const std::array<std::uint64_t, 2> words{number, number + 1};
      captured.memory.to_device(captured.device.forward_inputs().rng.state.data, words.data(), sizeof words);
      graph.replay();
      OnGpu eager(line + " dropout=0.3:" + std::to_string(number) + ":" + std::to_string(number + 1) + ":memory");
      eager.run();
      EXPECT_TRUE(captured.bytes() == eager.bytes()) << line << " " << number;
    }
  }
}

TEST_F(Gpu, ManyThreadsAndStreams) {
  for (const auto& [kernel, line] : kinds_of_runs) {
    OnGpu single(line);
    single.run();
    const std::string expected = single.bytes();
    std::vector<std::thread> threads;
    std::vector<int> wrong(8, 0);
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t, text = line] {
        OnGpu own(text);
        const Stream stream = new_stream();
        for (int i = 0; i < 10; ++i) own.run(stream);
        own.memory.synchronize(stream);
        wrong[t] = own.bytes() != expected;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(8, 0)) << kernel << ": " << line;
  }
}

TEST_F(Gpu, EveryDeviceGivesTheSameBits) {
  const int devices = driver::device_count();
  if (devices < 2) GTEST_SKIP() << "one device";
  for (const auto& [kernel, line] : kinds_of_runs) {
    OnGpu first(line, 0);
    first.run();
    const std::string expected = first.bytes();
    std::vector<std::thread> threads;
    std::vector<int> wrong(static_cast<std::size_t>(devices), 0);
    for (std::size_t d = 0; d < wrong.size(); ++d) {
      threads.emplace_back([&, d, text = line] {
        const int ordinal = static_cast<int>(d);
        OnGpu own(text, ordinal);
        const Stream stream = new_stream(ordinal);
        for (int i = 0; i < 10; ++i) own.run(stream);
        own.memory.synchronize(stream);
        wrong[d] = own.bytes() != expected;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(wrong.size(), 0)) << kernel << ": " << line;

    // Plans of two devices used in turns by one thread, whichever device is current.
    OnGpu last(line, devices - 1);
    for (const int current : {0, devices - 1}) {
      const driver::Current here(current);
      last.data.clear_outputs(last.data.line().pass);
      last.device.upload();
      first.run();
      last.run();
      EXPECT_TRUE(last.bytes() == expected) << line;
    }
  }
}

TEST_F(Gpu, OneCallWithoutAPlan) {
  OnGpu planned(forward_line), direct(forward_line);
  planned.run();
  foveal::forward(direct.data.line().attention, direct.device.forward_inputs(), direct.device.forward_outputs());
  EXPECT_TRUE(planned.bytes() == direct.bytes());
}

/// Rows [begin, end) of a tensor [batch, seqlen, heads, dim] become `value`, and every other element `other`.
void fill_rows(OnGpu& gpu, const char* role, std::int64_t begin, std::int64_t end, double value, double other) {
  const TensorView view = gpu.data.view(role);
  std::vector<double> values = problem::values_of(view);
  const std::int64_t row = view.sizes[2] * view.sizes[3];
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i), token = place / row % view.sizes[1];
    if (token >= begin && token < end) values[i] = place % 2 == 0 ? value : other;
  }
  problem::set_values(view, values);
}

/// A pass and the forward pass before it, on what the tensors hold now.
void run_all(OnGpu& gpu) {
  gpu.device.upload();
  if (!gpu.is_forward()) gpu.run_forward();
  gpu.run();
  gpu.device.download();
}

/// Tokens [begin, end) of an output differ from those of `clean` by more than rounding, or are no numbers.
std::size_t wrong_rows(const TensorView& view, const std::vector<double>& clean, std::int64_t begin, std::int64_t end) {
  const std::vector<double> values = problem::values_of(view);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t token = static_cast<std::int64_t>(i) / (view.sizes[2] * view.sizes[3]) % view.sizes[1];
    if (token >= begin && token < end) wrong += !(std::abs(values[i] - clean[i]) <= 0.02 * (1 + std::abs(clean[i])));
  }
  return wrong;
}

TEST_F(Gpu, GradientsAreAddedToWhatIsThere) {
  for (const char* text :
       {"backward f32 b2 h4:2 q200 d64 mask=\"causal()\" score=\"score + t[head, clamp(q_idx - kv_idx, 0, 9)]\" param=\"t: "
        "real[4, 10] grad\" determinism=reproducible",
        "backward bf16 b2 h4:2 q200 d64 layout=packed_qkv determinism=reproducible"}) {
    OnGpu gpu(text);
    run_all(gpu);
    const auto gradients = [&gpu] {
      std::vector<std::vector<double>> all;
      for (const char* role : {"dq", "dk", "dv"}) all.push_back(problem::values_of(gpu.data.view(role)));
      for (std::size_t i = 0; i < gpu.data.line().params.size(); ++i) all.push_back(problem::values_of(gpu.data.dparam(i)));
      return all;
    };
    const std::vector<std::vector<double>> once = gradients();
    const BackwardInputs inputs = gpu.device.backward_inputs();
    const problem::Line& line = gpu.data.line();
    api::GradientSum sum(gpu.device.backward_outputs());
    sum.allocate(inputs, {});
    foveal::backward(line.attention, inputs, sum.parts(), {}, line.options);
    sum.add(0, {});
    gpu.device.download();
    const std::vector<std::vector<double>> twice = gradients();
    for (std::size_t t = 0; t < once.size(); ++t)
      for (std::size_t i = 0; i < once[t].size(); ++i) ASSERT_DOUBLE_EQ(twice[t][i], 2 * once[t][i]) << text << " tensor " << t << " " << i;
  }
}

constexpr const char* strange_problems[] = {"f32 b2 h4:2 q300 d64 mask=\"causal()\"", "f64 b1 h2 q300 d32 mask=\"causal()\"",
                                            "bf16 b1 h2 q300 d64 mask=\"causal()\" target=sm80",
                                            "f16 b1 h2 q300 d128:64 mask=\"(kv_idx <= q_idx) & (kv_idx >= q_idx - 90)\" target=sm80",
                                            "f32 b1 h2 q300 d160 mask=\"causal()\" score=\"score + t[kv_idx]\" param=\"t: real[300]\""};

TEST_F(Gpu, PortableKernelsGiveStrangeValuesToRowsThatKeepThem) {
  for (const char* problem : strange_problems) {
    OnGpu gpu(std::string("forward ") + problem);
    const TensorView out = gpu.data.view("out");
    fill_rows(gpu, "v", 200, 300, 0.5, 0.5);
    run_all(gpu);
    const std::vector<double> clean = problem::values_of(out);
    fill_rows(gpu, "v", 200, 300, NAN, INFINITY);
    run_all(gpu);
    EXPECT_EQ(wrong_rows(out, clean, 0, 200), 0u) << problem << " " << gpu.plan.kernel();
    const std::vector<double> values = problem::values_of(out);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool keeps = static_cast<std::int64_t>(i) / (out.sizes[2] * out.sizes[3]) % out.sizes[1] >= 200;
      wrong += keeps && !(i % 2 == 0 ? std::isnan(values[i]) : std::isinf(values[i]));
    }
    EXPECT_EQ(wrong, 0u) << problem;
  }
}

TEST_F(Gpu, PortableKernelsGiveStrangeGradientsToPairsThatAreKept) {
  for (const char* problem : strange_problems) {
    OnGpu gpu(std::string("backward ") + problem);
    run_all(gpu);
    const TensorView dq = gpu.data.view("dq"), dk = gpu.data.view("dk"), dv = gpu.data.view("dv");
    const std::vector<double> clean_dq = problem::values_of(dq), clean_dk = problem::values_of(dk), clean_dv = problem::values_of(dv);
    const std::vector<double> k = problem::values_of(gpu.data.view("k")), v = problem::values_of(gpu.data.view("v"));
    fill_rows(gpu, "k", 200, 300, NAN, INFINITY);  // which queries from 200 on keep
    fill_rows(gpu, "v", 200, 300, NAN, NAN);
    run_all(gpu);
    EXPECT_EQ(wrong_rows(dq, clean_dq, 0, 200), 0u) << problem << " " << gpu.plan.kernel();
    EXPECT_GT(wrong_rows(dq, clean_dq, 200, 300), 0u) << problem;
    problem::set_values(gpu.data.view("k"), k);
    problem::set_values(gpu.data.view("v"), v);
    fill_rows(gpu, "q", 0, 100, NAN, INFINITY);  // which keep keys before 100
    fill_rows(gpu, "dout", 0, 100, NAN, INFINITY);
    run_all(gpu);
    EXPECT_EQ(wrong_rows(dk, clean_dk, 100, 300), 0u) << problem << " " << gpu.plan.kernel();
    EXPECT_EQ(wrong_rows(dv, clean_dv, 100, 300), 0u) << problem;
    EXPECT_EQ(wrong_rows(dq, clean_dq, 100, 300), 0u) << problem;
    EXPECT_GT(wrong_rows(dv, clean_dv, 0, 100), 0u) << problem;
  }
}

TEST_F(Gpu, CheckedRunsNameTheFirstIndexThatLeavesItsParameter) {
  struct Case {
    const char *line, *message;
  };
  for (const auto& [line, message] :
       {Case{"forward bf16 b1 h2 q40 d16 checked score=\"score + t[where(kv_idx == 33, n[0], 0)]\" param=\"t: real[5]\" param=\"n: "
             "integer[1] "
             "constant(7)\"",
             "parameter t: index 7 in dimension 0 at batch 0, head 0, q_idx 0, kv_idx 33; expected 0 to 4"},
        {"backward f32 b2 h2 q40 d16 checked mask=\"kv_idx <= q_idx & m[head + n[0] * batch, 0] >= 0\" param=\"m: integer[2, 1] "
         "constant(0)\" "
         "param=\"n: integer[1] constant(-3)\"",
         "parameter m: index -3 in dimension 0 at batch 1, head 0, q_idx 0, kv_idx 0; expected 0 to 1"},
        {"forward f16 h2 d32 lengths=5,30:40 q_offset=2 checked score=\"score + t[where(q_idx - 2 < n[0], 0, q_idx)]\" param=\"t: "
         "real[8]\" "
         "param=\"n: integer[1] constant(20)\"",
         "parameter t: index 22 in dimension 0 at batch 1, head 0, q_idx 22, kv_idx 0; expected 0 to 7"},
        {"forward f32 b1 h1 q8 d16 checked score=\"score + t[where(score > -1e30, n[0], 0)]\" param=\"t: real[5]\" param=\"n: integer[1] "
         "constant(9)\"",
         "parameter t: index 9 in dimension 0 at batch 0, head 0, q_idx 0, kv_idx 0; expected 0 to 4"}}) {
    const OnGpu gpu(line);
    try {
      gpu.run();
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << line;
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
  const OnGpu inside(
      "forward bf16 b1 h2 q40 d16 checked mask=\"kv_idx < 30\" score=\"score + t[where(kv_idx == 33, n[0], 0)]\" param=\"t: real[5]\" "
      "param=\"n: integer[1] constant(7)\"");
  EXPECT_NO_THROW(inside.run());  // the mask leaves no such pair
}

}  // namespace
}  // namespace foveal::cuda
