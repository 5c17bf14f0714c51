"""The key of calls that differ in Python numbers alone, which a trace can then read at run time (runtime_numbers.py)."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Iterable, NamedTuple

from .bytecode import code_of
from .pure_functions import PURE
from .trace_key import HANDLERS, MAX_PARTS, Unknown, Walk, as_called, handler_of, in_class, present, seen_as


class NumberKey(NamedTuple):
    parts: tuple[Any, ...]  # equal for calls that differ in numbers alone
    arrays: list[Any]
    numbers: list[dict[tuple[Any, ...], float | int]]  # of each function, by where they are
    codes: list[types.CodeType]  # of all functions


class _PathWalk(Walk):
    """The same, but for numbers that stand by themselves in closures, globals and defaults, in containers of these and in attributes of objects: of
    them the type counts, and `numbers` says where they are and what. A path is a step for each function, container and object on the way. What a
    function may write to is not replaced by copies."""

    def __init__(self, tensors: type | None):
        super().__init__(tensors)
        self.path: tuple[Any, ...] = ()
        self.numbers: dict[tuple[Any, ...], float | int] = {}
        self.codes: list[types.CodeType] = []

    def value(self, value: Any, attributes: tuple[str, ...] = (), captured: bool = True) -> None:
        handle = HANDLERS.get(type(value)) or handler_of(type(value), value)
        _BY_PATH.get(handle, handle)(self, value, attributes, captured)

    def under(self, step: tuple[Any, ...], value: Any, attributes: tuple[str, ...] = (), captured: bool = True) -> None:
        before, self.path = self.path, (*self.path, step)
        if attributes or type(value) not in (int, float) or value != value:
            self.value(value, attributes, captured)
        else:
            self.numbers[self.path] = value
            self.parts.append(("number", type(value)))
        self.path = before

    def again(self, value: Any) -> bool:
        if super().again(value):
            raise Unknown  # a number that is reached in two ways would be replaced in one
        return False

    def sequence(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if type(value) not in (tuple, list):
            return super().sequence(value, attributes, captured)
        self.contained(value, attributes, enumerate(value), captured)

    def mapping(self, value: dict[Any, Any], attributes: tuple[str, ...], captured: bool) -> None:
        for key in value:
            self.value(key, (), False)
        self.contained(value, attributes, enumerate(value.values()), captured)

    def contained(self, value: Any, attributes: tuple[str, ...], items: Iterable[tuple[int, Any]], captured: bool) -> None:
        self.again(value)
        self.parts += [type(value), len(value)]
        if len(self.parts) + 2 * len(value) > MAX_PARTS or not {*attributes[:1]} <= _READING:
            raise Unknown
        for at, item in items:
            self.under(("item", at), item, (), captured)

    def object(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            raise Unknown
        self.under(("attribute", attributes[0]), self.own(value, attributes[0]), attributes[1:], False)

    def module(self, value: types.ModuleType, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            raise Unknown
        self.under(("attribute", attributes[0]), present(value, attributes[0]), attributes[1:], False)

    def class_(self, value: type, attributes: tuple[str, ...], captured: bool) -> None:
        found = in_class(value, attributes[0]) if len(attributes) == 1 and type(value) is type else None
        if type(found) not in (int, float):
            return super().class_(value, attributes, captured)
        self.under(("attribute", attributes[0]), found)

    def function(self, value: types.FunctionType, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes or value in PURE:
            return super().function(value, attributes, captured)
        self.again(value)
        if value.__dict__:
            self.carry(value)
        code = code_of(value.__code__)
        if not code.known or code.writes or len(self.parts) > MAX_PARTS:
            raise Unknown
        self.parts.append(code)
        self.codes.append(value.__code__)
        cells, scope = value.__closure__ or (), value.__globals__
        for index, read in code.free:
            self.under(("cell", index), cells[index].cell_contents, read)
        for name, read in code.globals:
            if name in scope:
                self.under(("global", name), seen_as(name, value), read)
            else:
                self.value(seen_as(name, value), read)
        for at, default in enumerate(value.__defaults__ or ()):
            self.under(("default", at), default)
        for at, (name, default) in enumerate((value.__kwdefaults__ or {}).items()):
            self.parts.append(name)
            self.under(("keyword default", at), default)

    def bound(self, function: Any, owner: Any) -> None:
        first = code_of(function.__code__).first if type(function) is types.FunctionType else None
        if first is None or (self.path and self.path[-1] != ("function",)):
            raise Unknown
        self.parts.append("method")
        before = self.path
        self.path = (*before, ("function",))
        self.function(function, (), True)
        self.path = (*before, ("owner",))
        for attributes in first:
            self.value(owner, attributes)
        self.path = before

    def partial(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes:
            raise Unknown
        if value.__dict__:
            self.carry(value)
        self.parts.append(functools.partial)
        self.under(("function",), value.func)
        for at, item in enumerate(value.args):
            self.under(("argument", at), item)
        for name, item in value.keywords.items():
            self.parts.append(name)
            self.under(("keyword", name), item)


_READING = {"get", "keys", "values", "items", "index", "count", "copy"}  # methods of containers that change nothing
_BY_PATH: dict[Any, Callable[..., None]] = {
    getattr(Walk, name): getattr(_PathWalk, name) for name in ("sequence", "mapping", "function", "partial", "object", "module", "class_")
}


def number_key_of(functions: Iterable[Any], tensors: type | None = None) -> NumberKey | None:
    """As key_of(), of functions apart from the numbers in their closures, globals and defaults; None where that cannot be said."""
    walk = _PathWalk(tensors)
    numbers = []
    try:
        for function in functions:
            walk.numbers = {}
            walk.value(as_called(function))
            numbers.append(walk.numbers)
        walk.finish()
    except (Unknown, RecursionError, ValueError):
        return None
    return NumberKey(tuple(walk.parts), walk.arrays, numbers, walk.codes)
