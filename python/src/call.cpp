#include "call.h"

#include <string>
#include <utility>

#include "plan/workspace_pool.h"
#include "problem/call.h"

namespace foveal::python {
/// use(inputs, outputs) with the arguments of the pass.
template <class Do>
void Call::with_arguments(const std::vector<TensorView>& t, const DropoutRng& rng, Do&& use) const {
  const std::size_t count = slot_count(pass_), params = params_slot(pass_), dparams = params + params_.size();
  if (t.size() != (pass_ == Pass::forward ? dparams : dparams + params_.size()))
    throw Error(ErrorCode::invalid_argument, "tensors: found " + std::to_string(t.size()) + " of them; expected one for each slot");
  problem::Call tensors{.pass = pass_};
  for (std::size_t slot = 0; slot < params; ++slot)
    tensors.*problem::roles[slot < count ? slot : slots::backward_count + slot - count].given = &t[slot];
  problem::CallRest rest{.max_seqlen_q = max_seqlen_q_, .max_seqlen_kv = max_seqlen_kv_, .rng = rng};
  rest.params.reserve(params_.size());
  for (std::size_t i = 0; i < params_.size(); ++i) {
    rest.params.push_back({params_[i], t[params + i]});
    if (trained(i)) rest.dparams.push_back({params_[i], t[dparams + i]});
  }
  problem::with_arguments(tensors, std::move(rest), std::forward<Do>(use));
}

Call::Call(const Attention& attention, Pass pass, std::vector<Param> params, std::vector<TensorView> tensors, std::vector<bool> trained,
           std::int64_t max_seqlen_q, std::int64_t max_seqlen_kv, const PlanOptions& options)
    : pass_(pass),
      params_(std::move(params)),
      tensors_(std::move(tensors)),
      trained_(std::move(trained)),
      max_seqlen_q_(max_seqlen_q),
      max_seqlen_kv_(max_seqlen_kv) {
  trained_.resize(params_.size());
  for (TensorView& tensor : tensors_)  // only its alignment matters
    tensor.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(tensor.data) % alignment);
  with_arguments(tensors_, {}, [&](const auto& inputs, const auto& outputs) { plan_ = foveal::plan(attention, inputs, outputs, options); });
}

void Call::run(const std::vector<TensorView>& tensors, const DropoutRng& rng, void* workspace, Stream stream) const {
  const Device device = tensors[slots::q].device;
  const bool pooled = workspace == nullptr && device.kind == DeviceKind::cpu;
  const planning::PooledWorkspace own(planning::host_memory(), device, stream, pooled ? plan_.workspace_bytes() : 0);
  if (pooled) workspace = own.data();
  with_arguments(tensors, rng, [&](const auto& inputs, const auto& outputs) { plan_.run(inputs, outputs, workspace, stream); });
}

}  // namespace foveal::python
