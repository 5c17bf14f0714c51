"""Python numbers that change from call to call: closures, globals and defaults of a traced function, items and attributes of these, that become
scalars read at run time.

A number is part of what a trace depends on. A function whose numbers change would be another program at every step; once that shows, it is
traced with a Number in the place of each that changed. A Number computes as Python's does and becomes a read of an array without dimensions. What needs its
value while tracing (a branch, a shape, an index, a function of C) refuses a Number: then it stays a constant.
"""

from __future__ import annotations

import functools
import numbers
import operator
import types
from typing import Any, Callable, Mapping, NoReturn

from . import introspection, refusals
from ._core import Expr

Path = tuple[Any, ...]  # how a number is reached from a function, see number_key.py
MOST_CONSTANTS = 4  # programs that a function's changing numbers make before they become scalars
# Functions that look at what their values are may take another way for a Number.
LOOKS_AT_VALUES = {"isinstance", "type", "repr", "str", "format", "hash", "id", "print", "callable", "hasattr", "getattr", "vars", "round"}


class NeedsValue(TypeError):
    """Something that a Number has not while its function is traced."""


Rule = Callable[[Mapping[Any, "float | int"]], "float | int"]  # of the numbers of a call, by where they are


def _kind_of(value: float | int) -> tuple[Any, ...]:
    """What a program may have been made by: the type; of an integer whether it has 32 or 64 bits, and whether it may be a divisor."""
    if type(value) is float:
        return (float,)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        found = f"{type(value).__name__} {value}"
        raise refusals.refused(NeedsValue(f"a number that changes from call to call: found {found}; expected a float or an int of 64 bits"))
    return int, -(1 << 31) <= value < 1 << 31, value == 0


class Computed:
    """A number that a program reads at run time, as each call computes it."""

    def __init__(self, rule: Rule, value: float | int):
        self._rule, self._kind = rule, _kind_of(value)

    def __call__(self, numbers: Mapping[Any, float | int]) -> float | int | None:
        """None where it is of another kind now."""
        try:
            value = self._rule(numbers)
            return value if _kind_of(value) == self._kind else None
        except (NeedsValue, ArithmeticError):
            return None


class Number:
    """A Python float or int that changes from call to call. What is computed of such numbers alone is computed by Python in each call; where the result
    meets a symbol it is read at run time. read: makes the read of one."""

    def __init__(self, value: float | int, rule: Rule, read: Callable[["Number"], Expr]):
        self.value, self.rule, self.read = value, rule, read

    def __score__(self) -> Expr:
        return self.read(self)

    def computed(self) -> Computed:
        return Computed(self.rule, self.value)

    @property
    def stand_in(self) -> float | int:
        """A number of this type, for what asks for types alone."""
        return type(self.value)(1)

    def is_long(self) -> bool:
        """Whether it is an integer of more than 32 bits."""
        return self.computed()._kind[:2] == (int, False)

    def _needs_value(self, *_: Any) -> NoReturn:
        raise refusals.refused(NeedsValue("a number that changes from call to call has no value while a function is traced"))

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __hash__ = __str__ = __repr__ = __format__ = _needs_value
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __round__ = __trunc__ = __floor__ = __ceil__ = __iter__ = _needs_value

    __class__ = introspection.class_property(_needs_value)

    def __reduce__(self) -> NoReturn:
        self._needs_value()

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(type(self.value), name):  # of Python's numbers: a function may catch that this one has it not
            self._needs_value()
        raise AttributeError(name)


def _install() -> None:
    def binary(combined: Callable[[Any, Any], Any], name: str) -> None:
        def forward(self: Number, other: Any) -> Any:
            return combined(self, other)

        def reflected(self: Number, other: Any) -> Any:
            return combined(other, self)

        setattr(Number, f"__{name}__", forward)
        setattr(Number, f"__r{name}__", reflected)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        binary(functools.partial(_combined, getattr(operator, name)), name)
    for name in ("divmod", "and", "or", "xor", "lshift", "rshift"):
        binary(_of_values, name)
    for name in ("neg", "pos", "abs"):
        setattr(Number, f"__{name}__", lambda self, fn=getattr(operator, name): _of(self, fn, self.rule, fn(self.value)))


def _combined(fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if any([isinstance(value, Expr) for value in (a, b)]):
        return fn(*[value.__score__() if isinstance(value, Number) else value for value in (a, b)])
    if any([type(value) not in (int, float, Number) for value in (a, b)]):
        return _of_values(a, b)
    left, right = [value.rule if type(value) is Number else lambda _, value=value: value for value in (a, b)]
    number = a if type(a) is Number else b
    values = [value.value if type(value) is Number else value for value in (a, b)]
    return Number(fn(*values), lambda numbers: fn(left(numbers), right(numbers)), number.read)


def _of_values(a: Any, b: Any) -> Any:
    """An operation on the values themselves, with another kind of number for one; what else may take part says itself what it is then."""
    number, other = (a, b) if type(a) is Number else (b, a)
    return number._needs_value() if type(other) is Number or isinstance(other, numbers.Number) else NotImplemented


def _of(number: Number, fn: Callable[[Any], Any], rule: Rule, value: float | int) -> Number:
    return Number(value, lambda numbers: fn(rule(numbers)), number.read)


_install()


def replaced(value: Any, numbers: Mapping[Path, Number]) -> Any:
    """`value`, a function, with Numbers at the ends of these paths; copies of what lies on the way."""
    if not numbers:
        return value
    if () in numbers:
        return numbers[()]
    below: dict[Any, dict[Path, Number]] = {}
    for path, number in numbers.items():
        below.setdefault(path[0], {})[path[1:]] = number
    if isinstance(value, functools.partial):
        args = [replaced(item, below.get(("argument", at), {})) for at, item in enumerate(value.args)]
        keywords = {name: replaced(item, below.get(("keyword", name), {})) for name, item in value.keywords.items()}
        return functools.partial(replaced(value.func, below.get(("function",), {})), *args, **keywords)
    if isinstance(value, types.MethodType):
        return types.MethodType(replaced(value.__func__, below.get(("function",), {})), replaced(value.__self__, below.get(("owner",), {})))
    if type(value) in (tuple, list):
        return type(value)([replaced(item, below.get(("item", at), {})) for at, item in enumerate(value)])
    if type(value) is dict:
        return {key: replaced(item, below.get(("item", at), {})) for at, (key, item) in enumerate(value.items())}
    if any([step[0] == "attribute" for step in below]):
        return _Seen(value, {step[1]: replaced(getattr(value, step[1]), numbers) for step, numbers in below.items()})
    assert isinstance(value, types.FunctionType)
    return _function(value, below)


class _Seen:
    """An object, class or module with other values of some attributes, for a function that reads attributes of it and no more (number_key.py)."""

    def __init__(self, value: Any, attributes: dict[str, Any]):
        self.__dict__.update(attributes)
        self.__dict__[" value"] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__[" value"], name)


def _function(fn: types.FunctionType, below: Mapping[Any, dict[Path, Number]]) -> types.FunctionType:
    scope = dict(fn.__globals__)
    scope.update({step[1]: replaced(scope[step[1]], numbers) for step, numbers in below.items() if step[0] == "global"})
    cells = []
    for at, cell in enumerate(fn.__closure__ or ()):
        numbers = below.get(("cell", at))
        cells.append(cell if numbers is None else types.CellType(replaced(cell.cell_contents, numbers)))
    copy = types.FunctionType(fn.__code__, scope, fn.__name__, None, tuple(cells) or None)
    if fn.__defaults__:
        copy.__defaults__ = tuple([replaced(value, below.get(("default", at), {})) for at, value in enumerate(fn.__defaults__)])
    if fn.__kwdefaults__:
        copy.__kwdefaults__ = {
            name: replaced(value, below.get(("keyword default", at), {})) for at, (name, value) in enumerate(fn.__kwdefaults__.items())
        }
    copy.__dict__.update(fn.__dict__)
    copy.__module__ = fn.__module__
    return copy
