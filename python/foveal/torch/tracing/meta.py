"""What torch itself says of a call on symbols, made on meta tensors: that it is right, and the shape and dtype of its result."""

from __future__ import annotations

import math
from typing import Any

import torch

from ... import arrays
from ..._core import Expr
from ...captures import Capture
from ...framework_calls import flat
from ...runtime_numbers import Number
from ...symbols import Symbols
from .dtypes import DTYPES, is_integral

_META = torch.device("meta")

_looks: dict[Any, Any] = {}  # of results, by function and the looks of its arguments
_ON_ELEMENTS = frozenset({"add", "sub", "subtract", "rsub"})  # that take bool tensors and alphas without elements which they refuse with them
_DEVICE_FREE = ("cpu", "cuda", "item")


def look_of_result(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        key: Any = (func, _look_of(args), tuple((name, _look_of(value)) for name, value in kwargs.items()), torch.get_default_dtype())
        found = _looks.get(key)
    except TypeError:  # slices and the like
        key = found = None
    if found is None:
        if name in _DEVICE_FREE:
            if name == "item" and math.prod(args[0].shape) != 1:
                raise _of_torch(name, RuntimeError(f"a tensor with {math.prod(args[0].shape)} elements cannot be converted to a number"))
            return meta_of(args[0])
        metas = {name: _META if name == "device" else meta_of(value) for name, value in kwargs.items()}
        places = [_META if name == "to" and isinstance(value, str) else value for value in meta_of(args)]
        try:
            with torch.enable_grad():
                found = func(*places, **metas)
        except (TypeError, RuntimeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            raise _of_torch(name, error) from None
        if name in _ON_ELEMENTS:
            _check_on_elements(name, func, args, kwargs, one=True)
        if key is not None:
            if len(_looks) > 4096:
                _looks.clear()
            _looks[key] = found
    return found


def _shape_of(value: Capture | torch.Tensor) -> tuple[int, ...]:
    if isinstance(value, torch.Tensor) and value.is_nested:
        arrays.check_plain(value, "a captured array")
    return tuple(value.shape)


def _look_of(value: Any) -> Any:
    if isinstance(value, Symbols):
        return (value._shape, value._dtype)
    if isinstance(value, Expr):
        return value.type
    if isinstance(value, Number):
        return ("number", type(value.stand_in))
    if isinstance(value, (Capture, torch.Tensor)):
        return (_shape_of(value), value.dtype)
    if isinstance(value, (list, tuple)):
        return (type(value), *(_look_of(item) for item in value))
    return (type(value), value)


def meta_of(value: Any) -> Any:
    if isinstance(value, Symbols):
        return torch.empty(value._shape, dtype=value._dtype, device=_META)
    if isinstance(value, Expr):
        return torch.empty((), dtype=DTYPES[value.type], device=_META)
    if isinstance(value, (Capture, torch.Tensor)):
        return torch.empty(_shape_of(value), dtype=value.dtype, device=_META)
    if isinstance(value, Number):
        return value.stand_in
    if isinstance(value, torch.device):
        return _META
    if isinstance(value, (list, tuple)):
        return type(value)(meta_of(item) for item in value)
    return value


def check_numbers(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    """Of numbers that integers of the result's dtype do not hold, torch wraps some and refuses others, which shows on tensors with elements."""
    if not is_integral(dtype):
        return
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if all([low <= value <= high for value in flat((*args, *kwargs.values())) if type(value) in (int, float)]):
        return

    _check_on_elements(name, func, args, kwargs)


def _check_on_elements(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], one: bool = False) -> None:
    """one: of each tensor, where shapes are known to fit."""

    def with_elements(value: Any) -> Any:
        meta = meta_of(value)
        return torch.ones((1,) * meta.ndim if one else meta.shape, dtype=meta.dtype) if isinstance(meta, torch.Tensor) else meta

    try:
        func(*map(with_elements, args), **{key: with_elements(value) for key, value in kwargs.items()})
    except (TypeError, RuntimeError, ValueError, ArithmeticError) as error:
        raise _of_torch(name, error) from None


def _of_torch(name: str, error: Exception) -> Exception:
    """What torch says of tensors, too."""
    if isinstance(error, NotImplementedError) and "register_meta" in str(error):  # nonzero() and what it is part of
        return NotImplementedError(f"torch.{name} in a score or mask: the shape of its result follows from values, which symbols have not; expected a shape that is known")
    found: Any = type(error)(f"torch.{name} in a score or mask: {error}")
    found.of_torch = "meta" not in str(error)
    result: Exception = found
    return result
