"""The signature of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

import torch
from torch import Tensor

from ..describe import Options
from .operators import bound, call


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, by foveal; a float attn_mask that requires a gradient gets one.

    query: [batch, heads_q, seqlen_q, head_dim]; attn_mask: bool (True = keep) or float (added), broadcastable to
    [batch, heads_q, seqlen_q, seqlen_kv]. dropout draws its seed from torch's generator.
    """
    if query.dim() == 3:
        tensors = (t.unsqueeze(0) for t in (query, key, value))
        mask4 = attn_mask
        return scaled_dot_product_attention(*tensors, mask4, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    if query.dim() != 4:
        raise ValueError(f"query: rank {query.dim()}; expected 3 or 4: [batch, heads, seqlen, head_dim]")
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask: must be None when is_causal is set")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"key: {key.shape[1]} heads, query: {query.shape[1]}; expected equal, or enable_gqa=True")
    seed = int(torch.randint(0, 2**62, (), dtype=torch.int64, device="cpu")) if dropout_p > 0 else 0
    score_mod, mask, params = None, "kv_idx <= q_idx" if is_causal else None, {}
    if attn_mask is not None:
        bias = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
        index = [symbol if extent > 1 else "0" for extent, symbol in zip(bias.shape, ("batch", "head", "q_idx", "kv_idx"))]
        read = f"attn_mask[{', '.join(index)}]"
        params = {"attn_mask": bias}
        score_mod, mask = (None, read) if bias.dtype == torch.bool else (f"score + {read}", None)
    arguments = {"scale": scale, "dropout_p": dropout_p, "seed": seed, "params": params}
    program_key, captured = bound(score_mod, mask, Options(), arguments, heads_first=True)
    return call(program_key, captured, query, key, value, None, (0, 0))[0]
