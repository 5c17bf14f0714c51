// Causal attention with a window, forward and backward: one description, two calls.
#include <foveal/foveal.h>

#include <cstdio>
#include <vector>

int main() {
  constexpr std::int64_t batch = 2, seqlen = 300, heads_q = 8, heads_kv = 2, head_dim = 64;
  const auto tensor = [](std::int64_t heads) { return std::vector<float>(batch * seqlen * heads * head_dim, 0.01f); };
  std::vector<float> q = tensor(heads_q), k = tensor(heads_kv), v = tensor(heads_kv), out = tensor(heads_q), dout = tensor(heads_q);
  std::vector<float> dq = tensor(heads_q), dk = tensor(heads_kv), dv = tensor(heads_kv), lse(batch * heads_q * seqlen);
  const auto view = [](std::vector<float>& data, std::int64_t heads) {
    return foveal::TensorView(data.data(), foveal::DType::f32, {batch, seqlen, heads, head_dim});
  };
  const foveal::TensorView lse_view(lse.data(), foveal::DType::f32, {batch, heads_q, seqlen});

  const foveal::Attention attention{.mask = foveal::causal() & foveal::window(128)};
  const foveal::ForwardInputs inputs{.q = view(q, heads_q), .k = view(k, heads_kv), .v = view(v, heads_kv)};
  foveal::forward(attention, inputs, {.out = view(out, heads_q), .lse = lse_view});
  foveal::backward(attention,
                   {.q = inputs.q, .k = inputs.k, .v = inputs.v, .out = view(out, heads_q), .lse = lse_view, .dout = view(dout, heads_q)},
                   {.dq = view(dq, heads_q), .dk = view(dk, heads_kv), .dv = view(dv, heads_kv)});

  std::printf("out[0] = %g, dv[0] = %g\n", static_cast<double>(out[0]), static_cast<double>(dv[0]));
}
