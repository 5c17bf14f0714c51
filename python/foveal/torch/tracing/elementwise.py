"""What functions of torch mean that work element by element: those of one tensor and of several, comparisons, and bits."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import replace
from typing import Any, Callable

import torch

from ... import _core, formulas, special
from ...framework_calls import Call
from ...meanings import Meaning, binary, elementwise, in_steps, multiplied, rounding, shift, signature_of, unary
from ...runtime_numbers import Number
from ...symbols import Symbols
from .dtypes import SIXTEEN_BITS


@signature_of
def _DIV(input: Any, other: Any, *, rounding_mode: Any = None) -> None: ...  # noqa: N802


def _div(call: Call) -> Any:
    input, other, mode = call.bind(_DIV).values()
    of_two = replace(call, args=(input, other), kwargs={})
    if mode is None:
        return _divided(formulas.true_divide)(of_two)
    if mode == "floor":
        return _floor_divide(of_two)
    if not call.result.dtype.is_floating_point:
        return _divided(formulas.trunc_divide)(of_two)
    step = call.step if isinstance(other, Symbols) else call.single  # 16 bits by a number are divided in float32
    return _divided(lambda input, other: formulas.trunc(step(formulas.true_divide(input, other))))(of_two)


def _divided(fn: Callable[[Any, Any], Any]) -> Meaning:
    """An integer by 0 is an error in torch, which meta tensors do not show. A constant of -0.0 is one of 0.0 in the score language."""
    by = binary(fn)

    def meaning(call: Call) -> Any:
        divisor = [*call.args, *call.kwargs.values()][1]
        number = divisor.value if isinstance(divisor, Number) else divisor
        if type(number) is int and number == 0 and not call.result.dtype.is_floating_point:
            raise call.refuse("an integer divided by 0")
        if type(number) is float and number == 0.0 and math.copysign(1.0, number) < 0.0:
            raise call.refuse("-0.0 as a divisor; expected another number, or a captured tensor of -0.0")
        return by(call)

    return meaning


def _quotient(call: Call) -> Any:
    """The operator: of a number and a tensor torch makes the reciprocal times the number."""
    number, x = call.args
    if not isinstance(number, (int, float, Number)):
        return _divided(formulas.true_divide)(call)
    reciprocal = call.made([1.0 / _core.to_real(item) for item in call.symbol(x)._items], call.result)
    return binary(operator.mul)(replace(call, args=(reciprocal, number)))


def _floor_divide(call: Call) -> Any:
    """torch computes it of 16 bits in steps, unless the divisor is a number."""
    divisor = [*call.args, *call.kwargs.values()][1]
    in_16_bits = call.result.dtype in SIXTEEN_BITS and isinstance(divisor, Symbols)
    return _divided(functools.partial(formulas.floor_divide_in_steps, step=call.step) if in_16_bits else formulas.floor_divide)(call)


def _power(call: Call) -> Any:
    """The exponent stays a Python number where it is one: integers have no other powers."""

    given = [*call.args, *call.kwargs.values()]
    if isinstance(given[1], int) and not call.result.dtype.is_floating_point:
        x = call.symbol(given[0])
        return call.made([formulas.power(item, given[1], call.factor) for item in x._items], call.result)
    if call.result.dtype == torch.bfloat16 and type(given[1]) in (int, float) and given[1] in (3, -2):  # of which torch makes products
        x = call.symbol(given[0])
        squares = [call.step(item * item) for item in x._items]
        return call.made([square * item if given[1] == 3 else 1.0 / square for square, item in zip(squares, x._items)], call.result)
    return elementwise(lambda input, exponent: formulas.power(input, exponent), 2)(call)


def _addcmul(call: Call) -> Any:
    def found(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
        return input + (call.times(_core.constant(value) * tensor1, tensor2))

    return elementwise(found, 3)(call)


def _logit(input: Any, eps: float | None = None, step: formulas.Step = lambda x: x) -> Any:
    return formulas.logit(input if eps is None else formulas.clamped(_core.to_real(input), eps, 1.0 - eps), step)


def _sign(input: Any) -> Any:
    """0 of NaN, too."""
    return _core.where(input > 0, 1, _core.where(input < 0, -1, 0))


def _but_nan(chosen: Callable[[Any, Any], Any], input: Any, other: Any) -> Any:
    """fmax, fmin: of a NaN and a number the number. The first of two that are equal has the derivative."""
    return _core.where(chosen(input, other) | formulas.is_nan(_core.constant(other)), input, other)


def _copysign(input: Any, other: Any) -> Any:
    size = _core.abs(_core.to_real(input))
    return _core.where(special.is_negative(_core.to_real(other)), -size, size)


def _sinc(x: Any) -> Any:
    angle = _core.to_real(x) * math.pi
    return _core.where(angle == 0.0, 1.0, _core.sin(angle) / angle)


def _ndtr(input: Any, *, step: formulas.Step) -> Any:
    return step(1.0 + step(_core.erf(step(_core.to_real(input) / math.sqrt(2.0))))) * 0.5


def _entr(input: Any, *, step: formulas.Step) -> Any:
    x = _core.to_real(input)
    return _core.where(x == 0.0, 0.0, _core.where(x < 0.0, -math.inf, -x * step(_core.log(x))))


@signature_of
def _ROUND(input: Any, *, decimals: int = 0) -> None: ...  # noqa: N802


def _nan_to_num(input: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    return formulas.nan_to_num(input, 0.0 if nan is None else nan, posinf, neginf)


def _where_of(call: Call) -> Any:
    """torch.where(condition, input, other), input.where(condition, other)."""
    return (_METHOD_WHERE if call.func is torch.Tensor.where else _FUNCTION_WHERE)(call)


_FUNCTION_WHERE = elementwise(lambda condition, input, other: _core.where(condition, input, other), 3)

_METHOD_WHERE = elementwise(lambda input, condition, other: _core.where(condition, input, other), 3)


TABLE: dict[str, Meaning] = {
    # of one
    **{name: unary(getattr(_core, name)) for name in "abs exp exp2 log log2 sqrt rsqrt tanh sigmoid sin cos tan erf".split()},
    "absolute": unary(_core.abs),
    "expit": unary(_core.sigmoid),
    "log10": unary(lambda x: _core.log(x) * (1.0 / math.log(10.0))),
    "log1p": unary(formulas.log1p),
    "expm1": unary(formulas.expm1),
    "sinh": unary(formulas.sinh),
    "cosh": unary(formulas.cosh),
    **{name: unary(getattr(special, name.replace("arc", "a"))) for name in "atan arctan asin arcsin acos arccos asinh arcsinh acosh arccosh atanh arctanh".split()},
    "erfc": unary(special.erfc),
    "sinc": unary(_sinc),
    "ndtr": in_steps(_ndtr),
    "log_ndtr": unary(lambda x: special.log_ndtr(_core.to_real(x))),
    "entr": in_steps(_entr),
    **dict.fromkeys("real conj conj_physical resolve_conj resolve_neg".split(), unary(lambda x: x)),
    "square": unary(formulas.square),
    "reciprocal": unary(lambda x: 1.0 / x),
    "neg": unary(operator.neg),
    "negative": unary(operator.neg),
    "pos": unary(lambda x: x),
    "positive": unary(lambda x: x),
    "sign": unary(_sign),
    "sgn": unary(_sign),
    "floor": unary(formulas.floor),
    "ceil": unary(formulas.ceil),
    "trunc": unary(formulas.trunc),
    "fix": unary(formulas.trunc),
    "frac": unary(formulas.frac),
    "round": rounding(_ROUND),
    "deg2rad": unary(lambda x: x * (math.pi / 180.0)),
    "rad2deg": unary(lambda x: x * (180.0 / math.pi)),
    "isnan": unary(formulas.is_nan),
    "isinf": unary(formulas.is_infinite),
    "isfinite": unary(formulas.is_finite),
    "isposinf": unary(lambda x: x == math.inf),
    "isneginf": unary(lambda x: x == -math.inf),
    "isreal": unary(lambda x: _core.constant(True)),
    "signbit": unary(lambda x: special.is_negative(x) if formulas.is_real(x) else x < 0),
    "nan_to_num": elementwise(_nan_to_num),
    "logit": in_steps(_logit),
    "logical_not": unary(formulas.logical_not),
    "bitwise_not": unary(operator.invert),
    "invert": unary(operator.invert),
    # of several
    "add": in_steps(lambda input, other, *, alpha=1, step: input + (other if alpha == 1 else step(other * step(_core.constant(alpha)))), 2),
    "sub": in_steps(lambda input, other, *, alpha=1, step: input - (other if alpha == 1 else step(other * step(_core.constant(alpha)))), 2),
    "subtract": in_steps(lambda input, other, *, alpha=1, step: input - (other if alpha == 1 else step(other * step(_core.constant(alpha)))), 2),
    "rsub": in_steps(lambda input, other, *, alpha=1, step: other - (input if alpha == 1 else step(input * step(_core.constant(alpha)))), 2),
    "mul": multiplied,
    "multiply": multiplied,
    "div": _div,
    "divide": _div,
    "true_divide": _divided(formulas.true_divide),
    "truediv": _quotient,
    "floor_divide": _floor_divide,
    "floordiv": _floor_divide,
    "remainder": _divided(formulas.remainder),
    "mod": _divided(formulas.remainder),
    "fmod": _divided(formulas.fmod),
    "pow": _power,
    "float_power": binary(_core.pow),
    "maximum": binary(_core.maximum),
    "minimum": binary(_core.minimum),
    "fmax": binary(functools.partial(_but_nan, operator.ge)),
    "fmin": binary(functools.partial(_but_nan, operator.le)),
    "clamp": elementwise(lambda input, min=None, max=None: formulas.clamped(input, min, max), 3),
    "clip": elementwise(lambda input, min=None, max=None: formulas.clamped(input, min, max), 3),
    "clamp_min": elementwise(lambda input, min: formulas.clamped(input, min, None), 2),
    "clamp_max": elementwise(lambda input, max: formulas.clamped(input, None, max), 2),
    "where": _where_of,
    "masked_fill": elementwise(lambda input, mask, value: _core.where(mask, value, input), 3),
    "logaddexp": binary(formulas.logaddexp),
    "logaddexp2": binary(formulas.logaddexp2),
    "hypot": binary(formulas.hypot),
    **dict.fromkeys(("atan2", "arctan2"), binary(special.atan2)),
    "xlogy": in_steps(formulas.xlogy, 2),
    "copysign": binary(_copysign),
    "lerp": elementwise(lambda input, end, weight: formulas.lerp(input, end, weight), 3),
    "addcmul": _addcmul,
    "addcdiv": elementwise(lambda input, tensor1, tensor2, *, value=1: input + value * (tensor1 / tensor2), 3),
    "isclose": elementwise(lambda input, other, rtol=1e-5, atol=1e-8, equal_nan=False: formulas.is_close(input, other, rtol, atol, equal_nan), 2),
    "eq": binary(operator.eq),
    "ne": binary(operator.ne),
    "not_equal": binary(operator.ne),
    "lt": binary(operator.lt),
    "less": binary(operator.lt),
    "le": binary(operator.le),
    "less_equal": binary(operator.le),
    "gt": binary(operator.gt),
    "greater": binary(operator.gt),
    "ge": binary(operator.ge),
    "greater_equal": binary(operator.ge),
    "logical_and": binary(formulas.logical_and),
    "logical_or": binary(formulas.logical_or),
    "logical_xor": binary(formulas.logical_xor),
    "bitwise_and": binary(operator.and_),
    "bitwise_or": binary(operator.or_),
    "bitwise_xor": binary(operator.xor),
    "and": binary(operator.and_),
    "or": binary(operator.or_),
    "xor": binary(operator.xor),
    "bitwise_left_shift": shift(formulas.shift_left),
    "bitwise_right_shift": shift(formulas.shift_right),
    "lshift": shift(formulas.shift_left),
    "rshift": shift(formulas.shift_right),
}
