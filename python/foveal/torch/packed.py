"""Sequences of different lengths without padding: torch's varlen_attn, and jagged nested tensors in scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..argument_errors import public
from ..describe import Rng
from ..signatures import Options, Paged, check_flags
from .calls import call, draw_rng
from .errors import CallError
from .programs import bound


@public("foveal.torch.varlen_attn")
def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    """Drop-in for torch.nn.attention.varlen.varlen_attn: also on CPUs, in every dtype, with gradients.

    query: [total_q, heads_q, head_dim].
    key, value: [total_k, heads_kv, ...]; with a block_table [pages, page_size, heads_kv, ...].
    cu_seq_q, cu_seq_k: int32 or int64 [sequences + 1], cumulative lengths.
    max_q, max_k: the longest sequences.
    window_size: keys to the left and to the right that a query sees, -1 for all. The last query is aligned with the last key, as in flash-attn.
    seqused_k: int [sequences], the number of valid keys of each sequence; checked where it lies on the CPU.
    block_table: int32 [sequences, pages], the pages of each sequence. It needs seqused_k; cu_seq_k is not read; the pages get gradients.
    num_splits: accepted and ignored, as results do not depend on it.

    Returns [total_q, heads_q, head_dim_v], and lse [heads_q, total_q] where return_aux asks for it.
    """
    if type(enable_gqa) is not bool:
        check_flags("varlen_attn", enable_gqa=enable_gqa)
    for name, longest in (("max_q", max_q), ("max_k", max_k)):
        if not isinstance(longest, int) and not hasattr(longest, "__index__"):  # torch.compile asks no attributes of its ints
            raise CallError(f"varlen_attn: {name}: found {type(longest).__name__} {longest!r}; expected an int, the length of the longest sequence")
    if return_aux is not None and not hasattr(return_aux, "lse"):
        raise CallError(f"varlen_attn: return_aux: found {type(return_aux).__name__}; expected an AuxRequest or None")
    paged = block_table is not None
    if paged and seqused_k is None:
        raise CallError("varlen_attn: seqused_k: found None; expected int32 or int64 [sequences] beside a block_table: how many keys there are")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        rank, layout = (4, "[pages, page_size, heads, head_dim]") if paged and name != "query" else (3, "[total, heads, head_dim]")
        if not isinstance(tensor, Tensor) or tensor.dim() != rank:
            found = f"rank {tensor.dim()}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CallError(f"varlen_attn: {name}: found {found}; expected a tensor of rank {rank}: {layout}")
    _check_heads("varlen_attn", query.shape[1], key.shape[-2], enable_gqa)
    for name, tensor in (("cu_seq_q", cu_seq_q), *(() if paged else (("cu_seq_k", cu_seq_k),))):
        if not isinstance(tensor, Tensor) or tensor.dim() != 1 or tensor.dtype not in (torch.int32, torch.int64):
            found = f"{tensor.dtype} of rank {tensor.dim()}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise CallError(f"varlen_attn: {name}: found {found}; expected an int32 or int64 tensor [sequences + 1]")
    if not (isinstance(window_size, (tuple, list)) and len(window_size) == 2 and all([type(side) is int for side in window_size])):
        raise CallError(f"varlen_attn: window_size: found {window_size!r}; expected a pair of ints (to the left, to the right), -1: all")
    left, right = window_size
    params: dict[str, Tensor] = {}
    fewer = seqused_k is not None and not paged  # of packed keys, not all count
    if seqused_k is not None and cu_seq_k is not None and fewer:
        _check_used(seqused_k, cu_seq_q, cu_seq_k)
        params["seqused_k"] = seqused_k
    seqlen_kv = "seqused_k[batch]" if fewer else "seqlen_kv"
    diagonal = f"q_idx + ({seqlen_kv} - seqlen_q)"  # the key at which a query stands
    masks = []
    if left >= 0:
        masks.append(f"(kv_idx >= {diagonal} - {left})")
    if right >= 0:
        masks.append(f"(kv_idx <= {diagonal} + {right})")
    if fewer:
        masks.append("(kv_idx < seqused_k[batch])")
    program, captured = bound(None, " & ".join(masks) or None, Options(), {"scale": scale, "params": params}, heads_first=False)
    of_kv = Paged(block_table, seqused_k) if cu_seq_k is None or paged else cu_seq_k.contiguous()
    out, lse = call(program, captured, query, key, value, (cu_seq_q.contiguous(), of_kv), (max_q, max_k))
    return (out, lse) if return_aux is not None and return_aux.lse else out


def _check_used(seqused_k: Any, cu_seq_q: Tensor, cu_seq_k: Tensor) -> None:
    if not isinstance(seqused_k, Tensor) or seqused_k.dtype not in (torch.int32, torch.int64) or seqused_k.shape != (len(cu_seq_q) - 1,):
        found = f"{seqused_k.dtype} of shape {tuple(seqused_k.shape)}" if isinstance(seqused_k, Tensor) else type(seqused_k).__name__
        raise CallError(f"varlen_attn: seqused_k: found {found}; expected an int32 or int64 tensor [sequences], [{len(cu_seq_q) - 1}]")
    if torch.compiler.is_compiling() or not (type(seqused_k) is type(cu_seq_k) is Tensor and seqused_k.is_cpu and cu_seq_k.is_cpu) or len(cu_seq_k) != len(cu_seq_q):
        return  # numbers that are not here to be read, or refused anyway
    lengths = cu_seq_k.diff()
    for n in ((seqused_k < 0) | (seqused_k > lengths)).nonzero().flatten().tolist()[:1]:
        raise CallError(f"varlen_attn: seqused_k: {int(seqused_k[n])} of sequence {n}; expected 0 to {int(lengths[n])}, its number of keys")


def jagged_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor:
    """scaled_dot_product_attention of nested tensors [batch, heads, seqlen, head_dim], jagged along seqlen."""
    if attn_mask is not None:
        raise CallError("scaled_dot_product_attention: attn_mask: must be None with nested tensors")
    packed, lengths = zip(*[_packed(name, tensor) for name, tensor in (("query", query), ("key", key), ("value", value))])
    same = lengths[0][0] is lengths[1][0] or torch.equal(lengths[0][0], lengths[1][0])
    if is_causal and not same:
        raise CallError("scaled_dot_product_attention: is_causal: queries and keys of different lengths in nested tensors; expected equal ones")
    if lengths[1][0] is not lengths[2][0] and not torch.equal(lengths[1][0], lengths[2][0]):
        raise CallError("scaled_dot_product_attention: value: other sequence lengths than key's")
    _check_heads("scaled_dot_product_attention", packed[0].shape[1], packed[1].shape[1], enable_gqa)
    arguments: dict[str, Any] = {"scale": scale}
    rng = Rng()
    if dropout_p > 0.0:
        arguments["dropout_p"], rng = dropout_p, draw_rng(query.device)
    program, captured = bound(None, "kv_idx <= q_idx" if is_causal else None, Options(), arguments, heads_first=False)
    (cu_q, max_q), (cu_kv, max_kv) = lengths[:2]
    q, k, v = packed
    out, _ = call(program, captured, q, k, v, (cu_q, cu_kv), (max_q, max_kv), rng)
    return torch.nested.nested_tensor_from_jagged(out, offsets=cu_q).transpose(1, 2)


def _packed(name: str, tensor: Any) -> tuple[Tensor, tuple[Tensor, int]]:
    """Values [total, heads, head_dim], and (offsets, the longest sequence)."""
    if not tensor.is_nested:
        raise CallError(f"scaled_dot_product_attention: {name}: a dense tensor beside nested ones; expected a nested one")
    if tensor.layout != torch.jagged or tensor.dim() != 4 or tensor._ragged_idx != 2:
        raise CallError(
            f"scaled_dot_product_attention: {name}: a nested tensor of layout {tensor.layout} and rank {tensor.dim()}; "
            "expected layout torch.jagged, [batch, heads, seqlen, head_dim] with different seqlens"
        )
    rows: Any = tensor.transpose(1, 2)  # [batch, seqlen, heads, head_dim]
    if rows.lengths() is not None:
        raise CallError(f"scaled_dot_product_attention: {name}: a nested tensor with holes; expected a contiguous one")
    return rows.values(), (rows.offsets(), rows._get_max_seqlen())


def _check_heads(function: str, heads: int, kv_heads: int, enable_gqa: bool) -> None:
    if heads != kv_heads and not enable_gqa:
        raise CallError(f"{function}: key: {kv_heads} heads, query: {heads}; expected equal, or enable_gqa=True")
    if kv_heads == 0 or heads % kv_heads != 0:
        raise CallError(f"{function}: key: {kv_heads} heads; expected a number that divides query's {heads}")
