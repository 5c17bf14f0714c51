"""Functions of torch and JAX in the score language, with the derivatives that these have, also at ties and kinks.

A `where` takes the derivative of the branch that is taken, `maximum` and `minimum` give each half of a tie: that is all it takes.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Callable, Sequence

from . import _core
from ._core import Type, where

LN2 = math.log(2.0)
Step = Callable[[Any], Any]  # what a value on the way is rounded by


def _as_it_is(x: Any) -> Any:
    return x


def is_real(x: Any) -> bool:
    return bool(x.type == Type.real)


def both(first: Callable[[Any], Any], of_integers: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One function of reals, another one of integers and booleans."""
    return lambda x: first(x) if is_real(x) else of_integers(_core.to_integer(x))


def log1p(x: Any) -> Any:
    whole = 1.0 + x
    rest = x - (whole - 1.0)  # lost by the rounding of the sum; exact unless a factor of the whole comes between: no factor enters a divisor
    lost = where(_core.abs(x) < 1.0, 1.0 / (whole / rest), 0.0)
    return _core.log(whole) + _core.stop_gradient(lost)


def expm1(x: Any) -> Any:
    return _core.tanh(0.5 * x) * (_core.exp(x) + 1.0)


def softplus(x: Any) -> Any:
    return where(x > 0.0, x + log1p(_core.exp(-x)), log1p(_core.exp(x)))


def log_sigmoid(x: Any) -> Any:
    return where(x < 0.0, x - log1p(_core.exp(x)), -log1p(_core.exp(-x)))


def logaddexp(a: Any, b: Any, exp: Any = _core.exp, log1p: Any = log1p, ln2: float = LN2) -> Any:
    apart = where(a > b, a + log1p(exp(b - a)), b + log1p(exp(a - b)))
    return where(_core.to_real(a) == b, 0.5 * (a + b) + ln2, apart)  # also of two infinities


def logaddexp2(a: Any, b: Any) -> Any:
    return logaddexp(a, b, _core.exp2, lambda x: log1p(x) * (1.0 / LN2), 1.0)


def silu(x: Any) -> Any:
    return x * _core.sigmoid(x)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + _core.erf(x * 0.7071067811865476))


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1.0 + _core.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def mish(x: Any) -> Any:
    return x * _core.tanh(softplus(x))


def elu(x: Any, alpha: Any = 1.0, scale: float = 1.0) -> Any:
    return where(x > 0, scale * x, (scale * alpha) * expm1(x))


def selu(x: Any) -> Any:
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def celu(x: Any, alpha: Any = 1.0) -> Any:
    return where(x > 0, x, alpha * expm1(x / alpha))


def relu(x: Any) -> Any:
    return where(x <= 0.0, 0.0, x) if is_real(x) else _core.maximum(x, 0)


def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    return where(x > 0, x, slope * x)


def bounded(x: Any, low: Any, high: Any) -> Any:
    """x between low and high, with derivative 1 strictly between."""
    return where(x <= low, low, where(x >= high, high, x))


def hard_sigmoid(x: Any) -> Any:
    return where(x <= -3.0, 0.0, where(x >= 3.0, 1.0, x / 6.0 + 0.5))


def clamped(x: Any, low: Any, high: Any) -> Any:
    """x between low and high, with derivative 1 also at both; either may be None. NaN where one of them is. A lower bound
    that is not below the upper one has no derivative."""
    if low is not None:
        if high is not None and is_real(_core.constant(low)):
            low = where(_core.constant(low) < high, low, _core.stop_gradient(low))
        x = where((x < low) | is_nan(_core.constant(low)), low, x) if is_real(_core.constant(x) + low) else _core.maximum(x, low)
    if high is not None:
        x = where((x > high) | is_nan(_core.constant(high)), high, x) if is_real(_core.constant(x) + high) else _core.minimum(x, high)
    return x


def clipped(x: Any, low: Any, high: Any) -> Any:
    """min(max(x, low), high); either may be None."""
    x = x if low is None else _core.maximum(x, low)
    return x if high is None else _core.minimum(x, high)


def sign(x: Any) -> Any:
    return where(x > 0, 1, where(x < 0, -1, x * 0)) if is_real(x) else where(x > 0, 1, where(x < 0, -1, 0))


ceil = both(lambda x: -_core.floor(-x), lambda x: x)
floor = both(_core.floor, lambda x: x)
trunc = both(lambda x: where(x < 0.0, -_core.floor(-x), _core.floor(x)), lambda x: x)


def frac(x: Any) -> Any:
    return x - trunc(x)


@functools.partial(both, of_integers=lambda x: x)
def round_half_even(x: Any) -> Any:
    below, above = _core.floor(x), -_core.floor(-x)  # which is -0.0 of a negative x
    rest = x - below
    is_odd = below != 2.0 * _core.floor(0.5 * below)
    return where((rest > 0.5) | ((rest == 0.5) & is_odd), above, below)  # an infinity has no rest


def rounded(x: Any, decimals: int) -> Any:
    if decimals == 0:
        return round_half_even(x)
    power = 10.0 ** max(decimals, -decimals)
    return round_half_even(x * power) / power if decimals > 0 else round_half_even(x / power) * power


def trunc_divide(a: Any, b: Any) -> Any:
    if is_real(_core.constant(a) + b):
        return trunc(_core.to_real(a) / b)
    quotient = _core.floor_div(_core.abs(a), _core.abs(b))
    return where((_core.constant(a) < 0) ^ (_core.constant(b) < 0), -quotient, quotient)


def fmod(a: Any, b: Any) -> Any:
    """The remainder with a's sign."""
    a, size = _core.constant(a), _core.abs(b)
    return where(a < 0, -(-a % size), a % size)


def floor_divide(a: Any, b: Any) -> Any:
    return _core.floor_div(a, b)


def floor_divide_in_steps(a: Any, b: Any, step: Step) -> Any:
    """Of reals, by the remainder, which is as far from exact as its steps are."""
    rest = step(fmod(a, b))
    quotient = step(step(a - rest) / b)
    quotient = where((rest != 0.0) & ((_core.to_real(b) < 0.0) ^ (rest < 0.0)), step(quotient - 1.0), quotient)
    below = _core.floor(quotient)
    nearest = where(step(quotient - below) > 0.5, step(below + 1.0), below)
    return where(_core.to_real(b) == 0.0, a / _core.to_real(b), nearest)


def remainder(a: Any, b: Any) -> Any:
    return a % b


def shift_left(a: Any, b: Any, last_bit: int) -> Any:
    """0 where all bits leave, and by a count below 0: frameworks take that for a large one, the language for 0."""
    count = b if last_bit == _LAST_BIT else _core.minimum(b, last_bit)  # bounds of narrow integers hold then
    return where((b < 0) | (b > last_bit), 0, a << count)


def shift_right(a: Any, b: Any, last_bit: int) -> Any:
    """0 or -1, the sign, where all bits leave, and by a count below 0."""
    return a >> where(b < 0, last_bit, b)


_LAST_BIT = 63  # of the language's integers


def power(x: Any, exponent: Any, factor: Step = _as_it_is) -> Any:
    """factor: makes of an integer one that may be multiplied (Call.factor)."""
    x = _core.constant(x)
    if is_real(x + exponent):
        return _core.pow(x, exponent)
    if not isinstance(exponent, int) or exponent < 0:
        raise NotImplementedError("pow of integers: the exponent is not a constant of 0 or more; make one of the two real")
    result: Any = _core.constant(1)
    x = factor(_core.to_integer(x))
    for bit in bin(exponent)[2:]:
        result = factor(result * result)
        result = factor(result * x) if bit == "1" else result
    return result


def square(x: Any) -> Any:
    return x * x


def sinh(x: Any) -> Any:
    size = where(x < 0.0, -x, x)
    e = expm1(size)  # of a negative number, e + 1 has lost its digits
    root = _core.exp(0.5 * size)  # of e, which may be infinite where its half is not
    half = where(size > 20.0, 0.5 * root * root, 0.5 * (e + e / (e + 1.0)))
    return where(x < 0.0, -half, half)


def cosh(x: Any) -> Any:
    root = _core.exp(0.5 * _core.abs(x))
    return where(_core.abs(x) > 20.0, 0.5 * root * root, 0.5 * (_core.exp(x) + _core.exp(-x)))


def hypot(a: Any, b: Any) -> Any:
    """Infinite where one of them is, whatever the other."""
    return where(is_infinite(a) | is_infinite(b), math.inf, _core.sqrt(a * a + b * b))


def lerp(a: Any, b: Any, weight: Any) -> Any:
    return where(_core.abs(weight) < 0.5, a + weight * (b - a), b - (b - a) * (1.0 - weight))


def xlogy(x: Any, y: Any, step: Step = _as_it_is) -> Any:
    return where((_core.to_real(x) == 0.0) & (_core.to_real(y) <= 0.0), 0.0, x * step(_core.log(y)))


def logit(x: Any, step: Step = _as_it_is) -> Any:
    return _core.log(step(x / step(1.0 - x)))


def softsign(x: Any, step: Step = _as_it_is) -> Any:
    return x / step(1.0 + _core.abs(x))


def tanhshrink(x: Any, step: Step = _as_it_is) -> Any:
    return x - step(_core.tanh(x))


def is_nan(x: Any) -> Any:
    return x != x if is_real(x) else x != x + 0


def is_infinite(x: Any) -> Any:
    return _core.abs(_core.to_real(x)) == math.inf


def is_finite(x: Any) -> Any:
    return _core.abs(_core.to_real(x)) < math.inf


def is_close(a: Any, b: Any, rtol: float, atol: float, equal_nan: bool = False) -> Any:
    close = (_core.to_real(a) == b) | (_core.abs(_core.to_real(a) - b) <= atol + rtol * _core.abs(b))
    return close | (is_nan(a) & is_nan(b)) if equal_nan else close


def logical(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: fn(*(_core.to_boolean(x) for x in operands))


logical_and = logical(lambda a, b: a & b)
logical_or = logical(lambda a, b: a | b)
logical_xor = logical(lambda a, b: a ^ b)
logical_not = logical(lambda a: ~a)


# ---- of several expressions ----


def total(items: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: a + b, (x if is_real(x) else _core.to_integer(x) for x in items))


def mean(items: Sequence[Any]) -> Any:
    return _core.to_real(total(items)) / float(len(items))


def variance(items: Sequence[Any], correction: float) -> Any:
    middle = mean(items)
    squares = total([square(x - middle) for x in items])
    return squares / (len(items) - correction) if len(items) > correction else _core.sqrt(-1.0 - squares)  # NaN, of which there is no constant


def standardized(items: Sequence[Any], eps: float) -> list[Any]:
    """With mean 0 and variance 1."""
    middle = mean(items)
    apart = [x - middle for x in items]
    share = _core.rsqrt(mean([square(x) for x in apart]) + eps)
    return [x * share for x in apart]


def of_unit_square(items: Sequence[Any], eps: float) -> list[Any]:
    """With a mean square of 1."""
    share = _core.rsqrt(mean([square(x) for x in items]) + eps)
    return [x * share for x in items]


def product(items: Sequence[Any], step: Step = _as_it_is) -> Any:
    return functools.reduce(lambda a, b: step(a * b), (x if is_real(x) else step(_core.to_integer(x)) for x in items))


def extreme(choose: Callable[[Any, Any], Any], items: Sequence[Any]) -> Any:
    """The largest or smallest; those that are equal share its derivative evenly."""
    found = functools.reduce(choose, items)
    if len(items) == 1 or not is_real(found):
        return found
    found = _core.stop_gradient(found)
    share = 1.0 / total([where(x == found, 1.0, 0.0) for x in items])
    nothing = [where(x == found, where(is_finite(found), x - found, x), 0.0) for x in items]  # an infinity has no difference
    return found + total(nothing) * share


def largest(items: Sequence[Any]) -> Any:
    return extreme(_core.maximum, items)


def smallest(items: Sequence[Any]) -> Any:
    return extreme(_core.minimum, items)


def first_extreme(is_better: Callable[[Any, Any], Any], items: Sequence[Any]) -> tuple[Any, Any]:
    """The first of the largest (operator.gt) or smallest, whose derivative it has, and its place; NaN before all others."""
    best, place = items[0], _core.constant(0)
    for at, item in enumerate(items[1:], 1):
        better = is_better(item, best) | (is_nan(item) & ~is_nan(best)) if is_real(item) else is_better(item, best)
        best, place = where(better, item, best), where(better, at, place)
    return best, place


def running_totals(items: Sequence[Any]) -> list[Any]:
    return list(itertools.accumulate(items, lambda a, b: a + b))


def running_products(items: Sequence[Any], times: Callable[[Any, Any], Any]) -> list[Any]:
    return list(itertools.accumulate(items, times))


def nan() -> Any:
    """The language has no constant NaN."""
    return _core.sqrt(_core.constant(-1.0))


def any_of(items: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: a | b, (_core.to_boolean(x) for x in items))


def all_of(items: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: a & b, (_core.to_boolean(x) for x in items))


def dot(a: Sequence[Any], b: Sequence[Any], factor: Step = _as_it_is) -> Any:
    """factor: as of power()."""
    return total([factor(factor(x) * factor(y)) for x, y in zip(a, b)])


def logsumexp(items: Sequence[Any], step: Step = _as_it_is) -> Any:
    top = _core.stop_gradient(functools.reduce(_core.maximum, items))
    top = where(_core.abs(top) == math.inf, 0.0, top)
    return step(_core.log(step(total([step(_core.exp(step(x - top))) for x in items])))) + top


def log_softmax(items: Sequence[Any]) -> list[Any]:
    top = _core.stop_gradient(functools.reduce(_core.maximum, items))
    log_total = _core.log(total([_core.exp(x - top) for x in items]))
    return [x - top - log_total for x in items]


def softmax(items: Sequence[Any]) -> list[Any]:
    top = _core.stop_gradient(functools.reduce(_core.maximum, items))
    parts = [_core.exp(x - top) for x in items]
    share = 1.0 / total(parts)
    return [part * share for part in parts]


def norm(items: Sequence[Any], p: float, at_zero: bool, abs: Callable[[Any], Any] = _core.abs) -> Any:
    """(sum |x|^p)^(1/p) for p in 0, 1, 2, inf, -inf. at_zero: the derivative of p = 2 is 0 where the norm is 0, not undefined."""
    if p == 2:
        squares = total([x * x for x in items])
        return where(squares == 0.0, 0.0, _core.sqrt(squares)) if at_zero else _core.sqrt(squares)
    sizes = [abs(x) for x in items]
    if p == 1:
        return total(sizes)
    if p in (math.inf, -math.inf):
        return largest(sizes) if p > 0 else smallest(sizes)
    if p == 0:
        return total([where(x == 0, 0.0, 1.0) for x in sizes])
    raise NotImplementedError(f"found p={p!r}; expected 0, 1, 2, inf or -inf")


def true_divide(a: Any, b: Any) -> Any:
    """Of integers a real, too."""
    return _core.to_real(_core.constant(a)) / b


def nan_to_num(x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    if posinf is None or neginf is None:
        raise NotImplementedError("nan_to_num in a score or mask: posinf and neginf are left out; expected all of nan, posinf, neginf")
    found = where(is_nan(x), nan, x)
    return where(found == math.inf, posinf, where(found == -math.inf, neginf, found))
