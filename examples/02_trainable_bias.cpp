// A relative-position bias in the score, trained by gradient descent. foveal derives its gradient symbolically.
#include <foveal/foveal.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace foveal::symbols;  // score, head, q_idx, kv_idx

int main() {
  constexpr std::int64_t seqlen = 96, heads = 4, head_dim = 32, reach = 16, buckets = 2 * reach + 1;
  std::vector<float> q(seqlen * heads * head_dim), k(q.size()), v(q.size()), out(q.size()), dout(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = std::sin(0.7f * static_cast<float>(i));
    k[i] = std::cos(1.3f * static_cast<float>(i));
    v[i] = std::sin(2.1f * static_cast<float>(i));
  }
  std::vector<float> lse(heads * seqlen), bias(heads * buckets), dbias(bias.size());
  const auto tokens = [](std::vector<float>& data) {
    return foveal::TensorView(data.data(), foveal::DType::f32, {1, seqlen, heads, head_dim});
  };
  const auto table = [](std::vector<float>& data) { return foveal::TensorView(data.data(), foveal::DType::f32, {heads, buckets}); };
  const foveal::TensorView lse_view(lse.data(), foveal::DType::f32, {1, heads, seqlen});

  const foveal::Param rel("rel", {heads, buckets});
  const foveal::Attention attention{.score_mod = score + rel(head, clamp(kv_idx - q_idx, -reach, reach) + reach)};

  // The target of each output token is its own value, so the bias has to learn to favour distance 0.
  for (int step = 0; step <= 200; ++step) {
    foveal::forward(attention, {.q = tokens(q), .k = tokens(k), .v = tokens(v), .params = {{rel, table(bias)}}},
                    {.out = tokens(out), .lse = lse_view});
    double loss = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      dout[i] = out[i] - v[i];
      loss += 0.5 * static_cast<double>(dout[i] * dout[i]) / static_cast<double>(out.size());
    }
    foveal::backward(attention,
                     {.q = tokens(q),
                      .k = tokens(k),
                      .v = tokens(v),
                      .out = tokens(out),
                      .lse = lse_view,
                      .dout = tokens(dout),
                      .params = {{rel, table(bias)}}},
                     {.dparams = {{rel, table(dbias)}}});
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] -= 0.02f * dbias[i];
    if (step % 50 == 0)
      std::printf("step %3d  loss %.5f  bias of head 0 at distance 0: %.3f\n", step, loss, static_cast<double>(bias[reach]));
  }
  return bias[reach] > 1 ? 0 : 1;
}
