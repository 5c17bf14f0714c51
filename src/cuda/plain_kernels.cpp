#include "cuda/plain_kernels.h"

#include <set>

#include "base/check.h"
#include "cuda/kernels_of.h"
#include "problem/line_problem.h"

namespace foveal::cuda {

std::vector<std::string> plain_lines() {
  std::vector<std::string> lines;
  for (const char* dtype : {"bf16", "f16"})
    for (const int dim : {64, 128, 256}) {
      for (const char* mask : {"", " mask=\"causal()\""}) {
        for (const int length : {512, 4096, 16384}) lines.push_back(base::join("forward ", dtype, " b4 h16 q", length, " d", dim, mask));
        for (const char* heads : {"b4 h16", "b1 h8:1"}) lines.push_back(base::join("backward ", dtype, ' ', heads, " q4096 d", dim, mask));
      }
      for (const int heads : {8, 32, 64})
        for (const int batch : {1, 256}) lines.push_back(base::join("forward ", dtype, " b", batch, " h", heads, ":8 q1:8192 d", dim));
    }
  return lines;
}

std::vector<jit::KernelSource> plain_kernels() {
  std::vector<jit::KernelSource> kernels;
  std::set<std::string> known;
  for (const std::string& line : plain_lines())
    for (jit::KernelSource& source : kernels_of(problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0}), "sm_90a", ""))
      if (known.insert(base::join(source.stem, "\n", jit::assemble(source))).second) kernels.push_back(std::move(source));
  return kernels;
}

}  // namespace foveal::cuda
