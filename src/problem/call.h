#pragma once
// One call's tensors by role, the same for both passes: the table that checking, gathering and printing walk over.
#include <array>
#include <utility>

#include "problem/problem.h"
#include "problem/roles.h"

namespace foveal::problem {

/// Pointers into the arguments of forward() or backward(); null where the pass has no such argument.
struct Call {
  Pass pass;
#define FOVEAL_FIELD(name, ...) const TensorView* name = nullptr;
  FOVEAL_ROLES(FOVEAL_FIELD)
#undef FOVEAL_FIELD
  const std::vector<ParamBinding>* params = nullptr;
  const std::vector<ParamBinding>* dparams = nullptr;  ///< null in a forward pass
  const Varlen* varlen = nullptr;                      ///< null when not packed, or packed in segments
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

/// What C and Python say of a call beside its tensors, which they have by role.
struct CallRest {
  std::vector<ParamBinding> params = {}, dparams = {};
  std::int64_t max_seqlen_q = 0, max_seqlen_kv = 0;
  DropoutRng rng = {};
};

/// The opposite of call_of(): the arguments of a public call. Of `tensors` only those by role are read; null or not present: absent.
ForwardInputs forward_inputs(const Call& tensors, CallRest&& rest);
ForwardOutputs forward_outputs(const Call& tensors);
BackwardInputs backward_inputs(const Call& tensors, CallRest&& rest);
BackwardOutputs backward_outputs(const Call& tensors, std::vector<ParamBinding> dparams);

/// use(inputs, outputs) of the pass.
template <class Use>
void with_arguments(const Call& tensors, CallRest rest, Use&& use) {
  if (tensors.pass == Pass::forward) {
    use(forward_inputs(tensors, std::move(rest)), forward_outputs(tensors));
  } else {
    const BackwardOutputs outputs = backward_outputs(tensors, std::move(rest.dparams));
    use(backward_inputs(tensors, std::move(rest)), outputs);
  }
}

/// A row of the table, and where its tensor stands.
struct Role : RoleRow {
  const TensorView* Call::*given;
  TensorSpec Problem::*spec;
  TensorView Buffers::*view;

  Use use(Pass pass) const { return pass == Pass::forward ? forward : backward; }
  bool output(Pass pass) const { return use(pass) == Use::output || use(pass) == Use::optional_output; }
  bool optional(Pass pass) const { return use(pass) == Use::optional_input || use(pass) == Use::optional_output; }
};

extern const std::array<Role, role_table::all.size()> roles;

/// On a GPU: does the data begin at a multiple of 16 bytes, as some kernels need it? A plan depends on it, so that others serve views that
/// do not.
bool is_aligned(const TensorView& view);

/// The view in the logical form of TensorSpec: rank 4 (or 3 for lse) when packed, strides of single-element dimensions made canonical.
TensorView logical_view(const TensorView& view, bool varlen);

/// `forward bf16 b2 h32:8 q1024:2048 d64`: the part of the line that is known before anything is checked.
std::string headline(const Problem& problem);

}  // namespace foveal::problem
