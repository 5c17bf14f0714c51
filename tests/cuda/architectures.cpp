// The portable kernels on every architecture from sm_80 on, compiled by NVRTC without a device: a table of registers and of the shared
// memory of a CTA beside what the architecture has. Fails where a kernel does not fit, or spills; says 77 where there is no NVRTC.
//
//   cuda_architectures > table && foveal-bench keep architectures table --output bench/results/architectures.jsonl
#include <cstdio>
#include <filesystem>
#include <string>

#include "cuda/jit/disk_cache.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/record/recording.h"
#include "problem/line_problem.h"

namespace {

using namespace foveal;

struct Arch {
  const char *name, *about;
  std::size_t shared_bytes;  ///< of a CTA, with opt-in: CUDA C++ Programming Guide, technical specifications
};
constexpr Arch archs[] = {{"sm_80", "A100", 166912},         {"sm_86", "A10, RTX 30", 101376},
                          {"sm_87", "Jetson Orin", 166912},  {"sm_89", "L4, L40, RTX 40", 101376},
                          {"sm_90", "H100, H200", 232448},   {"sm_100", "B200, GB200", 232448},
                          {"sm_103", "B300, GB300", 232448}, {"sm_110", "Jetson Thor", 232448},
                          {"sm_120", "RTX 50", 101376},      {"sm_121", "GB10", 101376}};
constexpr const char* lines[] = {
    "forward bf16 b2 h8:2 q1024 d128 mask=\"causal()\" target=sm80",
    "backward bf16 b2 h8 q1024 d64 score=\"score + rel[head, clamp(kv_idx - q_idx, -64, 64) + 64]\" param=\"rel: real[8, 129] grad\" "
    "target=sm80",
};

}  // namespace

int main() {
  const auto venv = std::filesystem::path(FOVEAL_SOURCE_DIR) / ".venv";
  if (std::filesystem::is_directory(venv)) cuda::jit::set_nvrtc_path(venv.string());
  if (!cuda::jit::nvrtc_unavailable().empty()) {
    std::fprintf(stderr, "%s\n", cuda::jit::nvrtc_unavailable().c_str());
    return 77;
  }
  bool right = true;
  std::printf("| architecture | pass | kernels | most registers | most shared memory of a CTA | of |\n|---|---|---|---|---|---|\n");
  for (const Arch& arch : archs) {
    for (const char* text : lines) {
      const problem::Line line = problem::parse_line(text);
      const cuda::Recording recording = cuda::record(problem::problem_of(line, {DeviceKind::cuda, 0}), arch.name, line.options.target);
      int registers = 0, spills = 0;
      std::size_t shared = 0;
      for (std::size_t i = 0; i < recording.kernels.size(); ++i) {
        const cuda::jit::Facts& facts = recording.kernels[i]->facts;
        registers = std::max(registers, facts.registers);
        spills += facts.spill_bytes;
        shared = std::max(shared, recording.shared_bytes[i] + static_cast<std::size_t>(facts.shared_bytes));
      }
      const bool fits = shared <= arch.shared_bytes && registers > 0 && spills == 0;
      if (!fits)
        std::fprintf(stderr, "%s, %s: %zu bytes of shared memory, %d of spills\n", arch.name, recording.kernel.c_str(), shared, spills);
      right = right && fits;
      std::printf("| %s (%s) | %s | %zu | %d | %zu KiB | %zu KiB |\n", arch.name, arch.about, text[0] == 'f' ? "forward" : "backward",
                  recording.kernels.size(), registers, (shared + 1023) / 1024, arch.shared_bytes / 1024);
    }
  }
  const std::string& compiler = cuda::jit::nvrtc_identity();
  std::printf("\nNVRTC %s\n", compiler.substr(0, compiler.find(' ')).c_str());
  return right ? 0 : 1;
}
