"""Turns a Python function of (score, batch, head, q_idx, kv_idx) into an expression.

The function runs once, on symbols. What it reads from arrays becomes parameters: a `Capture` stands for an array, indexing it with
symbols gives a read; what is left of its dimensions is unrolled into `Symbols`, an array of expressions.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import itertools
import math
import operator
import sys
import types
from collections import ChainMap
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Iterator, Sequence

from . import _core, arrays, formulas, guards, masks, numpy_on_symbols, questions
from ._core import Expr, Param, Type
from .numbers import Computed, Number, Rule

MAX_UNROLL = 1024  # elements of Symbols: a score of more reads than this per pair is not attention any more

guards.trust(value for name, value in vars(_core).items() if callable(value) and not isinstance(value, Expr) and not name.startswith("_"))
guards.trust(value for value in vars(masks).values() if isinstance(value, masks.Maker))


numpy_on_symbols.install()


class Symbols(metaclass=questions.SymbolType):
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

    __class__ = questions.class_property(lambda self: self.__stands_for__())

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

    __bool__ = questions.truth
    __float__ = __int__ = __index__ = __complex__ = questions.no_number
    __array_function__ = numpy_on_symbols.refused
    __array__ = questions.no_array
    __hash__ = questions.no_hash
    __reduce_ex__ = __copy__ = __deepcopy__ = questions.no_copy
    __dict__ = questions.insides

    __repr__ = __format__ = questions.text_by(
        lambda self: f"{type(self).__name__}({self._items[0] if not self._shape else self._items}, shape={list(self._shape)})"
    )


_BINARY = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor lt le gt ge eq ne".split()
_REFLECTED = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor".split()
_UNARY = "neg pos abs invert".split()
IN_PLACE = [f"__i{name.rstrip('_')}__" for name in _REFLECTED if name != "matmul"]


def _no_writing(self: Any, other: Any) -> Any:
    """x += y writes into an array, which x may not be the only name of. Where arrays do not change, it is x = x + y."""
    if self._tracer.immutable:
        return NotImplemented
    raise questions.refused(NotImplementedError("a score or mask writes into an array (x += y and the like); expected x = x + y"))


def _install_operators(cls: type, binary: Callable[..., Any], unary: Callable[..., Any]) -> None:
    """binary(fn, self, other, reflected), unary(fn, self)."""
    for name in _BINARY:
        fn, slot = getattr(operator, name), name.rstrip("_")
        setattr(cls, f"__{slot}__", lambda self, other, fn=fn: binary(fn, self, other, False))
        if name in _REFLECTED:
            setattr(cls, f"__r{slot}__", lambda self, other, fn=fn: binary(fn, self, other, True))
    for name in _UNARY:
        setattr(cls, f"__{name}__", lambda self, fn=getattr(operator, name): unary(fn, self))


_install_operators(
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


class Vector(Symbols):
    """What is left of a NumPy array after indexing its leading dimensions with symbols. Numbers are plain expressions."""

    def _made(self, items: Sequence[Expr], shape: tuple[int, ...]) -> Any:
        return Vector(self._tracer, items, shape) if shape else items[0]

    def __stands_for__(self) -> type:
        import numpy

        return numpy.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def _operate(self, fn: Callable[..., Any], *operands: Any) -> Any:
        if fn is operator.matmul:
            return operands[0].dot(operands[1])
        parts = []
        for operand in operands:
            value = _scalar(operand)
            parts.append((value._items, value._shape) if isinstance(value, Vector) else ([value], ()))
        shapes = [shape for _, shape in parts if shape]
        shape = max(shapes, key=len)
        if any(own != shape for own in shapes):
            raise ValueError(f"arrays of shapes {' and '.join(str(list(own)) for own in shapes)} do not combine")
        return self._made([fn(*items) for items in broadcast(parts, shape)], shape)

    def __getitem__(self, index: Any) -> Any:
        from_shape = _numbers(self._shape)
        found = from_shape[index]
        return self._made([self._items[i] for i in found.reshape(-1).tolist()], tuple(found.shape))

    def __getattr__(self, name: str) -> Any:
        import numpy

        if not name.startswith("_") and hasattr(numpy.ndarray, name):  # for which hasattr() and getattr() would have another answer than for an array
            raise questions.refused_here(
                NotImplementedError(f"numpy.ndarray.{name} in a score or mask: not of an array of expressions; expected its shape, elements and reductions")
            )
        raise AttributeError(f"{name}: no attribute of an array in a score or mask")

    def __array_function__(self, function: Any, types: Any, inputs: Any, keywords: Any) -> Any:
        """NumPy's reductions are the methods."""
        if function.__name__ in ("sum", "mean", "max", "min", "any", "all") and inputs and inputs[0] is self:
            return getattr(self, function.__name__)(*inputs[1:], **keywords)
        return numpy_on_symbols.refused(self, function, types, inputs, keywords)

    def _reduced(self, name: str, fn: Callable[[Sequence[Expr]], Expr], axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """dtype and out: as NumPy's functions pass them on to methods."""
        if dtype is not None or out is not None:
            raise TypeError(f"numpy.{name} in a score or mask: dtype or out; expected axis alone")
        dims = range(len(self._shape)) if axis is None else [axis] if isinstance(axis, int) else axis
        dims = [operator.index(d) % len(self._shape) for d in dims]
        rest = tuple(extent for d, extent in enumerate(self._shape) if d not in dims)
        return self._made([fn(group) for group in groups(self._items, self._shape, dims)], rest)

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._reduced("sum", formulas.total, axis, dtype, out)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._reduced("mean", formulas.mean, axis, dtype, out)

    def max(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("max", formulas.largest, axis, out=out)

    def min(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("min", formulas.smallest, axis, out=out)

    def any(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("any", formulas.any_of, axis, out=out)

    def all(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("all", formulas.all_of, axis, out=out)

    def norm(self) -> Any:
        return self._reduced("norm", lambda items: formulas.norm(items, 2, at_zero=True))

    def dot(self, other: Any) -> Any:
        return (self * other).sum()


for _name in IN_PLACE:
    setattr(Vector, _name, _no_writing)


def _numbers(shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.arange(math.prod(shape)).reshape(shape)


def _scalar(value: Any) -> Any:
    """A value that Expr's operators take: captures become reads, 0-d arrays numbers."""
    if isinstance(value, Capture):
        return value._read()
    if isinstance(value, (Expr, Symbols, bool, int, float)):
        return value
    if arrays.is_array(value) and len(value.shape) == 0:
        return value.item()
    return value


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


class Capture(metaclass=questions.SymbolType):
    """An array seen from inside a traced function, and where it was indexed so far."""

    def __init__(
        self, tracer: "Tracer", array: Any, axes: tuple[Any, ...] | None = None, order: tuple[int | None, ...] | None = None, stopped: bool = False
    ):  # fmt: skip
        arrays.check_sizes(array, "a captured array")
        self._tracer = tracer
        self._array = array
        self._axes = tuple(Along(0, 1, int(extent)) for extent in array.shape) if axes is None else axes
        self._order = tuple(range(len(self._axes))) if order is None else order  # of the dimensions that are left; None: a new one of size 1
        self._stopped = stopped  # what is read of it has no derivative

    def __stands_for__(self) -> type:
        return self._tracer.kind(self._array)

    __class__ = questions.class_property(__stands_for__)

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
            given = [self._tracer.index(i) for i in given]
        except (TypeError, ValueError, NotImplementedError) as error:
            raise questions.refused(error)
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
            raise questions.refused_here(TypeError("an element of a captured array that symbols choose has no value while it is traced"))
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

    __hash__ = questions.no_hash
    __reduce_ex__ = questions.no_copy
    __dict__ = questions.insides

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_array", "_axes", "_order", "_tracer", "_stopped"):
            raise AttributeError(name)
        return self._tracer.attribute(self, name)


_install_operators(
    Capture,
    lambda fn, self, other, reflected: fn(_scalar(other), self._read()) if reflected else fn(self._read(), _scalar(other)),
    lambda fn, self: fn(self._read()),
)
for _name in IN_PLACE:
    setattr(Capture, _name, _no_writing)


_OF_TRACE = "__of_trace_"
_traces = itertools.count()


@dataclass
class Tracer:
    """Collects the arrays that functions read, each once, and names them p0, p1, ... in the order of their first read."""

    arrays: list[Any] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    own_names: dict[str, str] = field(default_factory=dict)  # of parameters, no other trace has them -> those of the description
    numbers: list[tuple[Any, Number]] = field(default_factory=list)  # that are read at run time, each in an array
    sources: dict[int, Computed] = field(default_factory=dict)  # of the elements of these arrays, by their identities
    over: bool = False  # the functions have returned
    checked: bool = False  # a read outside of its array is an error
    wraps: bool = True  # a negative index counts from the end
    saw_values: bool = False  # elements of arrays that may change have become constants: the trace is good for one call

    cannot_see: ClassVar[str] = "made in the function or reached past its names"  # arrays; in messages
    can_see: ClassVar[str] = "one that the function captures by a name"
    rebind: ClassVar[bool] = True  # put Captures in place of captured arrays; torch intercepts indexing instead
    immutable: ClassVar[bool] = False  # arrays do not change
    tensors: ClassVar[type | None] = None  # arrays that are noticed wherever they come from

    @classmethod
    def setting(cls) -> Any:
        """What else a trace depends on; hashable."""
        return None

    @classmethod
    def scalar(cls, value: float | int) -> Any:
        """A new array without dimensions that holds a Python number; None where such arrays are not read at run time."""
        import numpy

        return numpy.array(value)

    def check_own(self, value: Any) -> None:
        """Refuses a symbol that a function has kept from an earlier trace, where its parameters were others."""
        if value._tracer is not self or self.over:
            raise TypeError("a score or mask uses a symbol that it kept from an earlier call; expected one that is made anew each time")

    def gradient_stopped(self) -> bool:
        """Whether no derivative is recorded just now."""
        return False

    @staticmethod
    def kind(array: Any) -> type:
        """Of what a part of it is an instance."""
        return type(array)

    def attribute(self, capture: Capture, name: str) -> Any:
        """What captures have beside what they are: what is read of them has."""
        return getattr(capture._read(), name)

    @staticmethod
    def size(shape: tuple[int, ...]) -> Any:
        """What an array of this shape has under this name."""
        return math.prod(shape)

    def number(self, value: float | int, rule: Rule) -> Number:
        """Stands for a Python number while tracing, and is read when the program runs. rule: how each call computes it."""
        return Number(value, rule, self._read_number)

    def _read_number(self, number: Number) -> Expr:
        array = next((array for array, known in self.numbers if known is number), None)
        if array is None:
            computed = number.computed()  # refuses what has no array
            array = self.scalar(number.value)
            self.numbers.append((array, number))
            self.sources[id(array)] = computed
        return self.param(array, f"number{len(self.numbers) - 1}").read([])

    def param(self, array: Any, called: str | None = None) -> Param:
        """That stands for an array, and what the description calls it where the user does not."""
        for known, param in zip(self.arrays, self.params):
            if known is array:
                return param
        called = called or f"p{len(self.params) - len(self.sources)}"
        name = f"{called}{_OF_TRACE}{next(_traces)}"
        self.own_names[name] = called
        return self.given(name, array, by_bits=True)

    @contextlib.contextmanager
    def counting_from_zero(self) -> Iterator[None]:
        """For functions that take no negative indices: one is out of range."""
        self.wraps = False
        try:
            yield
        finally:
            self.wraps = True

    def resolved(self, index: Expr, extent: int) -> Expr:
        """An index as one that counts from the start."""
        return _core.wrapped_index(index, extent) if self.wraps else index

    def element(self, array: Any, index: Sequence[Any]) -> Expr:
        """Of a captured array."""
        read, bits = self.param(array).read(index), arrays.bits_of(array)
        return read if bits is None else read & (1 << bits) - 1

    def given(self, name: str, array: Any, by_bits: bool = False) -> Param:
        """A parameter with this name. The same array under another one is another parameter: the next call may give two arrays."""
        arrays.check_plain(array, "a captured array")
        arrays.check_sizes(array, name)
        # An array without elements, of an empty batch for instance, counts as one of one: where there is a pair to read it, planning sees the difference.
        param = Param(name, [max(1, extent) for extent in array.shape], arrays.type_of(array, "a captured array" if by_bits else name, by_bits))
        self.arrays.append(array)
        self.params.append(param)
        return param

    def renamed(self, expressions: Sequence[Expr | None]) -> list[Expr | None]:
        """With the description's names, the parameters too. Refuses what an earlier trace called its own: a function has kept it."""
        if any([_OF_TRACE in name and name not in self.own_names for expr in expressions if expr is not None for name in _core.params_of(expr)]):
            raise TypeError("a score or mask uses a symbol that it kept from an earlier call; expected one that is made anew each time")
        new = {param.name: Param(self.own_names[param.name], list(param.shape), param.type) for param in self.params if param.name in self.own_names}
        self.params[:] = [new.get(param.name, param) for param in self.params]
        return [None if expr is None else _core.of_shard(expr, {}, new) for expr in expressions]

    def forget_unread(self, expressions: Sequence[Expr], keep: int) -> None:
        """Without the parameters that nothing in the expressions came of; the first `keep` stay."""
        read = set().union(*(_core.params_of(expr) for expr in expressions))
        kept = [at for at, param in enumerate(self.params) if at < keep or param.name in read]
        self.params[:] = [self.params[at] for at in kept]
        self.arrays[:] = [self.arrays[at] for at in kept]

    def made(self, items: Sequence[Expr], shape: tuple[int, ...], array: Any) -> Any:
        """What was read of a captured array, as the functions see it."""
        return Vector(self, items, shape) if shape else items[0]

    def index(self, value: Any) -> Any:
        """An index as None, Ellipsis, a slice, an int, an Expr, or Symbols with dimensions."""
        value = arrays.plain_number(value)
        if value is None or value is Ellipsis or isinstance(value, slice):
            return value
        if isinstance(value, bool):
            raise TypeError("index of a captured array: found a bool; expected an integer")
        if isinstance(value, int):
            return value
        if isinstance(value, (Symbols, Capture)):
            self.check_own(value)
        if isinstance(value, Capture):
            value = value._read()
        elif arrays.is_array(value):
            value = Capture(self, value)._read() if len(value.shape) else value.item()
        elif isinstance(value, (list, tuple)):
            value = Vector(self, [_core.constant(i) for i in value], (len(value),))
        if isinstance(value, Symbols) and not value._shape:
            value = value.__score__()
        for item in value._items if isinstance(value, Symbols) else [value]:
            if not isinstance(item, (Expr, int)):
                raise TypeError(f"index of a captured array: found {type(item).__name__}; expected integers, symbols, slices, None or ...")
            if isinstance(item, Expr) and item.type != Type.integer:
                raise TypeError(f"index of a captured array: found a {item.type.name} expression; expected an integer one")
        return value

    def arguments(self, kind: str) -> tuple[Any, ...]:
        """What the functions are called with."""
        symbols = (_core.batch, _core.head, _core.q_idx, _core.kv_idx)
        return symbols if kind == "mask" else (_core.score, *symbols)

    def expression(self, fn: Any, kind: str) -> Expr | None:
        """`fn`: None, an Expr, text in the score language, or a function of the symbols. kind: "score_mod" or "mask"."""
        if fn is None or isinstance(fn, Expr):
            return fn
        if isinstance(fn, str):
            arrays.check_ascii(f"{kind}: expression", fn)
            try:
                return _core.parse(fn, self.params)
            except ValueError as error:  # whose words do not tell which of two texts it is
                raise type(error)(f"{kind}: {error}") from None
        if not callable(fn):
            reads = "b, h, i, j: x[b, h, i, j]" if kind == "mask" else "s, b, h, i, j: s + x[b, h, i, j]"
            hint = f"; an array x is read by one: lambda {reads}" if arrays.is_array(fn) else ""
            raise TypeError(f"{kind}: found {type(fn).__name__}; expected a function, an expression, text or None{hint}")
        if isinstance(fn, masks.Maker):
            raise fn.refused(kind)
        arguments = self.arguments(kind)
        _check_arity(fn, kind, len(arguments))
        handed = _check_types(fn, arguments, self.rebind)
        try:
            with questions.answered(), questions.types_answered(handed, _is_the_users):
                result = self.run(fn, arguments)
        except (IndexError, questions.NoArray) as error:
            if isinstance(error, IndexError) and "valid indices" not in str(error):  # NumPy's and JAX's words for an index that is no number
                raise
            raise TypeError(
                f"{kind}: a symbol indexes an array that tracing cannot see, as it is {self.cannot_see}, or is to become an array of NumPy's; "
                f"expected {self.can_see}, or text that reads an array in params"
            ) from error
        result = _scalar(arrays.plain_number(result))
        if isinstance(result, Symbols):
            self.check_own(result)
            if result._shape:
                raise TypeError(f"{kind}: the function returned an array of shape {list(result._shape)}; expected one number for each pair")
            result = result.__score__()
        if isinstance(result, (bool, int, float)):
            result = _core.constant(result)
        if not isinstance(result, Expr):
            raise TypeError(f"{kind}: the function returned {type(result).__name__}; expected an expression of its arguments")
        if kind == "mask" and result.type != Type.boolean:
            raise TypeError(
                f"mask: the function returned a{'n integer' if result.type == Type.integer else ' real'}; expected a boolean that says "
                "which pairs take part (a comparison, as in x != 0); what is added to scores is a score_mod"
            )
        if kind == "score_mod" and result.type == Type.boolean:
            raise TypeError("score_mod: the function returned a boolean; expected the new score (a function that says which pairs take part is a mask)")
        return _core.to_real(result) if kind == "score_mod" else result

    def run(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        result = (self._rebind(fn, {}) if self.rebind else fn)(*arguments)
        questions.check_refusals()
        return result

    def replacement(self, value: Any) -> Any:
        """What a function sees instead of something that it captured, when it is no array, container or function."""
        return value

    # ---- captured arrays become Captures ----

    def _replaces(self, value: Any, seen: set[int]) -> bool:
        """Is there something to replace in what a function captured?"""
        if id(value) in seen:
            return False
        kind = type(value)
        if kind in (list, tuple, dict):
            seen.add(id(value))
            return any(self._replaces(item, seen) for item in (value.values() if kind is dict else value))
        if arrays.is_array(value) or self.replacement(value) is not value:
            return True
        if isinstance(value, (functools.partial, types.MethodType, types.FunctionType)):
            seen.add(id(value))
            return any(self._replaces(item, seen) for item in _captured_by(value))
        return False

    def _rebind(self, value: Any, seen: dict[int, Any]) -> Any:
        """What a function sees instead of `value`: Captures for arrays, through containers and functions that captured some in turn."""
        if id(value) in seen:
            return seen[id(value)]
        if not self._replaces(value, set()):
            return value
        if arrays.is_array(value):
            return Capture(self, value)
        if (replacement := self.replacement(value)) is not value:
            return replacement
        if isinstance(value, functools.partial):
            keywords = {key: self._rebind(item, seen) for key, item in value.keywords.items()}
            return functools.partial(self._rebind(value.func, seen), *(self._rebind(item, seen) for item in value.args), **keywords)
        if isinstance(value, types.MethodType):
            return types.MethodType(self._rebind(value.__func__, seen), value.__self__)
        if type(value) is tuple:
            return tuple(self._rebind(item, seen) for item in value)
        if type(value) is list:
            items = seen[id(value)] = []
            items.extend(self._rebind(item, seen) for item in value)
            return items
        if type(value) is dict:
            entries = seen[id(value)] = {}
            entries.update((key, self._rebind(item, seen)) for key, item in value.items())
            return entries
        return self._rebound(value, seen)

    def _rebound(self, fn: types.FunctionType, seen: dict[int, Any]) -> types.FunctionType:
        new = {name: value for name, value in _globals_of(fn).items() if self._replaces(value, set())}
        scope = dict(fn.__globals__) if new else fn.__globals__
        cells = [(cell, types.CellType() if _filled(cell) and self._replaces(cell.cell_contents, set()) else cell) for cell in fn.__closure__ or ()]
        copy = types.FunctionType(fn.__code__, scope, fn.__name__, None, tuple(mine for _, mine in cells) or None)
        seen[id(fn)] = copy  # before what it reads: it may call itself
        scope.update((name, self._rebind(value, seen)) for name, value in new.items())
        for old, mine in cells:
            if mine is not old:
                mine.cell_contents = self._rebind(old.cell_contents, seen)
        copy.__defaults__ = self._rebind(fn.__defaults__, seen)
        copy.__kwdefaults__ = self._rebind(fn.__kwdefaults__, seen)
        copy.__dict__.update(fn.__dict__)
        return copy


_LIBRARIES = {"numpy", "jax", "torch", "foveal", "scipy", "builtins", "math", "functools", "operator"}
_NOT_THE_USERS = _LIBRARIES | sys.stdlib_module_names


def _globals_of(fn: types.FunctionType) -> dict[str, Any]:
    return {name: fn.__globals__[name] for name in guards.global_names(fn.__code__) if name in fn.__globals__}


def _captured_by(fn: Any) -> Iterator[Any]:
    """What a function of the user's reads besides its arguments."""
    if isinstance(fn, functools.partial):
        yield from (fn.func, *fn.args, *fn.keywords.values())
    elif isinstance(fn, types.MethodType):
        yield fn.__func__
    elif fn.__module__ == masks.__name__ or (fn.__module__ or "").partition(".")[0] not in _LIBRARIES:
        yield from _globals_of(fn).values()
        yield from (cell.cell_contents for cell in fn.__closure__ or () if _filled(cell))
        yield from fn.__defaults__ or ()
        yield from (fn.__kwdefaults__ or {}).values()


def _check_arity(fn: Any, kind: str, count: int) -> None:
    """A mask in the place of a score_mod, and the other way round, are told apart by how many arguments they take."""
    try:
        signature = inspect.signature(fn)
        signature.bind(*range(count))
    except ValueError:  # a function of C: calling it will tell
        return
    except TypeError:
        other, names = ("mask", "(batch, head, q_idx, kv_idx)"), "(score, batch, head, q_idx, kv_idx)"
        if kind == "mask":
            other, names = ("score_mod", names), other[1]
        try:
            signature.bind(*range(9 - count))
            hint = f"; a function of {other[1]} is a {other[0]}"
        except TypeError:
            hint = ""
        raise TypeError(f"{kind}: found a function of {signature}; expected one of {names}{hint}") from None


def _check_types(fn: Any, arguments: Sequence[Any], rebind: bool) -> list[dict[str, Any]]:
    """type(x) of a symbol is none of a tensor's, and nobody is asked. It is refused of what is a symbol for certain, an argument of fn itself or a
    captured array in whose place there is one, and where a function asks whether it has an array. Returns the globals of all functions that ask: what
    they ask of, and what they compare it with, shows when they run."""
    called = guards.as_called(fn)
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
            left += [held for held in _captured_by(value) if held is not builtins]
            if isinstance(value, types.MethodType):
                left.append(value.__self__)
            if isinstance(value, types.FunctionType):
                if _is_the_users(value.__module__):
                    questions.check_names(value.__code__)
                    left += [builtins for names in guards.handed_on(value) if _named(value, names) is builtins]
                scopes += _scope_of(value)
                left += [type for names in guards.attributes_read(value) if _named(value, names) is type]
                for of, against in guards.types_asked(value):
                    if _is_array_class(_named(value, against)) or (rebind and arrays.is_array(_named(value, (of,)))):
                        asked.append(of)
        else:
            for held in _functions_of(value):
                scopes += _scope_of(held)
    if asked:
        raise TypeError(f"a score or mask asks for type({asked[0]}), which is not what a symbol stands for; expected isinstance({asked[0]}, ...)")
    return scopes


def _scope_of(fn: types.FunctionType) -> list[dict[str, Any]]:
    return [fn.__globals__] if _is_the_users(fn.__module__) and guards.calls_type(fn.__code__) else []


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Of a module, or of the class of an object."""
    for owner in [value] if isinstance(value, types.ModuleType) else (value if isinstance(value, type) else type(value)).__mro__:
        if _is_the_users(owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__):
            for held in list(vars(owner).values()):
                function = getattr(held, "__func__", held)
                if isinstance(function, types.FunctionType):
                    yield function


def _is_the_users(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _NOT_THE_USERS


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
    return [question.of for question in guards.types_asked(fn) if question.of in names]


def _named(fn: types.FunctionType, names: Sequence[str]) -> Any:
    """What these names are to fn: ["torch", "Tensor"]."""
    if not names:
        return None
    free = {name: cell.cell_contents for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()) if _filled(cell)}
    defaults = dict(zip(reversed(fn.__code__.co_varnames[: fn.__code__.co_argcount]), reversed(fn.__defaults__ or ())))
    value = ChainMap(free, fn.__kwdefaults__ or {}, defaults, fn.__globals__).get(names[0])
    for name in names[1:]:
        value = inspect.getattr_static(value, name, None)
    return value


def _is_array_class(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "shape") and hasattr(value, "dtype")


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True
