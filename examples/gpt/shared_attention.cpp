// Fused attention over several processes (context parallelism): each holds some tokens of every sequence.
#include <algorithm>

#include "fused_attention.h"
#include "ranks.h"

namespace gpt {
namespace {

class SharedAttention final : public AttentionLayer<float> {
 public:
  SharedAttention(const AttentionShape& shape, Machine<float>& machine, const Ranks& ranks)
      : shape_(shape),
        rows_(shape.context / ranks.size()),
        ranks_(ranks.size()),
        machine_(machine),
        bias_(bias_param(shape.heads, shape.reach)),
        none_(static_cast<std::size_t>(shape.bias_size())),
        lse_(machine.allocate(shape.batch * shape.heads * rows_)),
        dbias_(machine.allocate(shape.bias_size())),
        attention_(ranks.transport(), describe_attention(bias_), whole(), {bind(none_.data())}, options(ranks)) {}

  void forward(const float* qkv, const float* bias, float* out) override {
    attention_.forward({.q = part(qkv, 0), .k = part(qkv, 1), .v = part(qkv, 2), .params = {bind(bias)}},
                       {.out = heads_view(out), .lse = lse_view()});
  }

  void backward(const float* qkv, const float* bias, const float* out, const float* dout, float* dqkv, float* dbias) override {
    foveal::BackwardInputs inputs{
        .q = part(qkv, 0), .k = part(qkv, 1), .v = part(qkv, 2), .out = heads_view(out), .lse = lse_view(), .dout = heads_view(dout)};
    inputs.params = {bind(bias)};
    attention_.backward(inputs, {.dq = part(dqkv, 0), .dk = part(dqkv, 1), .dv = part(dqkv, 2), .dparams = {bind(dbias_)}});
    // Every process has the total gradient: divided here, since it is averaged over processes later.
    std::for_each_n(dbias_, shape_.bias_size(), [&](float& x) { x /= static_cast<float>(ranks_); });
    machine_.add(dbias, dbias_, shape_.bias_size());
  }

 private:
  foveal::dist::WholeShapes whole() const {
    return {.dtype = foveal::DType::f32,
            .batch = shape_.batch,
            .heads_q = shape_.heads,
            .heads_kv = shape_.heads,
            .seqlen_q = shape_.context,
            .seqlen_kv = shape_.context,
            .head_dim = shape_.head_dim,
            .head_dim_v = shape_.head_dim};
  }
  foveal::dist::ContextOptions options(const Ranks& ranks) const {
    return {.deal = "zigzag", .head_groups = 1, .unit = ranks.unit(shape_.context)};
  }
  foveal::TensorView part(const float* qkv, int which) const {
    const std::int64_t row = 3 * shape_.width();
    return view(qkv + which * shape_.width(), {shape_.batch, rows_, shape_.heads, shape_.head_dim}, {rows_ * row, row, shape_.head_dim, 1});
  }
  foveal::TensorView heads_view(const float* data) const { return view(data, {shape_.batch, rows_, shape_.heads, shape_.head_dim}); }
  foveal::TensorView lse_view() const { return view(lse_, {shape_.batch, shape_.heads, rows_}); }
  foveal::ParamBinding bind(const float* bias) const { return {bias_, view(bias, {shape_.heads, shape_.reach + 1})}; }

  AttentionShape shape_;
  std::int64_t rows_;  ///< tokens of a sequence here
  int ranks_;
  Machine<float>& machine_;
  foveal::Param bias_;
  std::vector<float> none_;
  float *lse_, *dbias_;
  foveal::dist::ContextAttention attention_;
};

}  // namespace

std::unique_ptr<AttentionLayer<float>> make_shared_attention(const AttentionShape& shape, Machine<float>& machine, const Ranks& ranks) {
  return std::make_unique<SharedAttention>(shape, machine, ranks);
}

}  // namespace gpt
