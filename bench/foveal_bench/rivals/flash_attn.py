"""FlashAttention (the flash_attn package), when it can be imported."""

from __future__ import annotations

from typing import Any

from ..case import Case
from . import Job, autograd_job


def names(device: str) -> list[str]:
    try:
        import flash_attn  # noqa: F401
    except ImportError:
        return []
    return ["flash_attn"] if device == "cuda" else []


def supports(name: str, case: Case, device: str) -> str | None:
    if case.score:
        return "no programmable scores"
    return None if case.dtype in ("bf16", "f16") and case.head_dim == case.head_dim_v else "16-bit inputs with equal head dims only"


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    from flash_attn import flash_attn_func

    def call(q: Any, k: Any, v: Any) -> Any:
        return flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=case.causal).transpose(1, 2)

    return autograd_job(call, tensors, [], case.backward)
