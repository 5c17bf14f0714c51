"""What writes into a symbol: x += y, x.mul_(y), relu(x, inplace=True). Whatever else is called by its name has changed, too."""

from __future__ import annotations

import operator
from typing import Any, Callable

import torch
import torch.nn.functional as F

from ... import _core, refusals
from ..._core import Type
from ...symbols import Symbols
from .meta import look_of_result
from .table import SHARING, TABLE


def by_operator(x: Symbols, func: Callable[..., Any], other: Any) -> Symbols:
    name = func.__name__
    plain = getattr(operator, {"iand": "and_", "ior": "or_"}.get(name, name[1:]))
    return _written(x, name, func, plain, (x, other), {})


def by_method(x: Symbols, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Symbols:
    """x.mul_(y), torch.relu_(x)."""
    return _written(x, func.__name__, func, _plain(func.__name__), args, kwargs)


def with_result(x: Any, name: str, result: Symbols) -> Any:
    """relu(x, inplace=True)."""
    if not isinstance(x, Symbols):
        raise refusals.refused(NotImplementedError(f"torch.{name} in a score or mask: inplace=True, which writes into a captured tensor; expected inplace=False"))
    _check(x, name)
    x._items = result._items
    return x


def is_known(name: str) -> bool:
    """Whether name_() is known by what name() means. Views and conversions change more than elements."""
    return name in _FILLS or (name in TABLE and name not in SHARING)


def _written(x: Any, name: str, func: Callable[..., Any], plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Symbols:
    _check(x, name)
    with torch._C.DisableTorchFunction():
        look_of_result(name, func, args, kwargs)  # whether torch can
    result = plain(*args, **kwargs)
    if plain not in _FILLS.values() and not torch.can_cast(result.dtype, x._dtype):  # not every torch says so of meta tensors
        raise RuntimeError(f"{name} in a score or mask: result type {result.dtype} can't be cast to the desired output type {x._dtype}")
    x._items = result.to(x._dtype)._items
    written: Symbols = x
    return written


def _check(x: Any, name: str) -> None:
    instead = "expected x = x + y and the like"
    if x._shares:
        raise refusals.refused(NotImplementedError(f"{name} in a score or mask writes into a tensor that shares its elements with a view or a copy of it; {instead}"))
    if x._recorded and x._tracer.gradient_stopped() and any([_core.params_of(item) or "score" in repr(item) for item in x._items if item.type == Type.real]):
        raise refusals.refused(NotImplementedError(f"{name} in a score or mask writes within no_grad() into a tensor that has a derivative, and keeps it; {instead}"))


def _plain(name: str) -> Callable[..., Any]:
    """What name_() writes, as a function of symbols."""
    name = name[:-1]
    if name not in _FILLS and hasattr(torch.Tensor, name):
        return lambda x, *rest, **named: getattr(x, name)(*rest, **named)
    found: Callable[..., Any] = _FILLS.get(name) or getattr(torch if hasattr(torch, name) else F, name)
    return found


def _filled(x: Any, value: Any) -> Any:
    everywhere = torch.ones_like(x, dtype=torch.bool)
    return torch.where(everywhere, value, value)


_FILLS: dict[str, Callable[..., Any]] = {
    "fill": _filled,
    "copy": lambda x, src, non_blocking=False: _filled(x, src),
    "zero": lambda x: _filled(x, 0),
}
