#include "cuda/candidate.h"

#include <utility>

#include "base/check.h"
#include "cuda/arch.h"
#include "cuda/launch/checked_pages.h"
#include "cuda/launch/checked_reads.h"
#include "cuda/launch/gather_pages.h"
#include "cuda/launch/narrow_indices.h"

namespace foveal::cuda {
namespace {

std::optional<std::string> refuses(const problem::Problem& problem, const Candidate& candidate, const driver::DeviceFacts& facts) {
  if (problem.paged && problem.batch > 1 && problem.seqlens_kv.strides[0] != 1)
    return base::join("seqlens_kv: stride ", problem.seqlens_kv.strides[0], "; expected 1");
  if (!gathers(problem, candidate)) return candidate.refuses(problem, facts);
  if (auto reason = refuses_gathering(problem)) return reason;
  return candidate.refuses(gathered(problem), facts);
}

}  // namespace

bool gathers(const problem::Problem& problem, const Candidate& candidate) {
  return problem.paged && (!candidate.reads_pages || problem.attention.checked);
}

Choice choose(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  Choice choice;
  for (const Target& each : targets()) {
    if (!target.empty() && target != each.name) continue;
    for (const Candidate* candidate : each.candidates) {
      if (candidate->pass != problem.pass) continue;
      auto reason = each.refuses(facts);
      if (!reason) reason = refuses(problem, *candidate, facts);
      if (!reason) {
        choice.candidate = candidate;
        return choice;
      }
      choice.refusals += base::join(choice.refusals.empty() ? "" : "; ", each.name, ": ", *reason);
    }
  }
  if (choice.refusals.empty()) choice.refusals = base::join("no target ", target, "; expected ", target_names(" or "));
  return choice;
}

std::unique_ptr<GpuExecutable> executable_of(const Candidate& candidate, problem::Problem problem, const driver::DeviceFacts& facts) {
  problem.numbers = std::make_shared<std::vector<float>>();  // of all its kernels
  const auto make_pass = [&](const problem::Problem& p) {
    const auto narrow = candidate.reads_bytes ? narrowed(p) : std::nullopt;
    return with_checked_reads(p, narrow ? with_narrow_indices(p, *narrow, candidate.make(*narrow, facts)) : candidate.make(p, facts));
  };
  if (!gathers(problem, candidate)) return make_pass(problem);
  return with_checked_pages(problem, with_gathered_pages(problem, make_pass(gathered(problem))));
}

}  // namespace foveal::cuda
