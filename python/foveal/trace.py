"""Turns a Python function of (score, batch, head, q_idx, kv_idx) into an expression.

The function runs once, on symbols. What it reads from arrays becomes parameters: a `Capture` stands for an array, indexing it with
symbols gives a read, indexing it partly gives a `Vector` of reads over what is left, which is unrolled.
"""

from __future__ import annotations

import functools
import inspect
import types
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from . import _core, arrays
from ._core import Expr, Param, Type

MAX_UNROLL = 1024  # elements of a Vector: a score of more reads than this per pair is not attention any more


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, (Expr, Vector, Capture))


def _scalar(value: Any) -> Any:
    """A value that Expr's operators take: 0-d captures become reads, 0-d arrays numbers."""
    if isinstance(value, Capture):
        return value.expand()
    if isinstance(value, (Expr, Vector, bool, int, float)):
        return value
    if arrays.is_array(value) and len(value.shape) == 0:
        return value.item()
    return value


class Vector:
    """A short list of expressions: what is left of an array after indexing its leading dimensions with symbols."""

    def __init__(self, items: Sequence[Expr]):
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self):
        return iter(self.items)

    def __getitem__(self, index: int) -> Expr:
        return self.items[index]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.items),)

    def map(self, fn: Callable[..., Expr], other: Any = None, reflected: bool = False) -> "Vector":
        if other is None:
            return Vector([fn(x) for x in self.items])
        other = _scalar(other)
        others = other.items if isinstance(other, Vector) else [other] * len(self.items)
        if len(others) != len(self.items):
            raise ValueError(f"vectors of {len(self.items)} and {len(others)} elements do not combine")
        return Vector([fn(b, a) if reflected else fn(a, b) for a, b in zip(self.items, others)])

    def sum(self, *_: Any, **__: Any) -> Expr:
        total = self.items[0]
        for item in self.items[1:]:
            total = total + item
        return total

    def mean(self, *_: Any, **__: Any) -> Expr:
        return self.sum() / float(len(self.items))

    def norm(self, *_: Any, **__: Any) -> Expr:
        return _core.sqrt(self.map(lambda x: x * x).sum())

    def dot(self, other: "Vector") -> Expr:
        return self.map(lambda a, b: a * b, other).sum()

    def __repr__(self) -> str:
        return f"Vector({self.items})"


def _install_vector_operators() -> None:
    import operator as op

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"):
        fn = getattr(op, name)
        setattr(Vector, f"__{name}__", lambda self, other, fn=fn: self.map(fn, other))
        setattr(Vector, f"__r{name}__", lambda self, other, fn=fn: self.map(fn, other, reflected=True))
    Vector.__neg__ = lambda self: self.map(op.neg)
    Vector.__hash__ = object.__hash__


_install_vector_operators()


class Capture:
    """An array seen from inside a traced function; `index` holds the symbols it was indexed with so far."""

    def __init__(self, tracer: "Tracer", array: Any, index: tuple[Any, ...] = ()):
        self._tracer = tracer
        self._array = array
        self._index = index

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)[len(self._index) :]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return self._array.dtype

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def item(self) -> Any:
        return self.expand()

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        index = tuple(_scalar(i) for i in index)
        if any(i is Ellipsis or i is None for i in index):
            raise TypeError("a captured array is indexed with symbols and integers only inside a score or mask; `...` and None are not")
        if not self._index and all(not isinstance(i, Expr) for i in index):
            return Capture(self._tracer, self._array[index])
        whole = slice(None)
        if any(isinstance(i, slice) for i in index):
            if any(isinstance(i, slice) and i != whole for i in index) or any(
                isinstance(a, slice) and not isinstance(b, slice) for a, b in zip(index, index[1:])
            ):
                raise TypeError("slices of a captured array must be whole trailing dimensions, as in x[q_idx, :]")
            index = tuple(i for i in index if not isinstance(i, slice))
        if len(index) > self.ndim:
            raise IndexError(f"{len(index)} indices for the {self.ndim} dimensions left of an array of shape {tuple(self._array.shape)}")
        result = Capture(self._tracer, self._array, self._index + index)
        return result.expand() if result.ndim == 0 else result

    def expand(self) -> Any:
        """The Expr of a complete read, or the Vector over the dimensions that are left."""
        if self.ndim == 0:
            return self._tracer.param(self._array).read(list(self._index))
        count = 1
        for extent in self.shape:
            count *= extent
        if count > MAX_UNROLL:
            raise ValueError(
                f"a score would read {count} elements of a captured array of shape {tuple(self._array.shape)} at every pair; "
                f"at most {MAX_UNROLL} are unrolled: index more dimensions"
            )
        items: list[Any] = [self]
        while items and isinstance(items[0], Capture):
            items = [capture[i] for capture in items for i in range(capture.shape[0])]
        return Vector(items)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_array", "_index", "_tracer"):
            raise AttributeError(name)
        return getattr(self.expand(), name)


def _install_capture_operators() -> None:
    import operator as op

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne"):
        fn = getattr(op, name)
        slot = name.rstrip("_")
        setattr(Capture, f"__{slot}__", lambda self, other, fn=fn: fn(self.expand(), _scalar(other)))
        setattr(Capture, f"__r{slot}__", lambda self, other, fn=fn: fn(_scalar(other), self.expand()))
    Capture.__neg__ = lambda self: -self.expand()
    Capture.__invert__ = lambda self: ~self.expand()
    Capture.__hash__ = object.__hash__


_install_capture_operators()


@dataclass
class Tracer:
    """Collects the arrays that functions read, each once, and names them p0, p1, ... in the order of their first read."""

    arrays: list[Any] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)  # id of an array -> the name the user gave it
    rebind: bool = True  # put Captures in place of captured arrays; torch intercepts indexing instead

    def param(self, array: Any) -> Param:
        for known, param in zip(self.arrays, self.params):
            if known is array:
                return param
        param = Param(self.names.get(id(array), f"p{len(self.params)}"), list(array.shape), arrays.type_of(array))
        self.arrays.append(array)
        self.params.append(param)
        return param

    def expression(self, fn: Any, kind: str) -> Expr | None:
        """`fn`: None, an Expr, text in the score language, or a function of the symbols. kind: "score_mod" or "mask"."""
        if fn is None or isinstance(fn, Expr):
            return fn
        if isinstance(fn, str):
            return _core.parse(fn, self.params)
        if not callable(fn):
            raise TypeError(f"{kind}: found {type(fn).__name__}; expected a function, an expression, text or None")
        symbols = (_core.batch, _core.head, _core.q_idx, _core.kv_idx)
        arguments = symbols if kind == "mask" else (_core.score, *symbols)
        result = _scalar((self._rebind(fn, {}) if self.rebind else fn)(*arguments))
        if isinstance(result, (bool, int, float)):
            result = _core.constant(result)
        if not isinstance(result, Expr):
            raise TypeError(f"{kind}: the function returned {type(result).__name__}; expected an expression of its arguments")
        if kind == "score_mod" and result.type != Type.real:
            result = _core.to_real(result)
        if kind == "mask" and result.type != Type.boolean:
            result = _core.to_boolean(result)
        return result

    def _rebind(self, fn: Any, seen: dict[int, Any]) -> Any:
        """A copy of a function whose captured arrays (closure, defaults, globals) are Captures, through nested functions."""
        if not isinstance(fn, types.FunctionType):
            return fn
        if id(fn) in seen:
            return seen[id(fn)]
        seen[id(fn)] = fn

        def wrap(value: Any) -> Any:
            if arrays.is_array(value):
                return Capture(self, value)
            return self._rebind(value, seen) if isinstance(value, types.FunctionType) else value

        captured = inspect.getclosurevars(fn) if fn.__closure__ or fn.__code__.co_names else None
        replaced = {name: wrap(value) for name, value in captured.globals.items()} if captured else {}
        changed_globals = {name: value for name, value in replaced.items() if value is not fn.__globals__.get(name)}
        cells = tuple(types.CellType(wrap(cell.cell_contents)) if _filled(cell) else cell for cell in fn.__closure__ or ())
        defaults = tuple(wrap(value) for value in fn.__defaults__) if fn.__defaults__ else None
        if not changed_globals and not cells and not defaults:
            return fn
        scope = {**fn.__globals__, **changed_globals} if changed_globals else fn.__globals__
        copy = types.FunctionType(fn.__code__, scope, fn.__name__, defaults, cells or None)
        copy.__kwdefaults__ = fn.__kwdefaults__
        seen[id(fn)] = copy
        return copy


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def structure(expr: Expr) -> bytes:
    """Equal for expressions that were built in the same way."""
    return expr.structure()


def signature(fn: Any) -> Any:
    """A key that is equal for calls whose trace is the same, or None when that cannot be known. Arrays count by identity."""
    if fn is None or isinstance(fn, str):
        return (fn,)
    if isinstance(fn, Expr):
        return ("expr", structure(fn))
    if isinstance(fn, functools.partial):
        parts = [signature(fn.func), *(_value(v) for v in fn.args), *(_value(v) for v in fn.keywords.values())]
        return None if None in parts else (*parts, tuple(fn.keywords))
    if not isinstance(fn, types.FunctionType):
        return None
    parts: list[Any] = [fn.__code__]
    for cell in fn.__closure__ or ():
        try:
            parts.append(_value(cell.cell_contents))
        except ValueError:
            return None
    if fn.__defaults__:
        parts.extend(_value(v) for v in fn.__defaults__)
    if fn.__kwdefaults__:
        parts.extend(_value(v) for v in fn.__kwdefaults__.values())
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            parts.append(_value(fn.__globals__[name]))
    return None if None in parts else tuple(parts)


def _value(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return (type(value), value)
    if value is None or isinstance(value, (types.BuiltinFunctionType, type)):
        return ("object", id(value))
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    if isinstance(value, Expr):
        return ("expr", structure(value))
    if isinstance(value, (tuple, list)):
        parts = tuple(_value(v) for v in value)
        return None if None in parts else parts
    if isinstance(value, types.FunctionType) and (value.__module__ or "").partition(".")[0] in ("torch", "foveal", "numpy", "math"):
        return ("object", id(value))
    if isinstance(value, (types.FunctionType, functools.partial)):
        return signature(value)
    if arrays.is_array(value):
        return ("array", id(value), tuple(value.shape), value.dtype)
    return ("object", id(value)) if type(value).__module__ == "torch" and type(value).__name__ == "dtype" else None


def mentions(parts: Any, array: Any) -> bool:
    """True when the array itself is in a signature; a view made while tracing is new every time."""
    if not isinstance(parts, tuple):
        return False
    if len(parts) == 4 and parts[0] == "array" and parts[1] == id(array):
        return True
    return any(mentions(part, array) for part in parts)
