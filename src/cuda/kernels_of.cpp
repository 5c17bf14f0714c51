#include "cuda/kernels_of.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/arch.h"
#include "cuda/launch/gather_pages.h"

namespace foveal::cuda {
namespace {

Choice choice_for(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  Choice choice = choose(problem, facts, target);
  if (!choice.candidate) base::fail(ErrorCode::unsupported, choice.design.refusal, " [", problem.line(), "]");
  return choice;
}

}  // namespace

std::unique_ptr<GpuExecutable> executable_of(const problem::Problem& problem, const std::string& arch, const std::string& target,
                                             int multiprocessors) {
  const driver::DeviceFacts facts = facts_of_arch(arch, multiprocessors);
  auto executable = choice_for(problem, facts, target).design.make();
  const int capability = capability_of(arch);
  const auto names = [&](const Target& target) { return target.capability == capability && arch == base::join("sm_", capability); };
  const auto found = std::find_if(targets().begin(), targets().end(), names);
  executable->set_arch(found == targets().end() ? arch : found->arch);
  return executable;
}

std::vector<jit::KernelSource> kernels_of(const problem::Problem& problem, const std::string& arch, const std::string& target) {
  return executable_of(problem, arch, target)->sources();
}

std::vector<jit::KernelSource> kernels_on(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  auto executable = choice_for(problem, facts, target).design.make();
  executable->set_arch(jit::arch_of(facts.major, facts.minor));
  return executable->sources();
}

std::vector<Family> families_on(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  const Candidate& candidate = *choice_for(problem, facts, target).candidate;
  return candidate.families(gathers(problem, candidate) ? gathered(problem) : problem, facts);
}

}  // namespace foveal::cuda
