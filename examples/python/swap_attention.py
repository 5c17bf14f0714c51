"""Route an existing torch model through foveal without touching it, and check that nothing changed."""

import torch

import foveal.torch

torch.manual_seed(0)


class Block(torch.nn.Module):
    """A model that somebody wrote against torch's scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


model = torch.nn.Sequential(Block(128, 4), Block(128, 4))
x = torch.randn(2, 100, 128)
expected = model(x)
expected.pow(2).mean().backward()
gradients = [p.grad.clone() for p in model.parameters()]
model.zero_grad()

with foveal.torch.patch():
    found = model(x)
    found.pow(2).mean().backward()

print("output differs by  ", (found - expected).abs().max().item())
print("gradients differ by", max((p.grad - g).abs().max().item() for p, g in zip(model.parameters(), gradients)))
assert torch.allclose(found, expected, atol=1e-5)
assert all(torch.allclose(p.grad, g, atol=1e-5) for p, g in zip(model.parameters(), gradients))
