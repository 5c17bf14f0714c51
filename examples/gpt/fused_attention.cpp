#include "fused_attention.h"

#include <algorithm>
#include <memory>

namespace gpt {
namespace {

template <class T>
class FusedAttention final : public AttentionLayer<T> {
 public:
  // Planned once, from views without data; each step then only runs the plans.
  FusedAttention(const AttentionShape& shape, Machine<T>& machine)
      : shape_(shape),
        machine_(machine),
        bias_(bias_param(shape.heads, shape.reach)),
        lse_(machine.allocate(shape.batch * shape.heads * shape.context)),
        dbias_(machine.allocate(shape.bias_size())) {
    const foveal::Attention attention = describe_attention(bias_);
    const T* none = nullptr;
    forward_ = foveal::plan(attention, forward_inputs(none, none), forward_outputs(nullptr));
    backward_ = foveal::plan(attention, backward_inputs(none, none, none, none), backward_outputs(nullptr));
    const std::size_t bytes = std::max(forward_.workspace_bytes(), backward_.workspace_bytes());
    workspace_ = machine.allocate(static_cast<std::int64_t>((bytes + sizeof(T) - 1) / sizeof(T)));
  }

  void forward(const T* qkv, const T* bias, T* out) override { forward_.run(forward_inputs(qkv, bias), forward_outputs(out), workspace_); }

  void backward(const T* qkv, const T* bias, const T* out, const T* dout, T* dqkv, T* dbias) override {
    backward_.run(backward_inputs(qkv, bias, out, dout), backward_outputs(dqkv), workspace_);
    machine_.add(dbias, dbias_, shape_.bias_size());
  }

 private:
  // Part 0, 1, 2 of the packed qkv is q, k, v: the same memory with a shifted start.
  foveal::TensorView part(const T* qkv, int which) const {
    const auto& [batch, context, heads, head_dim, reach] = shape_;
    const std::int64_t row = 3 * shape_.width();
    return view(qkv == nullptr ? qkv : qkv + which * shape_.width(), {batch, context, heads, head_dim}, {context * row, row, head_dim, 1},
                machine_.device());
  }
  foveal::TensorView heads_view(const T* data) const {
    return view(data, {shape_.batch, shape_.context, shape_.heads, shape_.head_dim}, machine_.device());
  }
  foveal::TensorView lse_view() const { return view(lse_, {shape_.batch, shape_.heads, shape_.context}, machine_.device()); }
  foveal::ParamBinding bind(const T* bias) const { return {bias_, view(bias, {shape_.heads, shape_.reach + 1}, machine_.device())}; }

  foveal::ForwardInputs forward_inputs(const T* qkv, const T* bias) const {
    return {.q = part(qkv, 0), .k = part(qkv, 1), .v = part(qkv, 2), .params = {bind(bias)}};
  }
  foveal::ForwardOutputs forward_outputs(T* out) const { return {.out = heads_view(out), .lse = lse_view()}; }
  foveal::BackwardInputs backward_inputs(const T* qkv, const T* bias, const T* out, const T* dout) const {
    return {.q = part(qkv, 0),
            .k = part(qkv, 1),
            .v = part(qkv, 2),
            .out = heads_view(out),
            .lse = lse_view(),
            .dout = heads_view(dout),
            .params = {bind(bias)}};
  }
  foveal::BackwardOutputs backward_outputs(T* dqkv) const {
    return {.dq = part(dqkv, 0), .dk = part(dqkv, 1), .dv = part(dqkv, 2), .dparams = {bind(dbias_)}};
  }

  AttentionShape shape_;
  Machine<T>& machine_;
  foveal::Param bias_;
  foveal::Plan forward_, backward_;
  T *lse_, *dbias_, *workspace_;
};

}  // namespace

template <class T>
std::unique_ptr<AttentionLayer<T>> make_fused_attention(const AttentionShape& shape, Machine<T>& machine) {
  return std::make_unique<FusedAttention<T>>(shape, machine);
}
template std::unique_ptr<AttentionLayer<float>> make_fused_attention(const AttentionShape&, Machine<float>&);
template std::unique_ptr<AttentionLayer<double>> make_fused_attention(const AttentionShape&, Machine<double>&);

}  // namespace gpt
