#include "problem/call.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace foveal::problem {

namespace {

/// Arguments common to both passes.
template <class Inputs>
void add_rest(const Inputs& inputs, Call& call) {
  call.params = &inputs.params;
  if (inputs.varlen) {
    call.varlen = &*inputs.varlen;
    call.cu_seqlens_q = &inputs.varlen->cu_seqlens_q, call.cu_seqlens_kv = &inputs.varlen->cu_seqlens_kv;
  }
  call.segments = inputs.segments ? &*inputs.segments : nullptr;
  if (inputs.paged) {
    call.paged = &*inputs.paged;
    call.block_table = &inputs.paged->block_table, call.seqlens_kv = &inputs.paged->seqlens_kv;
  }
  call.part = inputs.part ? &*inputs.part : nullptr;
  call.rng = &inputs.rng;
}

}  // namespace

Call call_of(const ForwardInputs& inputs, const ForwardOutputs& outputs) {
  Call call{.pass = Pass::forward};
  call.q = &inputs.q, call.k = &inputs.k, call.v = &inputs.v;
  call.out = &outputs.out, call.lse = &outputs.lse;
  add_rest(inputs, call);
  return call;
}

Call call_of(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  Call call{.pass = Pass::backward};
  call.q = &inputs.q, call.k = &inputs.k, call.v = &inputs.v;
  call.out = &inputs.out, call.lse = &inputs.lse, call.dout = &inputs.dout, call.dlse = &inputs.dlse;
  call.dq = &outputs.dq, call.dk = &outputs.dk, call.dv = &outputs.dv;
  call.dparams = &outputs.dparams;
  add_rest(inputs, call);
  return call;
}

namespace {

TensorView view_of(const TensorView* tensor) { return tensor == nullptr ? TensorView{} : *tensor; }

bool given(const TensorView* tensor) { return tensor != nullptr && tensor->present(); }

/// Arguments common to both passes.
template <class Inputs>
Inputs inputs_of(const Call& t, CallRest&& rest) {
  Inputs inputs;
  inputs.q = view_of(t.q), inputs.k = view_of(t.k), inputs.v = view_of(t.v);
  inputs.params = std::move(rest.params);
  if (given(t.cu_seqlens_q) || given(t.cu_seqlens_kv))
    inputs.varlen = Varlen{view_of(t.cu_seqlens_q), view_of(t.cu_seqlens_kv), rest.max_seqlen_q, rest.max_seqlen_kv};
  else
    FOVEAL_CHECK(rest.max_seqlen_q == 0 && rest.max_seqlen_kv == 0, "max_seqlen_q, max_seqlen_kv: ", rest.max_seqlen_q, ", ",
                 rest.max_seqlen_kv, " without cu_seqlens; expected 0, for they are of packed sequences");
  if (given(t.block_table) || given(t.seqlens_kv)) inputs.paged = Paged{view_of(t.block_table), view_of(t.seqlens_kv)};
  inputs.rng = rest.rng;
  return inputs;
}

}  // namespace

ForwardInputs forward_inputs(const Call& tensors, CallRest&& rest) { return inputs_of<ForwardInputs>(tensors, std::move(rest)); }

ForwardOutputs forward_outputs(const Call& tensors) { return {.out = view_of(tensors.out), .lse = view_of(tensors.lse)}; }

BackwardInputs backward_inputs(const Call& tensors, CallRest&& rest) {
  auto inputs = inputs_of<BackwardInputs>(tensors, std::move(rest));
  inputs.out = view_of(tensors.out), inputs.lse = view_of(tensors.lse);
  inputs.dout = view_of(tensors.dout), inputs.dlse = view_of(tensors.dlse);
  return inputs;
}

BackwardOutputs backward_outputs(const Call& tensors, std::vector<ParamBinding> dparams) {
  return {.dq = view_of(tensors.dq), .dk = view_of(tensors.dk), .dv = view_of(tensors.dv), .dparams = std::move(dparams)};
}

constinit const std::array<Role, role_table::all.size()> roles = [] {
  std::size_t i = 0;
  const auto role = [&i](auto given, auto spec, auto view) { return Role{{role_table::all[i++]}, given, spec, view}; };
  return std::array{
#define FOVEAL_ROLE(name, ...) role(&Call::name, &Problem::name, &Buffers::name),
      FOVEAL_ROLES(FOVEAL_ROLE)
#undef FOVEAL_ROLE
  };
}();

const RoleRow& role_named(std::string_view name) {
  return *std::ranges::find_if(role_table::all, [name](const RoleRow& row) { return row.name == name; });
}

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  return strides;
}

std::string axes_text(const Axes& axes, Tokens tokens) {
  static constexpr std::array<const char*, 11> batched{"batch",    "seqlen_q",   "batch",     "seqlen_kv",     "heads_q", "heads_kv",
                                                       "head_dim", "head_dim_v", "sequences", "sequences + 1", "pages"};
  std::string text;
  for (const Axis axis : axes) {
    const char* name = batched[static_cast<std::size_t>(axis)];
    if (tokens == Tokens::packed) {
      if (axis == Axis::batch_q || axis == Axis::batch_kv) continue;
      if (axis == Axis::seqlen_q) name = "total_q";
      if (axis == Axis::seqlen_kv) name = "total_kv";
    } else if (tokens == Tokens::paged) {
      if (axis == Axis::batch_kv) name = "pages";
      if (axis == Axis::seqlen_kv) name = "page_size";
    }
    text += (text.empty() ? "[" : ", ") + std::string(name);
  }
  return text + "]";
}

bool is_aligned(const TensorView& view) {
  return view.device.kind != DeviceKind::cuda || reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
}

TensorView logical_view(const TensorView& view, bool varlen) {
  TensorView logical = view;
  if (varlen && logical.rank < TensorView::max_rank) {  // a batch dimension of one in front
    for (int d = logical.rank; d > 0; --d) {
      const auto to = static_cast<std::size_t>(d);
      logical.sizes[to] = logical.sizes[to - 1];
      logical.strides[to] = logical.strides[to - 1];
    }
    ++logical.rank;
    logical.sizes[0] = 1;
  }
  std::int64_t inner = 1;  // strides of dimensions of size 1 become those of a contiguous tensor
  for (int d = logical.rank - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    if (logical.sizes[i] == 1) logical.strides[i] = inner;
    // Not checked yet: an overflowing product wraps, and make_problem refuses such tensors.
    inner = static_cast<std::int64_t>(static_cast<std::uint64_t>(logical.sizes[i]) * static_cast<std::uint64_t>(logical.strides[i]));
  }
  for (auto d = static_cast<std::size_t>(logical.rank); d < TensorView::max_rank; ++d) logical.sizes[d] = logical.strides[d] = 0;
  return logical;
}

std::string headline(const Problem& p) {
  const auto pair = [](const char* name, std::int64_t q, std::int64_t kv) {
    return kv == q ? base::join(' ', name, q) : base::join(' ', name, q, ':', kv);
  };
  return base::join(to_string(p.pass), ' ', to_string(p.dtype), " b", p.batch, pair("h", p.heads_q, p.heads_kv),
                    pair("q", p.seqlen_q, p.seqlen_kv), pair("d", p.head_dim, p.head_dim_v));
}

}  // namespace foveal::problem
