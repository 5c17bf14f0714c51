"""The masks of transformers as expressions, and as the tensors that models with code of their own ask for."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._pytree import tree_map
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, eager_mask, prepare_padding_mask, sdpa_mask

from .. import _core, logging
from .._core import Expr
from ..describe import describe
from ..torch import calls
from ..torch.tracing import TorchTracer
from . import alibi
from .models import asks_for_tensors, has_interface, modeling_of, takes_bool_masks


class Mask(BlockMask):
    """A mask as an expression with the tensors it reads. Models hand it from layer to layer, as they do FlexAttention's; it is a tensor, made by
    `materialize`, for one that computes with it."""

    def __init__(
        self, expr: Expr, params: dict[str, Tensor], shape: tuple[int, int, int, int], of_module: bool = False,
        materialize: Callable[[], Tensor] | None = None,
    ):  # fmt: skip
        self.expr, self.params, self._shape, self._of_module, self._materialize = expr, params, shape, of_module, materialize

    @property
    def shape(self) -> tuple[int, ...]:
        """[batch, 1, seqlen_q, seqlen_kv]."""
        return self._shape

    @property
    def ndim(self) -> int:
        return 0 if self._of_module else 4  # models that add ALiBi to masks of four dimensions leave this one alone

    def __repr__(self) -> str:
        return f"Mask({self.expr!r}, shape={self._shape})"

    __str__ = __repr__

    def to(self, where: torch.device | str | torch.dtype) -> "Mask":
        """On another device. Of another dtype: itself."""
        if isinstance(where, torch.dtype):
            return self
        made = self._materialize
        materialize = None if made is None else lambda: made().to(where)
        return Mask(self.expr, {name: tensor.to(where) for name, tensor in self.params.items()}, self._shape, self._of_module, materialize)

    def contiguous(self) -> "Mask":
        return self

    def tensor(self, what: str) -> Tensor:
        """The mask as a tensor, for this operation of a model's own. Raises NotImplementedError for a model whose attention would not be foveal's, and
        where the operation takes True and False for numbers."""
        if self._materialize is None:
            raise _computes(what)
        logging.route.debug("attention mask of %d x %d: a tensor, for %s of the model's own", *self._shape[2:], what)
        found = self._materialize()
        if found.dtype == torch.bool and what.strip("_") in _ARITHMETIC:
            raise _computes(what)
        self._materialize = lambda: found
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        args, kwargs = tree_map(lambda x: x.tensor(name) if isinstance(x, Mask) else x, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if hasattr(Tensor, name) and not name.startswith("__"):
            return getattr(self.tensor(name), name)
        raise AttributeError(f"{name}: no attribute of an attention mask")

    def __getitem__(self, index: Any) -> Any:
        return self.tensor("__getitem__")[index]


def _computes(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"attn_implementation='foveal': {what} of an attention mask: this model computes with its mask by itself; use attn_implementation='eager'"
    )


_NUMBERS = "add sub mul truediv floordiv mod pow"
_ARITHMETIC = {f"{reflected}{name}{in_place}" for name in f"{_NUMBERS} div neg".split() for reflected in ("", "r") for in_place in ("", "_")}


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *operands: getattr(self.tensor(name), name)(*operands)


_OF_PAIRS = f"{_NUMBERS} and or xor"  # without which a number or a mask beside it gets Python's own error
for _name in (*f"invert neg lt le gt ge {_OF_PAIRS}".split(), *(f"r{name}" for name in _OF_PAIRS.split())):
    setattr(Mask, f"__{_name}__", _operator(f"__{_name}__"))


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
) -> Mask | Tensor | None:
    """transformers' mask interface: which keys each query sees.

    mask_function: of (batch, head, position of the query, position of the key).
    attention_mask: [batch, positions], False where padding is.
    q_offset, kv_offset: the positions of the first query and the first key.

    Returns a Mask; a tensor [batch, 1, q_length, kv_length] inside
    torch.compile, and for functions that cannot be an expression; None where every query sees every key and the model may be told so.
    """
    arguments = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function)
    materialize = functools.partial(_materialized, arguments, attention_mask, device, kwargs)
    modeling = modeling_of(kwargs.get("config"))
    if torch.compiler.is_compiling() or asks_for_tensors(modeling):
        return materialize()
    padding = given = None
    if attention_mask is not None and not bool(attention_mask.all()):
        whole: Any = prepare_padding_mask(attention_mask, kv_length, kv_offset)  # type: ignore[arg-type]  # offsets may be tensors
        padding = whole.to(torch.bool)
    elif attention_mask is not None and attention_mask.shape[-1] < _reach(mask_function, q_length, kv_length, q_offset, kv_offset):
        given = torch.tensor(attention_mask.shape[-1], device=device)  # positions beyond are padding
    whole_is_seen = mask_function is bidirectional_mask_function and padding is None and given is None
    if whole_is_seen and kwargs.get("allow_is_bidirectional_skip") and takes_bool_masks(modeling):
        return None

    q_shift, kv_shift = _shift(q_offset, device), _shift(kv_offset, device)
    growing = isinstance(q_offset, int) and isinstance(kv_offset, int) and q_offset + q_length == kv_offset + kv_length > q_length

    def kept(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kv_position = kv_idx + kv_shift
        # The last query stands at the last key in a cache that grows: the same expression at each step.
        q_position = q_idx + (_core.seqlen_kv - _core.seqlen_q) + kv_shift if growing else q_idx + q_shift
        result = mask_function(b, h, q_position, kv_position)
        if given is not None:
            return result & (kv_position < given)
        return result if padding is None else result & padding[b, kv_position]

    try:
        described = describe(None, kept, tracer=TorchTracer())
    except (TypeError, ValueError, IndexError, NotImplementedError, AttributeError):  # a function of a model's own, not of positions alone
        return materialize()
    assert described.mask is not None
    if calls.context is not None and described.arrays:
        _refuse_masks_of_shards(padding is not None)
    params = {param.name: tensor for param, tensor in zip(described.params, described.arrays)}
    of_module = getattr(kwargs.get("config"), "model_type", None) in alibi.MODEL_TYPES
    # Later, when a cache may have changed its own offsets in place.
    kept_as_now = {name: value.clone() if isinstance(value, Tensor) else value for name, value in arguments.items()}
    tensor = functools.partial(_materialized, kept_as_now, attention_mask, device, kwargs, skip=False) if has_interface(modeling) else None
    return Mask(described.mask, params, (batch_size, 1, q_length, kv_length), of_module, tensor)  # type: ignore[arg-type]  # without a skip a tensor


def _refuse_masks_of_shards(is_padding: bool) -> None:
    """Within context_parallel(), where transformers makes them for this rank's tokens and masks are those of the whole."""
    if is_padding:
        error = NotImplementedError("attention_mask: padding within context_parallel(); expected ones, or packed sequences")
    else:
        error = NotImplementedError(
            "position_ids: within context_parallel() they are not consecutive, which transformers takes for packed sequences unless it gets an "
            "attention_mask; expected one of ones, [batch, this rank's tokens]"
        )
    calls.context.refused(error)  # positions of other ranks may be consecutive
    raise error


def _shift(offset: int | Tensor, device: torch.device | str) -> Any:
    """0, or a tensor of one element: a number that changes from step to step is no part of the expression."""
    if isinstance(offset, int):
        return 0 if offset == 0 else torch.tensor(offset, device=device)
    return offset.clone()  # the cache's own, which it changes in place


def _reach(mask_function: Callable[..., Any], q_length: int, kv_length: int, q_offset: int | Tensor, kv_offset: int | Tensor) -> int:
    """Beyond which position no query sees a key: what a mask says of later ones, as of those that a static cache has room for, is not asked."""
    end = kv_offset + kv_length
    return int(min(end, q_offset + q_length) if mask_function is causal_mask_function else end)


def _materialized(arguments: dict[str, Any], attention_mask: Tensor | None, device: Any, rest: dict[str, Any], skip: bool = True) -> Tensor | None:
    """As a tensor: of bool where the model's code takes such, else of numbers to add. skip: None where every query sees every key and it may be so."""
    logging.route.debug("attention mask of %d x %d: a tensor", arguments["q_length"], arguments["kv_length"])
    rest = {**rest, "allow_is_causal_skip": False}
    of_numbers = not takes_bool_masks(modeling_of(rest.get("config"))) or getattr(rest.get("config"), "model_type", None) in alibi.MODEL_TYPES
    if of_numbers or not skip:
        rest["allow_is_bidirectional_skip"] = False
    return (eager_mask if of_numbers else sdpa_mask)(**arguments, attention_mask=attention_mask, device=device, **rest)
