"""foveal as an attention implementation of transformers:

    foveal.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="foveal")

Softcaps, sinks, windows, chunks, position biases, padding, packed sequences, grouped heads, dropout, caches: each becomes part of the score or the
mask of one fused call. Masks are expressions: no seqlen_q x seqlen_kv tensor is made, and empty tiles are skipped.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, eager_mask, prepare_padding_mask, sdpa_mask
from transformers.utils import output_capturing

from . import _core, logging, transformers_alibi
from ._core import Expr
from .describe import Options, Rng, describe
from .torch.operators import bound, call, draw_rng
from .torch_trace import TorchTracer


def register(name: str = "foveal") -> None:
    """Makes `name` an attn_implementation of transformers: for from_pretrained, from_config and set_attn_implementation."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    transformers_alibi.install(name, Mask, attention_forward)


class Mask(BlockMask):
    """A mask as an expression with the tensors it reads. Models hand it from layer to layer, as they do FlexAttention's."""

    def __init__(self, expr: Expr, params: dict[str, Tensor], shape: tuple[int, int, int, int], of_module: bool = False):
        self.expr, self.params, self._shape, self._of_module = expr, params, shape, of_module

    @property
    def shape(self) -> tuple[int, ...]:
        """[batch, 1, seqlen_q, seqlen_kv]."""
        return self._shape

    @property
    def ndim(self) -> int:
        return 0 if self._of_module else 4  # models that add ALiBi to masks of four dimensions leave this one alone

    def __repr__(self) -> str:
        return f"Mask({self.expr!r}, shape={self._shape})"

    def to(self, where: torch.device | str | torch.dtype) -> "Mask":
        """On another device. Of another dtype: itself."""
        if isinstance(where, torch.dtype):
            return self
        return Mask(self.expr, {name: tensor.to(where) for name, tensor in self.params.items()}, self._shape, self._of_module)

    def contiguous(self) -> "Mask":
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _computes(getattr(func, "__name__", func))

    def __getattr__(self, name: str) -> Any:
        if hasattr(Tensor, name) and not name.startswith("__"):
            raise _computes(name)
        raise AttributeError(f"{name}: no attribute of an attention mask")

    def __getitem__(self, index: Any) -> Any:
        raise _computes("__getitem__")


def _computes(what: Any) -> NotImplementedError:
    return NotImplementedError(
        f"attn_implementation='foveal': {what} of an attention mask: this model computes with its mask by itself; use attn_implementation='eager'"
    )


def _refused(name: str) -> Callable[..., Any]:
    def operate(*operands: Any) -> Any:
        raise _computes(name)

    return operate


_BINARY = "add sub mul truediv floordiv mod pow and or xor"  # without which a number or a mask beside it gets Python's own error
for _name in (*f"invert neg lt le gt ge {_BINARY}".split(), *(f"r{name}" for name in _BINARY.split())):
    setattr(Mask, f"__{_name}__", _refused(f"__{_name}__"))


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Mask | Tensor:
    """transformers' mask interface: which keys each query sees.

    mask_function: of (batch, head, position of the query, position of the key); attention_mask: [batch, positions], False where padding is.
    q_offset, kv_offset: the positions of the first query and the first key. Returns a Mask; a bool tensor [batch, 1, q_length, kv_length] inside
    torch.compile, and for functions that cannot be an expression.
    """
    arguments = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function)
    if torch.compiler.is_compiling() or _knows_block_masks(kwargs.get("config")):
        return _materialized(arguments, attention_mask, device, kwargs)
    padding = None
    if attention_mask is not None and not bool(attention_mask.all()):
        whole: Any = prepare_padding_mask(attention_mask, kv_length, kv_offset)  # type: ignore[arg-type]  # offsets may be tensors
        padding = whole.to(torch.bool)

    q_shift, kv_shift = _shift(q_offset), _shift(kv_offset)
    growing = isinstance(q_offset, int) and isinstance(kv_offset, int) and q_offset + q_length == kv_offset + kv_length > q_length

    def kept(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kv_position = kv_idx + kv_shift
        # The last query stands at the last key in a cache that grows: the same expression at each step.
        q_position = q_idx + (_core.seqlen_kv - _core.seqlen_q) + kv_shift if growing else q_idx + q_shift
        result = mask_function(b, h, q_position, kv_position)
        return result if padding is None else result & padding[b, kv_position]

    try:
        described = describe(None, kept, tracer=TorchTracer())
    except (TypeError, ValueError, IndexError, NotImplementedError, AttributeError):  # a function of a model's own, not of positions alone
        return _materialized(arguments, attention_mask, device, kwargs)
    assert described.mask is not None
    params = {param.name: tensor for param, tensor in zip(described.params, described.arrays)}
    of_module = getattr(kwargs.get("config"), "model_type", None) in transformers_alibi.MODEL_TYPES
    return Mask(described.mask, params, (batch_size, 1, q_length, kv_length), of_module)


def _knows_block_masks(config: Any) -> bool:
    """Whether the model's own code asks for BlockMasks, as Doge's does: it leaves them out where it makes another mask of the one it is given."""
    modeling = sys.modules.get(type(config).__module__.replace(".configuration_", ".modeling_"))
    return hasattr(modeling, "BlockMask")


def _shift(offset: int | Tensor) -> Any:
    """0, or a tensor of one element: a number that changes from step to step is no part of the expression."""
    if isinstance(offset, int):
        return 0 if offset == 0 else torch.tensor(offset)
    return offset.clone()  # the cache's own, which it changes in place


def _materialized(arguments: dict[str, Any], attention_mask: Tensor | None, device: Any, rest: dict[str, Any]) -> Tensor:
    logging.route.debug("attention mask of %d x %d: a tensor", arguments["q_length"], arguments["kv_length"])
    rest = {**rest, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if getattr(rest.get("config"), "model_type", None) in transformers_alibi.MODEL_TYPES:  # their modules compute with it by themselves
        return eager_mask(**arguments, attention_mask=attention_mask, device=device, **rest)
    mask = sdpa_mask(**arguments, attention_mask=attention_mask, device=device, **rest)
    assert mask is not None
    return mask


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
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (output [batch, seqlen_q, heads, head_dim_v], None).

    query: [batch, heads, seqlen_q, head_dim]; key, value: [batch, heads_kv, seqlen_kv, ...]. attention_mask: a Mask, or a tensor that broadcasts to
    [batch, heads, seqlen_q, seqlen_kv or more], bool (True = keep) or float (added); None: causal where the module is. s_aux: [heads], sinks.
    position_bias: broadcasts to [batch, heads, seqlen_q, seqlen_kv], added, and trained. cu_seq_lens: of packed sequences, which see only themselves.
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
    if expr is not None and masks:
        read_params = [_core.Param("documents", list(params["documents"].shape), _core.Type.integer)]
        expr = expr & _core.parse(" & ".join([f"({mask})" for mask in masks]), read_params)
    mask = expr if expr is not None else " & ".join([f"({mask})" for mask in masks]) or None

    arguments: dict[str, Any] = {"scale": scaling, "params": params, "sink": s_aux}
    rng = Rng()
    if dropout > 0.0:
        arguments["dropout_p"], rng = dropout, draw_rng(query.device)
    program, captured = bound(score if score != "score" else None, mask, Options(), arguments, heads_first=True)
    out, _ = call(program, captured, query, key, value, rng=rng)
    return out.transpose(1, 2), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _check_asked(module: torch.nn.Module, asked: dict[str, Any]) -> None:
    """Refuses what a model asks of its attention and attention_forward does not give. asked: by argument, or by hooks that record what layers return."""
    collector: Any = output_capturing._active_collector
    if asked.get("output_attentions") or any(["attentions" in recorded for recorded in collector.get() or ()]):
        raise NotImplementedError("attn_implementation='foveal': output_attentions: probabilities are never in memory; use attn_implementation='eager'")
    if asked.get("cache") is not None:
        raise NotImplementedError("attn_implementation='foveal': cache: a paged cache; use attn_implementation='paged|eager'")
    for name in _understood_by(module) & asked.keys():
        if asked[name] is not None:
            raise NotImplementedError(f"attn_implementation='foveal': {name}: a part of this model's attention that foveal does not know; use attn_implementation='eager'")


def _understood_by(module: torch.nn.Module) -> set[str]:
    """The arguments of the model's own attention that are none of attention_forward's. Others are for masks and kernels of another kind, or for none."""
    eager = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    return _parameters(eager) - _parameters(attention_forward) - {"sliding_window"} if inspect.isfunction(eager) else set()  # windows are in the mask


@functools.lru_cache(256)
def _parameters(function: Callable[..., Any]) -> set[str]:
    return {name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind != inspect.Parameter.VAR_KEYWORD}


def _check(mask: Mask, query: Tensor, key: Tensor) -> None:
    batch, _, seqlen_q, seqlen_kv = mask.shape
    if (seqlen_q, seqlen_kv) != (query.shape[2], key.shape[2]) or query.shape[0] % batch != 0:
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
    symbols = ("batch", "head", "q_idx", "kv_idx")
    return f"{name}[{', '.join([symbol if extent > 1 else '0' for extent, symbol in zip(tensor.shape, symbols)])}]"


def _documents(cu_q: Tensor, cu_kv: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """int32 [seqlen]: which of the packed sequences each position belongs to."""
    if query.shape[0] != 1 or query.shape[2] != key.shape[2] or (cu_kv is not None and cu_kv is not cu_q and not torch.equal(cu_q, cu_kv)):
        raise NotImplementedError("attn_implementation='foveal': cu_seq_lens: expected batch 1, and the same lengths for queries and keys")
    return torch.searchsorted(cu_q.to(torch.int32), torch.arange(query.shape[2], dtype=torch.int32, device=query.device), right=True, out_int32=True)
