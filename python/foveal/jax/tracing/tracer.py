"""Tracing of functions written with JAX: jnp, jax.nn and jax.lax in a score or mask.

A symbol is an array of expressions with JAX's shape and dtype. While a function is traced it sees stand-ins for the modules of JAX and for
their functions: a call on symbols is first evaluated abstractly by JAX, which checks the arguments and says the shape and dtype of the result;
what it means for expressions stands in a table (table.py). A function that does not get through is traced by JAX itself (jaxprs.py); what
does not get through there, either, is refused.
"""

from __future__ import annotations

import operator
import types
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ... import _core, numpy_on_symbols, refusals
from ..._core import Expr, Type
from ...captures import Capture
from ...framework_calls import Call, CallTracer
from ...symbols import Symbols
from ..operands import owned
from . import jaxprs
from .table import TABLE, name_of

_NARROW = {"uint8": (0, 256), "uint16": (0, 65536), "uint32": (0, 2**32), "int8": (128, 256), "int16": (32768, 65536)}
_DTYPES = {Type.boolean: np.dtype("bool"), Type.integer: np.dtype("int32"), Type.real: np.dtype("float32")}


class Symbol(Symbols):
    """An array of expressions."""

    _weak = False  # whether its dtype gives way to another one's, as that of jnp.where(c, 1, 2) does

    def __stands_for__(self) -> type:
        return jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        result: np.dtype[Any] = self._dtype
        return result

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return len(self._items)

    @property
    def T(self) -> Any:  # noqa: N802 - JAX's name
        return _call(self._tracer, "transpose", jnp.transpose, (self,), {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """NumPy's operators, of its arrays and symbols, and its functions: by jnp's of the name."""
        name = ufunc.__name__
        if method != "__call__" or keywords or not hasattr(jnp, name):
            raise refusals.refused(numpy_on_symbols.refusal(name))
        return _call(self._tracer, name, getattr(jnp, name), inputs, {})

    def __getitem__(self, index: Any) -> Any:
        given = list(index) if isinstance(index, tuple) else [index]
        if any([_booleans(i) is not None for i in given]):
            index = tuple([np.asarray(i) if isinstance(i, list) else i for i in self._tracer.known(given, self._shape)])
        return _call(self._tracer, "getitem", operator.getitem, (self, index), {})

    def _operate(self, fn: Callable[..., Any], *operands: Any) -> Any:
        return _call(self._tracer, fn.__name__.strip("_"), fn, operands, {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(jax.Array, name, None)) or not hasattr(jnp, name):
            if not name.startswith("_") and hasattr(jax.Array, name):  # for which hasattr() and getattr() would have another answer than for an array
                raise refusals.refused_here(NotImplementedError(f"jax.Array.{name} in a score or mask: a symbol has none"))
            raise AttributeError(f"{name}: no attribute of an array in a score or mask")
        return lambda *args, **kwargs: _call(self._tracer, name, getattr(jnp, name), (self, *args), kwargs)


# ---- the call, evaluated abstractly ----

_looks: dict[Any, Any] = {}


def _is_weak(value: Any) -> bool:
    """Whether an array's dtype gives way to that of one beside it: JAX made it of Python's numbers."""
    value = value._array if isinstance(value, Capture) else value
    return bool(value._weak if isinstance(value, Symbol) else isinstance(value, jax.Array) and value.weak_type)


def _look_of(value: Any) -> Any:
    if isinstance(value, (Symbol, Capture, np.ndarray, np.generic, jax.Array)):
        return (tuple(value.shape), str(value.dtype), _is_weak(value))
    if isinstance(value, (list, tuple)):
        return (type(value), *(_look_of(item) for item in value))
    return (type(value), value)


def _stand_in(value: Any) -> Any:
    if isinstance(value, (Symbol, Capture, np.ndarray, np.generic, jax.Array)):
        return jax.ShapeDtypeStruct(tuple(value.shape), value.dtype, weak_type=_is_weak(value))
    return value


def _restated(error: Exception, words: str) -> Exception:
    """Of the same kind, among Python's: JAX's own take tracers, not words."""
    kind: type[Exception] = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return kind(words)


# Of jax.config, that decide which dtype a result has and what is refused.
_SETTINGS = ("jax_enable_x64", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion")


def _look_of_result(tracer: "JaxTracer", name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        settings = tuple([getattr(jax.config, name) for name in _SETTINGS])
        key: Any = (func, _look_of(args), tuple((key, _look_of(value)) for key, value in kwargs.items()), settings)
        found = _looks.get(key)
    except TypeError:  # slices and the like
        key = found = None
    if found is not None:
        return found
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, (Symbols, Capture)) or x is None)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (Symbols, Capture, np.ndarray, np.generic, jax.Array))]

    def run(*arrays: Any) -> Any:
        filled = list(leaves)
        for i, array in zip(at, arrays):
            filled[i] = array
        positional, named = jax.tree.unflatten(tree, filled)
        return func(*positional, **named)

    try:
        found = jax.eval_shape(run, *[_stand_in(leaves[i]) for i in at])
    except Exception as error:
        raise _restated(error, f"jax's {name} in a score or mask: {error}") if isinstance(error, (TypeError, ValueError, OverflowError)) else error from None
    if key is not None:
        if len(_looks) > 4096:
            _looks.clear()
        _looks[key] = found
    return found


def _call(tracer: "JaxTracer", name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return _called(tracer, name, func, args, kwargs)
    except Exception as error:
        raise refusals.refused(error)


def _unknown(name: str) -> NotImplementedError:
    what = f"a function of the name {name} that is not jax's own" if name in TABLE else f"jax's {name}"
    return NotImplementedError(f"{what} is not part of the score language; use the functions of foveal (where, clamp, exp, tanh, ...)")


def _called(tracer: "JaxTracer", name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    meaning = TABLE.get(name)
    if meaning is None:
        raise _unknown(name)
    args = tuple(tracer.seen(value) for value in args)
    kwargs = {key: tracer.seen(value) for key, value in kwargs.items()}
    look = _look_of_result(tracer, name, func, args, kwargs)
    return jax.tree.map(_as_weak, meaning(Call(tracer, name, func, args, kwargs, look)), look, is_leaf=lambda x: isinstance(x, (Symbols, Capture)))


def _as_weak(found: Any, look: Any) -> Any:
    """Of the weakness that the look of a result has."""
    if not isinstance(found, Symbol) or found._weak == look.weak_type:
        return found
    result = found._tracer.symbol(found._items, found._shape, found._dtype)
    result._weak = look.weak_type
    return result


# ---- stand-ins for modules and functions ----


def _is_jax(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "jax"


class _Module:
    def __init__(self, tracer: "JaxTracer", module: types.ModuleType):
        self._tracer, self._module = tracer, module

    def __getattr__(self, name: str) -> Any:
        return self._tracer.replacement(getattr(self._module, name))


class _Function:
    """A function of JAX: on symbols its meaning, on arrays itself."""

    def __init__(self, tracer: "JaxTracer", func: Any):
        self._tracer, self._func = tracer, func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        if not any(map(_depends, values)):
            concrete = self._func(*map(_concrete, args), **{key: _concrete(value) for key, value in kwargs.items()})
            return Capture(self._tracer, concrete) if isinstance(concrete, (jax.Array, jax.core.Tracer)) else concrete
        name = name_of(self._func)
        if name is None:
            raise refusals.refused(_unknown(self._func.__name__))
        return _call(self._tracer, name, self._func, args, kwargs)


def _depends(value: Any) -> bool:
    """On the pair: symbols, expressions, and arrays that these index."""
    if isinstance(value, (list, tuple)):
        return any(map(_depends, value))
    return isinstance(value, (Symbols, Expr)) or (isinstance(value, Capture) and not value._fixed())


def _booleans(index: Any) -> np.ndarray[Any, Any] | None:
    """Of an index that is an array of booleans with values, also one that the function made: JAX has its values under vmap."""
    if not isinstance(index, (Capture, np.ndarray, jax.Array)) or not index.ndim or index.dtype != bool:
        return None
    if isinstance(index, Capture):
        index = index._value() if index._fixed() else None
    return None if index is None or isinstance(index, jax.core.Tracer) else np.asarray(index)


def _concrete(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_concrete, value))
    if isinstance(value, _Function):
        return value._func
    value = value._value() if isinstance(value, Capture) else value
    return owned(value) if isinstance(value, np.ndarray) else value


@dataclass
class JaxTracer(CallTracer):
    score_dtype: Any = np.dtype("float32")

    library = "jax"
    immutable = True

    @classmethod
    def like(cls, dtype: Any) -> "JaxTracer":
        """For q of this dtype."""
        return cls(score_dtype=np.dtype("float64" if dtype == jnp.float64 else "float32"))

    @classmethod
    def scalar(cls, value: float | int) -> Any:
        return None  # what a compiled function of JAX reads is fixed when it is traced

    def symbol(self, items: Sequence[Expr], shape: tuple[int, ...], dtype: Any) -> Symbol:
        return Symbol(self, items, shape, np.dtype(dtype))

    def dtype_of(self, expr: Expr) -> Any:
        return _DTYPES[expr.type]

    def dtype_of_scores(self) -> Any:
        return self.score_dtype

    def dtype_of_operands(self, call: Call, given: Sequence[Any]) -> Any:
        dtype = call.result.dtype
        if dtype != bool or len(given) != 2:
            return dtype
        kinds = [(float if jnp.issubdtype(x.dtype, jnp.floating) else int) if _is_weak(x) else x.dtype if hasattr(x, "dtype") else x for x in given]
        return jnp.result_type(*kinds)  # of a comparison

    def made(self, items: Sequence[Expr], shape: tuple[int, ...], array: Any) -> Any:
        found = super().made(items, shape, array)
        found._weak = _is_weak(array)
        return found

    def promoted(self, x: Symbols, dtype: Any, is_number: bool) -> Symbols:
        """Integers wrap, too, where the dtype does not hold all of theirs: without 64 bits uint32 and int32 become int32."""
        x = super().promoted(x, dtype, is_number)
        if not all(jnp.issubdtype(d, jnp.integer) for d in (x._dtype, dtype)) or np.can_cast(x._dtype, dtype):
            return x
        return self.symbol([self.wrapped(item, dtype) for item in x._items], x._shape, dtype)

    def narrow(self, dtype: Any) -> tuple[int, int] | None:
        return _NARROW.get(str(dtype))

    def held(self, number: int, dtype: Any) -> int:
        if not jnp.issubdtype(dtype, jnp.integer):
            return number
        info = np.iinfo(dtype)
        return (number - int(info.min)) % (1 << int(info.bits)) + int(info.min)

    def of_real(self, expr: Any, dtype: Any) -> Any:
        """The nearest one that the dtype holds, as XLA converts; others wrap."""
        limits = np.iinfo(dtype)
        found = _core.to_integer(expr)
        return found if limits.bits == 64 else _core.maximum(_core.minimum(found, int(limits.max)), int(limits.min))

    def indices(self, capture: Capture, given: Sequence[Any]) -> tuple[Capture, list[Any]]:
        """Where all are constants and some are booleans, whose values say how many elements they choose, JAX chooses them."""
        given = list(given)
        if capture._fixed() and any([_booleans(index) is not None for index in given]) and not any(map(_depends, given)):
            chosen = capture._value()[tuple(map(_concrete, given))]
            return Capture(self, chosen, stopped=capture._stopped or self.gradient_stopped()), []
        return super().indices(capture, self.known(given, capture.shape))

    def known(self, indices: list[Any], shape: tuple[int, ...]) -> list[Any]:
        """Indices of an array of this shape, with the places of booleans in place of these."""
        given = [(index, _booleans(index)) for index in indices]
        count = sum([0 if index is None or index is Ellipsis else 1 if flags is None else flags.ndim for index, flags in given])
        found, at = [], 0
        for index, flags in given:
            if flags is None:
                found.append(index)
                at += 0 if index is None else len(shape) - count if index is Ellipsis else 1
                continue
            if flags.shape != shape[at : at + flags.ndim]:
                raise IndexError(f"booleans of shape {list(flags.shape)} index an array of shape {list(shape)} from dimension {at} on; expected the same sizes")
            found += [places.tolist() for places in np.nonzero(flags)]
            at += flags.ndim
        return found

    def arguments(self, kind: str) -> tuple[Any, ...]:
        symbols = tuple(self.seen(expr) for expr in super().arguments(kind))
        if kind != "mask":
            symbols[0]._dtype = self.score_dtype
        return symbols

    def run(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """On symbols; where these do not do, by JAX's own trace of the function."""
        known = len(self.params)
        try:
            return super().run(fn, arguments)
        except (TypeError, NotImplementedError, AttributeError, IndexError, ValueError) as refused:
            refusals.forget()
            del self.params[known:], self.arrays[known:]
            try:
                return jaxprs.traced(self, fn, arguments)
            except jaxprs.OwnRule:
                raise
            except Exception as unread:
                if f"{__name__}.Symbol" in str(refused):  # JAX's own words of what it does not know, such as jax.jit's
                    if isinstance(unread, jax.errors.TracerArrayConversionError):
                        hint = "an array of NumPy's meets what JAX traces, as it traces functions that symbols cannot follow; expected jnp.asarray(x)"
                        raise TypeError(hint) from unread
                    raise
                if isinstance(unread, jax.errors.NonConcreteBooleanIndexError):
                    hint = "JAX has no values of booleans that a function computes while it is traced; expected some of NumPy's, or made outside of it"
                    raise _restated(refused, f"{refused}; {hint}") from unread
                if not isinstance(unread, (NotImplementedError, ValueError, jax.dtypes.TypePromotionError)):
                    raise refused from unread
                said = f"{refused}; " if str(refused) else ""  # NumPy's question for elements says nothing
                raise _restated(refused, f"{said}traced by JAX: {str(unread).splitlines()[0]}") from unread

    def seen(self, value: Any) -> Any:
        """Results of foveal's own functions are arrays to a function that is traced, too."""
        if isinstance(value, Expr):
            return self.symbol([value], (), self.dtype_of(value))
        return value._func if isinstance(value, _Function) else value

    def replacement(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return _Module(self, value) if _is_jax(value.__name__) else value
        if isinstance(value, (type, _Module, _Function)) or not callable(value) or not hasattr(value, "__name__"):
            return value
        return _Function(self, value) if _is_jax(getattr(value, "__module__", None)) else value
