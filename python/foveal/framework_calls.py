"""A call of a framework's function on symbols, and the tracer that gives its results their dtype.

A framework's front (torch/tracing, jax/tracing) first lets the framework itself check a call on stand-ins without data, which gives the shape and
dtype of the result; then a meaning from its table (meanings.py) makes the expressions. What a meaning does not understand is refused.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Iterator, Sequence

from . import _core, arrays, formulas
from ._core import Expr, Type
from .captures import Capture
from .runtime_numbers import Number
from .symbols import Symbols
from .trace import Tracer


@dataclass
class CallTracer(Tracer):
    """A Tracer whose functions see Symbols of a framework."""

    singles: list[Expr] = field(default_factory=list)  # that the framework computes in float32
    doubles: list[Expr] = field(default_factory=list)  # in float64

    library: ClassVar[str]  # in messages

    def expression(self, fn: Any, kind: str) -> Expr | None:
        found = super().expression(fn, kind)
        if found is None or isinstance(fn, (Expr, str)):
            return found
        if kind == "score_mod" and self.doubles and is_single(self.dtype_of_scores()):
            found = _core.float64_sums(found, self.doubles)
        return _core.float32_where_deciding(found, self.singles)

    def symbol(self, items: Sequence[Expr], shape: tuple[int, ...], dtype: Any) -> Symbols:
        raise NotImplementedError

    def write(self, name: str, x: Any, result: Any) -> Any:
        """What a function gives into its operand, in frameworks that can."""
        raise NotImplementedError

    def dtype_of(self, expr: Expr) -> Any:
        """Of an expression that has none."""
        raise NotImplementedError

    def dtype_of_scores(self) -> Any:
        raise NotImplementedError

    def type_of(self, dtype: Any) -> Type:
        found = _TYPES.get(_name_of(dtype))
        if found is None:  # there is nothing in the language that rounds or wraps as it does
            raise NotImplementedError(f"dtype {dtype} in a score or mask; expected one of {', '.join(_TYPES)}")
        return found

    def narrow(self, dtype: Any) -> tuple[int, int] | None:
        """(offset, size) of an integer dtype that wraps before 32 bits do."""
        raise NotImplementedError

    def wrapped(self, expr: Any, dtype: Any) -> Any:
        """An integer as an array of this dtype holds it."""
        narrow = self.narrow(dtype)
        if narrow is not None:
            return (expr + narrow[0]) % narrow[1] - narrow[0]
        return _core.to_int32(expr) if str(dtype).removeprefix("torch.") == "int32" else expr

    def of_real(self, expr: Any, dtype: Any) -> Any:
        """A real as an integer of this dtype."""
        return self.wrapped(_core.to_integer(expr), dtype)

    def dtype_of_operands(self, call: Call, given: Sequence[Any]) -> Any:
        """To which they are promoted, the numbers among them too."""
        return call.result.dtype

    def promoted(self, x: Symbols, dtype: Any, is_number: bool) -> Symbols:
        """An operand, a condition apart, of a function that computes with this dtype: float32 and the types of 16 bits hold it rounded."""
        kind = self.type_of(x._dtype)
        narrow = _ROUNDED.get(_name_of(dtype))
        if narrow is not None and kind != Type.boolean and (is_number or _name_of(x._dtype) != _name_of(dtype)):
            return self.symbol([narrow(_core.to_real(item)) for item in x._items], x._shape, dtype)
        if kind == Type.boolean or not is_single(dtype) or (is_single(x._dtype) and not is_number):
            return x
        if kind == Type.real and not is_number:
            return self.symbol([_core.to_float32(item) for item in x._items], x._shape, dtype)
        items = [self.real_of(item, x._dtype) for item in x._items]
        self.singles += items
        return self.symbol(items, x._shape, x._dtype)

    def real_of(self, expr: Expr, dtype: Any) -> Expr:
        """An integer of this dtype as float32 holds it: rounded on its own, not with the sum that it becomes part of. Positions are small."""
        is_long = expr.type == Type.integer and self.narrow(dtype) is None and _core.params_of(expr)
        return _core.to_float32(expr) if is_long else _core.to_real(expr)

    def operand(self, call: Call, value: Any, dtype: Any) -> Symbols:
        """One that is not None, promoted."""
        return self.promoted(call.symbol(value), dtype, isinstance(value, (int, float, Number)))

    def holds(self, number: Number, dtype: Any) -> bool:
        """Whether an array of this dtype holds every value that the number may have."""
        return self.narrow(dtype) is None and not (number.is_long() and str(dtype).endswith("int32"))

    def held(self, number: int, dtype: Any) -> int:
        """A number as an array of this dtype holds it."""
        narrow = self.narrow(dtype)
        return number if narrow is None else (number + narrow[0]) % narrow[1] - narrow[0]

    def made(self, items: Sequence[Expr], shape: tuple[int, ...], array: Any) -> Any:
        items = [_core.stop_gradient(item) for item in items] if self.gradient_stopped() else items
        if _name_of(array.dtype) == "float64":
            self.doubles += items
        return self.symbol(items, shape, array.dtype)

    def capture(self, array: Any) -> Capture:
        return Capture(self, array)

    def finished(self, items: Sequence[Any], shape: tuple[int, ...], dtype: Any, rounded: Callable[[Expr], Expr] | None = None) -> Symbols:
        """Expressions as an array of this dtype: converted, narrow integers wrapped, without derivative where none is to be recorded. Reals
        of 16 bits are computed in float32 and rounded by each function."""
        rounded = rounded or _ROUNDED.get(_name_of(dtype))
        kind, stopped = self.type_of(dtype), self.gradient_stopped()
        single = is_single(dtype)
        convert = {Type.real: _core.to_real, Type.integer: _core.to_integer, Type.boolean: _core.to_boolean}[kind]

        def finish(item: Any) -> Expr:
            item = _core.constant(item)
            if kind == Type.integer:
                whole: Expr = self.of_real(item, dtype) if item.type == Type.real else self.wrapped(convert(item), dtype)
                return whole
            expr = convert(item) if rounded is None else rounded(convert(item))
            if single:
                self.singles.append(expr)
            elif kind == Type.real:
                self.doubles.append(expr)
            return _core.stop_gradient(expr) if stopped and kind == Type.real else expr

        return self.symbol([finish(item) for item in items], shape, dtype)


def _as_is(expr: Expr) -> Expr:
    return expr


_TYPES = {
    **dict.fromkeys("float64 float32 bfloat16 float16".split(), Type.real),
    **dict.fromkeys("int64 int32 int16 int8 uint32 uint16 uint8".split(), Type.integer),
    "bool": Type.boolean,
}
_WRAPPING = frozenset("int32 int16 int8 uint32 uint16 uint8".split())
_ROUNDED = {"bfloat16": _core.to_bfloat16, "float16": _core.to_float16}


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def is_single(dtype: Any) -> bool:
    """Whether arrays of this dtype are computed with in float32."""
    return _name_of(dtype) in ("float32", *_ROUNDED)


def symbolic(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(symbolic(item) for item in value)
    return isinstance(value, (Symbols, Capture, Expr, Number))


def flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


@dataclass(frozen=True)
class Call:
    """One call: the function, what it was given, and stand-ins for its result, with shape and dtype."""

    tracer: Any
    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def refuse(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{self.tracer.library}.{self.name} in a score or mask: {what}")

    def bind(self, signature: inspect.Signature) -> dict[str, Any]:
        """The arguments by their names, defaults included."""
        given = {name: value for name, value in self.kwargs.items() if value is not None or name in signature.parameters}  # out=None
        try:
            bound = signature.bind(*self.args, **given)
        except TypeError as error:
            raise self.refuse(f"argument not understood ({error}); expected {', '.join(signature.parameters) or 'no arguments'}") from None
        bound.apply_defaults()
        return bound.arguments

    def symbol(self, value: Any) -> Any:
        """An operand: arrays that meet a symbol become reads, numbers constants."""
        if isinstance(value, Symbols):
            self.tracer.check_own(value)
            return value
        value = arrays.plain_number(value)
        if isinstance(value, (bool, int, float)):
            value = _core.constant(value) if value == value else formulas.nan()
        if isinstance(value, Number):
            value = value.__score__()
        if isinstance(value, Expr):
            return self.tracer.symbol([value], (), self.tracer.dtype_of(value))
        if arrays.is_array(value):
            value = self.tracer.capture(value)
        if isinstance(value, Capture):
            return value._read()
        raise self.refuse(f"found {type(value).__name__} as an operand; expected an array, a symbol or a number")

    def made(self, items: Sequence[Any], like: Any) -> Any:
        return self.tracer.finished(items, tuple(like.shape), like.dtype)

    def step(self, expr: Expr) -> Expr:
        """A value on the way, where a framework computes the result in steps of its dtype."""
        if expr.type == Type.integer:
            return self.factor(expr)
        rounded = _ROUNDED.get(_name_of(self.result.dtype))
        return self.single(expr) if rounded is None else rounded(expr)

    def factor(self, expr: Expr) -> Expr:
        """An integer that is multiplied. Those of 32 bits or fewer wrap, so that others with the same lowest 32 bits do as well: with a sign, of which a
        product has 64 bits at most."""
        return _core.to_int32(expr) if expr.type == Type.integer and _name_of(self.result.dtype) in _WRAPPING else expr

    def times(self, a: Expr, b: Expr) -> Expr:
        return self.factor(self.factor(a) * self.factor(b))

    def single(self, expr: Expr) -> Expr:
        """The same where it computes in float32."""
        if is_single(self.result.dtype):
            self.tracer.singles.append(expr)
        return expr

    def moved(self, items: Sequence[Any], like: Any) -> Any:
        """Elements of operands of this dtype, or values on the way to it: not rounded to 16 bits."""
        return self.tracer.finished(items, tuple(like.shape), like.dtype, _as_is)

    def converted(self, items: Sequence[Any], like: Any, of: Any = None) -> Any:
        """Of another dtype than they had, `of`: rounded where that is wider."""
        rounded = _ROUNDED.get(_name_of(like.dtype), _core.to_float32 if _name_of(of) == "float64" and is_single(like.dtype) else None)
        if rounded is None and is_single(like.dtype) and of is not None:
            items = [self.tracer.real_of(item, of) for item in items]
        return self.tracer.finished(items, tuple(like.shape), like.dtype, rounded)
