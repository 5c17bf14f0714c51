#pragma once
// A Call: one attention, planned for tensors of fixed shapes. Its tensors stand in a fixed order of slots, absent ones too.
#include <array>
#include <cstdint>
#include <vector>

#include "foveal/attention.h"

namespace foveal::python {

/// After the slots of a pass come cu_seqlens of q and of kv, then the parameters, then, in a backward pass, their gradients.
namespace slots {
enum Slot : std::size_t { q, k, v, out, lse, forward_count, dout = forward_count, dlse, dq, dk, dv, backward_count };
}
constexpr std::array<const char*, slots::backward_count> slot_names{"q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv"};

constexpr std::size_t slot_count(Pass pass) { return pass == Pass::forward ? slots::forward_count : slots::backward_count; }

/// Bytes; a plan for GPU tensors at multiples of it may use kernels that others cannot.
constexpr std::uintptr_t alignment = 16;

class Call {
 public:
  /// tensors: one view for each slot; their data may be null. trained: which parameters' gradients a backward pass wants.
  Call(const Attention& attention, Pass pass, std::vector<Param> params, std::vector<TensorView> tensors, std::vector<bool> trained,
       std::int64_t max_seqlen_q, std::int64_t max_seqlen_kv, const PlanOptions& options);

  /// Throws when the tensors are not what was planned. workspace null: the calling thread's own (CPU).
  void run(const std::vector<TensorView>& tensors, const DropoutRng& rng, void* workspace, Stream stream) const;

  const Plan& plan() const { return plan_; }
  Pass pass() const { return pass_; }
  const std::vector<Param>& params() const { return params_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }  ///< as planned, without data
  bool trained(std::size_t param) const { return pass_ == Pass::backward && trained_[param]; }

 private:
  template <class Do>
  void with_arguments(const std::vector<TensorView>& tensors, const DropoutRng& rng, Do&& use) const;

  Pass pass_;
  std::vector<Param> params_;
  std::vector<TensorView> tensors_;
  std::vector<bool> trained_;
  std::int64_t max_seqlen_q_, max_seqlen_kv_;
  Plan plan_;
};

}  // namespace foveal::python
