"""erfc, the log of the normal distribution, and the inverses of trigonometric and hyperbolic functions in the score language, which has none of them.

The polynomials are Chebyshev fits, less than 2^-50 off.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

from . import _core, formulas
from ._core import where

# (atan(r) / r - 1) / r^2, as a polynomial of r^2, for r up to tan(pi / 8)
_ATAN = [
    -0.3333333333333333, 0.19999999999995643, -0.14285714284690054, 0.11111111016993042, -0.09090904643318888, 0.07692184597340589, -0.06664529928267222,
    0.058582992548110675, -0.05086189029096897, 0.039251789809503355, -0.019200190093082433,
]  # fmt: skip
# (1 + 2 x) exp(x^2) erfc(x), as a polynomial of (x - 2) / (x + 2), for x from 0.5 to 28
_ERFC = [
    1.2769783815525317, -0.09276382658581862, -0.16603039761640825, 0.16405128004159705, -0.05422000092676939, -0.008034015361875143, 0.008722652438771478,
    0.0012713434904426098, -0.0014567983837748349, -0.00045438181033223253, 0.00020627439758445535, 0.00015126210073782893, -1.192732837450977e-06,
    -3.716484022274067e-05, -1.4105929889144453e-05, 5.1826903591133235e-06, 5.860619398901665e-06, -1.133439191173954e-07, -1.0730186329589836e-06,
]  # fmt: skip


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    found: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + coefficient
    return found


def _odd(of_size: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def of_any(x: Any) -> Any:
        found = of_size(where(x < 0.0, -x, x))  # not abs(), whose derivative at 0 is 0
        return where(x < 0.0, -found, found)

    return of_any


def _atan_of_size(size: Any) -> Any:
    steep, middle = size > math.tan(3.0 * math.pi / 8.0), size > math.tan(math.pi / 8.0)
    r = where(steep, -1.0 / size, where(middle, (size - 1.0) / (size + 1.0), size))
    base = where(steep, math.pi / 2.0, where(middle, math.pi / 4.0, 0.0))
    return base + (r + r * (r * r) * _polynomial(_ATAN, r * r))


_odd_atan = _odd(_atan_of_size)


def atan(x: Any) -> Any:
    return _odd_atan(_core.to_real(x))


def is_negative(x: Any) -> Any:
    """Of -0.0, too."""
    return (x < 0.0) | ((x == 0.0) & (1.0 / x < 0.0))


def atan2(y: Any, x: Any) -> Any:
    y, x = _core.to_real(y), _core.to_real(x)
    below, left = is_negative(y), is_negative(x)
    height, width = where(below, -y, y), where(left, -x, x)  # with derivatives where they are 0, too
    slope = where((height == width) & ((height == 0.0) | formulas.is_infinite(height)), where(height == 0.0, 0.0, 1.0), height / width)
    steep = height > width
    angle = _atan_of_size(where(steep, width / height, slope))
    angle = where(steep, math.pi / 2.0 - angle, angle)
    angle = where(left, math.pi - angle, angle)
    return where(below, -angle, angle)


def asin(x: Any) -> Any:
    x = _core.to_real(x)
    return 2.0 * atan(x / (1.0 + _core.sqrt((1.0 - x) * (1.0 + x))))


def acos(x: Any) -> Any:
    x = _core.to_real(x)
    return 2.0 * atan(_core.sqrt((1.0 - x) / (1.0 + x)))


@_odd
def _asinh(size: Any) -> Any:
    square = size * size
    return where(size > 1e8, _core.log(size) + formulas.LN2, formulas.log1p(size + square / (1.0 + _core.sqrt(1.0 + square))))


@_odd
def _atanh(size: Any) -> Any:
    return 0.5 * formulas.log1p(2.0 * size / (1.0 - size))


def asinh(x: Any) -> Any:
    return _asinh(_core.to_real(x))


def atanh(x: Any) -> Any:
    return _atanh(_core.to_real(x))


def acosh(x: Any) -> Any:
    x = _core.to_real(x)
    return where(x > 1e8, _core.log(x) + formulas.LN2, formulas.log1p((x - 1.0) + _core.sqrt((x - 1.0) * (x + 1.0))))


def _scaled_erfc(x: Any) -> Any:
    """exp(x^2) erfc(x), for x from 0.5 to 28."""
    return _polynomial(_ERFC, (x - 2.0) / (x + 2.0)) / (1.0 + 2.0 * x)


def log_ndtr(x: Any) -> Any:
    """The log of the integral of the normal distribution up to x."""
    x = _core.to_real(x)
    z = x * -math.sqrt(0.5)
    inverse = 1.0 / (z * z)
    far = formulas.log1p(inverse * (-0.5 + inverse * (0.75 + inverse * (-1.875 + inverse * 6.5625)))) - _core.log(z) - 0.5 * math.log(math.pi)
    tail = where(z > 28.0, far, _core.log(_scaled_erfc(where(z > 28.0, 28.0, z)))) - z * z - formulas.LN2
    return where(z > 0.5, tail, formulas.log1p(-0.5 * erfc(-z)))


def erfc(x: Any) -> Any:
    x = _core.to_real(x)
    high = _core.floor(x * 16.0) / 16.0  # whose square is exact
    square = _core.exp(-high * high) * _core.exp(-(x - high) * (x + high))
    tail = square * _scaled_erfc(x)
    return where(x > 28.0, 0.0, where(x > 0.5, tail, 1.0 - _core.erf(x)))
