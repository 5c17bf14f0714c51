"""What functions of torch mean that read elements at places that symbols choose: of captured tensors, or of expressions."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import replace
from typing import Any, Sequence

import torch
import torch.nn.functional as F

from ... import _core, arrays
from ..._core import Expr
from ...captures import Capture
from ...framework_calls import Call, symbolic
from ...meanings import Meaning, signature_of
from ...symbols import MAX_UNROLL, Symbols, broadcast
from . import shapes
from .dtypes import INDICES


@signature_of
def _EMBEDDING(  # noqa: N802
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False
) -> None: ...


def _embedding(call: Call) -> Any:
    """torch.nn.functional.embedding; torch.embedding has other arguments."""
    if call.func is not F.embedding:
        raise call.refuse("torch.embedding; expected torch.nn.functional.embedding")
    index, weight, *rest, _ = call.bind(_EMBEDDING).values()
    if rest != [None, None, 2.0, False]:
        raise call.refuse(f"padding_idx, max_norm, norm_type, scale_grad_by_freq: {', '.join(map(repr, rest))}; expected their defaults")
    with call.tracer.counting_from_zero():
        return _captured(call, weight)[index]


@signature_of
def _INDEX_SELECT(input: Any, dim: Any, index: Any) -> None: ...  # noqa: N802


def _index_select(call: Call) -> Any:
    array, dim, index = call.bind(_INDEX_SELECT).values()
    if isinstance(array, Symbols):  # elements that are expressions already: the places are constants
        return shapes.moved(call)
    array, index = _captured(call, array), call.symbol(index)
    places = call.tracer.symbol(index._items, (len(index._items),), index._dtype)
    with call.tracer.counting_from_zero():
        return array[(*[slice(None)] * (dim % array.ndim), places)]


@signature_of
def _GATHER(input: Any, dim: Any, index: Any, *, sparse_grad: bool = False) -> None: ...  # noqa: N802


@signature_of
def _TAKE(input: Any, index: Any) -> None: ...  # noqa: N802


@signature_of
def _TAKE_ALONG(input: Any, indices: Any, dim: Any = None) -> None: ...  # noqa: N802


def _gather(call: Call) -> Any:
    """torch.gather, and take_along_dim, which broadcasts its operands."""
    given = call.bind(_GATHER if call.name == "gather" else _TAKE_ALONG)
    array, index = given["input"], call.symbol(given["index" if call.name == "gather" else "indices"])
    if given["dim"] is None:
        return _take(replace(call, name="take", args=(array, index), kwargs={}))
    array = _elements(call, array)
    rank = len(array.shape)
    dim = given["dim"] % max(rank, 1)
    shape = tuple(call.result.shape)
    items = []
    with call.tracer.counting_from_zero() if call.name == "gather" else contextlib.nullcontext():
        for place, (item,) in zip(itertools.product(*map(range, shape)), broadcast([(index._items, index._shape)], shape)):
            items.append(_at(array, [item if d == dim else 0 if call.name != "gather" and array.shape[d] == 1 else place[d] for d in range(rank)]))
    return call.moved(items, call.result)


def _take(call: Call) -> Any:
    """Elements of a tensor by their numbers in it."""
    array, index = call.bind(_TAKE).values()
    array, index = _elements(call, array), call.symbol(index)
    shape = tuple(array.shape)
    steps = arrays.row_major(shape)
    items = []
    for item in index._items:
        number = _core.wrapped_index(item, math.prod(shape))
        items.append(_at(array, [number // step % extent if d else number // step for d, (step, extent) in enumerate(zip(steps, shape))]))
    return call.moved(items, call.result)


def _at(array: Any, place: Sequence[Any]) -> Expr:
    """An element of a captured tensor, or of one of expressions."""
    of = array._tracer
    found = array[tuple([of.symbol([at], (), torch.int64) if isinstance(at, Expr) else at for at in place])] if place else array
    item: Expr = (found._read() if isinstance(found, Capture) else found)._items[0]
    return item


def _elements(call: Call, array: Any) -> Any:
    """Of expressions as they are, or of a captured tensor."""
    return array if isinstance(array, Symbols) else _captured(call, array)


def _captured(call: Call, array: Any) -> Capture:
    if not isinstance(array, (Capture, torch.Tensor)):
        raise call.refuse(f"found {type(array).__name__}; expected a captured tensor")
    return array if isinstance(array, Capture) else call.tracer.capture(array)


def chosen(x: Symbols, index: Any) -> Any:
    """Elements that are expressions, at a place that symbols choose: each of them where it is the one. Outside, the nearest."""
    given = list(index) if isinstance(index, tuple) else [index]
    at = next(place for place, i in enumerate(given) if symbolic(i))
    which = given[at]._read() if isinstance(given[at], Capture) else given[at]
    if not isinstance(which, Symbols) or which._shape or which._dtype not in INDICES or any([i is None or i is Ellipsis for i in given[:at]]):
        raise NotImplementedError("torch.getitem in a score or mask: expressions indexed by more than integer symbols; expected an integer for each dimension, symbols or constants")
    dim = at  # what stands before is one dimension each
    if not 0 < x._shape[dim] <= MAX_UNROLL:
        raise NotImplementedError(f"torch.getitem in a score or mask: a symbol chooses one of {x._shape[dim]} expressions; expected 1 to {MAX_UNROLL}")
    place = x._tracer.resolved(which._items[0], x._shape[dim])
    if x._tracer.checked:  # by a read of a tensor that holds its own places
        place = x._tracer.element(torch.arange(x._shape[dim], device=x._tracer.device), [place])
    parts = [x[(*given[:at], n, *given[at + 1 :])] for n in range(x._shape[dim])]
    items = parts[-1]._items
    for n in reversed(range(len(parts) - 1)):
        items = [_core.where(place <= n, mine, other) for mine, other in zip(parts[n]._items, items)]
    return x._tracer.symbol(items, parts[0]._shape, x._dtype)


TABLE: dict[str, Meaning] = {
    "embedding": _embedding,
    "index_select": _index_select,
    "gather": _gather,
    "take_along_dim": _gather,
    "take": _take,
}
