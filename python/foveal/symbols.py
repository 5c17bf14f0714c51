"""Expressions in the shape of an array: what a traced function sees for an array, or a number, that follows from its arguments."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any, Callable, Iterator, Sequence

from . import arrays, introspection, numpy_on_symbols, refusals
from ._core import Expr

MAX_UNROLL = 1024  # elements of Symbols: a score of more reads than this per pair is not attention any more

numpy_on_symbols.install()


class Symbols(metaclass=introspection.SymbolType):
    """Expressions in the shape of an array. This one follows the score language; a framework's (torch, JAX) follows the framework."""

    def __init__(self, tracer: Any, items: Sequence[Expr], shape: tuple[int, ...], dtype: Any = None):
        self._tracer = tracer
        self._items = list(items)
        self._shape = tuple(shape)
        self._dtype = dtype

    def __score__(self) -> Expr:
        """The expression that the score language's own functions take this for."""
        self._tracer.check_own(self)
        if self._shape:
            raise TypeError(f"an array of shape {list(self._shape)} is no score expression; expected one number: index or reduce it")
        return self._items[0]

    def _operate(self, fn: Callable[..., Any], *operands: Any) -> Any:
        raise NotImplementedError

    def __stands_for__(self) -> type:
        """Of what it is an instance to the function that is traced."""
        raise NotImplementedError

    __class__ = introspection.class_property(lambda self: self.__stands_for__())

    def __dir__(self) -> Any:
        return dir(self.__stands_for__())

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a number has no length")
        return self._shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    __bool__ = introspection.truth
    __float__ = __int__ = __index__ = __complex__ = introspection.no_number
    __array_function__ = numpy_on_symbols.refused
    __array__ = introspection.no_array
    __hash__ = introspection.no_hash
    __reduce_ex__ = __copy__ = __deepcopy__ = introspection.no_copy
    __dict__ = introspection.insides

    __repr__ = __format__ = introspection.text_by(
        lambda self: f"{type(self).__name__}({self._items[0] if not self._shape else self._items}, shape={list(self._shape)})"
    )


_BINARY = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor lt le gt ge eq ne".split()
_REFLECTED = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor".split()
_UNARY = "neg pos abs invert".split()
IN_PLACE = [f"__i{name.rstrip('_')}__" for name in _REFLECTED if name != "matmul"]


def no_writing(self: Any, other: Any) -> Any:
    """x += y writes into an array, which x may not be the only name of. Where arrays do not change, it is x = x + y."""
    if self._tracer.immutable:
        return NotImplemented
    raise refusals.refused(NotImplementedError("a score or mask writes into an array (x += y and the like); expected x = x + y"))


def install_operators(cls: type, binary: Callable[..., Any], unary: Callable[..., Any]) -> None:
    """binary(fn, self, other, reflected), unary(fn, self)."""
    for name in _BINARY:
        fn, slot = getattr(operator, name), name.rstrip("_")
        setattr(cls, f"__{slot}__", lambda self, other, fn=fn: binary(fn, self, other, False))
        if name in _REFLECTED:
            setattr(cls, f"__r{slot}__", lambda self, other, fn=fn: binary(fn, self, other, True))
    for name in _UNARY:
        setattr(cls, f"__{name}__", lambda self, fn=getattr(operator, name): unary(fn, self))


install_operators(
    Symbols,
    lambda fn, self, other, reflected: self._operate(fn, other, self) if reflected else self._operate(fn, self, other),
    lambda fn, self: self._operate(fn, self),
)


def broadcast(operands: Sequence[tuple[Sequence[Any], tuple[int, ...]]], shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """For each element of `shape`, the elements of the operands (items, shape) there."""
    count = math.prod(shape)
    columns = []
    for items, own in operands:
        if own == shape:
            columns.append(items)
        elif len(items) == 1:
            columns.append([items[0]] * count)
        else:
            own = (1,) * (len(shape) - len(own)) + tuple(own)
            steps = [0 if extent == 1 else step for extent, step in zip(own, arrays.row_major(own))]
            columns.append([items[sum(map(operator.mul, place, steps))] for place in itertools.product(*map(range, shape))])
    return zip(*columns)


def groups(items: Sequence[Any], shape: tuple[int, ...], dims: Sequence[int]) -> list[list[Any]]:
    """The items that meet when `dims` are reduced, for each element of the rest."""
    found: dict[tuple[int, ...], list[Any]] = {}
    for place, item in zip(itertools.product(*map(range, shape)), items):
        found.setdefault(tuple(at for d, at in enumerate(place) if d not in dims), []).append(item)
    return list(found.values())
