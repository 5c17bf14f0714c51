"""Arrays that a traced function captured, as it sees them: indexing one with symbols gives a read."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any, ClassVar, Iterator, Protocol, Sequence

from . import _core, arrays, introspection, refusals
from ._core import Expr, Type
from .symbols import IN_PLACE, MAX_UNROLL, Symbols, broadcast, install_operators, no_writing


class Reader(Protocol):
    """What captured arrays ask of the trace that they are part of (trace.Tracer)."""

    wraps: bool
    checked: bool
    saw_values: bool
    immutable: ClassVar[bool]

    def check_own(self, value: Any) -> None: ...
    def gradient_stopped(self) -> bool: ...
    def indices(self, capture: Capture, given: Sequence[Any]) -> tuple[Capture, list[Any]]: ...
    def resolved(self, index: Expr, extent: int) -> Expr: ...
    def element(self, array: Any, index: Sequence[Any]) -> Expr: ...
    def made(self, items: Sequence[Expr], shape: tuple[int, ...], array: Any) -> Any: ...
    def kind(self, array: Any) -> type: ...
    def size(self, shape: tuple[int, ...]) -> Any: ...
    def attribute(self, capture: Capture, name: str) -> Any: ...


@dataclass(frozen=True)
class At:
    """A dimension that was indexed."""

    index: Any  # Expr or int


@dataclass(frozen=True)
class Along:
    """A dimension that is left: elements start, start + step, ..."""

    start: int
    step: int
    count: int


def of_part(index: Any, part: Along, checked_extent: int | None = None) -> Any:
    """The index in a whole dimension of one in part of it. Outside it is that of the nearest element of the part, or, where reads are checked, outside of the
    whole, too. What lengths decide of it is not computed."""
    ends = (part.start, part.start + part.step * (part.count - 1)) if checked_extent is None else (-1, checked_extent)
    return _core.where(index < 0, ends[0], _core.where(index >= part.count, ends[1], index * part.step + part.start))


class Capture(metaclass=introspection.SymbolType):
    """An array seen from inside a traced function, and where it was indexed so far."""

    def __init__(
        self, tracer: Reader, array: Any, axes: tuple[Any, ...] | None = None, order: tuple[int | None, ...] | None = None, stopped: bool = False
    ):  # fmt: skip
        arrays.check_sizes(array, "a captured array")
        self._tracer = tracer
        self._array = array
        self._axes = tuple(Along(0, 1, int(extent)) for extent in array.shape) if axes is None else axes
        self._order = tuple(range(len(self._axes))) if order is None else order  # of the dimensions that are left; None: a new one of size 1
        self._stopped = stopped  # what is read of it has no derivative

    def __stands_for__(self) -> type:
        return self._tracer.kind(self._array)

    __class__ = introspection.class_property(__stands_for__)

    def __dir__(self) -> Any:
        return dir(self.__stands_for__())

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(1 if axis is None else self._axes[axis].count for axis in self._order)

    @property
    def ndim(self) -> int:
        return len(self._order)

    @property
    def dtype(self) -> Any:
        return self._array.dtype

    def dim(self) -> int:
        return self.ndim

    @property
    def size(self) -> Any:
        return self._tracer.size(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        given = list(index) if isinstance(index, tuple) else [index]
        try:
            of, given = self._tracer.indices(self, given)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise refusals.refused(error)
        if of is not self:
            return of[tuple(given)]
        whole = sum(1 for i in given if i is Ellipsis)
        named = sum(1 for i in given if i is not None and i is not Ellipsis)
        if whole > 1 or named > self.ndim:
            raise IndexError(f"{named} indices for the {self.ndim} dimensions left of an array of shape {list(self._array.shape)}")
        at = next((place for place, i in enumerate(given) if i is Ellipsis), len(given))
        given[at : at + 1] = [slice(None)] * (self.ndim - named)
        if any(isinstance(i, Symbols) for i in given):
            return self._gathered(given)
        axes = list(self._axes)
        order: list[int | None] = []
        left = iter(self._order)
        for i in given:
            axis = None if i is None else next(left)
            if i is None:
                order.append(None)
                continue
            along = Along(0, 1, 1) if axis is None else axes[axis]
            if isinstance(i, slice):
                taken = range(*i.indices(along.count))
                if axis is not None:
                    axes[axis] = Along(along.start + taken.start * along.step, taken.step * along.step, len(taken))
                if axis is None and len(taken) != 1:
                    raise IndexError("a slice leaves nothing of a new dimension of a captured array")
                order.append(axis)
            elif axis is not None:
                axes[axis] = At(self._one(i, along, self._array.shape[axis]))
        return self._part(axes, order)

    def _part(self, axes: Sequence[Any], order: Sequence[int | None]) -> Any:
        """What is left when it is indexed so, or viewed; its read where nothing is. Made where no derivative is recorded, it has none later, either."""
        result = Capture(self._tracer, self._array, tuple(axes), tuple(order), self._stopped or self._tracer.gradient_stopped())
        return result if order or result._fixed() else result._read()

    def _detached(self) -> Capture:
        return Capture(self._tracer, self._array, self._axes, self._order, True)

    def _one(self, index: Any, along: Along, extent: int) -> Any:
        if isinstance(index, int):
            if not (-along.count if self._tracer.wraps else 0) <= index < along.count:
                raise IndexError(f"index {index} is out of range for a dimension of size {along.count} of a captured array")
            return along.start + along.step * (index % along.count)
        index = self._tracer.resolved(index, along.count)
        return index if along == Along(0, 1, extent) else of_part(index, along, extent if self._tracer.checked else None)

    def _gathered(self, given: list[Any]) -> Any:
        """Arrays among the indices: as in NumPy and torch they are broadcast, and their dimensions stand where the first of them stood, or
        in front when a dimension lies between them."""
        places = [at for at, i in enumerate(given) if isinstance(i, Symbols)]
        together = all(at in places or isinstance(given[at], (int, Expr)) for at in range(places[0], places[-1] + 1))
        shape: tuple[int, ...] = ()
        for at in places:
            own = given[at]._shape
            longer = max(len(shape), len(own))
            padded = [(1,) * (longer - len(s)) + tuple(s) for s in (shape, own)]
            shape = tuple(a if b == 1 else b for a, b in zip(*padded))
        rows = list(broadcast([(given[at]._items, given[at]._shape) for at in places], shape))
        if math.prod(shape) > MAX_UNROLL:
            raise ValueError(f"a captured array is indexed with {math.prod(shape)} expressions at every pair; at most {MAX_UNROLL} are unrolled")
        parts = []
        for row in rows:
            index = list(given)
            for at, item in zip(places, row):
                index[at] = item
            part = self[tuple(index)]
            parts.append(part._read() if isinstance(part, Capture) else part)
        inner = tuple(getattr(parts[0], "_shape", ()))
        columns = [part._items if isinstance(part, Symbols) else [part] for part in parts]
        before = sum(1 for i in given[: places[0]] if i is None or isinstance(i, slice)) if together else 0
        ahead = math.prod(inner[:before])
        behind = math.prod(inner[before:])
        items = [column[a * behind + b] for a in range(ahead) for column in columns for b in range(behind)]
        return self._tracer.made(items, (*inner[:before], *shape, *inner[before:]), self._array)

    def _read(self) -> Any:
        """The read of one element, or all that are left as Symbols."""
        self._tracer.check_own(self)
        shape = self.shape
        count = math.prod(shape)
        if count > MAX_UNROLL:
            raise ValueError(
                f"a score would read {count} elements of a captured array of shape {list(self._array.shape)} at every pair; "
                f"at most {MAX_UNROLL} are unrolled: index more dimensions"
            )
        items = []
        for place in itertools.product(*map(range, shape)):
            where = {axis: at for axis, at in zip(self._order, place) if axis is not None}
            index = [a.index if isinstance(a, At) else a.start + a.step * where[axis] for axis, a in enumerate(self._axes)]
            read = self._tracer.element(self._array, index)
            items.append(_core.stop_gradient(read) if self._stopped and read.type == Type.real else read)
        return self._tracer.made(items, shape, self._array)

    def _value(self) -> Any:
        """The array here and now: what the function goes on to read is not known to change."""
        if any(isinstance(axis, At) and not isinstance(axis.index, int) for axis in self._axes):
            raise refusals.refused_here(TypeError("an element of a captured array that symbols choose has no value while it is traced"))
        self._tracer.saw_values = True
        if all(axis == Along(0, 1, extent) for axis, extent in zip(self._axes, self._array.shape)):
            return self._array
        index = tuple(
            axis.index if isinstance(axis, At) else slice(axis.start, axis.start + axis.step * axis.count, axis.step) for axis in self._axes
        )
        return self._array[index]

    def item(self) -> Any:
        if math.prod(self.shape) != 1:
            raise ValueError(f"item() of {math.prod(self.shape)} elements of a captured array; expected one")
        return self._value().item() if self._fixed() else self._read()

    def tolist(self) -> Any:
        value = self._value()
        return value.tolist() if hasattr(value, "tolist") else value

    def _fixed(self) -> bool:
        return all(isinstance(axis, Along) or isinstance(axis.index, int) for axis in self._axes)

    def __float__(self) -> float:
        return float(self._value())

    def __int__(self) -> int:
        return int(self._value())

    def __index__(self) -> int:
        return operator.index(self._value())

    def __bool__(self) -> bool:
        return bool(self._value())

    def __repr__(self) -> str:
        return repr(self._value())

    def __str__(self) -> str:
        return str(self._value())

    def __format__(self, spec: str) -> str:
        return format(self._value(), spec)

    def __score__(self) -> Expr:
        value = self._read()
        return value.__score__() if isinstance(value, Symbols) else value

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        import numpy

        return numpy.asarray(self._value(), *arguments, **keywords)

    __hash__ = introspection.no_hash
    __reduce_ex__ = introspection.no_copy
    __dict__ = introspection.insides

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_array", "_axes", "_order", "_tracer", "_stopped"):
            raise AttributeError(name)
        return self._tracer.attribute(self, name)


def as_scalar(value: Any) -> Any:
    """A value that Expr's operators take: captures become reads, 0-d arrays numbers."""
    if isinstance(value, Capture):
        return value._read()
    if isinstance(value, (Expr, Symbols, bool, int, float)):
        return value
    if arrays.is_array(value) and len(value.shape) == 0:
        return value.item()
    return value


def _operate(fn: Any, capture: Capture, other: Any, reflected: bool) -> Any:
    """JAX's arrays without dimensions have a dtype that counts; others are numbers."""
    read, other = capture._read(), other if capture._tracer.immutable else as_scalar(other)
    return fn(other, read) if reflected else fn(read, other)


install_operators(
    Capture,
    _operate,
    lambda fn, self: fn(self._read()),
)
for _name in IN_PLACE:
    setattr(Capture, _name, no_writing)
