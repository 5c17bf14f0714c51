"""Tracing of functions written with JAX: jnp, jax.nn and jax.lax in a score or mask.

A symbol is an array of expressions with JAX's shape and dtype. While a function is traced it sees stand-ins for the modules of JAX and for
their functions: a call on symbols is first evaluated abstractly by JAX, which checks the arguments and says the shape and dtype of the result;
what it means for expressions stands in the table below. A function that does not get through is traced by JAX itself (jax_primitives); what
does not get through there, either, is refused.
"""

from __future__ import annotations

import math
import operator
import types
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from . import _core, formulas, jax_primitives, numpy_on_symbols, refusals, special
from ._core import Expr, Type
from .captures import Capture
from .framework_calls import Call, CallTracer, Meaning, binary, cast, elementwise, filled, layout, matmul, over_dims, reduction, same, signature_of
from .framework_calls import rounding, shift, stopped, unary
from .symbols import Symbols

_NARROW = {"uint8": (0, 256), "uint16": (0, 65536), "uint32": (0, 2**32), "int8": (128, 256), "int16": (32768, 65536)}
_DTYPES = {Type.boolean: np.dtype("bool"), Type.integer: np.dtype("int32"), Type.real: np.dtype("float32")}


class Symbol(Symbols):
    """An array of expressions."""

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
        return _call(self._tracer, "getitem", operator.getitem, (self, index), {})

    def _operate(self, fn: Callable[..., Any], *operands: Any) -> Any:
        return _call(self._tracer, fn.__name__.strip("_"), fn, operands, {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(jax.Array, name, None)) or not hasattr(jnp, name):
            if not name.startswith("_") and hasattr(jax.Array, name):  # for which hasattr() and getattr() would have another answer than for an array
                raise refusals.refused_here(NotImplementedError(f"jax.Array.{name} in a score or mask: a symbol has none"))
            raise AttributeError(f"{name}: no attribute of an array in a score or mask")
        return lambda *args, **kwargs: _call(self._tracer, name, getattr(jnp, name), (self, *args), kwargs)


# ---- what calls mean for expressions ----


def _clamp(min: Any, x: Any, max: Any) -> Any:
    """min(max(x, min), max), also where the bounds cross or one is NaN. The derivative belongs to what is strictly beyond the others."""
    found = _core.stop_gradient(formulas.clipped(x, min, max))
    outside = _core.where((x < min) & (_core.constant(min) < max), min, _core.where((x > max) & ~formulas.is_nan(_core.constant(min)), max, found))
    return _core.where((x > min) & (x < max), x, outside)


@signature_of
def _REDUCTION(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> None: ...  # noqa: N802


@signature_of
def _EXTREME(a: Any, axis: Any = None, *, keepdims: bool = False) -> None: ...  # noqa: N802


@signature_of
def _NORM(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> None: ...  # noqa: N802


def _norm(call: Call) -> Any:
    arguments = call.bind(_NORM)
    p, axis = arguments["ord"], arguments["axis"]
    one = isinstance(axis, int) or (len(arguments["x"].shape) if axis is None else len(axis)) <= 1
    if p is not None and not one:
        raise call.refuse(f"ord={p!r} of a matrix; expected a vector norm: one axis")
    return over_dims(call, lambda items: formulas.norm(items, {None: 2, "fro": 2}.get(p, p), at_zero=False, abs=_abs), arguments["x"], axis)


def _power(call: Call) -> Any:
    given = [*call.args, *call.kwargs.values()]
    if isinstance(given[1], int) and not isinstance(given[1], bool):
        x = call.symbol(given[0])
        if call.tracer.type_of(call.result.dtype) == Type.integer:
            return call.made([formulas.power(item, given[1]) for item in x._items], call.result)
    return binary(formulas.power)(call)


def _hypot(a: Any, b: Any) -> Any:
    a, b = _abs(_core.to_real(a)), _abs(_core.to_real(b))
    large, small = _core.maximum(a, b), _core.minimum(a, b)
    ratio = small / _core.where(large == 0.0, 1.0, large)
    return _core.where(formulas.is_infinite(a) | formulas.is_infinite(b), math.inf, _core.where(large == 0.0, large, large * _core.sqrt(1.0 + ratio * ratio)))


def _signed(meaning: Meaning) -> Meaning:
    """For functions that wrap around on unsigned integers."""

    def checked(call: Call) -> Any:
        if any(jnp.issubdtype(value.dtype, jnp.unsignedinteger) for value in call.args if hasattr(value, "dtype")):
            raise call.refuse("unsigned integers, on which JAX's own wraps around; expected reals or signed integers")
        return meaning(call)

    return checked


def _or_by_zero(divide: Callable[[Any, Any], Any], by_zero: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Integers divided by zero give what XLA gives: https://openxla.org/stablehlo/spec#divide leaves it open, its compilers agree."""

    def divided(a: Any, b: Any) -> Any:
        found = divide(a, b)
        if formulas.is_real(_core.constant(a) + b):
            return found
        return _core.where(_core.constant(b) == 0, by_zero(_core.constant(a)), found)

    return divided


def _floor_divide(call: Call) -> Any:
    signed = not jnp.issubdtype(call.result.dtype, jnp.unsignedinteger)
    return binary(_or_by_zero(formulas.floor_divide, lambda a: _core.where(a == 0, -1, -2) if signed else -1))(call)


def _divide(a: Any, b: Any) -> Any:
    return _core.to_real(_core.constant(a)) / b


def _clip(arr: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
    return formulas.clipped(arr, a_min if min is None else min, a_max if max is None else max)


@signature_of
def _ROUND(a: Any, decimals: int = 0) -> None: ...  # noqa: N802


def _nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if posinf is None or neginf is None:
        raise NotImplementedError("nan_to_num in a score or mask: posinf and neginf are left out; expected all of nan, posinf, neginf")
    found = _core.where(formulas.is_nan(x), nan, x)
    return _core.where(found == math.inf, posinf, _core.where(found == -math.inf, neginf, found))


_layout = layout(lambda first, last, shape: np.arange(first, last).reshape(shape), lambda found: np.asarray(found).reshape(-1).tolist())
_abs = formulas.both(lambda x: _core.where(x >= 0.0, x, -x), _core.abs)  # its derivative at 0 is 1
_gelu = elementwise(lambda x, approximate=True: formulas.gelu_tanh(x) if approximate else formulas.gelu(x))
_slope: Callable[[Any, Any], Any] = lambda x, slope: _core.where(x >= 0.0, x, slope * x)  # noqa: E731

_UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(_core, name) for name in "exp exp2 log log2 sqrt tanh sin cos tan".split()},
    "abs": _abs,
    "absolute": _abs,
    "fabs": _abs,
    "rsqrt": _core.rsqrt,
    "erf": _core.erf,
    "sigmoid": _core.sigmoid,
    "logistic": _core.sigmoid,
    "expit": _core.sigmoid,
    "log10": lambda x: _core.log(x) * (1.0 / math.log(10.0)),
    "log1p": formulas.log1p,
    "expm1": formulas.expm1,
    "sinh": formulas.sinh,
    "cosh": formulas.cosh,
    **{name: getattr(special, name.replace("arc", "a")) for name in "atan arctan asin arcsin acos arccos asinh arcsinh acosh arccosh atanh arctanh".split()},
    "erfc": special.erfc,
    "square": formulas.square,
    "reciprocal": lambda x: 1.0 / x,
    "neg": operator.neg,
    "negative": operator.neg,
    "pos": lambda x: x,
    "positive": lambda x: x,
    "sign": formulas.sign,
    "floor": formulas.floor,
    "ceil": formulas.ceil,
    "trunc": formulas.trunc,
    "fix": formulas.trunc,
    "rint": formulas.round_half_even,
    "deg2rad": lambda x: x * (math.pi / 180.0),
    "radians": lambda x: x * (math.pi / 180.0),
    "rad2deg": lambda x: x * (180.0 / math.pi),
    "degrees": lambda x: x * (180.0 / math.pi),
    "isnan": formulas.is_nan,
    "isinf": formulas.is_infinite,
    "isfinite": formulas.is_finite,
    "logical_not": formulas.logical_not,
    "bitwise_not": operator.invert,
    "invert": operator.invert,
    "logit": formulas.logit,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "mul": operator.mul,
    "multiply": operator.mul,
    "truediv": _divide,
    "divide": _divide,
    "true_divide": _divide,
    **dict.fromkeys(("mod", "remainder"), _or_by_zero(formulas.remainder, lambda a: a * 0)),
    "fmod": _or_by_zero(formulas.fmod, lambda a: a * 0),
    "maximum": _core.maximum,
    "minimum": _core.minimum,
    "logaddexp": formulas.logaddexp,
    "logaddexp2": formulas.logaddexp2,
    "hypot": _hypot,
    **dict.fromkeys(("atan2", "arctan2"), special.atan2),
    "float_power": _core.pow,
    "eq": operator.eq,
    "equal": operator.eq,
    "ne": operator.ne,
    "not_equal": operator.ne,
    "lt": operator.lt,
    "less": operator.lt,
    "le": operator.le,
    "less_equal": operator.le,
    "gt": operator.gt,
    "greater": operator.gt,
    "ge": operator.ge,
    "greater_equal": operator.ge,
    "logical_and": formulas.logical_and,
    "logical_or": formulas.logical_or,
    "logical_xor": formulas.logical_xor,
    "and": operator.and_,
    "bitwise_and": operator.and_,
    "or": operator.or_,
    "bitwise_or": operator.or_,
    "xor": operator.xor,
    "bitwise_xor": operator.xor,
}

_TABLE: dict[str, Meaning] = {
    **{name: unary(fn) for name, fn in _UNARY.items()},
    **{name: binary(fn) for name, fn in _BINARY.items()},
    **dict.fromkeys(("floordiv", "floor_divide"), _floor_divide),
    **dict.fromkeys(("lshift", "left_shift", "bitwise_left_shift"), shift(formulas.shift_left)),
    **dict.fromkeys(("rshift", "right_shift", "bitwise_right_shift"), shift(formulas.shift_right)),
    "pow": _power,
    "power": _power,
    "integer_pow": _power,
    "clip": elementwise(_clip, 3),
    "where": elementwise(lambda condition, x, y: _core.where(_core.to_boolean(condition), x, y), 3),
    "round": rounding(_ROUND),
    "nan_to_num": elementwise(_nan_to_num),
    # jax.nn
    "relu": unary(formulas.relu),
    "relu6": unary(lambda x: formulas.bounded(x, 0.0, 6.0)),
    "silu": unary(formulas.silu),
    "swish": unary(formulas.silu),
    "mish": unary(formulas.mish),
    "softplus": unary(formulas.softplus),
    "log_sigmoid": _signed(unary(formulas.log_sigmoid)),
    "soft_sign": unary(formulas.softsign),
    "hard_tanh": _signed(unary(lambda x: formulas.clamped(x, -1.0, 1.0))),
    "hard_sigmoid": unary(formulas.hard_sigmoid),
    "hard_silu": unary(lambda x: x * formulas.hard_sigmoid(x)),
    "hard_swish": unary(lambda x: x * formulas.hard_sigmoid(x)),
    "selu": unary(formulas.selu),
    "elu": elementwise(lambda x, alpha=1.0: formulas.elu(x, alpha)),
    "celu": elementwise(lambda x, alpha=1.0: formulas.celu(x, alpha)),
    "leaky_relu": elementwise(lambda x, negative_slope=0.01: _slope(x, negative_slope)),
    "gelu": _gelu,
    # reductions
    "sum": reduction(formulas.total, _REDUCTION, "axis"),
    "mean": reduction(formulas.mean, _REDUCTION, "axis"),
    "prod": reduction(formulas.product, _REDUCTION, "axis"),
    "max": reduction(formulas.largest, _EXTREME, "axis"),
    "amax": reduction(formulas.largest, _EXTREME, "axis"),
    "min": reduction(formulas.smallest, _EXTREME, "axis"),
    "amin": reduction(formulas.smallest, _EXTREME, "axis"),
    "any": reduction(formulas.any_of, _EXTREME, "axis"),
    "all": reduction(formulas.all_of, _EXTREME, "axis"),
    "logsumexp": reduction(formulas.logsumexp, _EXTREME, "axis"),
    "norm": _norm,
    "dot": matmul,
    "inner": matmul,
    "matmul": matmul,
    # jax.lax, where its functions of a name are others
    "lax.max": binary(_core.maximum),
    "lax.min": binary(_core.minimum),
    "lax.div": binary(_or_by_zero(lambda x, y: _divide(x, y) if formulas.is_real(_core.constant(x) + y) else formulas.trunc_divide(x, y), lambda x: -1)),
    "lax.rem": binary(_or_by_zero(formulas.fmod, lambda x: x)),
    "lax.select": elementwise(lambda pred, on_true, on_false: _core.where(pred, on_true, on_false), 3),
    "lax.clamp": elementwise(_clamp, 3),
    "stop_gradient": stopped,
    # conversions and constants
    "astype": cast,
    "convert_element_type": cast,
    "float32": cast,
    "asarray": cast,
    "array": cast,
    "copy": same,
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "full_like": filled(None),
    # moving elements
    **dict.fromkeys(
        "getitem reshape ravel squeeze expand_dims transpose swapaxes moveaxis broadcast_to flip roll repeat tile stack concatenate hstack vstack "
        "diagonal take".split(),
        _layout,
    ),
}


# ---- the call, evaluated abstractly ----

_looks: dict[Any, Any] = {}


def _look_of(value: Any) -> Any:
    if isinstance(value, Symbol):
        return (value._shape, str(value._dtype))
    if isinstance(value, (Capture, np.ndarray, np.generic, jax.Array)):
        return (tuple(value.shape), str(value.dtype))
    if isinstance(value, (list, tuple)):
        return (type(value), *(_look_of(item) for item in value))
    return (type(value), value)


def _stand_in(value: Any) -> Any:
    if isinstance(value, (Symbol, Capture, np.ndarray, np.generic, jax.Array)):
        return jax.ShapeDtypeStruct(tuple(value.shape), value.dtype)
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
        raise _restated(error, f"jax's {name} in a score or mask: {error}") if isinstance(error, (TypeError, ValueError)) else error from None
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


def _called(tracer: "JaxTracer", name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    meaning = _TABLE.get(name)
    if meaning is None:
        raise NotImplementedError(f"jax's {name} is not part of the score language; use the functions of foveal (where, clamp, exp, tanh, ...)")
    args = tuple(tracer.seen(value) for value in args)
    kwargs = {key: tracer.seen(value) for key, value in kwargs.items()}
    return meaning(Call(tracer, name, func, args, kwargs, _look_of_result(tracer, name, func, args, kwargs)))


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
        name = self._func.__name__
        lax = "lax." + name
        in_lax = (self._func.__module__ or "").startswith(("jax._src.lax", "jax.lax")) and lax in _TABLE
        return _call(self._tracer, lax if in_lax else name, self._func, args, kwargs)


def _depends(value: Any) -> bool:
    """On the pair: symbols, expressions, and arrays that these index."""
    if isinstance(value, (list, tuple)):
        return any(map(_depends, value))
    return isinstance(value, (Symbols, Expr)) or (isinstance(value, Capture) and not value._fixed())


def _concrete(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_concrete, value))
    if isinstance(value, _Function):
        return value._func
    return value._value() if isinstance(value, Capture) else value


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
        both = jnp.result_type(*[value.dtype if hasattr(value, "dtype") else value for value in given])  # of a comparison
        return both

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
                return jax_primitives.traced(self, _TABLE, fn, arguments)
            except jax_primitives.OwnRule:
                raise
            except Exception as unread:
                if f"{__name__}.Symbol" in str(refused):  # JAX's own words of what it does not know, such as jax.jit's
                    raise
                if not isinstance(unread, (NotImplementedError, ValueError, jax.dtypes.TypePromotionError)):
                    raise refused from unread
                raise _restated(refused, f"{refused}; traced by JAX: {str(unread).splitlines()[0]}") from unread

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
