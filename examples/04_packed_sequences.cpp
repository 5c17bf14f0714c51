// Sequences of unequal length in one packed batch, with an attention sink and a score written as text.
#include <foveal/foveal.h>

#include <cstdio>
#include <vector>

int main() {
  constexpr std::int64_t heads = 2, head_dim = 16, total = 17 + 5 + 40;
  std::vector<std::int32_t> starts{0, 17, 22, 62};
  std::vector<float> q(total * heads * head_dim, 0.2f), k(q.size(), 0.3f), v(q.size(), 1.0f), out(q.size()), lse(heads * total);
  std::vector<float> sink_logit(heads, 0.0f);
  const auto tokens = [](std::vector<float>& data) {
    return foveal::TensorView(data.data(), foveal::DType::f32, {total, heads, head_dim});
  };
  const foveal::TensorView cu_seqlens(starts.data(), foveal::DType::i32, {4});

  const foveal::Param sink("sink", {heads});
  const foveal::Attention attention{
      .score_mod = foveal::parse("score - 0.1 * (q_idx - kv_idx)"), .mask = foveal::parse("causal() & window(8)"), .sink = sink};
  foveal::forward(attention,
                  {.q = tokens(q),
                   .k = tokens(k),
                   .v = tokens(v),
                   .params = {{sink, {sink_logit.data(), foveal::DType::f32, {heads}}}},
                   .varlen = foveal::Varlen{.cu_seqlens_q = cu_seqlens, .cu_seqlens_kv = cu_seqlens}},
                  {.out = tokens(out), .lse = {lse.data(), foveal::DType::f32, {heads, total}}});

  // The first token of every sequence attends to itself and the sink only.
  const float first = out[0], second_sequence = out[17 * heads * head_dim];
  std::printf("weight of a token that shares with the sink: %g\n", static_cast<double>(first));
  return first == second_sequence && first < 1.0f ? 0 : 1;
}
