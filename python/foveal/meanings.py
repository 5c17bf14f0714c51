"""What functions of frameworks mean for expressions, by families: a table gives each function of a framework one of these."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from typing import Any, Callable, Sequence

from . import _core, arrays, formulas
from ._core import Type
from .framework_calls import Call, flat, symbolic
from .runtime_numbers import Number
from .symbols import broadcast, groups

Meaning = Callable[[Call], Any]


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


@signature_of
def _TWO(input: Any, other: Any) -> None: ...  # noqa: N802


def elementwise(fn: Callable[..., Any], operands: int = 1) -> Meaning:
    """fn(x, ..., options): the first `operands` arguments are expressions (or None), the others numbers and flags."""
    signature = inspect.signature(fn)
    names = list(signature.parameters)

    def meaning(call: Call) -> Any:
        arguments = call.bind(signature)
        in_place = arguments.get("inplace", False)
        given = list(arguments.values())
        if any(symbolic(value) for value in given[operands:]):
            raise call.refuse(f"a symbol for {', '.join(names[operands:])}; expected a constant")
        dtype = call.tracer.dtype_of_operands(call, given)
        if any(isinstance(value, Number) and not call.tracer.holds(value, dtype) for value in given):
            raise call.refuse(f"a number that changes beside {dtype}; expected a constant")
        given = [call.tracer.held(value, dtype) if type(value) is int else value for value in given]
        symbols = [None if value is None else call.tracer.operand(call, value, dtype) for value in given[:operands]]
        present = [(x._items, x._shape) for x in symbols if x is not None]
        options = dict(zip(names[operands:], given[operands:]))
        items = []
        for row in broadcast(present, tuple(call.result.shape)):
            left = iter(row)
            items.append(fn(*(None if x is None else next(left) for x in symbols), **options))
        result = call.made(items, call.result)
        return call.tracer.write(call.name, call.args[0] if call.args else call.kwargs["input"], result) if in_place else result

    return meaning


def in_steps(fn: Callable[..., Any], operands: int = 1) -> Meaning:
    """fn(x, ..., options, step): calls step() on what is rounded on the way."""
    return lambda call: elementwise(functools.partial(fn, step=call.step), operands)(call)


def unary(fn: Callable[[Any], Any]) -> Meaning:
    return elementwise(lambda input: fn(input))


def binary(fn: Callable[[Any, Any], Any]) -> Meaning:
    return elementwise(lambda input, other: fn(input, other), 2)


def multiplied(call: Call) -> Any:
    return binary(call.times)(call)


def shift(fn: Callable[[Any, Any, int], Any]) -> Meaning:
    """fn(x, count, the last bit of the result's dtype)."""

    def meaning(call: Call) -> Any:
        last_bit = 8 * call.result.dtype.itemsize - 1
        return binary(lambda x, count: fn(x, count, last_bit))(call)

    return meaning


def rounding(signature: inspect.Signature) -> Meaning:
    """To so many decimals: frameworks round the scaled number to its dtype first."""

    def meaning(call: Call) -> Any:
        value, decimals = call.bind(signature).values()
        x, power = call.symbol(value), 10.0 ** abs(decimals)
        if decimals == 0 or call.tracer.type_of(call.result.dtype) != Type.real:
            return call.made([formulas.rounded(item, decimals) for item in x._items], call.result)
        scaled = call.moved([item * power if decimals > 0 else item / power for item in x._items], call.result)
        whole = [formulas.round_half_even(item) for item in scaled._items]
        return call.made([item / power if decimals > 0 else item * power for item in whole], call.result)

    return meaning


def over_dims(call: Call, fn: Callable[[Sequence[Any]], Any], value: Any, dim: Any) -> Any:
    """fn of the items that meet when the dimensions `dim` are reduced; None: all. Kept dimensions show in the result's look."""
    x = call.symbol(value)
    rank = max(len(x._shape), 1)
    dims = range(rank) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    try:
        found = [fn(group) for group in groups(x._items, x._shape or (1,), [operator.index(d) % rank for d in dims])]
    except NotImplementedError as error:
        raise call.refuse(str(error)) from None
    return call.made(found, call.result)


def reduction(fn: Callable[[Sequence[Any]], Any], signature: inspect.Signature, dim: str) -> Meaning:
    """fn(items) over the dimensions in the argument `dim`; the other arguments of the signature show in the result's look."""

    def meaning(call: Call) -> Any:
        arguments = call.bind(signature)
        if not hasattr(call.result, "shape"):
            raise call.refuse(f"{dim} gives indices too; expected amax, amin")
        value = next(iter(arguments.values()))
        if arguments.get("dtype") is not None:  # converted before, not after
            if call.tracer.type_of(call.result.dtype) != Type.real and fn is formulas.mean:
                raise call.refuse(f"dtype={call.result.dtype}; expected a real one")
            x = call.symbol(value)
            value = call.tracer.finished(x._items, x._shape, call.result.dtype)
        return over_dims(call, fn, value, arguments[dim])

    return meaning


def matmul(call: Call) -> Any:
    a, b = (call.symbol(x) for x in call.bind(_TWO).values())
    if max(len(a._shape), len(b._shape)) > 2 or not a._shape or not b._shape:
        raise call.refuse(f"shapes {list(a._shape)} and {list(b._shape)}; expected vectors or matrices")
    inner = a._shape[-1]
    rows = [a._items[at : at + inner] for at in range(0, len(a._items), inner)]
    width = b._shape[1] if len(b._shape) == 2 else 1
    return call.made([formulas.dot(row, b._items[column::width], call.factor) for row in rows for column in range(width)], call.result)


def inner(call: Call) -> Any:
    """Products of the rows of both, not of the rows of one and the columns of the other."""
    a, b = (call.symbol(x) for x in call.bind(_TWO).values())
    if not a._shape or not b._shape:
        return multiplied(call)
    length = a._shape[-1]
    rows, others = ([x._items[at : at + length] for at in range(0, len(x._items), length)] for x in (a, b))
    return call.made([formulas.dot(row, other, call.factor) for row in rows for other in others], call.result)


def layout(numbers: Callable[[int, int, tuple[int, ...]], Any], values: Callable[[Any], list[int]]) -> Meaning:
    """Functions that only move elements: the framework's own, on the numbers of the elements.

    numbers(first, last, shape): an array of first ... last - 1; values: its elements.
    """

    def meaning(call: Call) -> Any:
        items: list[Any] = []
        dtypes: set[Any] = set()

        def numbered(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(numbered(item) for item in value)
            if symbolic(value) or arrays.is_array(value):
                symbol = call.symbol(value)
                first = len(items)
                items.extend(symbol._items)
                dtypes.add(symbol._dtype)
                return numbers(first, len(items), symbol._shape)
            return value

        def picked(found: Any, like: Any) -> Any:
            if hasattr(like, "dtype"):
                make = call.moved if dtypes == {like.dtype} else call.made
                return make([items[i] for i in values(found)], like)
            return type(like)(picked(f, l) for f, l in zip(found, like))

        rest = (*call.args[1:], *call.kwargs.values())
        if any(symbolic(value) for value in rest):
            raise call.refuse("a symbol for a shape, dimension or index of expressions; expected constants")
        if any(arrays.is_array(value) for value in flat(rest)):
            call.tracer.saw_values = True  # an index
        return picked(call.func(numbered(call.args[0]), *call.args[1:], **call.kwargs), call.result)

    return meaning


def cast(call: Call) -> Any:
    """The look of the result says what to convert to."""
    x = call.symbol(call.args[0])
    return call.moved(x._items, call.result) if x._dtype == call.result.dtype else call.converted(x._items, call.result, x._dtype)


def same(call: Call) -> Any:
    return call.symbol(call.args[0])


def stopped(call: Call) -> Any:
    x = call.symbol(call.args[0])
    return call.moved([_core.stop_gradient(item) for item in x._items], call.result)


def filled(value: Any, argument: str = "fill_value", place: int = 1) -> Meaning:
    """A constant: `value`, or, where that is None, the argument of this name or at this place."""

    def meaning(call: Call) -> Any:
        if call.kwargs.get("requires_grad"):
            raise call.refuse("requires_grad=True; expected a constant")
        number = (call.kwargs[argument] if argument in call.kwargs else call.args[place]) if value is None else value
        return call.converted(call.symbol(number)._items * math.prod(call.result.shape), call.result)

    return meaning
