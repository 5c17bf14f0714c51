#include "plan/choose.h"

#include <algorithm>
#include <atomic>
#include <sstream>

#include "base/check.h"
#include "base/parallel.h"

namespace foveal::planning {
namespace {

std::atomic<long> choices{0};

std::string names(const Backends& backends) {
  std::string text;
  for (const auto& backend : backends) text += (text.empty() ? "" : ", ") + backend->name();
  return text;
}

bool has_name(const Backends& backends, const std::string& name) {
  return std::ranges::any_of(backends, [&](const auto& backend) { return backend->name() == name; });
}

std::vector<std::string> excluded(const PlanOptions& options) {
  std::vector<std::string> names;
  if (options.exclude.empty()) return names;  // a stream costs more than what is planned around it
  std::istringstream text(options.exclude);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

/// Why this backend is not a candidate; empty if it is.
std::string not_a_candidate(const Backend& backend, const problem::Problem& problem, const PlanOptions& options) {
  if (!options.backend.empty() && options.backend != backend.name()) return "another backend was asked for by name";
  for (const std::string& name : excluded(options))
    if (name == backend.name()) return "it was excluded";
  if (backend.device_kind() != problem.device.kind)
    return problem.device.kind == DeviceKind::cpu ? "the tensors are on the CPU" : "the tensors are on a GPU";
  if (options.target.empty()) return {};
  const std::vector<TargetInfo> targets = backend.targets();
  const bool has = std::any_of(targets.begin(), targets.end(), [&](const TargetInfo& info) { return info.target == options.target; });
  return has ? std::string{} : "it has no target " + options.target;
}

std::string listed(const std::vector<Refusal>& refusals) {
  std::string text;
  for (const Refusal& refusal : refusals) text += "\n  " + refusal.candidate + ": " + refusal.reason;
  return text;
}

}  // namespace

void check_options(const PlanOptions& options, const Backends& backends) {
  FOVEAL_CHECK(options.threads >= 0 && options.threads <= base::max_threads, "options.threads: ", options.threads, "; expected 0 (all) to ",
               base::max_threads);
  if (const Executor* executor = options.executor.get()) {
    FOVEAL_CHECK(executor->concurrency >= 1 && executor->concurrency <= base::max_threads, "options.executor: concurrency ",
                 executor->concurrency, "; expected 1 to ", base::max_threads);
    FOVEAL_CHECK(executor->run, "options.executor: no function; expected one that runs tasks");
  }
  for (const std::string& name : excluded(options))
    FOVEAL_CHECK(has_name(backends, name), "options.exclude: there is no '", name, "'; expected some of ", names(backends),
                 " with commas between");
  FOVEAL_CHECK(options.backend.empty() || has_name(backends, options.backend), "options.backend: there is no '", options.backend,
               "'; expected one of ", names(backends));
  if (options.target.empty()) return;
  std::string targets;
  for (const auto& backend : backends)
    for (const TargetInfo& info : backend->targets()) {
      if (!options.backend.empty() && backend->name() != options.backend) continue;
      if (info.target == options.target) return;
      targets += (targets.empty() ? "" : ", ") + info.target;
    }
  base::fail(ErrorCode::invalid_argument, "options.target: there is no '", options.target, "'; expected one of ", targets);
}

std::shared_ptr<const PlanState> choose(problem::Problem problem, const PlanOptions& options, const Backends& backends) {
  choices.fetch_add(1, std::memory_order_relaxed);
  check_options(options, backends);
  auto state = std::make_shared<PlanState>();
  for (const auto& backend : backends) {
    Answer answer{.refusal = not_a_candidate(*backend, problem, options)};
    if (answer.refusal.empty()) answer = backend->prepare(problem, options);
    if (answer.refusal.empty()) {
      state->backend = backend.get();
      state->executable = std::move(answer.executable);
      break;
    }
    state->refusals.push_back({backend->name(), std::move(answer.refusal)});
  }
  if (state->backend == nullptr)
    base::fail(ErrorCode::unsupported, "no backend can run this problem [", problem.line(), "]:", listed(state->refusals));
  state->kernel = state->executable->kernel();
  state->workspace_bytes = state->executable->workspace_bytes();
  state->problem = std::move(problem);
  state->options = options;
  return state;
}

long choices_made() { return choices; }

}  // namespace foveal::planning
