"""The attention of transformers: what models ask of it becomes the score and the mask of one call."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable

import torch
from torch import Tensor
from transformers.utils import output_capturing

from .. import _core
from ..describe import Rng
from ..masks import read_by_pair
from ..signatures import Options
from ..torch.calls import call, draw_rng
from ..torch.programs import bound
from .masks import Mask


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (output [batch, seqlen_q, heads, head_dim_v], None).

    query: [batch, heads, seqlen_q, head_dim].
    key, value: [batch, heads_kv, seqlen_kv, ...].
    attention_mask: a Mask, or a tensor that broadcasts to [batch, heads, seqlen_q, seqlen_kv or more], bool (True = keep) or float (added); None: causal
    where the module is.
    s_aux: [heads], sinks.
    position_bias: broadcasts to [batch, heads, seqlen_q, seqlen_kv], added, and trained.
    cu_seq_lens_q, cu_seq_lens_k: of packed sequences, which see only themselves.
    indices: [batch, seqlen_q, n], the keys that a query may see, of sparse attention (DeepSeek V3.2).
    """
    _check_asked(module, kwargs)
    score, masks = "score", list[str]()
    params: dict[str, Any] = {}
    if softcap is not None:
        score = f"{float(softcap)} * tanh(score / {float(softcap)})"
    if position_bias is not None:
        score += " + " + _read("position_bias", position_bias, query, key, params)
    expr = None
    if isinstance(attention_mask, Mask):
        _check(attention_mask, query, key)
        expr, params = attention_mask.expr, {**attention_mask.params, **params}
    elif attention_mask is not None:
        read = _read("attn_mask", attention_mask, query, key, params)
        if attention_mask.dtype == torch.bool:
            masks.append(read)
        else:
            score += " + " + read
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        masks.append("kv_idx <= q_idx")
    if cu_seq_lens_q is not None:
        params["documents"] = _documents(cu_seq_lens_q, cu_seq_lens_k, query, key)
        masks.append("documents[q_idx] == documents[kv_idx]")
    if indices is not None:
        params["chosen"] = indices.new_zeros(*indices.shape[:2], key.shape[2], dtype=torch.bool).scatter_(-1, indices.long(), True)
        masks.append("chosen[batch, q_idx, kv_idx]")
    if expr is not None and masks:
        read_params = [_core.Param(name, list(params[name].shape), kind) for name, kind in _OF_MASKS.items() if name in params]
        expr = expr & _core.parse(" & ".join([f"({mask})" for mask in masks]), read_params)
    mask = expr if expr is not None else " & ".join([f"({mask})" for mask in masks]) or None

    arguments: dict[str, Any] = {"scale": scaling, "params": params, "sink": s_aux}
    rng = Rng()
    if dropout > 0.0:
        arguments["dropout_p"], rng = dropout, draw_rng(query.device)
    program, captured = bound(score if score != "score" else None, mask, Options(), arguments, heads_first=True)
    out, _ = call(program, captured, query, key, value, rng=rng)
    return out.transpose(1, 2).contiguous(), None


_OF_MASKS = {"documents": _core.Type.integer, "chosen": _core.Type.boolean}  # tensors that attention_forward makes masks of


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _check_asked(module: torch.nn.Module, asked: dict[str, Any]) -> None:
    """Refuses what a model asks of its attention and attention_forward does not give. asked: by argument, or by hooks that record what layers return."""
    collector: Any = output_capturing._active_collector
    if asked.get("output_attentions") or any(["attentions" in recorded for recorded in collector.get() or ()]):
        raise NotImplementedError("attn_implementation='foveal': output_attentions: probabilities are never in memory; use attn_implementation='eager'")
    if asked.get("cache") is not None:
        raise NotImplementedError("attn_implementation='foveal': cache: a paged cache; use attn_implementation='paged|eager'")
    for name in _meant_for_attention(module) & asked.keys():
        if asked[name] is not None:
            unknown = f"{name}: a part of this model's attention that foveal does not know"
            raise NotImplementedError(f"attn_implementation='foveal': {unknown}; use attn_implementation='eager'")


# What masks say already, is asked for above, or kernels of another kind need.
_FOR_OTHERS = {"sliding_window", "output_attentions", "max_length_q", "max_length_k", "position_ids", "deterministic"}


def _meant_for_attention(module: torch.nn.Module) -> set[str]:
    """The arguments that the model's own attention has, or that its module names where it calls one, and that are none of attention_forward's. Others come
    from the model's caller."""
    eager = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    own = _parameters(eager) if inspect.isfunction(eager) else set()
    kind: Any = type(module)
    return (own | _words(kind)) - _parameters(attention_forward) - _FOR_OTHERS


@functools.lru_cache(256)
def _words(kind: Any) -> set[str]:
    """The strings in the code of a module's forward(), among them the keywords in its calls."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    nested = [constant if isinstance(constant, tuple) else (constant,) for constant in getattr(code, "co_consts", ())]
    return {word for group in nested for word in group if isinstance(word, str)}


@functools.lru_cache(256)
def _parameters(function: Callable[..., Any]) -> set[str]:
    return {name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind != inspect.Parameter.VAR_KEYWORD}


def _check(mask: Mask, query: Tensor, key: Tensor) -> None:
    batch, _, seqlen_q, seqlen_kv = mask.shape
    if (seqlen_q, seqlen_kv) != (query.shape[2], key.shape[2]) or batch not in (1, query.shape[0]):
        raise ValueError(
            f"attn_implementation='foveal': attention_mask: for batch {batch}, {seqlen_q} queries, {seqlen_kv} keys; "
            f"expected batch {query.shape[0]}, {query.shape[2]} queries, {key.shape[2]} keys"
        )


def _read(name: str, tensor: Tensor, query: Tensor, key: Tensor, params: dict[str, Tensor]) -> str:
    """Binds a tensor that broadcasts to the scores; the text of its read. Keys that are not there yet, of a static cache, are cut off."""
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    tensor = tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))[..., : full[3]]
    if any([extent not in (1, whole) for extent, whole in zip(tensor.shape, full)]):
        raise ValueError(f"attn_implementation='foveal': {name}: shape {tuple(tensor.shape)}; expected one that broadcasts to {full}")
    params[name] = tensor
    return read_by_pair(name, tensor.shape)


def _documents(cu_q: Tensor, cu_kv: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """int32 [seqlen]: which of the packed sequences each position belongs to."""
    if query.shape[0] != 1 or query.shape[2] != key.shape[2] or (cu_kv is not None and cu_kv is not cu_q and not torch.equal(cu_q, cu_kv)):
        raise NotImplementedError("attn_implementation='foveal': cu_seq_lens: expected batch 1, and the same lengths for queries and keys")
    return torch.searchsorted(cu_q.to(torch.int32), torch.arange(query.shape[2], dtype=torch.int32, device=query.device), right=True, out_int32=True)
