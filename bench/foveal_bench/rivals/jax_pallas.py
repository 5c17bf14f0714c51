"""The attentions that JAX ships as Pallas examples: by Triton, and by Mosaic for Hopper."""

from __future__ import annotations

from typing import Any

from ..case import Case
from . import Job
from .jax_attention import jax_job


def names(device: str) -> list[str]:
    if device != "cuda":
        return []
    found = []
    for name, module in (("pallas_triton", "attention"), ("pallas_mosaic", "attention_mgpu")):
        try:
            import importlib

            importlib.import_module(f"jax.experimental.pallas.ops.gpu.{module}")
            found.append(name)
        except ImportError:
            pass
    return found


def supports(name: str, case: Case, device: str) -> str | None:
    if case.score:
        return "no programmable scores"
    if case.dtype not in ("bf16", "f16") or case.head_dim != case.head_dim_v or case.heads_q != case.heads_kv:
        return "16-bit inputs, equal head dims and heads only"
    if name == "pallas_mosaic" and case.backward and case.causal:
        return "no causal backward"
    return None


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    if name == "pallas_triton":
        from jax.experimental.pallas.ops.gpu.attention import mha

        def attend(q: Any, k: Any, v: Any) -> Any:
            return mha(q, k, v, None, sm_scale=case.scale, causal=case.causal)
    else:
        from jax.experimental.pallas.ops.gpu.attention_mgpu import TuningConfig, attention

        blocks: dict[str, Any] = {f"block_{side}": 64 for side in ("q_dkv", "kv_dkv", "q_dq", "kv_dq")} if case.backward else {}
        config = TuningConfig(block_q=64, block_kv=64, max_concurrent_steps=2, causal=case.causal, **blocks)

        def attend(q: Any, k: Any, v: Any) -> Any:
            return attention((q * case.scale).astype(q.dtype), k, v, config)

    return jax_job(attend, tensors, case.backward, device)
