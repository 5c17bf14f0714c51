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

/// keys: those of the problem, or gathered from its pages.
Design with_narrow_indices_and_checks(const Candidate& candidate, const problem::Problem& keys, const driver::DeviceFacts& facts) {
  const auto narrow = candidate.reads_bytes ? narrowed(keys) : std::nullopt;
  Design pass = candidate.design(narrow ? *narrow : keys, facts);
  if (!pass.refusal.empty()) return pass;
  return {.make = [keys, narrow, make = std::move(pass.make)] {
    return with_checked_reads(keys, narrow ? with_narrow_indices(keys, *narrow, make()) : make());
  }};
}

Design design_of(const Candidate& candidate, problem::Problem problem, const driver::DeviceFacts& facts) {
  if (problem.paged && problem.batch > 1 && problem.seqlens_kv.strides[0] != 1)
    return Design::refused(base::join("seqlens_kv: stride ", problem.seqlens_kv.strides[0], "; expected 1"));
  problem.numbers = std::make_shared<std::vector<float>>();  // of all its kernels
  if (!gathers(problem, candidate)) return with_narrow_indices_and_checks(candidate, problem, facts);
  if (auto reason = refuses_gathering(problem)) return Design::refused(*std::move(reason));
  Design pass = with_narrow_indices_and_checks(candidate, gathered(problem), facts);
  if (!pass.refusal.empty()) return pass;
  return {.make = [problem, make = std::move(pass.make)] { return with_checked_pages(problem, with_gathered_pages(problem, make())); }};
}

}  // namespace

bool gathers(const problem::Problem& problem, const Candidate& candidate) {
  return problem.paged && (!candidate.reads_pages || problem.attention.checked);
}

Choice choose(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target) {
  std::string refusals;
  for (const Target& each : targets()) {
    if (!target.empty() && target != each.name) continue;
    for (const Candidate* candidate : each.candidates) {
      if (candidate->pass != problem.pass) continue;
      const auto reason = each.refuses(facts);
      Design design = reason ? Design::refused(*reason) : design_of(*candidate, problem, facts);
      if (design.refusal.empty()) return {candidate, std::move(design)};
      refusals += base::join(refusals.empty() ? "" : "; ", each.name, ": ", design.refusal);
    }
  }
  if (refusals.empty()) refusals = base::join("no target ", target, "; expected ", target_names(" or "));
  return {nullptr, Design::refused(std::move(refusals))};
}

}  // namespace foveal::cuda
