"""foveal, through its FlexAttention front door: the same functions as the rivals, traced once."""

from __future__ import annotations

from typing import Any

import torch

import foveal.torch

from ..case import Case
from ..scores import program
from . import Job, autograd_job


def names(device: str) -> list[str]:
    return ["foveal"]


def supports(name: str, case: Case, device: str) -> str | None:
    return None


def layer(case: Case, device: str) -> tuple[foveal.torch.Attention, list[torch.Tensor]]:
    score_mod, mask_mod, learned = program(case, device)
    return foveal.torch.Attention(score_mod, foveal.causal() if case.causal and not case.score else mask_mod), learned


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    attention, learned = layer(case, device)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return out.transpose(1, 2)

    return autograd_job(call, tensors, learned, case.backward)
