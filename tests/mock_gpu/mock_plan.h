#pragma once
// A plan of the CUDA backend that runs on the mock driver: images without machine code, buffers at made-up addresses.
#include <memory>
#include <vector>

#include "cuda/jit/sha256.h"
#include "cuda/kernels_of.h"
#include "problem/call.h"
#include "problem/line_problem.h"

namespace foveal::test {

/// Addresses of a call for a problem, which nobody reads or writes.
inline problem::Buffers made_up_buffers(const problem::Problem& p) {
  std::uintptr_t next = std::uintptr_t{1} << 40;
  const auto view = [&](const problem::TensorSpec& spec) {
    TensorView made;
    if (!spec.present) return made;
    made.data = reinterpret_cast<void*>(next);
    next += std::uintptr_t{1} << 40;
    made.dtype = spec.dtype, made.rank = spec.rank;
    made.sizes = spec.sizes, made.strides = spec.strides;
    return made;
  };
  problem::Buffers b;
  for (const problem::Role& role : problem::roles) b.*role.view = view(p.*role.spec);
  for (const problem::ParamSpec& param : p.params) b.params.push_back(view(param.tensor)), b.dparams.push_back(view(param.gradient));
  return b;
}

/// What the compiler would give, but for the machine code; the key is that of the text.
inline std::vector<std::shared_ptr<const cuda::jit::Image>> made_up_images(const std::vector<cuda::jit::KernelSource>& sources) {
  std::vector<std::shared_ptr<const cuda::jit::Image>> images;
  for (const cuda::jit::KernelSource& source : sources) {
    auto image = std::make_shared<cuda::jit::Image>();
    image->key = cuda::jit::sha256(cuda::jit::assemble(source));
    image->stem = source.stem, image->arch = source.arch;
    image->bytes = "no machine code";
    images.push_back(std::move(image));
  }
  return images;
}

/// Ready to run; throws unsupported where no kernel of the architecture can.
struct MockPlan {
  MockPlan(const problem::Line& line, const std::string& arch, const std::string& target = "")
      : problem(problem::problem_of(line, {DeviceKind::cuda, 0})),
        executable(cuda::executable_of(problem, arch, target)),
        buffers(made_up_buffers(problem)) {
    executable->load(made_up_images(executable->sources()));
  }
  void run() const { executable->run(buffers, reinterpret_cast<void*>(std::uintptr_t{1} << 36), {}); }

  problem::Problem problem;
  std::unique_ptr<cuda::GpuExecutable> executable;
  problem::Buffers buffers;
};

}  // namespace foveal::test
