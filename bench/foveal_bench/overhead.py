"""What one call of a planned problem costs the host beyond its kernels, on a problem so small that only that is left.

    us        the call
    kernel_us of it, the planned call alone: memory given, nothing looked up (on a GPU: its launches)
    torch_us  of it, torch's autograd around a function that does nothing
    beyond_us what is left: looking at the tensors, finding the plan, allocating results

Decode is a call with one key more than the call before, from 4096 keys on (on a CPU from 16), which is planned anew; torch's SDPA beside it.

A backward is one of a chain: its share of a backward pass through many layers, whose first one wakes autograd's thread.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from typing import Any, Callable

import torch

import foveal
import foveal.torch

from . import machine
from .progress import progress
from .results import Rows
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


def _decode(attention: Callable[..., torch.Tensor], device: str, heads_first: bool = False) -> Callable[[], Any]:
    """A call for one query of a cache that grows by a key each time."""
    heads, heads_kv, dim, first, dtype = (32, 8, 128, 4096, torch.bfloat16) if device == "cuda" else (4, 1, 16, 16, torch.float32)
    q, cache = (torch.randn(1, length, h, dim, device=device, dtype=dtype) for length, h in ((1, heads), (first + 2000, heads_kv)))
    lengths = itertools.count(first)

    def call() -> torch.Tensor:
        keys = cache[:, : next(lengths)]
        return attention(q.transpose(1, 2), keys.transpose(1, 2), keys.transpose(1, 2)) if heads_first else attention(q, keys, keys)

    return call


def measure(device: str) -> dict[str, Callable[[], dict[str, float]]]:
    """What measures each call. dim 64 and bf16 on a GPU: what its tensor-core kernels take."""
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
        out: torch.Tensor = _Null.apply(*inputs)[0]  # type: ignore[no-untyped-call]
        return out

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

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
    with_more_keys = ", decode, one key more each call"
    calls += [
        ("foveal.torch.attention" + with_more_keys, _decode(foveal.torch.attention, device), "", ""),
        ("foveal.torch.attention" + with_more_keys + ", softcap", _decode(lambda q, k, v: foveal.torch.attention(q, k, v, foveal.softcap(30.0)), device), "", ""),
        ("torch SDPA" + with_more_keys, _decode(functools.partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True), device, True), "", ""),
    ]
    if device == "cpu":
        a, b, c = (t.numpy() for t in (q, k, v))
        calls.insert(6, ("foveal.attention on NumPy", lambda: foveal.attention(a, b, c, mask=mask), "forward", ""))

    def parts(call: Callable[[], Any], layers: int, ours: str, theirs: str, batches: int) -> dict[str, float]:
        us = host_us(call, device, batches) / layers
        beyond = {"kernel_us": kernel[ours], "torch_us": torchs[theirs], "beyond_us": us - kernel[ours] - torchs[theirs]} if ours else {}
        return {name: round(value, 2) for name, value in {"us": us, **beyond}.items()}

    # A new length may cost a library milliseconds: fewer calls of these.
    return {name: functools.partial(parts, call, _LAYERS if "backward" in name else 1, ours, theirs, 10 if "decode" in name else 60) for name, call, ours, theirs in calls}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def main(options: argparse.Namespace) -> None:
    foveal.set_num_threads(1)
    torch.set_num_threads(1)
    rows = Rows(options.output, machine.describe(options.device, 1))
    for name, found in progress(measure(options.device).items(), unit="call"):
        rows.add("overhead", name, device=options.device, **found())
