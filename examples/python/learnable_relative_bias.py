"""A relative-position bias that learns: recover the bias a teacher used, from its outputs alone.

The gradient of the table is exact, deterministic, and costs memory for the table only.
"""

import torch

import foveal.torch

torch.manual_seed(0)
heads, reach, seqlen = 4, 16, 128
distance = torch.arange(-reach, reach + 1).float()
teacher = -0.15 * distance.abs() * torch.tensor([0.5, 1.0, 1.5, 2.0])[:, None]
student = torch.zeros(heads, 2 * reach + 1, requires_grad=True)


def attend(table, q, k, v):
    def score(s, b, h, q_idx, kv_idx):
        return s + table[h, torch.clamp(kv_idx - q_idx, -reach, reach) + reach]

    return foveal.torch.attention(q, k, v, score, foveal.causal())


optimizer = torch.optim.Adam([student], lr=0.05)
for step in range(150):
    q, k, v = (torch.randn(2, seqlen, heads, 32) for _ in range(3))
    loss = (attend(student, q, k, v) - attend(teacher, q, k, v)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 149:
        print(f"step {step:3d}  loss {loss.item():.2e}")

# A constant added to a whole row of scores changes nothing, so compare after removing the mean; the causal half is what was seen.
seen = slice(0, reach + 1)
gap = (student - student[:, seen].mean(1, keepdim=True)) - (teacher - teacher[:, seen].mean(1, keepdim=True))
print(f"largest difference of the learned bias: {gap[:, seen].abs().max().item():.3f}")
assert loss.item() < 1e-4
