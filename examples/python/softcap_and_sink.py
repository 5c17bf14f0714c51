"""A soft-capped score and attention sinks, both with gradients: what recent open models train with."""

import torch

import foveal.torch

torch.manual_seed(0)
cap = torch.tensor(30.0, requires_grad=True)
sink = torch.zeros(8, requires_grad=True)
q, k, v = (torch.randn(1, 256, 8, 64, requires_grad=True) for _ in range(3))

out, lse = foveal.torch.attention(
    q, k, v, lambda s, b, h, q_idx, kv_idx: cap * torch.tanh(s / cap), foveal.causal() & foveal.window(128), sink=sink, return_lse=True
)
(out.pow(2).mean() + 0.01 * lse.mean()).backward()
print("gradient of the cap:", cap.grad.item())
print("gradient of the sinks:", [f"{g:.2e}" for g in sink.grad.tolist()])
assert cap.grad.abs() > 0 and (sink.grad.abs() > 0).all()
