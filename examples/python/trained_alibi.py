"""ALiBi whose slopes are trained: one scalar per head, gradients summed over every pair, deterministic."""

import torch

import foveal.torch

torch.manual_seed(0)
heads, seqlen = 8, 128
slopes = torch.full((heads,), 0.05, requires_grad=True)
target = 2.0 ** (-torch.arange(1, heads + 1, dtype=torch.float32))


def attend(m, q, k, v):
    return foveal.torch.attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + m[h] * (kv_idx - q_idx), foveal.causal())


optimizer = torch.optim.Adam([slopes], lr=0.02)
for step in range(120):
    q, k, v = (torch.randn(2, seqlen, heads, 32) for _ in range(3))
    loss = (attend(slopes, q, k, v) - attend(target, q, k, v)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("learned:", [f"{m:.3f}" for m in slopes.tolist()])
print("target: ", [f"{m:.3f}" for m in target.tolist()])
assert (slopes - target).abs().max() < 0.05
