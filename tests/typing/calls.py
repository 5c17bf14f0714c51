"""Calls as users write them: mypy --strict finds nothing here, and an unused `type: ignore` is an error of its own (tests/python/test_types.py)."""

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, create_block_mask
from typing_extensions import assert_type

import foveal
import foveal.jax
import foveal.torch

Floats = NDArray[np.float32]


def numpy_calls(q: Floats, bias: Floats) -> None:
    assert_type(foveal.attention(q, q, q), Floats)
    assert_type(foveal.attention(q, q, q, mask=foveal.causal(), scale=0.1, return_lse=True), tuple[Floats, Floats])
    foveal.attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i - j], lambda b, h, i, j: i >= j)
    foveal.attention(q, q, q, "score + bias[head, q_idx]", foveal.causal() & ~foveal.window(3), params={"bias": bias}, sink=bias)
    out, lse = foveal.forward(q, q, q, foveal.softcap(20.0), dropout_p=0.1, seed=3)
    dq, dk, dv, others = foveal.backward(q, q, q, out, lse, out, gradients=("bias",), params={"bias": bias})
    assert_type(dq, Floats)
    assert_type(others, dict[str, Floats])
    plan = foveal.plan(q, q, q, mask=foveal.causal(), options=foveal.Options(threads=2))
    plan.run(q=q, k=q, v=q, out=out, lse=lse, workspace=None)
    print(foveal.explain(q, q, q)["text"], bool(foveal.check(q, q, q, dout=out)), foveal.check("forward f32 b1 h1 q8 d16"), foveal.__version__)
    foveal.attention(q, q, q, is_causal=True)  # type: ignore[call-overload]
    foveal.attention(q, q, q, scale="0.1")  # type: ignore[call-overload]
    foveal.forward(q, q, q, causal=True)  # type: ignore[call-arg]


def torch_calls(q: torch.Tensor, bias: torch.Tensor) -> None:
    assert_type(foveal.attention(q, q, q), torch.Tensor)
    assert_type(foveal.torch.attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i - j], scale=0.1), torch.Tensor)
    out, lse = foveal.torch.attention(q, q, q, mask=foveal.causal(), return_lse=True)
    module = foveal.torch.Attention("score * gate[]", foveal.causal(), params={"gate": torch.nn.Parameter(torch.ones(()))}, dropout_p=0.1)
    assert_type(module(q, q, q), torch.Tensor)
    assert_type(module(q, q, q, seed=3, return_lse=True), tuple[torch.Tensor, torch.Tensor])
    module(q, q, q, is_causal=True)  # type: ignore[call-overload]
    out = foveal.torch.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert_type(foveal.torch.flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s, scale=0.1), torch.Tensor)
    assert_type(foveal.torch.flex_attention(q, q, q, head_score, keeps_past, return_lse=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(foveal.torch.flex_attention(q, q, q, return_aux=AuxRequest(lse=True)), tuple[torch.Tensor, AuxOutput])
    foveal.torch.flex_attention(q, q, q, block_mask=create_block_mask(keeps_past, None, None, 8, 8, device="cpu"), kernel_options={"checked": True})
    foveal.torch.flex_attention(q, q, q, is_causal=True)  # type: ignore[call-overload]
    foveal.torch.flex_attention(q, q, q, score_mod=3)  # type: ignore[call-overload]
    with foveal.torch.patch() as routed:
        print(routed)
    foveal.torch.attention(q, q, q, is_causal=True)  # type: ignore[call-overload]
    foveal.torch.Attention(is_causal=True)  # type: ignore[call-arg]


def head_score(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return score * h


def keeps_past(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return i >= j


def jax_calls(q: jax.Array, bias: jax.Array, seed: jax.Array) -> None:
    assert_type(foveal.jax.attention(q, q, q, mask=foveal.causal(), seed=seed, dropout_p=0.1), jax.Array)
    out, lse = foveal.jax.attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i - j], return_lse=True)
    foveal.jax.dot_product_attention(q, q, q, bias, is_causal=True)
    foveal.jax.attention(q, q, q, dropout="0.1")  # type: ignore[call-overload]
