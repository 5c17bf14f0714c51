"""Turns a Python function of (score, batch, head, q_idx, kv_idx) into an expression.

The function runs once, on symbols. What it reads from arrays becomes parameters: a `Capture` stands for an array, indexing it with
symbols gives a read; what is left of its dimensions is unrolled into `Symbols`, an array of expressions.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import re
import types
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Iterator, Sequence

from . import _core, arrays, introspection, masks, pure_functions, refusals
from ._core import Expr, Param, Type
from .captures import Capture, as_scalar
from .closures import captured_by, filled, globals_of, is_plain_partial, is_the_users
from .numpy_vector import Vector
from .runtime_numbers import Computed, Number, Rule
from .symbols import Symbols
from .type_calls import check_types

pure_functions.trust(value for name, value in vars(_core).items() if callable(value) and not isinstance(value, Expr) and not name.startswith("_"))
pure_functions.trust(value for value in vars(masks).values() if isinstance(value, masks.Maker))

_OF_TRACE = "__of_trace_"
_OF_PYTHON = re.compile(r"unsupported operand type|bad operand type|type \w+ doesn't define")  # what Python says of operands that are no numbers to it
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

    def indices(self, capture: Capture, given: Sequence[Any]) -> tuple[Capture, list[Any]]:
        """What an array is indexed with, in the framework's words, and the array that these index."""
        return capture, [self.index(value) for value in given]

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
        handed = check_types(fn, arguments, self.rebind)
        try:
            with introspection.answered(), introspection.types_answered(handed, is_the_users):
                result = self.run(fn, arguments)
        except (IndexError, introspection.NoArray) as error:
            if isinstance(error, IndexError) and "valid indices" not in str(error):  # NumPy's and JAX's words for an index that is no number
                raise
            raise TypeError(
                f"{kind}: a symbol indexes an array that tracing cannot see, as it is {self.cannot_see}, or is to become an array of NumPy's; "
                f"expected {self.can_see}, or text that reads an array in params"
            ) from error
        except TypeError as error:
            if not _OF_PYTHON.match(str(error)):
                raise
            raise TypeError(f"{kind}: {error}; expected numbers of bool, int or float, and functions of arrays (where, round, floor, ...) in place of Python's") from error
        result = as_scalar(arrays.plain_number(result))
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
        refusals.check()
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
        if is_plain_partial(value) or isinstance(value, (types.MethodType, types.FunctionType)):
            seen.add(id(value))
            return any(self._replaces(item, seen) for item in captured_by(value))
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
        if is_plain_partial(value):
            keywords = {key: self._rebind(item, seen) for key, item in value.keywords.items()}
            made = functools.partial(self._rebind(value.func, seen), *(self._rebind(item, seen) for item in value.args), **keywords)
            made.__dict__.update(value.__dict__)
            return made
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
        new = {name: value for name, value in globals_of(fn).items() if self._replaces(value, set())}
        scope = dict(fn.__globals__) if new else fn.__globals__
        cells = [(cell, types.CellType() if filled(cell) and self._replaces(cell.cell_contents, set()) else cell) for cell in fn.__closure__ or ()]
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
