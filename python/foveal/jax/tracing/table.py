"""Which functions of JAX a score or mask may call, by name, and what each means for expressions."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Callable

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from ... import _core, formulas, special
from ..._core import Type
from ...framework_calls import Call
from ...meanings import (
    Meaning, binary, cast, elementwise, filled, inner, layout, matmul, multiplied, over_dims, reduction, rounding, same, shift, signature_of, stopped, unary,
)  # fmt: skip


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
            return call.made([formulas.power(item, given[1], call.factor) for item in x._items], call.result)
    return binary(formulas.power)(call)


def _hypot(a: Any, b: Any) -> Any:
    a, b = _abs(_core.to_real(a)), _abs(_core.to_real(b))
    large, small = _core.maximum(a, b), _core.minimum(a, b)
    ratio = small / _core.where(large == 0.0, 1.0, large)
    return _core.where(formulas.is_infinite(a) | formulas.is_infinite(b), math.inf, _core.where(large == 0.0, large, large * _core.sqrt(1.0 + ratio * ratio)))


def _times_log(log: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """x * log(y), 0 where x is 0 whatever the log; NaN of a NaN."""

    def found(x: Any, y: Any) -> Any:
        x, y = _core.to_real(x), _core.to_real(y)
        of_y = log(y)
        return x * _core.where((x == 0.0) & ~formulas.is_finite(of_y) & ~formulas.is_nan(y), 0.0, of_y)

    return found


def _entropy(x: Any) -> Any:
    x = _core.to_real(x)
    return _core.where(x < 0.0, -math.inf, -xlogx(x))


def _log1mexp(x: Any) -> Any:
    x = _core.to_real(x)
    return _core.where(x < formulas.LN2, _core.log(-formulas.expm1(-x)), formulas.log1p(-_core.exp(-x)))


def _cbrt(x: Any) -> Any:
    x = _core.to_real(x)
    return _core.where(x < 0.0, -_core.pow(-x, 1.0 / 3.0), _core.pow(x, 1.0 / 3.0))


def sinc_at_zero(x: Any) -> Any:
    """sin(x) / x about 0."""
    return 1.0 - x * x * (1.0 / 6.0 - x * x * (1.0 / 120.0))


def _sinc(x: Any) -> Any:
    x = _core.to_real(x) * math.pi
    return _core.where(x == 0.0, sinc_at_zero(x), _core.sin(x) / x)


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


def _clip(arr: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
    return formulas.clipped(arr, a_min if min is None else min, a_max if max is None else max)


def round_half_away(x: Any) -> Any:
    whole = formulas.trunc(x)
    return _core.where(_core.abs(x - whole) >= 0.5, whole + formulas.sign(x), whole)


@signature_of
def _LAX_ROUND(x: Any, rounding_method: Any = 0) -> None: ...  # noqa: N802


def _lax_round(call: Call) -> Any:
    value, method = call.bind(_LAX_ROUND).values()
    to_whole = formulas.round_half_even if int(method) == int(jax.lax.RoundingMethod.TO_NEAREST_EVEN) else round_half_away
    return call.made([to_whole(item) for item in call.symbol(value)._items], call.result)


@signature_of
def _ROUND(a: Any, decimals: int = 0) -> None: ...  # noqa: N802


def _nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    return formulas.nan_to_num(x, nan, posinf, neginf)


_xlogy = _times_log(_core.log)
xlogx: Callable[[Any], Any] = lambda x: _xlogy(x, x)  # noqa: E731
_layout = layout(lambda first, last, shape: np.arange(first, last).reshape(shape), lambda found: np.asarray(found).reshape(-1).tolist())
_abs = formulas.both(lambda x: _core.where(x >= 0.0, x, -x), _core.abs)  # its derivative at 0 is 1
_gelu = elementwise(lambda x, approximate=True: formulas.gelu_tanh(x) if approximate else formulas.gelu(x))
_slope: Callable[[Any, Any], Any] = lambda x, slope: _core.where(x >= 0.0, x, slope * x)  # noqa: E731

UNARY: dict[str, Callable[[Any], Any]] = {
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
    "sinc": _sinc,
    "entr": _entropy,
    "log1mexp": _log1mexp,
    "cbrt": _cbrt,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "truediv": formulas.true_divide,
    "divide": formulas.true_divide,
    "true_divide": formulas.true_divide,
    **dict.fromkeys(("mod", "remainder"), _or_by_zero(formulas.remainder, lambda a: a * 0)),
    "fmod": _or_by_zero(formulas.fmod, lambda a: a * 0),
    "maximum": _core.maximum,
    "minimum": _core.minimum,
    "logaddexp": formulas.logaddexp,
    "logaddexp2": formulas.logaddexp2,
    "hypot": _hypot,
    **dict.fromkeys(("atan2", "arctan2"), special.atan2),
    "xlogy": _xlogy,
    "xlog1py": _times_log(formulas.log1p),
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

TABLE: dict[str, Meaning] = {
    **{name: unary(fn) for name, fn in UNARY.items()},
    **{name: binary(fn) for name, fn in BINARY.items()},
    "mul": multiplied,
    "multiply": multiplied,
    "square": lambda call: unary(lambda x: formulas.square(call.factor(x)))(call),
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
    "log_ndtr": elementwise(lambda x, series_order=3: special.log_ndtr(x)),
    # reductions
    "sum": reduction(formulas.total, _REDUCTION, "axis"),
    "mean": reduction(formulas.mean, _REDUCTION, "axis"),
    "prod": lambda call: reduction(functools.partial(formulas.product, step=call.factor), _REDUCTION, "axis")(call),
    "max": reduction(formulas.largest, _EXTREME, "axis"),
    "amax": reduction(formulas.largest, _EXTREME, "axis"),
    "min": reduction(formulas.smallest, _EXTREME, "axis"),
    "amin": reduction(formulas.smallest, _EXTREME, "axis"),
    "any": reduction(formulas.any_of, _EXTREME, "axis"),
    "all": reduction(formulas.all_of, _EXTREME, "axis"),
    "logsumexp": reduction(formulas.logsumexp, _EXTREME, "axis"),
    "norm": _norm,
    "dot": matmul,
    "inner": inner,
    "matmul": matmul,
    # jax.lax, where its functions of a name are others
    "lax.max": binary(_core.maximum),
    "lax.min": binary(_core.minimum),
    "lax.div": binary(_or_by_zero(lambda x, y: formulas.true_divide(x, y) if formulas.is_real(_core.constant(x) + y) else formulas.trunc_divide(x, y), lambda x: -1)),
    "lax.rem": binary(_or_by_zero(formulas.fmod, lambda x: x)),
    "lax.round": _lax_round,
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


def _names() -> dict[int, tuple[Any, str]]:
    found = {}
    for module in (jnp, jnp.linalg, jax.nn, jax.scipy.special, jax.lax):
        for at, value in vars(module).items():
            if callable(value):
                names = [name for name in (at, getattr(value, "__name__", at)) if not name.startswith("_")]
                known = [key for name in names for key in ([f"lax.{name}", name] if module is jax.lax else [name]) if key in TABLE]
                if known:
                    found[id(value)] = value, known[0]
    return found


_NAMES = _names()


def name_of(func: Any) -> str | None:
    """A function's in the table. By what it is: jax.grad(jnp.tanh) and other wrappers have the name and the module of what they wrap."""
    value, name = _NAMES.get(id(func), (None, None))
    return name if value is func else None
