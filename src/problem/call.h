#pragma once
// The tensors of one call by role, for either pass: checking, gathering and printing loop over `roles`.
#include <array>
#include <utility>

#include "problem/problem.h"
#include "problem/roles.h"

namespace foveal::problem {

/// Pointers into the arguments of forward() or backward(); null for arguments that the pass does not have.
struct Call {
  Pass pass;
#define FOVEAL_FIELD(name, ...) const TensorView* name = nullptr;
  FOVEAL_ROLES(FOVEAL_FIELD)
#undef FOVEAL_FIELD
  const std::vector<ParamBinding>* params = nullptr;
  const std::vector<ParamBinding>* dparams = nullptr;  ///< null in a forward pass
  const Varlen* varlen = nullptr;                      ///< null unless packed as whole sequences
  const Segments* segments = nullptr;
  const Part* part = nullptr;
  const Paged* paged = nullptr;
  const DropoutRng* rng = nullptr;

  bool packed() const { return varlen != nullptr || segments != nullptr; }
  Tokens tokens_of(const RoleRow& role) const {
    return paged != nullptr && role.of_keys() ? Tokens::paged : packed() ? Tokens::packed : Tokens::batched;
  }
};

Call call_of(const ForwardInputs& inputs, const ForwardOutputs& outputs);
Call call_of(const BackwardInputs& inputs, const BackwardOutputs& outputs);

/// The arguments of a call other than its tensors by role.
struct CallRest {
  std::vector<ParamBinding> params = {}, dparams = {};
  std::int64_t max_seqlen_q = 0, max_seqlen_kv = 0;
  DropoutRng rng = {};
};

/// The inverse of call_of(): arguments of a public call. Only the tensors by role are read from `tensors`; null means absent.
ForwardInputs forward_inputs(const Call& tensors, CallRest&& rest);
ForwardOutputs forward_outputs(const Call& tensors);
BackwardInputs backward_inputs(const Call& tensors, CallRest&& rest);
BackwardOutputs backward_outputs(const Call& tensors, std::vector<ParamBinding> dparams);

/// use(inputs, outputs) with the arguments of the pass.
template <class Use>
void with_arguments(const Call& tensors, CallRest rest, Use&& use) {
  if (tensors.pass == Pass::forward) {
    use(forward_inputs(tensors, std::move(rest)), forward_outputs(tensors));
  } else {
    const BackwardOutputs outputs = backward_outputs(tensors, std::move(rest.dparams));
    use(backward_inputs(tensors, std::move(rest)), outputs);
  }
}

/// A row of the table, and the fields of its tensor.
struct Role : RoleRow {
  const TensorView* Call::*given;
  TensorSpec Problem::*spec;
  TensorView Buffers::*view;

  Use use(Pass pass) const { return pass == Pass::forward ? forward : backward; }
  bool output(Pass pass) const { return use(pass) == Use::output || use(pass) == Use::optional_output; }
  bool optional(Pass pass) const { return use(pass) == Use::optional_input || use(pass) == Use::optional_output; }
};

extern const std::array<Role, role_table::all.size()> roles;

/// On a GPU: whether the data are aligned to 16 bytes, as some kernels require. Plans depend on it.
bool is_aligned(const TensorView& view);

/// The view in the logical form of TensorSpec: with a batch dimension if packed, and canonical strides of dimensions of size 1.
TensorView logical_view(const TensorView& view, bool varlen);

/// `forward bf16 b2 h32:8 q1024:2048 d64`: the part of the line that is known before the call has been checked.
std::string headline(const Problem& problem);

}  // namespace foveal::problem
