"""A call of torch on symbols: checked, looked up in the table, and given its meaning."""

from __future__ import annotations

import operator
from typing import Any, Sequence

import torch

from ... import arrays, refusals
from ..._core import Expr
from ...captures import Capture
from ...framework_calls import Call, flat, symbolic
from ...symbols import Symbols
from . import views, writing
from .dtypes import DTYPES
from .indexing import chosen
from .meta import check_numbers, look_of_result
from .state import TorchState
from .table import ASKED, SHARING, TABLE, TAKES_ARRAYS

_REFLECTED = {"rpow", "rdiv", "rtruediv", "rfloordiv", "rmod", "rmatmul", "rlshift", "rrshift", "rand", "ror", "rxor"}
_NUMPYS_NAMES = {"axis": "dim", "keepdims": "keepdim"}  # of arguments, which torch takes, too


def call(tracer: TorchState | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return _called(tracer, func, args, kwargs)
    except Exception as error:
        raise error if isinstance(error, IndexError) or getattr(error, "of_torch", False) else refusals.refused(error)


def _called(tracer: TorchState | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raw = getattr(func, "__name__", str(func))
    if raw.startswith("__r") and raw.strip("_") in _REFLECTED and len(args) == 2:  # Tensor's own: other op self
        func, args = getattr(operator, {"rand": "and_", "ror": "or_", "rdiv": "truediv"}.get(raw.strip("_"), raw.strip("_")[1:])), args[::-1]
    name = _name_of(func)
    if tracer is None:
        found: Any = next((value._tracer for value in flat((*args, *kwargs.values())) if isinstance(value, (Symbols, Capture))), None)
        tracer = found
        if tracer is None:
            raise TypeError(f"torch.{name}: an expression met a tensor outside of tracing")
    if raw.endswith("_") and not raw.endswith("__") and raw not in ("and_", "or_"):
        if isinstance(args[0] if args else None, Symbols) and writing.is_known(raw[:-1]):
            return writing.by_method(args[0], func, args, kwargs)
        instead = f"torch.{name}" if name in TABLE else "a new tensor: torch.where, torch.stack and the like"
        raise NotImplementedError(f"torch.{func.__name__} in a score or mask writes into its operand; expected {instead}")
    if name in ASKED and len(args) == 1 and not kwargs:
        return ASKED[name](args[0])
    meaning = TABLE.get(name)
    if meaning is None:
        raise NotImplementedError(
            f"{getattr(func, '__name__', func)} is not part of the score language; use the functions of foveal (where, clamp, exp, tanh, ...)"
        )
    if name == "view" and any([isinstance(value, torch.dtype) for value in (*args, *kwargs.values())]):
        raise NotImplementedError("torch.view in a score or mask: a dtype, by which bits are read as another type; expected sizes, or x.to(dtype)")
    args = tuple(tracer.symbol([value], (), DTYPES[value.type]) if isinstance(value, Expr) else arrays.plain_number(value) for value in args)
    kwargs = {key: arrays.plain_number(value) for key, value in kwargs.items()}  # torch takes NumPy's for Python's
    tracer.check_transforms(name)
    _check_operands(tracer, name, (*args, *kwargs.values()))
    if name == "type":
        given = args[1] if len(args) > 1 else kwargs.get("dtype")
        if given is None:
            return torch.empty(0, dtype=args[0].dtype).type()
        args, kwargs = (args[0], given if isinstance(given, torch.dtype) else torch.empty(0).type(given).dtype), {}  # also "torch.DoubleTensor"
    with torch._C.DisableTorchFunction():  # what follows is ours
        if name == "getitem" and isinstance(args[0], Symbols) and symbolic(args[1]):
            return chosen(args[0], args[1])
        look = look_of_result(name, func, args, kwargs)
        if isinstance(look, bool):  # x == None
            return look
        if isinstance(look, torch.Tensor):
            check_numbers(name, func, args, kwargs, look.dtype)
        if args and isinstance(args[0], Capture):
            found = args[0]._detached() if name == "detach" else None
            if name in views.NAMES and not symbolic((*args[1:], *kwargs.values())):
                found = views.view(args[0], func, args[1:], kwargs)
            if found is not None:
                return found
        kwargs = {_NUMPYS_NAMES.get(key, key): value for key, value in kwargs.items()}
        result = meaning(Call(tracer, name, func, args, kwargs, look))
    if name in SHARING:
        _note_sharing([value for value in flat((*args, result)) if isinstance(value, Symbols)])
    return result


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", str(func)).strip("_").removeprefix("linalg_").removeprefix("special_")
    return {"rpow": "pow", "rdiv": "div", "rtruediv": "div", "rmul": "mul", "radd": "add", "rfloordiv": "floordiv", "rmod": "mod"}.get(name, name)


def _check_operands(tracer: TorchState, name: str, values: Sequence[Any]) -> None:
    """Refuses what torch's own words for tensors without data would not explain."""
    for value in flat(values):
        if isinstance(value, torch.dtype):
            tracer.type_of(value)
        elif name not in TAKES_ARRAYS and not isinstance(value, torch.Tensor) and arrays.is_array(value):
            raise TypeError(f"torch.{name} in a score or mask: found an array of {arrays.framework(value)} beside tensors; expected {tracer.can_see}")


def _note_sharing(symbols: list[Any]) -> None:
    if len({value._dtype for value in symbols}) == 1:
        for value in symbols:
            value._shares = True
