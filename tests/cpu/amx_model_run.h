#pragma once
// Complete passes on the AMX table over the scalar model of its tiles.
#include <cstdlib>
#include <memory>
#include <string>

#include "amx_model.h"
#include "cpu/backward.h"
#include "cpu/forward.h"
#include "plan/gather_pages.h"
#include "problem/case_data.h"

namespace foveal::cpu {

inline const Target amx_model_target{.name = "amx", .available = true, .detail = "scalar tiles"};

/// Prepares a pass on the model's table and runs it; gives the kernel's name.
template <class Inputs, class Outputs, class Make>
std::string run_amx_model_pass(const Attention& attention, const Inputs& inputs, const Outputs& outputs, const Make& make,
                               int threads = 1) {
  const problem::Problem problem = problem::make_problem(attention, inputs, outputs);
  const PlanOptions options{.threads = threads};
  const bool gathers = problem.pass == Pass::backward && problem.paged;  // as cpu_backend.cpp does it
  std::unique_ptr<planning::Executable> executable =
      make(gathers ? planning::gathered(problem, DType::f32) : problem, amx_model_target, amx_model, options);
  if (gathers) executable = planning::with_gathered_pages(problem, DType::f32, options, std::move(executable));
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(256, (executable->workspace_bytes() + 255) / 256 * 256),
                                                         std::free);
  problem::Buffers buffers;
  problem::fill_buffers(problem, inputs, outputs, buffers);
  executable->run(buffers, workspace.get(), {});
  return executable->kernel();
}

inline std::string run_amx_model(problem::CaseData& data) {
  const Attention& attention = data.line().attention;
  std::string kernel = run_amx_model_pass(attention, data.forward_inputs(), data.forward_outputs(), make_forward<float>);
  if (data.line().pass == Pass::backward)
    kernel = run_amx_model_pass(attention, data.backward_inputs(), data.backward_outputs(), make_backward<float>);
  return kernel;
}

}  // namespace foveal::cpu
