"""FlexAttention, compiled, with a block mask made outside the timed call."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case
from ..scores import program
from . import Job, autograd_job


def names(device: str) -> list[str]:
    try:
        import torch.nn.attention.flex_attention  # noqa: F401
    except ImportError:
        return []
    return ["flex"]


def supports(name: str, case: Case, device: str) -> str | None:
    if device == "cpu" and case.backward:
        return "no backward on the CPU"
    if case.head_dim < 16:
        return "head_dim < 16"
    return None


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    score_mod, mask_mod, learned = program(case, device)
    if device == "cpu":
        learned = [t.detach() for t in learned]
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, case.seqlen_q, case.seqlen_kv, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=case.heads_q != case.heads_kv)

    return autograd_job(call, tensors, learned, case.backward)
