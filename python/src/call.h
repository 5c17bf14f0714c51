#pragma once
// A Call: one attention, planned for tensors of fixed shapes. Every tensor, present or absent, has a fixed slot.
#include <array>
#include <cstdint>
#include <vector>

#include "foveal/attention.h"
#include "problem/roles.h"

namespace foveal::python {

/// Slots: the tensors of a pass in the order of the table of roles, the lengths, the parameters, and in a backward pass their gradients.
namespace slots {
enum Slot : std::size_t {
#define FOVEAL_SLOT(name, ...) name,
  FOVEAL_TENSOR_ROLES(FOVEAL_SLOT)
#undef FOVEAL_SLOT
      backward_count,
  forward_count = dout,
};
/// After the tensors of a pass.
namespace lengths {
enum Length : std::size_t {
#define FOVEAL_SLOT(name, ...) name,
  FOVEAL_LENGTH_ROLES(FOVEAL_SLOT)
#undef FOVEAL_SLOT
      count,
};
}  // namespace lengths
}  // namespace slots

constexpr std::size_t slot_count(Pass pass) { return pass == Pass::forward ? slots::forward_count : slots::backward_count; }
/// Slot of the first parameter.
constexpr std::size_t params_slot(Pass pass) { return slot_count(pass) + slots::lengths::count; }
constexpr const char* slot_name(Pass pass, std::size_t slot) {
  const std::size_t tensors = slot_count(pass);
  return slot < tensors ? problem::role_table::tensors[slot].name : problem::role_table::lengths[slot - tensors].name;
}

/// Bytes to which some GPU kernels require tensors to be aligned.
constexpr std::uintptr_t alignment = 16;

class Call {
 public:
  /// tensors: one view per slot; their data may be null. trained: the parameters whose gradient a backward pass computes.
  Call(const Attention& attention, Pass pass, std::vector<Param> params, std::vector<TensorView> tensors, std::vector<bool> trained,
       std::int64_t max_seqlen_q, std::int64_t max_seqlen_kv, const PlanOptions& options);

  /// Throws if the tensors differ from the plan. workspace null (CPU only): from the thread's pool.
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
