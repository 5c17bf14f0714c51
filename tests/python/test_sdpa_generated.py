"""Random calls of scaled_dot_product_attention beside torch's own: shapes, types, views of all that is given, masks, what requires a gradient.

FOVEAL_PROGRAMS=COUNT and FOVEAL_SEED=FIRST run more and others; a failure names its seed.
"""

import math
import os
import random

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import foveal.torch
from places import seeded

COUNT, FIRST = int(os.environ.get("FOVEAL_PROGRAMS", "60")), int(os.environ.get("FOVEAL_SEED", "1"))
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}

VIEWS = [
    lambda t: t,
    lambda t: t.mT.contiguous().mT,
    lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
    lambda t: torch.cat([t, t], -2)[..., : t.shape[-2], :],
    lambda t: t[..., :1, :].expand(t.shape),
    lambda t: t[..., :1].expand(t.shape),
    lambda t: t[:1].expand(t.shape),
]
OF_COMPLEX = [lambda t: torch.complex(t, t).conj().imag, lambda t: torch.complex(t, t).real]  # the first negates when it is read


class Call:
    def __init__(self, seed):
        pick = random.Random(seed)
        generator = seeded(seed)
        self.dtype = pick.choice([torch.float64] * 3 + [torch.float32, torch.bfloat16, torch.float16])
        batch, heads, rows, keys = pick.choice([1, 2]), pick.choice([1, 2, 4]), pick.choice([1, 3, 7, 17, 33]), pick.choice([1, 4, 9, 40])
        dim, dim_v = pick.choice([1, 3, 8, 16]), pick.choice([1, 5, 8])
        kv_heads = pick.choice([h for h in (1, 2, 4) if heads % h == 0]) if pick.random() < 0.3 else heads
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.dtype)  # noqa: E731
        self.tensors = [draw(batch, heads, rows, dim), draw(batch, kv_heads, keys, dim), draw(batch, kv_heads, keys, dim_v)]
        self.trained = [pick.random() < 0.7 for _ in range(3)]
        self.views = [pick.choice(VIEWS + OF_COMPLEX if self.dtype in (torch.float64, torch.float32) else VIEWS) for _ in range(3)]
        self.mask, self.trains_mask = None, False
        self.arguments = {"enable_gqa": kv_heads != heads}
        kind = pick.choice(["none", "none", "bool", "float", "causal"])
        if kind == "causal":
            self.arguments["is_causal"] = True
        elif kind != "none":
            shape = pick.choice([(rows, keys), (1, keys), (rows, 1), (1, 1), (heads, rows, keys), (1, rows, keys), (batch, heads, rows, keys),
                                 (batch, 1, 1, keys), (1, heads, rows, 1), (batch, 1, rows, keys)])  # fmt: skip
            mask = draw(*shape)
            mask = mask.mT.contiguous().mT if pick.random() < 0.3 else mask
            self.mask = mask > -0.5 if kind == "bool" else mask.masked_fill(mask > 1, -math.inf) if pick.random() < 0.3 else mask
            self.trains_mask = kind == "float" and pick.random() < 0.5
        if pick.random() < 0.3:
            self.arguments["scale"] = pick.choice([0.5, 1, 2.0, -0.3])

    def results(self, attend):
        leaves = [t.clone().requires_grad_(trained) for t, trained in zip(self.tensors, self.trained)]
        mask = None if self.mask is None else self.mask.clone().requires_grad_(self.trains_mask)
        with sdpa_kernel(SDPBackend.MATH):
            out = attend(*[view(t) for view, t in zip(self.views, leaves)], attn_mask=mask, **self.arguments)
        wanted = [t for t in (*leaves, mask) if t is not None and t.requires_grad]
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
        return [out, *(torch.autograd.grad((out.double() * weight).sum(), wanted) if wanted else ())]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_call_equals_torchs(seed):
    call = Call(seed)
    for found, expected in zip(call.results(foveal.torch.scaled_dot_product_attention), call.results(F.scaled_dot_product_attention), strict=True):
        assert found.shape == expected.shape and found.dtype == expected.dtype
        size = 1 + expected.abs().max().item()
        torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=TOLERANCE[call.dtype] * size)
