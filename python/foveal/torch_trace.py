"""Tracing of functions written with torch: FlexAttention's score_mod and mask_mod run unchanged on symbols.

A symbol in a torch call is noticed through __torch_function__; a captured tensor indexed with a symbol through a TorchFunctionMode.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from . import _core
from ._core import Expr, Type
from .trace import Capture, Tracer, Vector

_REALS = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


def _cast(x: Any, dtype: Any = None, *_: Any, **kwargs: Any) -> Any:
    dtype = kwargs.get("dtype", dtype)
    if dtype in _REALS:
        return _core.to_real(x)
    if dtype in _INTEGERS:
        return _core.to_integer(x) if x.type == Type.real else x + 0
    return _core.to_boolean(x) if dtype is torch.bool else x


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else _core.maximum(x, min)
    return x if max is None else _core.minimum(x, max)


def _where(condition: Any, if_true: Any, if_false: Any) -> Any:
    return _core.where(condition, if_true, if_false)


def _div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return a / b
    if rounding_mode == "floor":
        return a // b
    return _core.to_integer(a / b)


def _log1p(x: Any) -> Any:
    return _core.log(1.0 + x)


def _silu(x: Any, inplace: bool = False) -> Any:
    return x * _core.sigmoid(x)


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + _core.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + _core.erf(x * 0.7071067811865476))


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return _core.where(x * beta > threshold, x, _core.log(1.0 + _core.exp(x * beta)) / beta)


def _sign(x: Any) -> Any:
    return _core.where(x > 0, 1, _core.where(x < 0, -1, 0))


def _constant_like(value: Any) -> Callable[..., Any]:
    return lambda x, *_args, **_kwargs: _core.constant(value)


def _new_full(x: Any, size: Any, fill: Any, **_: Any) -> Any:
    return _core.constant(fill)


def _norm(x: Any, *_: Any, **__: Any) -> Any:
    return x.norm()


# torch's function name -> what it means for symbols
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(_core, name) for name in ("abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "tan", "erf")},
    **{name: getattr(_core, name) for name in ("floor", "minimum", "maximum", "pow")},
    "expit": _core.sigmoid,
    "absolute": _core.abs,
    "max": _core.maximum,
    "min": _core.minimum,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: _core.maximum(x, min),
    "clamp_max": lambda x, max: _core.minimum(x, max),
    "where": _where,
    "add": lambda a, b, *, alpha=1: a + b * alpha,
    "sub": lambda a, b, *, alpha=1: a - b * alpha,
    "subtract": operator.sub,
    "rsub": lambda a, b: b - a,
    "mul": operator.mul,
    "multiply": operator.mul,
    "div": _div,
    "divide": _div,
    "true_divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "fmod": lambda a, b: a - b * _core.to_integer(a / b),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / x,
    "neg": operator.neg,
    "negative": operator.neg,
    "relu": lambda x, inplace=False: _core.maximum(x, 0.0),
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _softplus,
    "log1p": _log1p,
    "expm1": lambda x: _core.exp(x) - 1.0,
    "sign": _sign,
    "eq": operator.eq,
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
    "logical_and": lambda a, b: _core.to_boolean(a) & _core.to_boolean(b),
    "logical_or": lambda a, b: _core.to_boolean(a) | _core.to_boolean(b),
    "logical_xor": lambda a, b: _core.to_boolean(a) ^ _core.to_boolean(b),
    "logical_not": lambda x: ~_core.to_boolean(x),
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_not": operator.invert,
    "zeros_like": _constant_like(0),
    "ones_like": _constant_like(1),
    "full_like": lambda x, fill, **_: _core.constant(fill),
    "norm": _norm,
    "vector_norm": _norm,
    "sum": lambda x, *_, **__: x.sum(),
    "mean": lambda x, *_, **__: x.mean(),
    "dot": lambda a, b: (a if isinstance(a, Vector) else a.expand()).dot(b if isinstance(b, Vector) else b.expand()),
    "inner": lambda a, b: (a if isinstance(a, Vector) else a.expand()).dot(b if isinstance(b, Vector) else b.expand()),
}

_METHODS: dict[str, Callable[..., Any]] = {
    **{name: _FUNCTIONS[name] for name in ("abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "tan")},
    **{name: _FUNCTIONS[name] for name in ("erf", "floor", "clamp", "clip", "clamp_min", "clamp_max", "square", "relu", "log1p", "neg")},
    **{name: _FUNCTIONS[name] for name in ("minimum", "maximum", "pow", "add", "sub", "mul", "div", "remainder", "floor_divide", "eq", "ne")},
    **{name: _FUNCTIONS[name] for name in ("lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_not")},
    "float": _core.to_real,
    "double": _core.to_real,
    "half": _core.to_real,
    "bfloat16": _core.to_real,
    "int": _core.to_integer,
    "long": _core.to_integer,
    "bool": _core.to_boolean,
    "to": _cast,
    "type": _cast,
    "where": lambda x, condition, other: _core.where(condition, x, other),
    "masked_fill": lambda x, mask, value: _core.where(mask, value, x),
    "new_ones": _constant_like(True),
    "new_zeros": _constant_like(False),
    "new_full": _new_full,
    "detach": lambda x: x,
    "contiguous": lambda x: x,
    "clone": lambda x: x,
    "item": lambda x: x,
}


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, (Expr, Vector, Capture))


def _apply(tracer: Tracer | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", str(func)).rstrip("_")
    if name.startswith("__"):
        name = name.strip("_")
    reflected = name.startswith("r") and name[1:] in ("add", "mul", "truediv", "floordiv", "div", "pow", "mod", "and", "or", "xor")
    name = name[1:] if reflected else name
    name = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(
        name, name
    )
    function = _FUNCTIONS.get(name)
    if function is None:
        raise NotImplementedError(
            f"{getattr(func, '__name__', func)} is not part of the score language; use the functions of foveal (where, clamp, exp, tanh, ...)"
        )
    converted = [_operand(tracer, value) for value in args]
    if reflected:
        converted.reverse()
    vector = next((value for value in converted if isinstance(value, Vector)), None)
    if vector is not None and name not in ("norm", "vector_norm", "sum", "mean", "dot", "inner"):
        others = [value for value in converted if value is not vector]
        if not others:
            return vector.map(lambda x: function(x, **kwargs))
        return vector.map(function, others[0], reflected=converted[0] is not vector)
    return function(*converted, **{key: _operand(tracer, value) for key, value in kwargs.items()})


def _operand(tracer: Tracer | None, value: Any) -> Any:
    """Tensors that meet a symbol become reads: 0-d ones at once, others as vectors."""
    if isinstance(value, Capture):
        return value.expand()
    if isinstance(value, torch.Tensor):
        if tracer is None:
            raise TypeError("a tensor met a symbol outside of tracing")
        return Capture(tracer, value).expand()
    return value


class _Mode(TorchFunctionMode):
    """Reads of captured tensors, and torch functions that mix tensors and symbols."""

    def __init__(self, tracer: Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__getitem__" and isinstance(args[0], torch.Tensor):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(_is_symbolic(i) for i in index):
                # A 0-d integer tensor among the indices is a read of its own: t[h, which, q] with a captured `which`.
                index = tuple(_operand(self.tracer, i) if isinstance(i, torch.Tensor) else i for i in index)
                return Capture(self.tracer, args[0])[index]
            return func(*args, **kwargs)
        if any(_is_symbolic(value) for value in (*args, *kwargs.values())):
            return _apply(self.tracer, func, args, kwargs)
        return func(*args, **kwargs)


def _torch_function(cls: type, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    return _apply(None, func, args, kwargs or {})


def _install() -> None:
    for cls in (Expr, Vector, Capture):
        cls.__torch_function__ = classmethod(_torch_function)
    Expr.device = property(lambda self: torch.device("cpu"))  # masks are moved to where others are: x.to(y.device)
    for name, method in _METHODS.items():
        if not hasattr(Expr, name):  # a Python function binds self, a compiled one does not
            setattr(Expr, name, lambda self, *args, _method=method, **kwargs: _method(self, *args, **kwargs))


_install()


class TorchTracer(Tracer):
    def __init__(self) -> None:
        super().__init__(rebind=False)

    def expression(self, fn: Any, kind: str) -> Expr | None:
        if isinstance(fn, (Expr, str)) or fn is None:
            return super().expression(fn, kind)
        with _Mode(self), _own_rules_refused():
            return super().expression(fn, kind)


@contextlib.contextmanager
def _own_rules_refused() -> Iterator[None]:
    """A torch.autograd.Function brings a derivative of its own, which an expression cannot hold: said, not dropped."""
    Function = torch.autograd.Function
    apply = Function.__dict__["apply"]

    def guarded(cls: type, *args: Any, **kwargs: Any) -> Any:
        if any(_is_symbolic(value) for value in (*args, *kwargs.values())):
            raise NotImplementedError(
                f"{cls.__name__}: a torch.autograd.Function inside a score or mask; its backward would be ignored: write its forward in place"
            )
        return apply.__func__(cls, *args, **kwargs)

    Function.apply = classmethod(guarded)
    try:
        yield
    finally:
        Function.apply = apply
