#pragma once
// A Call: one attention, planned for fixed shapes. Running it needs only pointers, in a fixed order of roles.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "foveal/attention.h"

namespace foveal::python {

/// What Python knows of a tensor without its data: dtype, device, sizes, strides in elements.
struct Spec {
  DType dtype;
  Device device;
  std::vector<std::int64_t> sizes, strides;

  TensorView view() const;
};

class Call {
 public:
  using Specs = std::map<std::string, Spec>;  ///< by role: q, k, v, out, lse, dout, dlse, dq, dk, dv, cu_seqlens_q, cu_seqlens_kv
  using Params = std::vector<std::pair<Param, Spec>>;

  Call(const Attention& attention, Pass pass, const Specs& specs, const Params& params, const Params& dparams, std::int64_t max_seqlen_q,
       std::int64_t max_seqlen_kv, const PlanOptions& options);

  /// Addresses: forward q k v out lse, backward q k v out lse dout dlse dq dk dv; then the two cu_seqlens of a packed batch; then params;
  /// then dparams. 0 for absent tensors. workspace null: the calling thread's own (CPU).
  void run(const std::vector<std::uintptr_t>& pointers, void* workspace, Stream stream) const;

  const Plan& plan() const { return plan_; }

 private:
  Pass pass_;
  Plan plan_;
  ForwardInputs forward_in_;
  ForwardOutputs forward_out_;
  BackwardInputs backward_in_;
  BackwardOutputs backward_out_;
};

}  // namespace foveal::python
