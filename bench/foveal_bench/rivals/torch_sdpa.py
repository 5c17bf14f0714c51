"""torch.nn.functional.scaled_dot_product_attention, each of its kernels by name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..case import Case
from . import Job, autograd_job

_CUDA = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "fa2": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def names(device: str) -> list[str]:
    return list(_CUDA) if device == "cuda" else ["torch_sdpa"]


def supports(name: str, case: Case, device: str) -> str | None:
    if case.score:
        return "no programmable scores"
    if case.head_dim != case.head_dim_v and name in ("fa2", "torch_sdpa"):
        return "head_dim differs from head_dim_v"
    if case.dtype in ("f32", "f64") and name in ("cudnn", "fa2"):
        return "16-bit inputs only"
    if name == "math" and 8 * case.batch * case.heads_q * case.seqlen_q * case.seqlen_kv > 16 << 30:
        return "materialises the scores: too much memory"
    return None


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        arguments: dict[str, Any] = {"is_causal": case.causal, "enable_gqa": case.heads_q != case.heads_kv}
        if name not in _CUDA:
            return F.scaled_dot_product_attention(q, k, v, **arguments)
        with sdpa_kernel([_CUDA[name]]):
            return F.scaled_dot_product_attention(q, k, v, **arguments)

    return autograd_job(call, tensors, [], case.backward)
