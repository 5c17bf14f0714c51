"""FlexAttention's signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Literal, overload

import torch
import torch.nn.attention.flex_attention as torch_flex
from torch import Tensor

from .._core import Expr
from ..argument_errors import public
from ..signatures import Options, check_flags
from . import calls
from .block_masks import as_mask
from .calls import call, dtype_of
from .composite import row_maxima
from .errors import CallError
from .programs import Found, bound, key_of, program_of

TorchScore = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | Expr | str
TorchMask = torch_flex.BlockMask | Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | Expr | str | None
_MASKS = (torch_flex.BlockMask, Expr, str)
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: TorchScore | None = None, block_mask: TorchMask = None, scale: float | None = None,
    enable_gqa: bool = False, return_lse: Literal[False] = False, kernel_options: Mapping[str, Any] | None = None, *, return_aux: None = None,
) -> Tensor: ...
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: TorchScore | None = None, block_mask: TorchMask = None, scale: float | None = None,
    enable_gqa: bool = False, *, return_lse: Literal[True], kernel_options: Mapping[str, Any] | None = None, return_aux: None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: TorchScore | None = None, block_mask: TorchMask = None, scale: float | None = None,
    enable_gqa: bool = False, return_lse: Literal[False] = False, kernel_options: Mapping[str, Any] | None = None, *,
    return_aux: torch_flex.AuxRequest,
) -> tuple[Tensor, torch_flex.AuxOutput]: ...
@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: TorchScore | None = None, block_mask: TorchMask = None, scale: float | None = None,
    enable_gqa: bool = False, return_lse: bool = False, kernel_options: Mapping[str, Any] | None = None, *,
    return_aux: torch_flex.AuxRequest | None = None,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, torch_flex.AuxOutput]: ...
@public("foveal.torch.flex_attention")
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: TorchScore | None = None,
    block_mask: TorchMask = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: torch_flex.AuxRequest | None = None,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, torch_flex.AuxOutput]:
    """Drop-in for torch.nn.attention.flex_attention.flex_attention: score_mod and mask_mod work unchanged; captured tensors may be trained.

    query: [batch, heads_q, seqlen_q, head_dim].
    key: [batch, heads_kv, seqlen_kv, head_dim]; batch 1 is broadcast.
    value: [batch, heads_kv, seqlen_kv, head_dim_v]; batch 1 is broadcast.
    block_mask: a BlockMask, a mask_mod function, or None. A BlockMask's lists are honoured as in compiled FlexAttention: blocks listed as full are
    kept whole, those listed as partial where mask_mod keeps them, the others are skipped. Its batch and heads may be 1.
    kernel_options: {"checked": True} makes an index that leaves a captured tensor at a pair that is kept an error (otherwise the nearest
    element is read). Other options are accepted and ignored.

    Returns [batch, heads_q, seqlen_q, head_dim_v], and lse [batch, heads_q, seqlen_q] with return_lse, or an AuxOutput of what an AuxRequest as
    return_aux asks for: lse; max_scores, of lse's shape and without gradient, by a pass of its own over the scores.
    Raises CallError, a ValueError and a RuntimeError, for tensors or a block mask that do not fit together.
    """
    if type(enable_gqa) is not bool or type(return_lse) is not bool:
        check_flags("flex_attention", enable_gqa=enable_gqa, return_lse=return_lse)
    _check(query, key, value, enable_gqa)
    _check_options(block_mask, kernel_options, return_aux)
    if return_lse and return_aux is not None:
        raise CallError("flex_attention: return_aux: must be None when return_lse is set; AuxRequest(lse=True) asks for the same")
    if return_aux is not None and return_aux.max_scores and calls.context is not None:
        raise NotImplementedError("flex_attention: return_aux: max_scores under context_parallel(), where other ranks have the other keys; expected lse")
    if key.shape[0] == 1 and query.shape[0] > 1:
        key, value = key.expand(query.shape[0], -1, -1, -1), value.expand(query.shape[0], -1, -1, -1)
    arguments = {"scale": scale, "checked": bool(kernel_options and kernel_options.get("checked"))}
    if isinstance(block_mask, torch_flex.BlockMask):
        find = _key_outside if torch.compiler.is_compiling() else _bound
        found, captured = find(score_mod, block_mask, arguments, query, key.shape[2])
    else:
        found, captured = bound(score_mod, block_mask, Options(), arguments, heads_first=True, like=query)
    out, lse = call(found, captured, query, key, value)
    if return_aux is not None:
        highest = _row_maxima(found, query, key, captured) if return_aux.max_scores else None
        return out, torch_flex.AuxOutput(lse=lse if return_aux.lse else None, max_scores=highest)
    return (out, lse) if return_lse else out


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _row_maxima(found: Found, query: Tensor, key: Tensor, captured: list[Tensor]) -> Tensor:
    return row_maxima(program_of(found), query, key, captured)


def _bound(
    score_mod: Any, block_mask: torch_flex.BlockMask, arguments: dict[str, Any], query: Tensor, seqlen_kv: int
) -> tuple[Found, list[Tensor]]:
    return bound(score_mod, as_mask(block_mask, query, seqlen_kv), Options(), arguments, heads_first=True, like=query)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _key_outside(*traced: Any) -> tuple[str, list[Tensor]]:
    """Lists are read and functions run: a graph break."""
    found, captured = _bound(*traced)
    return key_of(found), captured


def _check_options(block_mask: Any, kernel_options: Any, return_aux: Any) -> None:
    if block_mask is not None and not (isinstance(block_mask, _MASKS) or callable(block_mask)):
        raise TypeError(f"flex_attention: block_mask: found {type(block_mask).__name__}; expected a BlockMask, a mask_mod function or None")
    if kernel_options is not None and not isinstance(kernel_options, Mapping):
        raise TypeError(f"flex_attention: kernel_options: found {type(kernel_options).__name__}; expected a dict or None")
    if kernel_options is not None and type(kernel_options.get("checked", False)) is not bool:
        raise TypeError(f"flex_attention: kernel_options: found 'checked': {kernel_options['checked']!r}; expected True or False")
    if return_aux is not None and not isinstance(return_aux, torch_flex.AuxRequest):
        raise TypeError(f"flex_attention: return_aux: found {type(return_aux).__name__}; expected an AuxRequest or None")


def _check(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"flex_attention: {name}: found {type(tensor).__name__}; expected a torch.Tensor")
        if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda):
            raise CallError(f"flex_attention: {name}: {tensor.layout} on {tensor.device}; expected a dense tensor on cpu or cuda")
        if tensor.dim() != 4:
            raise CallError(f"flex_attention: {name}: rank {tensor.dim()}; expected 4: [batch, heads, seqlen, head_dim]")
        if tensor.dtype not in _DTYPES or (tensor.dtype != query.dtype and dtype_of(tensor) != dtype_of(query)):
            expected = "torch.float64, float32, bfloat16 or float16" if tensor is query else f"{query.dtype}, query's"
            raise CallError(f"flex_attention: {name}: dtype {tensor.dtype}; expected {expected}")
        if tensor.device != query.device:
            raise CallError(f"flex_attention: {name}: on {tensor.device}; expected {query.device}, query's device")
    batch, heads, _, dim = query.shape
    key_batch, key_heads, seqlen, key_dim = key.shape
    for name, found in (("key", key_batch), ("value", value.shape[0])):
        if found != batch and found != 1:
            raise CallError(f"flex_attention: {name}: batch {found}; expected {batch}, query's, or 1")
    if key_dim != dim:
        raise CallError(f"flex_attention: key: head_dim {key_dim}; expected {dim}, query's")
    if value.shape[:3] != (key_batch, key_heads, seqlen):
        raise CallError(
            f"flex_attention: value: batch, heads, seqlen of {tuple(value.shape[:3])}; expected {(key_batch, key_heads, seqlen)}, key's"
        )
    if heads != key_heads and not enable_gqa:
        raise CallError(f"flex_attention: key: {key_heads} heads, query: {heads}; expected equal, or enable_gqa=True")
    if heads != key_heads and (key_heads == 0 or heads % key_heads != 0):
        raise CallError(f"flex_attention: key: {key_heads} heads; expected a number that divides query's {heads}")
