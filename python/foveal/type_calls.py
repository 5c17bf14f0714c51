"""type(x) of a symbol, which is none of a tensor's, as nobody is asked: found in the code of functions before they are traced."""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from typing import Any, Iterator, Sequence

from . import arrays, bytecode, introspection, trace_key
from ._core import Expr
from .closures import captured_by, is_the_users, named


def check_types(fn: Any, arguments: Sequence[Any], rebind: bool) -> list[dict[str, Any]]:
    """type(x) of a symbol is none of a tensor's, and nobody is asked. It is refused of what is a symbol for certain, an argument of fn itself or a
    captured array in whose place there is one, and where a function asks whether it has an array. Returns the globals of all functions that ask: what
    they ask of, and what they compare it with, shows when they run."""
    called = trace_key.as_called(fn)
    asked = _certain(called, arguments)
    scopes: list[dict[str, Any]] = []
    seen: set[int] = set()
    left = [called]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if value is builtins:
            raise TypeError("a score or mask hands on the module builtins, whose functions do not know what symbols stand for; expected them by their names")
        if value is type:
            raise TypeError("a score or mask has the builtin type() by a name of its own, which does not know what symbols stand for; expected type(x) itself, or isinstance()")
        if type(value) in (list, tuple, dict):
            left += value.values() if type(value) is dict else value
        elif isinstance(value, (functools.partial, types.MethodType, types.FunctionType)):
            left += [held for held in captured_by(value) if held is not builtins]
            if isinstance(value, types.MethodType):
                left.append(value.__self__)
            if isinstance(value, types.FunctionType):
                if is_the_users(value.__module__):
                    introspection.check_names(value.__code__)
                    left += [builtins for names in bytecode.handed_on(value) if named(value, names) is builtins]
                scopes += _scope_of(value)
                left += [type for names in bytecode.attributes_read(value) if named(value, names) is type]
                for of, against in bytecode.types_asked(value):
                    if _is_array_class(named(value, against)) or (rebind and arrays.is_array(named(value, (of,)))):
                        asked.append(of)
        else:
            for held in _functions_of(value):
                scopes += _scope_of(held)
    if asked:
        raise TypeError(f"a score or mask asks for type({asked[0]}), which is not what a symbol stands for; expected isinstance({asked[0]}, ...)")
    return scopes


def _scope_of(fn: types.FunctionType) -> list[dict[str, Any]]:
    return [fn.__globals__] if is_the_users(fn.__module__) and bytecode.calls_type(fn.__code__) else []


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Of a module, or of the class of an object."""
    for owner in [value] if isinstance(value, types.ModuleType) else (value if isinstance(value, type) else type(value)).__mro__:
        if is_the_users(owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__):
            for held in list(vars(owner).values()):
                function = getattr(held, "__func__", held)
                if isinstance(function, types.FunctionType):
                    yield function


def _certain(fn: Any, arguments: Sequence[Any]) -> list[str]:
    """The arguments that fn itself asks the type of."""
    if isinstance(arguments[0], Expr):  # which is no more than it seems
        return []
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
        given = signature.bind(*arguments).arguments
    except (TypeError, ValueError):
        return []
    while isinstance(fn, (functools.partial, types.MethodType)):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    if not isinstance(fn, types.FunctionType):
        return []
    names = [name for name in given if signature.parameters[name].kind != inspect.Parameter.VAR_POSITIONAL]
    return [question.of for question in bytecode.types_asked(fn) if question.of in names]


def _is_array_class(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "shape") and hasattr(value, "dtype")
