#include "cuda/cuda_backend.h"

#include <charconv>
#include <map>
#include <string_view>

#include "base/check.h"
#include "cuda/candidate.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/shipped.h"
#include "cuda/kernels_of.h"
#include "cuda/launch/backward_sm80.h"
#include "cuda/launch/backward_sm90.h"
#include "cuda/launch/checked_pages.h"
#include "cuda/launch/checked_reads.h"
#include "cuda/launch/forward_sm80.h"
#include "cuda/launch/forward_sm90.h"
#include "cuda/launch/gather_pages.h"
#include "cuda/launch/narrow_indices.h"

namespace foveal::cuda {
namespace {

/// In order of preference.
const Candidate* const candidates[] = {&forward_sm90, &backward_sm90, &forward_sm80, &backward_sm80};

/// The candidate for a problem, or why none will do.
struct Choice {
  const Candidate* candidate = nullptr;
  std::string refusals;
};

/// Are the keys on pages gathered for this candidate? The kernel that checks reads follows no block table either.
bool gathers(const problem::Problem& problem, const Candidate& candidate) {
  return problem.paged && (!candidate.reads_pages || problem.attention.checked);
}

std::optional<std::string> refuses(const problem::Problem& problem, const Candidate& candidate, const driver::DeviceFacts& facts) {
  if (problem.paged && problem.batch > 1 && problem.seqlens_kv.strides[0] != 1)
    return base::join("seqlens_kv: stride ", problem.seqlens_kv.strides[0], "; expected 1");
  if (!gathers(problem, candidate)) return candidate.refuses(problem, facts);
  if (auto reason = refuses_gathering(problem)) return reason;
  return candidate.refuses(gathered(problem), facts);
}

Choice choose(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  Choice choice;
  for (const Candidate* candidate : candidates) {
    if (candidate->pass != problem.pass || (!target.empty() && target != candidate->target)) continue;
    const auto reason = refuses(problem, *candidate, facts);
    if (!reason) {
      choice.candidate = candidate;
      return choice;
    }
    choice.refusals += base::join(choice.refusals.empty() ? "" : "; ", candidate->target, ": ", *reason);
  }
  if (choice.refusals.empty()) choice.refusals = base::join("no target ", target, "; expected sm80 or sm90");
  return choice;
}

std::unique_ptr<GpuExecutable> make(const Candidate& candidate, problem::Problem problem, const driver::DeviceFacts& facts) {
  problem.numbers = std::make_shared<std::vector<float>>();  // of all its kernels
  const auto make_pass = [&](const problem::Problem& p) {
    const auto narrow = candidate.reads_bytes ? with_narrow_indices(p) : std::nullopt;
    return with_checked_reads(p, narrow ? narrowing(p, *narrow, candidate.make(*narrow, facts)) : candidate.make(p, facts));
  };
  if (!gathers(problem, candidate)) return make_pass(problem);
  return with_checked_pages(problem, with_gathered_pages(problem, make_pass(gathered(problem))));
}

/// Without a compiler: which kernel of the problem was not shipped with the library.
std::optional<std::string> not_shipped(const Candidate& candidate, const problem::Problem& problem, const driver::DeviceFacts& facts) {
  const auto executable = make(candidate, problem, facts);
  executable->set_arch(jit::arch_of(facts.major, facts.minor));
  for (const jit::KernelSource& source : executable->sources())
    if (!jit::is_shipped(source)) return base::join(source.stem, " did not come with the library, and ", jit::nvrtc_unavailable());
  return std::nullopt;
}

/// The multiprocessors of each architecture's cards, the most first.
const std::map<int, std::vector<int>>& cards() {
  static const std::map<int, std::vector<int>> all{
      {80, {108, 56}},            // A100, A30
      {86, {84, 72, 46, 28}},     // A40 and RTX A6000, A10, RTX 3070, RTX 3060
      {87, {16, 8}},              // AGX Orin, Orin NX
      {89, {142, 128, 76, 58}},   // L40, RTX 4090, RTX 4080, L4
      {90, {132, 114, 78}},       // H100 and H200 SXM, H100 PCIe, H20
      {100, {148}},               // B200
      {103, {148}},               // B300
      {110, {20}},                // Jetson Thor
      {120, {188, 170, 84, 48}},  // RTX PRO 6000, RTX 5090, RTX 5080, RTX 5070
      {121, {48}},                // GB10
  };
  return all;
}

int capability_of(const std::string& arch) {
  int capability = 0;
  const char *const end = arch.data() + arch.size(), *rest = end;
  if (arch.starts_with("sm_")) rest = std::from_chars(arch.data() + 3, end, capability).ptr;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));  // of code for one architecture, or for its family
  const bool suffix_exists = suffix.empty() || (suffix == "a" && capability >= 90) || (suffix == "f" && capability >= 100);
  if (suffix_exists && cards().contains(capability)) return capability;
  std::string known;
  for (const auto& [each, multiprocessors] : cards()) known += base::join(known.empty() ? "sm_" : ", sm_", each);
  base::fail(ErrorCode::invalid_argument, "arch: ", arch, "; expected one of ", known,
             ", or with the suffix of one architecture or its family, such as sm_90a");
}

/// Typical facts of an architecture; multiprocessors: 0 for the usual number.
driver::DeviceFacts facts_of_arch(const std::string& arch, int multiprocessors) {
  driver::DeviceFacts facts{
      .name = arch, .major = 0, .minor = 0, .multiprocessors = 0, .shared_bytes_per_block = 0, .l2_bytes = 0, .context = nullptr};
  const int capability = capability_of(arch);
  facts.major = capability / 10, facts.minor = capability % 10;
  const bool large = facts.minor == 0 || capability == 87 || capability == 103;
  facts.shared_bytes_per_block = !large || facts.major >= 12 ? 101376 : facts.major == 8 ? 166912 : 232448;
  facts.multiprocessors = multiprocessors > 0 ? multiprocessors : multiprocessors_of(arch)[0];
  facts.l2_bytes = std::size_t{40} << 20;
  return facts;
}

class CudaBackend : public planning::Backend {
 public:
  std::string name() const override { return "cuda"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  std::vector<TargetInfo> targets() const override {
    std::vector<TargetInfo> all;
    for (const auto& [target, capability] : {std::pair{"sm90", 90}, std::pair{"sm80", 80}}) {
      TargetInfo info{.backend = "cuda", .target = target, .available = false, .detail = {}};
      if (!driver::unavailable().empty()) {
        info.detail = driver::unavailable();
      } else if (!jit::nvrtc_unavailable().empty()) {
        info.detail = jit::nvrtc_unavailable();
        if (jit::shipped_kernels().usable()) info.detail += "; until then only kernels that came with the library run";
      } else {
        for (int device = 0; device < driver::device_count(); ++device) {
          const driver::DeviceFacts& facts = driver::device_facts(device);
          const bool can = capability == 90 ? facts.capability() == 90 : facts.capability() >= capability;
          info.available = info.available || can;
          info.detail += base::join(info.detail.empty() ? "" : ", ", facts.name, " (", facts.major, ".", facts.minor, ")");
        }
        if (info.detail.empty()) info.detail = "the driver sees no device";
      }
      all.push_back(std::move(info));
    }
    return all;
  }

  std::optional<std::string> refuses(const problem::Problem& problem, const PlanOptions& options) const override {
    for (const problem::TensorSpec* output : {&problem.out, &problem.dq, &problem.dk, &problem.dv})
      if (output->present && output->dtype != problem.dtype && !problem.merges()) return "out, dq, dk, dv: of another dtype than q";
    if (!driver::unavailable().empty()) return driver::unavailable();
    const bool compiles = jit::nvrtc_unavailable().empty();
    if (!compiles && !jit::shipped_kernels().usable()) return jit::nvrtc_unavailable();
    if (problem.device.index >= driver::device_count()) return base::join("no device cuda:", problem.device.index);
    const driver::DeviceFacts& facts = driver::device_facts(problem.device.index);
    Choice choice = choose(problem, facts, options.target);
    if (!choice.candidate) return std::move(choice.refusals);
    return compiles ? std::nullopt : not_shipped(*choice.candidate, problem, facts);
  }

  std::unique_ptr<planning::Executable> prepare(const problem::Problem& problem, const PlanOptions& options) const override {
    const driver::DeviceFacts& facts = driver::device_facts(problem.device.index);
    const driver::BesideCapture beside;
    auto executable = make(*choose(problem, facts, options.target).candidate, problem, facts);
    executable->set_arch(jit::arch_of(facts.major, facts.minor));
    executable->load(jit::compile(executable->sources()));
    return executable;
  }

  planning::DeviceMemory& memory(Device device) const override { return cuda_memory(device.index); }

  void keep_while_captured(Stream stream, const std::shared_ptr<const void>& plan) const override {
    driver::keep_while_captured(driver::handle_of(stream), plan);
  }
};

}  // namespace

namespace {

const Candidate& candidate_for(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  const Choice choice = choose(problem, facts, target);
  if (!choice.candidate) base::fail(ErrorCode::unsupported, choice.refusals, " [", problem.line(), "]");
  return *choice.candidate;
}

}  // namespace

std::vector<int> multiprocessors_of(const std::string& arch) { return cards().at(capability_of(arch)); }

std::unique_ptr<GpuExecutable> executable_of(const problem::Problem& problem, const std::string& arch, const std::string& target,
                                             int multiprocessors) {
  const driver::DeviceFacts facts = facts_of_arch(arch, multiprocessors);
  auto executable = make(candidate_for(problem, facts, target), problem, facts);
  executable->set_arch(arch == "sm_90" ? "sm_90a" : arch);  // WGMMA and TMA need sm_90a, which every device of capability 9.0 is
  return executable;
}

std::vector<jit::KernelSource> kernels_of(const problem::Problem& problem, const std::string& arch, const std::string& target) {
  return executable_of(problem, arch, target)->sources();
}

std::vector<jit::KernelSource> kernels_on(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  auto executable = make(candidate_for(problem, facts, target), problem, facts);
  executable->set_arch(jit::arch_of(facts.major, facts.minor));
  return executable->sources();
}

std::vector<Family> families_on(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  const Candidate& candidate = candidate_for(problem, facts, target);
  return candidate.families(gathers(problem, candidate) ? gathered(problem) : problem, facts);
}

std::unique_ptr<planning::Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

}  // namespace foveal::cuda
