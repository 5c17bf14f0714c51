#include "call.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

namespace foveal::python {
namespace {

/// Scratch memory of the calling thread, kept between calls. GPU callers pass their own.
void* cpu_workspace(std::size_t bytes) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<void, Free> memory;
  thread_local std::size_t capacity = 0;
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
    memory.reset(std::aligned_alloc(4096, rounded));
    if (!memory) throw std::bad_alloc();
    capacity = rounded;
  }
  return memory.get();
}

}  // namespace

TensorView Spec::view() const {
  if (sizes.size() > TensorView::max_rank) throw Error(ErrorCode::invalid_argument, "a tensor has more than 6 dimensions");
  TensorView v;
  v.dtype = dtype;
  v.device = device;
  v.rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), v.sizes.begin());
  std::copy(strides.begin(), strides.end(), v.strides.begin());
  return v;
}

Call::Call(const Attention& attention, Pass pass, const Specs& specs, const Params& params, const Params& dparams,
           std::int64_t max_seqlen_q, std::int64_t max_seqlen_kv, const PlanOptions& options)
    : pass_(pass) {
  const auto view = [&specs](const char* name) {
    const auto it = specs.find(name);
    return it == specs.end() ? TensorView{} : it->second.view();
  };
  std::optional<Varlen> varlen;
  if (specs.count("cu_seqlens_q") != 0) varlen = Varlen{view("cu_seqlens_q"), view("cu_seqlens_kv"), max_seqlen_q, max_seqlen_kv};
  std::vector<ParamBinding> bound;
  for (const auto& [param, spec] : params) bound.push_back({param, spec.view()});
  if (pass == Pass::forward) {
    forward_in_ = {.q = view("q"), .k = view("k"), .v = view("v"), .params = bound, .varlen = varlen};
    forward_out_ = {.out = view("out"), .lse = view("lse")};
    plan_ = foveal::plan(attention, forward_in_, forward_out_, options);
  } else {
    backward_in_ = {.q = view("q"),
                    .k = view("k"),
                    .v = view("v"),
                    .out = view("out"),
                    .lse = view("lse"),
                    .dout = view("dout"),
                    .dlse = view("dlse"),
                    .params = bound,
                    .varlen = varlen};
    backward_out_ = {.dq = view("dq"), .dk = view("dk"), .dv = view("dv")};
    for (const auto& [param, spec] : dparams) backward_out_.dparams.push_back({param, spec.view()});
    plan_ = foveal::plan(attention, backward_in_, backward_out_, options);
  }
}

void Call::run(const std::vector<std::uintptr_t>& pointers, void* workspace, Stream stream) const {
  void* scratch = workspace != nullptr ? workspace : cpu_workspace(plan_.workspace_bytes());
  std::size_t next = 0;
  const auto take = [&](TensorView& view) { view.data = reinterpret_cast<void*>(pointers.at(next++)); };
  const auto take_varlen = [&](std::optional<Varlen>& varlen) {
    if (!varlen) return;
    take(varlen->cu_seqlens_q);
    take(varlen->cu_seqlens_kv);
  };
  if (pass_ == Pass::forward) {
    ForwardInputs in = forward_in_;
    ForwardOutputs out = forward_out_;
    for (TensorView* v : {&in.q, &in.k, &in.v, &out.out, &out.lse}) take(*v);
    take_varlen(in.varlen);
    for (ParamBinding& p : in.params) take(p.tensor);
    if (next != pointers.size()) throw Error(ErrorCode::invalid_argument, "run: wrong number of pointers");
    plan_.run(in, out, scratch, stream);
  } else {
    BackwardInputs in = backward_in_;
    BackwardOutputs out = backward_out_;
    for (TensorView* v : {&in.q, &in.k, &in.v, &in.out, &in.lse, &in.dout, &in.dlse, &out.dq, &out.dk, &out.dv}) take(*v);
    take_varlen(in.varlen);
    for (ParamBinding& p : in.params) take(p.tensor);
    for (ParamBinding& p : out.dparams) take(p.tensor);
    if (next != pointers.size()) throw Error(ErrorCode::invalid_argument, "run: wrong number of pointers");
    plan_.run(in, out, scratch, stream);
  }
}

}  // namespace foveal::python
