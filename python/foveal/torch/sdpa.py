"""The signature of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from ..argument_errors import public
from ..describe import Rng, without_gradient
from ..masks import read_by_pair
from ..signatures import Options, check_flags
from .calls import call, draw_rng, dtype_of, whole_seqlens
from .errors import CallError
from .packed import jagged_attention
from .programs import bound

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_torchs = torch.nn.functional.scaled_dot_product_attention  # patch() may put foveal's in its place


@public("foveal.torch.scaled_dot_product_attention")
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
    """Drop-in for torch.nn.functional.scaled_dot_product_attention; a float attn_mask that requires a gradient gets one.

    query: [..., heads_q, seqlen_q, head_dim], float64, float32, bfloat16 or float16; at least two dimensions; those before seqlen are broadcast.
    key: [..., heads_kv, seqlen_kv, head_dim], of query's dtype and device.
    value: [..., heads_kv, seqlen_kv, head_dim_v], likewise.
    enable_gqa: each head of key and value serves a group of query heads.
    attn_mask: broadcastable to [..., heads_q, seqlen_q, seqlen_kv], of at least two dimensions where query has four; bool (True = keep), or float32 or query's dtype
    (added to the scores); or a torch.nn.attention.bias.CausalBias.
    dropout_p: draws from torch's generator of query's device, on that device: a captured CUDA graph drops other pairs on each replay.

    Tensors on the device meta give a result there, without elements.

    Nested tensors of layout torch.jagged: [batch, heads, seqlen, head_dim] with different seqlens, without attn_mask.

    Returns [..., heads_q, seqlen_q, head_dim_v]. Raises CallError (a ValueError and a RuntimeError) where torch raises or leaves the result undefined.
    """
    if type(is_causal) is not bool or type(enable_gqa) is not bool:
        check_flags("scaled_dot_product_attention", is_causal=is_causal, enable_gqa=enable_gqa)
    scale = None if scale is None else _number("scale", scale)
    dropout_p = _number("dropout_p", dropout_p)
    if not 0.0 <= dropout_p <= 1.0:
        raise CallError(f"scaled_dot_product_attention: dropout_p: {dropout_p}; expected 0 <= dropout_p <= 1")
    if dropout_p == 1.0:  # every pair is dropped, gradients too
        whole: Tensor = scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
        return whole * 0.0
    if any([isinstance(t, Tensor) and t.is_nested for t in (query, key, value)]):
        return jagged_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    _check_tensors(query, key, value)
    mask, read = "kv_idx <= q_idx" if is_causal else None, None
    if isinstance(attn_mask, CausalBias):
        mask = _causal_mask(attn_mask, is_causal, query.shape[-2], key.shape[-2])
    elif attn_mask is not None:
        if is_causal:
            raise CallError("scaled_dot_product_attention: attn_mask: must be None when is_causal is set")
        _check_mask(attn_mask, query)
        read = attn_mask
    if 0 in query.shape or 0 in key.shape or 0 in value.shape:  # nothing to compute: torch knows what it returns then
        return _torchs(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    query, key, value, batch_shape = _aligned(query, key, value, enable_gqa)
    if query.is_meta:  # the result has no elements
        if read is not None:
            _as_rank_four(read, batch_shape, query.shape[-2], key.shape[-2])
        out = _torchs(query, key, value, enable_gqa=True)
    else:
        out = _attend(query, key, value, read, mask, dropout_p, scale, batch_shape)
    return out if len(batch_shape) == 2 else out.reshape(*batch_shape, *out.shape[-2:])


def _attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, mask: str | None, dropout_p: float, scale: float | None,
    batch_shape: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """On tensors of four dimensions; batch_shape: what the two leading ones were."""
    score_mod, params = None, {}
    if attn_mask is not None:
        bias = _as_rank_four(attn_mask, batch_shape, *whole_seqlens(query.shape[-2], key.shape[-2]))
        read = read_by_pair("attn_mask", bias.shape)
        params = {"attn_mask": bias}
        score_mod, mask = (None, read) if bias.dtype == torch.bool else (f"score + {read}", None)
    arguments: dict[str, Any] = {"scale": scale, "params": params}
    rng = Rng()
    if dropout_p > 0.0:
        arguments["dropout_p"], rng = dropout_p, draw_rng(query.device)
    found, captured = bound(score_mod, mask, Options(), arguments, heads_first=True)
    return call(found, captured, query, key, value, rng=rng)[0]


def _number(name: str, value: Any) -> float:
    """Python's numbers and tensors of one element."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(without_gradient(name, value))
    raise TypeError(f"scaled_dot_product_attention: {name}: found {type(value).__name__}; expected a number")


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"scaled_dot_product_attention: {name}: found {type(tensor).__name__}; expected a torch.Tensor")
        if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda or tensor.is_meta):
            raise CallError(f"scaled_dot_product_attention: {name}: {tensor.layout} on {tensor.device}; expected a dense tensor on cpu or cuda")
        if tensor.dim() < 2:
            raise CallError(
                f"scaled_dot_product_attention: {name}: rank {tensor.dim()}; expected at least 2: [..., heads, seqlen, head_dim]"
            )
        if tensor.dtype not in _DTYPES:
            raise CallError(
                f"scaled_dot_product_attention: {name}: dtype {tensor.dtype}; expected torch.float64, float32, bfloat16 or float16"
            )
        if tensor.dtype != query.dtype and (query.is_meta or tensor.is_meta or dtype_of(tensor) != dtype_of(query)):
            raise CallError(f"scaled_dot_product_attention: {name}: dtype {tensor.dtype}; expected {query.dtype}, query's")
        if tensor.device != query.device:
            raise CallError(f"scaled_dot_product_attention: {name}: on {tensor.device}; expected {query.device}, query's device")
    if key.shape[-1] != query.shape[-1]:
        raise CallError(f"scaled_dot_product_attention: key: head_dim {key.shape[-1]}; expected {query.shape[-1]}, query's")
    if value.shape[-2] != key.shape[-2]:
        raise CallError(f"scaled_dot_product_attention: value: seqlen {value.shape[-2]}; expected {key.shape[-2]}, key's")


def _check_mask(attn_mask: Tensor, query: Tensor) -> None:
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"scaled_dot_product_attention: attn_mask: found {type(attn_mask).__name__}; expected a torch.Tensor or None")
    added: tuple[torch.dtype, ...] = (torch.float32, query.dtype)
    if not query.is_meta and dtype_of(query) != torch.float64 and torch.is_autocast_enabled(query.device.type):  # which casts masks, too
        added = (torch.float32, torch.bfloat16, torch.float16)
    if attn_mask.dtype != torch.bool and attn_mask.dtype not in added:
        raise CallError(
            f"scaled_dot_product_attention: attn_mask: dtype {attn_mask.dtype}; expected torch.bool (True = keep) or "
            f"{' or '.join(sorted({str(dtype) for dtype in added}))} (added to the scores)"
        )
    if attn_mask.is_nested or attn_mask.layout is not torch.strided:
        found = "nested tensor" if attn_mask.is_nested else f"tensor of layout {attn_mask.layout}"
        raise CallError(f"scaled_dot_product_attention: attn_mask: found a {found}; expected a dense one")
    if attn_mask.dim() < 2 and query.dim() == 4:  # torch takes them beside other queries
        raise CallError(
            f"scaled_dot_product_attention: attn_mask: rank {attn_mask.dim()} beside a query of rank 4; expected at least 2: [..., seqlen_q, seqlen_kv]"
        )
    if attn_mask.device != query.device:
        raise CallError(f"scaled_dot_product_attention: attn_mask: on {attn_mask.device}; expected {query.device}, query's device")


def _causal_mask(bias: CausalBias, is_causal: bool, seqlen_q: int, seqlen_kv: int) -> str:
    """The mask of a causal bias, which has no data."""
    if is_causal:
        raise CallError("scaled_dot_product_attention: attn_mask: a CausalBias; is_causal must not be set beside it")
    if bias.variant == CausalVariant.UPPER_LEFT or bias.seq_len_q == bias.seq_len_kv:  # torch looks no further either
        return "kv_idx <= q_idx"
    if (bias.seq_len_q, bias.seq_len_kv) != (seqlen_q, seqlen_kv):
        raise CallError(
            f"scaled_dot_product_attention: attn_mask: a causal bias of {bias.seq_len_q} x {bias.seq_len_kv}; "
            f"expected seqlen_q x seqlen_kv, {seqlen_q} x {seqlen_kv}"
        )
    return "kv_idx <= q_idx + (seqlen_kv - seqlen_q)"


def _aligned(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """The tensors with four dimensions, broadcast, without copies where torch can; and what the leading dimensions of the result are."""
    if query.dim() == key.dim() == value.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]:
        heads, kv_heads = query.shape[1], key.shape[1]
        if kv_heads == value.shape[1] and (heads == kv_heads or (enable_gqa and heads % kv_heads == 0)):
            return query, key, value, tuple(query.shape[:2])
    if enable_gqa:
        heads = query.shape[-3] if query.dim() > 2 else 0
        for name, tensor in (("key", key), ("value", value)):
            if tensor.dim() < 3 or query.dim() < 3 or heads % tensor.shape[-3] != 0:
                raise CallError(
                    f"scaled_dot_product_attention: {name}: shape {tuple(tensor.shape)}; "
                    f"expected a number of heads that divides query's with enable_gqa, {tuple(query.shape)}"
                )
        if key.shape[-3] != value.shape[-3]:
            key, value = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (key, value))
    leads = [t.shape[:-2] for t in (query, key, value)]
    if enable_gqa:  # heads stay as they are
        leads = [lead[:-1] for lead in leads]
    try:
        lead = torch.broadcast_shapes(*leads)
    except RuntimeError:
        raise CallError(
            f"scaled_dot_product_attention: key: shape {tuple(key.shape)}, value: {tuple(value.shape)}; expected dimensions before seqlen that "
            f"broadcast with query's, {tuple(query.shape)}{'' if enable_gqa else '; fewer heads of key and value need enable_gqa=True'}"
        ) from None
    batch_shape = (*lead, query.shape[-3]) if enable_gqa else tuple(lead)
    batch = math.prod(batch_shape[:-1])

    def four(t: Tensor) -> Tensor:
        heads = (t.shape[-3] if enable_gqa else batch_shape[-1]) if batch_shape else 1
        return t.expand(*batch_shape[:-1], *((heads,) if batch_shape else ()), *t.shape[-2:]).reshape(batch, heads, *t.shape[-2:])

    return four(query), four(key), four(value), batch_shape


def _as_rank_four(attn_mask: Tensor, batch_shape: tuple[int, ...], seqlen_q: int, seqlen_kv: int) -> Tensor:
    """attn_mask as [batch or 1, heads or 1, seqlen_q or 1, seqlen_kv or 1]."""
    full = (*batch_shape, seqlen_q, seqlen_kv)
    given = tuple(attn_mask.shape)
    # Not `in (1, whole)`: torch.compile takes a size for another one than an open size that is equal.
    if len(given) > len(full) or any([extent != 1 and extent != whole for extent, whole in zip(reversed(given), reversed(full))]):
        raise CallError(f"scaled_dot_product_attention: attn_mask: shape {given}; expected one that broadcasts to {full}")
    if len(full) == 4 or len(given) <= 3:
        return attn_mask.reshape((1,) * (4 - len(given)) + given)
    return attn_mask.expand(*batch_shape[:-1], *given[-3:]).reshape(math.prod(batch_shape[:-1]), *given[-3:])
