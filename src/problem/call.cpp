#include "problem/call.h"

#include "base/check.h"

namespace foveal::problem {

Call call_of(const ForwardInputs& inputs, const ForwardOutputs& outputs) {
  Call call{.pass = Pass::forward};
  call.q = &inputs.q, call.k = &inputs.k, call.v = &inputs.v;
  call.out = &outputs.out, call.lse = &outputs.lse;
  call.params = &inputs.params;
  call.varlen = inputs.varlen ? &*inputs.varlen : nullptr;
  call.segments = inputs.segments ? &*inputs.segments : nullptr;
  call.part = inputs.part ? &*inputs.part : nullptr;
  call.rng = &inputs.rng;
  return call;
}

Call call_of(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  Call call{.pass = Pass::backward};
  call.q = &inputs.q, call.k = &inputs.k, call.v = &inputs.v;
  call.out = &inputs.out, call.lse = &inputs.lse, call.dout = &inputs.dout, call.dlse = &inputs.dlse;
  call.dq = &outputs.dq, call.dk = &outputs.dk, call.dv = &outputs.dv;
  call.params = &inputs.params, call.dparams = &outputs.dparams;
  call.varlen = inputs.varlen ? &*inputs.varlen : nullptr;
  call.segments = inputs.segments ? &*inputs.segments : nullptr;
  call.part = inputs.part ? &*inputs.part : nullptr;
  call.rng = &inputs.rng;
  return call;
}

const std::array<Role, 10> roles{{
    {"q", &Call::q, &Problem::q, &Buffers::q, Need::required, Need::required, false, false},
    {"k", &Call::k, &Problem::k, &Buffers::k, Need::required, Need::required, false, false},
    {"v", &Call::v, &Problem::v, &Buffers::v, Need::required, Need::required, false, false},
    {"out", &Call::out, &Problem::out, &Buffers::out, Need::required, Need::required, true, false},
    {"lse", &Call::lse, &Problem::lse, &Buffers::lse, Need::optional, Need::required, true, false},
    {"dout", &Call::dout, &Problem::dout, &Buffers::dout, Need::none, Need::required, false, false},
    {"dlse", &Call::dlse, &Problem::dlse, &Buffers::dlse, Need::none, Need::optional, false, false},
    {"dq", &Call::dq, &Problem::dq, &Buffers::dq, Need::none, Need::optional, false, true},
    {"dk", &Call::dk, &Problem::dk, &Buffers::dk, Need::none, Need::optional, false, true},
    {"dv", &Call::dv, &Problem::dv, &Buffers::dv, Need::none, Need::optional, false, true},
}};

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
  std::int64_t inner = 1;  // a dimension of one element may have any stride: give it the one it would have if contiguous
  for (int d = logical.rank - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    if (logical.sizes[i] == 1) logical.strides[i] = inner;
    inner = logical.sizes[i] * logical.strides[i];
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
