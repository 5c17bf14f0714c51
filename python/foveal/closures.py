"""What functions of the user's read besides their arguments: globals, closures and defaults."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import ChainMap
from typing import Any, Iterator, Sequence

from . import bytecode, masks

_LIBRARIES = {"numpy", "jax", "torch", "foveal", "scipy", "builtins", "math", "functools", "operator"}
_NOT_THE_USERS = _LIBRARIES | sys.stdlib_module_names


def globals_of(fn: types.FunctionType) -> dict[str, Any]:
    return {name: fn.__globals__[name] for name in bytecode.global_names(fn.__code__) if name in fn.__globals__}


def captured_by(fn: Any) -> Iterator[Any]:
    """What a function of the user's reads besides its arguments."""
    if isinstance(fn, functools.partial):
        yield from (fn.func, *fn.args, *fn.keywords.values())
    elif isinstance(fn, types.MethodType):
        yield fn.__func__
    elif fn.__module__ == masks.__name__ or (fn.__module__ or "").partition(".")[0] not in _LIBRARIES:
        yield from globals_of(fn).values()
        yield from (cell.cell_contents for cell in fn.__closure__ or () if filled(cell))
        yield from fn.__defaults__ or ()
        yield from (fn.__kwdefaults__ or {}).values()


def is_plain_partial(value: Any) -> bool:
    """One that is called as functools.partial is, whatever its class."""
    return isinstance(value, functools.partial) and type(value).__call__ is functools.partial.__call__


def is_the_users(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _NOT_THE_USERS


def named(fn: types.FunctionType, names: Sequence[str]) -> Any:
    """What these names are to fn: ["torch", "Tensor"]."""
    if not names:
        return None
    free = {name: cell.cell_contents for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()) if filled(cell)}
    defaults = dict(zip(reversed(fn.__code__.co_varnames[: fn.__code__.co_argcount]), reversed(fn.__defaults__ or ())))
    value = ChainMap(free, fn.__kwdefaults__ or {}, defaults, fn.__globals__).get(names[0])
    for name in names[1:]:
        value = inspect.getattr_static(value, name, None)
    return value


def filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True
