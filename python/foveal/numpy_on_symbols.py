"""NumPy's functions of score expressions: np.where, np.exp and the like make expressions; what is not in the table is refused by name."""

from __future__ import annotations

from typing import Any, Callable

from . import _core, arrays, formulas, refusals
from ._core import Expr


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = a_min if min is None else min, a_max if max is None else max
    return formulas.clipped(a, low, high)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return _core.where(_core.to_boolean(condition), x, y)


_MEANINGS: dict[str, Callable[..., Any]] = {
    **{name: getattr(_core, name) for name in "exp exp2 log log2 sqrt tanh sin cos tan floor maximum minimum".split()},
    **{name: getattr(formulas, name) for name in "log1p expm1 sinh cosh square sign ceil trunc fmod hypot logaddexp logaddexp2".split()},
    **{name: getattr(formulas, name) for name in "logical_and logical_or logical_xor logical_not".split()},
    "rint": lambda x: formulas.rounded(x, 0),
    "isnan": formulas.is_nan,
    "isinf": formulas.is_infinite,
    "isfinite": formulas.is_finite,
    "clip": _clip,
    "where": _where,
}


def refusal(name: str) -> TypeError:
    return TypeError(
        f"numpy.{name}: not a function of score expressions; expected numpy.where, exp, maximum and the like, foveal's functions (foveal.where, "
        "foveal.exp, ...), torch's (torch.where) on torch tensors, or jax.numpy's (jnp.where) on JAX arrays"
    )


def _made(name: str, inputs: Any, keywords: Any) -> Any:
    """The expression; None where there is no such function, or an array among its arguments."""
    meaning = _MEANINGS.get(name)
    operands = [arrays.plain_number(getattr(value, "__score__", lambda value=value: value)()) for value in inputs]
    if meaning is None or not all([isinstance(value, (Expr, bool, int, float)) for value in operands]):
        return None
    return meaning(*[_core.constant(value) if isinstance(value, (bool, int, float)) else value for value in operands], **keywords)


def _narrow(value: Any) -> Any:
    """A longdouble would hand an expression, which it does not know, back to NumPy for ever."""
    narrow = {"g": "d", "G": "D"}.get(getattr(getattr(value, "dtype", None), "char", ""))
    return value if narrow is None else value.astype(narrow)


def _ufunc(self: Expr, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
    """NumPy's operators compute as Python's do; its other functions ask for values, but for those of the table."""
    import numpy

    made = _made(ufunc.__name__, inputs, {}) if method == "__call__" and not keywords else None
    if made is not None:
        return made
    operands = [numpy.array(value, dtype=object) if isinstance(value, Expr) else _narrow(value) for value in inputs]
    if ufunc.__name__ in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
        keywords["dtype"] = object  # else it asks for the truth of what the operator gives
    try:
        return getattr(ufunc, method)(*operands, **keywords)
    except (TypeError, AttributeError) as error:  # of objects NumPy calls a method of the function's name
        raise refusals.refused(refusal(ufunc.__name__)) from error


def _function(self: Expr, function: Any, types: Any, inputs: Any, keywords: Any) -> Any:
    try:
        made = _made(function.__name__, inputs, keywords)
    except TypeError:
        made = None
    if made is None:
        raise refusals.refused(refusal(function.__name__))
    return made


def refused(self: Any, function: Any, types: Any, inputs: Any, keywords: Any) -> Any:
    """For symbols of other frameworks, and arrays of expressions."""
    raise refusals.refused(refusal(function.__name__))


def install() -> None:
    setattr(Expr, "__array_ufunc__", _ufunc)
    setattr(Expr, "__array_function__", _function)
