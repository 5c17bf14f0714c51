#include "cpu/cpu_backend.h"

#include <algorithm>

#include "base/check.h"
#include "base/wide_type.h"
#include "cpu/backward.h"
#include "cpu/dispatch.h"
#include "cpu/forward.h"
#include "plan/gather_pages.h"

namespace foveal::cpu {
namespace {

using problem::Problem;

bool serves(const Target& target, DType dtype) { return dtype == DType::f64 ? target.f64 != nullptr : float_ops(target, dtype) != nullptr; }

/// The target that options name, or the best one available; null, and the reason, if none.
const Target* choose_target(const Problem& problem, const PlanOptions& options, std::string& reason) {
  for (const Target& target : all_targets()) {
    if (!options.target.empty() && options.target != target.name) continue;
    if (options.target.empty() && target.available && !worthwhile(target, problem.dtype)) continue;
    if (!target.available)
      reason = "target " + target.name + ": " + target.detail;
    else if (!serves(target, problem.dtype))
      reason = "target " + target.name + ": no kernels for " + to_string(problem.dtype);
    else
      return &target;
  }
  if (reason.empty()) reason = "no target " + options.target;
  return nullptr;
}

class CpuBackend final : public planning::Backend {
 public:
  std::string name() const override { return "cpu"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }

  std::vector<TargetInfo> targets() const override {
    std::vector<TargetInfo> list;
    for (const Target& target : all_targets()) list.push_back({"cpu", target.name, target.available, target.detail});
    return list;
  }

  planning::Answer prepare(const Problem& problem, const PlanOptions& options) const override {
    std::string reason;
    const Target* target = choose_target(problem, options, reason);
    if (target == nullptr) return {.refusal = std::move(reason)};
    if (auto refusal = refuses(problem)) return {.refusal = std::move(*refusal)};
    if (problem.pass == Pass::backward && problem.paged) {  // many products for each key: the cost of gathering is negligible
      const DType gradients = base::wide_type(problem.dtype);
      auto pass = prepare_on(*target, planning::gathered(problem, gradients), options);
      return {.executable = planning::with_gathered_pages(problem, gradients, options, std::move(pass))};
    }
    return {.executable = prepare_on(*target, problem, options)};
  }

 private:
  static std::optional<std::string> refuses(const Problem& problem) {
    constexpr std::int64_t max_position = std::int64_t{1} << 30;
    if (problem.head_dim > max_head_dim) return base::join("head_dim ", problem.head_dim, " exceeds ", max_head_dim);
    if (problem.head_dim_v > max_head_dim) return base::join("head_dim_v ", problem.head_dim_v, " exceeds ", max_head_dim);
    const std::int64_t last = std::max({problem.seqlen_q, problem.seqlen_kv, problem.total_q, problem.total_kv}) +
                              std::max(std::abs(problem.attention.q_offset), std::abs(problem.attention.kv_offset));
    if (auto no_tape = Tape::refuses(problem)) return no_tape;
    if (last > max_position) return base::join("position ", last, " exceeds ", max_position);
    return std::nullopt;
  }

  static std::unique_ptr<planning::Executable> prepare_on(const Target& target, const Problem& problem, const PlanOptions& options) {
    const bool forward = problem.pass == Pass::forward;
    if (problem.dtype == DType::f64)
      return forward ? make_forward(problem, target, *target.f64, options) : make_backward(problem, target, *target.f64, options);
    const BlockOps<float>& ops = *float_ops(target, problem.dtype);
    return forward ? make_forward(problem, target, ops, options) : make_backward(problem, target, ops, options);
  }
};

}  // namespace

std::unique_ptr<planning::Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace foveal::cpu
