#pragma once
// One call's tensors by role, the same for both passes: the table that checking, gathering and printing walk over.
#include <array>

#include "problem/problem.h"

namespace foveal::problem {

/// Pointers into the arguments of forward() or backward(); null where the pass has no such argument.
struct Call {
  Pass pass;
  const TensorView *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *lse = nullptr, *dout = nullptr, *dlse = nullptr;
  const TensorView *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const std::vector<ParamBinding>* params = nullptr;
  const std::vector<ParamBinding>* dparams = nullptr;  ///< null in a forward pass
  const Varlen* varlen = nullptr;                      ///< null when not packed, or packed in segments
  const Segments* segments = nullptr;
  const Part* part = nullptr;
  const DropoutRng* rng = nullptr;

  bool packed() const { return varlen != nullptr || segments != nullptr; }
};

Call call_of(const ForwardInputs& inputs, const ForwardOutputs& outputs);
Call call_of(const BackwardInputs& inputs, const BackwardOutputs& outputs);

enum class Need : std::uint8_t { none, optional, required };

struct Role {
  const char* name;
  const TensorView* Call::*given;
  TensorSpec Problem::*spec;
  TensorView Buffers::*view;
  Need forward, backward;
  bool forward_output, backward_output;

  Need need(Pass pass) const { return pass == Pass::forward ? forward : backward; }
  bool output(Pass pass) const { return pass == Pass::forward ? forward_output : backward_output; }
};

extern const std::array<Role, 10> roles;

/// On a GPU: does the data begin at a multiple of 16 bytes, as some kernels need it? A plan depends on it, so that others serve views that
/// do not.
bool is_aligned(const TensorView& view);

/// The view in the logical form of TensorSpec: rank 4 (or 3 for lse) when packed, strides of single-element dimensions made canonical.
TensorView logical_view(const TensorView& view, bool varlen);

/// `forward bf16 b2 h32:8 q1024:2048 d64`: the part of the line that is known before anything is checked.
std::string headline(const Problem& problem);

}  // namespace foveal::problem
