// For callers that own their memory: plan once, inspect the plan, run it many times without allocations.
#include <foveal/foveal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

int main() {
  const foveal::Shapes shapes{.batch = 1, .heads_q = 8, .heads_kv = 2, .seqlen_q = 512, .seqlen_kv = 512, .head_dim = 64, .head_dim_v = 64};
  const foveal::Attention attention{.score_mod = foveal::softcap(30), .mask = foveal::causal()};
  const foveal::Plan plan = foveal::plan(attention, shapes, foveal::Pass::forward);
  std::printf("%s", plan.explain().to_string().c_str());

  const std::size_t bytes = (plan.workspace_bytes() + 255) / 256 * 256 + 256;
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(256, bytes), std::free);
  std::vector<float> q(512 * 8 * 64, 0.1f), k(512 * 2 * 64, 0.1f), v(512 * 2 * 64, 0.5f), out(q.size()), lse(8 * 512);
  const auto view = [](std::vector<float>& data, std::int64_t heads) {
    return foveal::TensorView(data.data(), foveal::DType::f32, {1, 512, heads, 64});
  };
  const foveal::ForwardInputs inputs{.q = view(q, 8), .k = view(k, 2), .v = view(v, 2)};
  const foveal::ForwardOutputs outputs{.out = view(out, 8), .lse = {lse.data(), foveal::DType::f32, {1, 8, 512}}};
  for (int step = 0; step < 3; ++step) plan.run(inputs, outputs, workspace.get());
  std::printf("out[0] = %g\n", static_cast<double>(out[0]));
  return out[0] > 0.49f && out[0] < 0.51f ? 0 : 1;  // every value is 0.5, and so is their mean
}
