"""`foveal-bench overhead`: host time of calls on problems so small that only the call itself is left."""

from __future__ import annotations

import json
import pathlib

import torch

import foveal.torch

from . import machine
from .timing import call_overhead_us


def run(device: str, output: pathlib.Path) -> None:
    foveal.set_num_threads(1)
    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, 1, 1, 16, device=device) for _ in range(3))
    wanting = [t.clone().requires_grad_() for t in (q, k, v)]
    layer = foveal.torch.Attention(mask=foveal.causal())
    dout = torch.ones_like(q)
    graph = layer(*wanting)
    calls = {
        "forward, no gradient": lambda: layer(q, k, v),
        "forward, recorded for a gradient": lambda: layer(*wanting),
        "backward": lambda: torch.autograd.grad(graph, wanting, dout, retain_graph=True),
        "flex_attention front door": lambda: foveal.torch.flex_attention(q, k, v, None, _causal),
        "torch sdpa, no gradient": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    origin = machine.describe(device, 1)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for name, call in calls.items():
            microseconds = call_overhead_us(call, device)
            file.write(json.dumps({"suite": "overhead", "case": name, "device": device, "us": round(microseconds, 2), **origin}) + "\n")
            print(f"{name}: {microseconds:.1f} us")


def _causal(b, h, q, k):
    return q >= k
