"""jax.nn.dot_product_attention by XLA, and by cuDNN on a GPU."""

from __future__ import annotations

from typing import Any

from ..case import Case
from . import Job


def names(device: str) -> list[str]:
    try:
        import jax
    except ImportError:
        return []
    if device == "cpu":
        return ["jax_xla"]
    return ["jax_xla", "jax_cudnn"] if jax.default_backend() == "gpu" else []


def supports(name: str, case: Case, device: str) -> str | None:
    if case.score:
        return "no programmable scores"
    if case.head_dim != case.head_dim_v:
        return "head_dim differs from head_dim_v"
    if name == "jax_cudnn" and case.dtype not in ("bf16", "f16"):
        return "16-bit inputs only"
    if case.dtype == "f64":
        return "needs the x64 mode"
    if name == "jax_xla" and 4 * case.batch * case.heads_q * case.seqlen_q * case.seqlen_kv > (2 << 30 if device == "cpu" else 16 << 30):
        return "materialises the scores: too much memory"
    return None


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    import jax
    import torch

    # [batch, seqlen, heads, dim], row-major: what JAX wants and what the views are made of.
    q, k, v, dout = (jax.dlpack.from_dlpack(tensors[n].transpose(1, 2).contiguous()) for n in ("q", "k", "v", "dout"))
    implementation = "xla" if name == "jax_xla" else "cudnn"

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=case.causal, implementation=implementation)

    forward = jax.jit(attend)
    # JAX offers no graph to time a backward alone: the pull-back is compiled with the forward it needs recomputed away where XLA can.
    _, pull = jax.vjp(attend, q, k, v)
    backward = jax.jit(pull)

    def to_torch(array: Any) -> torch.Tensor:
        return torch.from_dlpack(array).transpose(1, 2)

    return Job(
        lambda: to_torch(forward(q, k, v).block_until_ready()),
        lambda: [to_torch(g) for g in jax.block_until_ready(backward(dout))],
    )
