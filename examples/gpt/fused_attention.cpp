#include "fused_attention.h"

#include <memory>
#include <new>
#include <vector>

namespace gpt {
namespace {

template <class T>
class FusedAttention final : public AttentionLayer<T> {
 public:
  // Planned once, from views without data; each step then only runs the plans.
  explicit FusedAttention(const AttentionShape& shape)
      : shape_(shape),
        bias_(bias_param(shape.heads, shape.reach)),
        lse_(static_cast<std::size_t>(shape.batch * shape.heads * shape.context)),
        dbias_(static_cast<std::size_t>(shape.bias_size())) {
    const foveal::Attention attention = describe_attention(bias_);
    const T* none = nullptr;
    forward_ = foveal::plan(attention, forward_inputs(none, none), forward_outputs(nullptr));
    backward_ = foveal::plan(attention, backward_inputs(none, none, none, none), backward_outputs(nullptr));
    workspace_.reset(static_cast<std::byte*>(
        ::operator new(std::max({forward_.workspace_bytes(), backward_.workspace_bytes(), std::size_t{1}}), alignment)));
  }

  void forward(const T* qkv, const T* bias, T* out) override {
    forward_.run(forward_inputs(qkv, bias), forward_outputs(out), workspace_.get());
  }

  void backward(const T* qkv, const T* bias, const T* out, const T* dout, T* dqkv, T* dbias) override {
    backward_.run(backward_inputs(qkv, bias, out, dout), backward_outputs(dqkv), workspace_.get());
    for (std::size_t i = 0; i < dbias_.size(); ++i) dbias[i] += dbias_[i];
  }

 private:
  static constexpr std::align_val_t alignment{256};
  struct Release {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
  };

  // Part 0, 1, 2 of the packed qkv is q, k, v: the same memory with a shifted start.
  foveal::TensorView part(const T* qkv, int which) const {
    const auto& [batch, context, heads, head_dim, reach] = shape_;
    const std::int64_t row = 3 * shape_.width();
    return view(qkv == nullptr ? qkv : qkv + which * shape_.width(), {batch, context, heads, head_dim}, {context * row, row, head_dim, 1});
  }
  foveal::TensorView heads_view(const T* data) const { return view(data, {shape_.batch, shape_.context, shape_.heads, shape_.head_dim}); }
  foveal::TensorView lse_view() const { return view(lse_.data(), {shape_.batch, shape_.heads, shape_.context}); }
  foveal::ParamBinding bind(const T* bias) const { return {bias_, view(bias, {shape_.heads, shape_.reach + 1})}; }

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
    return {.dq = part(dqkv, 0), .dk = part(dqkv, 1), .dv = part(dqkv, 2), .dparams = {bind(dbias_.data())}};
  }

  AttentionShape shape_;
  foveal::Param bias_;
  foveal::Plan forward_, backward_;
  std::vector<T> lse_, dbias_;
  std::unique_ptr<std::byte, Release> workspace_;
};

}  // namespace

template <class T>
std::unique_ptr<AttentionLayer<T>> make_fused_attention(const AttentionShape& shape) {
  return std::make_unique<FusedAttention<T>>(shape);
}
template std::unique_ptr<AttentionLayer<float>> make_fused_attention(const AttentionShape&);
template std::unique_ptr<AttentionLayer<double>> make_fused_attention(const AttentionShape&);

}  // namespace gpt
