// The public calls: check -> plan (or find the plan) -> workspace -> run.
#include "foveal/attention.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "api/backends.h"
#include "base/check.h"
#include "base/float_mode.h"
#include "base/lru_cache.h"
#include "base/of_thread.h"
#include "plan/choose.h"
#include "plan/signature.h"
#include "plan/workspace_pool.h"

namespace foveal {
namespace {

using PlanCache = base::LruCache<planning::PlanState>;

/// Plans by problem and options, and by signature.
PlanCache& plan_cache() {
  static auto& cache = *new PlanCache(512);  // never destroyed: destructors of static objects may make calls
  return cache;
}

const planning::PlanState& state_of(const std::shared_ptr<const planning::PlanState>& state) {
  FOVEAL_CHECK(state != nullptr, "plan: empty; expected one made by foveal::plan()");
  return *state;
}

/// A thread's Buffers, borrowed for one run: reused, so that a run does not allocate. A nested run has its own. They stay in place, as even
/// a move costs as much as a small run's checks, and those of a part are apart: no other call then clears what only they use.
class BorrowedBuffers {
 public:
  explicit BorrowedBuffers(bool of_part) : home_(base::of_thread<Home>().of[of_part]) {
    if (home_.depth == home_.kept.size()) home_.kept.push_back(std::make_unique<problem::Buffers>());
    buffers_ = home_.kept[home_.depth++].get();
  }
  ~BorrowedBuffers() { --home_.depth; }
  BorrowedBuffers(const BorrowedBuffers&) = delete;
  BorrowedBuffers& operator=(const BorrowedBuffers&) = delete;
  problem::Buffers& operator*() { return *buffers_; }

 private:
  struct Nested {
    std::vector<std::unique_ptr<problem::Buffers>> kept;
    std::size_t depth = 0;
  };
  struct Home {
    std::array<Nested, 2> of;
  };
  Nested& home_;
  problem::Buffers* buffers_;
};

enum class Workspace { callers, pooled };

template <class Inputs, class Outputs>
void run(const std::shared_ptr<const planning::PlanState>& shared, const Inputs& inputs, const Outputs& outputs, void* workspace,
         Workspace whose, Stream stream) {
  const base::FloatScope floats(base::plain_floats);
  const planning::PlanState& state = state_of(shared);
  BorrowedBuffers buffers(state.problem.part);
  problem::fill_buffers(state.problem, inputs, outputs, *buffers);
  if (whose == Workspace::callers) problem::check_workspace(state.problem, *buffers, workspace, state.workspace_bytes);
  state.backend->keep_while_captured(stream, shared);
  state.executable->run(*buffers, workspace, stream);
}

template <class Inputs, class Outputs>
Plan new_plan(const Attention& attention, const Inputs& inputs, const Outputs& outputs, const PlanOptions& options) {
  const base::FloatScope floats(base::plain_floats);
  return Plan(planning::choose(problem::make_problem(attention, inputs, outputs), options, api::backends()));
}

/// The plan cached for the signature of the call, else for its problem, else a new one.
template <class Inputs, class Outputs>
std::shared_ptr<const planning::PlanState> cached_plan(const Attention& attention, const Inputs& inputs, const Outputs& outputs,
                                                       const PlanOptions& options) {
  const base::FloatScope floats(base::plain_floats);
  struct Key {
    std::string text;
  };
  std::string& signature = base::of_thread<Key>().text;
  planning::write_signature(attention, problem::call_of(inputs, outputs), options, signature);
  if (auto state = plan_cache().find(signature)) return state;
  problem::Problem problem = problem::make_problem(attention, inputs, outputs);
  std::string key;
  planning::Signature by_problem(key);
  by_problem.add(options), by_problem.add(problem::key_of(problem));
  if (auto state = plan_cache().find(key)) return state;
  auto state = planning::choose(std::move(problem), options, api::backends());
  plan_cache().insert(std::move(key), state);
  plan_cache().insert(signature, state);
  return state;
}

template <class Inputs, class Outputs>
void plan_and_run(const Attention& attention, const Inputs& inputs, const Outputs& outputs, Stream stream, const PlanOptions& options) {
  const auto state = cached_plan(attention, inputs, outputs, options);
  const planning::PooledWorkspace workspace(state->backend->memory(state->problem.device), state->problem.device, stream,
                                            state->workspace_bytes);
  run(state, inputs, outputs, workspace.data(), Workspace::pooled, stream);
}

}  // namespace

std::size_t Plan::workspace_bytes() const { return state_of(state_).workspace_bytes; }

const std::string& Plan::kernel() const { return state_of(state_).kernel; }

KeptRows Plan::kept_rows(std::int64_t rows) const { return state_of(state_).executable->kept_rows(rows); }

Explanation Plan::explain() const {
  const planning::PlanState& state = state_of(state_);
  Explanation explanation;
  explanation.problem = state.problem.line();
  explanation.backend = state.backend->name();
  explanation.workspace_bytes = state.workspace_bytes;
  explanation.refusals = state.refusals;
  state.executable->describe(explanation);
  explanation.kernel = state.kernel;
  return explanation;
}

void Plan::run(const ForwardInputs& inputs, const ForwardOutputs& outputs, void* workspace, Stream stream) const {
  foveal::run(state_, inputs, outputs, workspace, Workspace::callers, stream);
}

void Plan::run(const BackwardInputs& inputs, const BackwardOutputs& outputs, void* workspace, Stream stream) const {
  foveal::run(state_, inputs, outputs, workspace, Workspace::callers, stream);
}

Plan plan(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs, const PlanOptions& options) {
  return new_plan(attention, inputs, outputs, options);
}

Plan plan(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs, const PlanOptions& options) {
  return new_plan(attention, inputs, outputs, options);
}

void forward(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs, Stream stream,
             const PlanOptions& options) {
  plan_and_run(attention, inputs, outputs, stream, options);
}

void backward(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs, Stream stream,
              const PlanOptions& options) {
  plan_and_run(attention, inputs, outputs, stream, options);
}

}  // namespace foveal
