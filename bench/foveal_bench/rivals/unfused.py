"""The materialised attention in torch: matmul, softmax, matmul."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case
from . import Job, autograd_job


def names(device: str) -> list[str]:
    return ["unfused"]


def supports(name: str, case: Case, device: str) -> str | None:
    if case.score:
        return "plain attention only"
    scores = 4 * case.batch * case.heads_q * case.seqlen_q * case.seqlen_kv
    return "materialises the scores: too much memory" if scores > (2 << 30 if device == "cpu" else 16 << 30) else None


def attend(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    group = case.heads_q // case.heads_kv
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2)) * case.scale
    if case.causal:
        keep = torch.ones(case.seqlen_q, case.seqlen_kv, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    return torch.softmax(scores, -1) @ v


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    return autograd_job(lambda q, k, v: attend(case, q, k, v), tensors, [], case.backward)
