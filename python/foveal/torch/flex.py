"""FlexAttention's signature."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from torch import Tensor

from ..describe import Options
from .operators import bound, call


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, by foveal: unchanged score_mod and mask_mod functions, learnable captures included.

    query: [batch, heads_q, seqlen_q, head_dim]; key: [batch, heads_kv, seqlen_kv, head_dim]; value: [batch, heads_kv, seqlen_kv, head_dim_v].
    block_mask: a BlockMask (only its mask_mod is used), a mask_mod function, or None. Key and value of batch 1 are broadcast.
    kernel_options: accepted and ignored. Returns [batch, heads_q, seqlen_q, head_dim_v], and lse [batch, heads_q, seqlen_q] with return_lse.
    """
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"key: {key.shape[1]} heads, query: {query.shape[1]}; expected equal, or enable_gqa=True")
    if key.shape[0] == 1 and query.shape[0] > 1:
        key, value = key.expand(query.shape[0], -1, -1, -1), value.expand(query.shape[0], -1, -1, -1)
    program_key, captured = bound(score_mod, getattr(block_mask, "mask_mod", block_mask), Options(), {"scale": scale}, heads_first=True)
    out, lse = call(program_key, captured, query, key, value, None, (0, 0))
    return (out, lse) if return_lse else out
