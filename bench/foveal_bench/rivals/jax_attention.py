"""jax.nn.dot_product_attention by XLA, and by cuDNN on a GPU."""

from __future__ import annotations

import time
from typing import Any, Callable

from ..case import Case
from . import Job

_ENQUEUED = 8  # calls timed at once: JAX's own stream cannot be timed by torch's events, and waiting for one call would time the host


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
    if name == "jax_xla" and 4 * case.batch * case.heads_q * case.seqlen_q * case.seqlen_kv > (2 << 30 if device == "cpu" else 4 << 30):
        return "materialises the scores: too much memory"
    return None


def prepare(name: str, case: Case, tensors: dict[str, Any], device: str) -> Job:
    import jax

    implementation: Any = "xla" if name == "jax_xla" else "cudnn"

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=case.causal, implementation=implementation)

    return jax_job(attend, tensors, case.backward, device)


def jax_job(attend: Callable[..., Any], tensors: dict[str, Any], backward: bool, device: str) -> Job:
    """A Job from a JAX function of q, k, v: [batch, seqlen, heads, dim]. The backward is timed alone: the residuals are its arguments."""
    import jax
    import torch

    # Row-major in JAX's order: what the views are made of.
    q, k, v, dout = (jax.dlpack.from_dlpack(tensors[n].transpose(1, 2).contiguous()) for n in ("q", "k", "v", "dout"))
    forward = jax.jit(attend)
    pullback = jax.vjp(attend, q, k, v)[1] if backward else None
    pull = jax.jit(lambda pullback, dout: pullback(dout))  # the residuals must be arguments: captured, they are constants to be folded

    def to_torch(array: Any) -> torch.Tensor:
        return torch.utils.dlpack.from_dlpack(array).transpose(1, 2)

    def milliseconds(backward: bool) -> float:
        run: Callable[[], Any] = (lambda: pull(pullback, dout)) if backward else (lambda: forward(q, k, v))
        torch.cuda.synchronize()
        jax.block_until_ready(run())
        start = time.perf_counter()
        for _ in range(_ENQUEUED):
            last = run()
        jax.block_until_ready(last)
        return (time.perf_counter() - start) / _ENQUEUED * 1e3

    return Job(
        lambda: to_torch(forward(q, k, v).block_until_ready()),
        lambda: [to_torch(g) for g in jax.block_until_ready(pull(pullback, dout))],
        milliseconds if device == "cuda" else None,
    )
