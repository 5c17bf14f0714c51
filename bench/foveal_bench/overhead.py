"""`foveal-bench overhead`: what one call of a planned problem costs the host beyond its kernels, on a problem so small that only that is left.

    us        the call
    kernel_us of it, the planned call alone: memory given, nothing looked up (on a GPU: its launches)
    torch_us  of it, torch's autograd around a function that does nothing
    beyond_us what is left: looking at the tensors, finding the plan, allocating results

A backward is one of a chain: its share of a backward pass through many layers, whose first one wakes autograd's thread.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any, Callable

import numpy as np
import torch

import foveal
import foveal.torch

from . import machine
from .timing import host_us


class _Null(torch.autograd.Function):
    """What torch itself costs: saves what an attention saves, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(q, k, v)
        ctx.set_materialize_grads(False)
        return q.detach(), k.detach()

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor, dlse: torch.Tensor | None) -> Any:
        return tuple(t.detach() for t in ctx.saved_tensors)


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


_LAYERS = 16


def _chain(attention: Callable[..., torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    """The backward pass of a chain of attentions, each with keys and values of its own."""
    inputs = [q.clone().requires_grad_()]
    out = inputs[0]
    for _ in range(_LAYERS):
        inputs += [k.clone().requires_grad_(), v.clone().requires_grad_()]
        out = attention(out, *inputs[-2:])
    dout = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def rows(device: str) -> list[dict[str, Any]]:
    """dim 64 and bf16 on a GPU: what its tensor-core kernels take."""
    dim, dtype = (64, torch.bfloat16) if device == "cuda" else (16, torch.float32)
    q, k, v = (torch.randn(1, 1, 1, dim, device=device, dtype=dtype) for _ in range(3))
    wanting = [t.clone().requires_grad_() for t in (q, k, v)]
    dout = torch.ones_like(q)
    layer = foveal.torch.Attention(mask=foveal.causal())
    mask = foveal.causal()
    out, lse = layer(q, k, v, return_lse=True)
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))

    forward = foveal.plan(q, k, v, mask=mask)
    backward = foveal.plan(q, k, v, mask=mask, backward=True)
    scratch = backward.workspace(), forward.workspace()
    kernel = {
        "forward": host_us(forward.bind(q=q, k=k, v=v, out=out, lse=lse, workspace=scratch[1]), device),
        "backward": host_us(
            backward.bind(q=q, k=k, v=v, out=out, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv, workspace=scratch[0]), device
        ),
        "": 0.0,
    }

    def null(*inputs: torch.Tensor) -> torch.Tensor:
        return _Null.apply(*inputs)[0]

    def sdpa(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)

    torchs = {"": 0.0, "record": host_us(lambda: null(*wanting), device), "backward": host_us(_chain(null, q, k, v), device) / _LAYERS}
    calls: list[tuple[str, Callable[[], Any], str, str]] = [
        ("foveal.torch.Attention, no gradient", lambda: layer(q, k, v), "forward", ""),
        ("foveal.torch.Attention, recorded", lambda: layer(*wanting), "forward", "record"),
        ("its backward", _chain(layer, q, k, v), "backward", "backward"),
        ("foveal.torch.attention, no gradient", lambda: foveal.torch.attention(q, k, v, mask=mask), "forward", ""),
        ("foveal.torch.flex_attention, no gradient", lambda: foveal.torch.flex_attention(q, k, v, None, _causal), "forward", ""),
        ("foveal.Plan.run", lambda: forward.run(q=q, k=k, v=v, out=out, lse=lse, workspace=scratch[1]), "forward", ""),
        ("torch SDPA, no gradient", lambda: sdpa(q, k, v), "", ""),
        ("torch SDPA, recorded", lambda: sdpa(*wanting), "", ""),
        ("its backward (SDPA)", _chain(sdpa, q, k, v), "", ""),
    ]
    if device == "cpu":
        arrays = [t.numpy() for t in (q, k, v)]
        calls.insert(6, ("foveal.attention on NumPy", lambda: foveal.attention(*arrays, mask=mask), "forward", ""))
    found = []
    for name, call, ours, theirs in calls:
        us = host_us(call, device) / (_LAYERS if "backward" in name else 1)
        row = {"suite": "overhead", "case": name, "device": device, "us": round(us, 2)}
        if ours:
            row |= {"kernel_us": round(kernel[ours], 2), "torch_us": round(torchs[theirs], 2)}
            row["beyond_us"] = round(us - kernel[ours] - torchs[theirs], 2)
        found.append(row)
    return found


def run(device: str, output: pathlib.Path) -> None:
    foveal.set_num_threads(1)
    torch.set_num_threads(1)
    origin = machine.describe(device, 1)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w") as file:  # one machine, one moment: not mixed with older ones
        for row in rows(device):
            file.write(json.dumps({**row, **origin}) + "\n")
            beyond = f", beyond kernels and torch {row['beyond_us']:.1f} us" if "beyond_us" in row else ""
            print(f"{row['case']}: {row['us']:.1f} us{beyond}")


def tables(rows: list[dict[str, Any]]) -> list[str]:
    found = [row for row in rows if row["suite"] == "overhead"]
    parts = []
    for machine_name in dict.fromkeys(row["machine"] for row in found):
        group = [row for row in found if row["machine"] == machine_name]
        parts.append(
            f"**Host time of one call** of a planned problem on {machine_name}, in us (commit {group[0]['commit']}, `{group[0]['command']}`). "
            "Kernels: the launch alone, everything given. torch: its autograd around a function that does nothing.\n"
        )
        parts.append("| call | whole | kernels | torch | beyond both |\n|---|---|---|---|---|")
        for row in group:
            cells = [f"{row[key]:.1f}" if key in row else "" for key in ("us", "kernel_us", "torch_us", "beyond_us")]
            parts.append(f"| {row['case']} | " + " | ".join(cells) + " |")
        parts.append("")
    return parts
