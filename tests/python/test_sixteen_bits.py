"""bfloat16 and float16 in scores: each function rounds its result as torch's does under vmap, which is how FlexAttention runs a score_mod, to the bit.

What follows from a value of 16 bits (a comparison, a floor, an index, an infinity) is then what it is in torch.
"""

import itertools
import operator

import pytest
import torch
import torch.nn.functional as F

import foveal.torch
from places import seeded
from test_torch_generated import FORMS, OPERATORS, THREE, TWO, ours

N, WIDTH = 64, 6
SIXTEEN = [torch.bfloat16, torch.float16]
OTHERS = [torch.float32, torch.int64, torch.uint8, torch.bool]
GENERATOR = seeded(3)
REALS = [torch.randn(N, generator=GENERATOR) * size for size in (3, 2, 1)]
INTEGERS = [torch.randint(-2000, 2000, (N,), generator=GENERATOR) for _ in range(3)]
ROWS = [torch.randn(N, WIDTH, generator=GENERATOR) for _ in range(2)]
DIVISIONS = {"floor_divide", "floordiv", "remainder", "mod", "fmod", "div", "divide", "true_divide", "truediv"}
# float_power computes in float64, gelu(-5) and sinc(3) are what cancellation left, (1.6 ** -186) is below the smallest number of float32
LEFT_OUT = {"float_power", "gelu", "sinc", "nan_to_num", "pow", "isclose"}


def operand(at, dtype):
    return REALS[at].to(dtype) if dtype.is_floating_point else (INTEGERS[at] + (INTEGERS[at] == 0)).to(dtype) if dtype != torch.bool else REALS[at] > 0


def difference(fn, *arrays):
    """From torch, None where there is none. The sum of a softmax's single term keeps the digits of 16 bits, not those of an fp64 score."""
    expected = torch.vmap(fn)(*arrays)
    found, (dtype, _) = ours(fn, *arrays)
    if dtype != expected.dtype:
        return f"{dtype} and not {expected.dtype}"
    found, wanted = found.float(), expected.float()
    wrong = wanted.isfinite() & ((found - wanted).abs() > (2e-6 * wanted.abs().clamp(min=1.0) if expected.dtype == torch.float32 else 0.0))
    wrong |= wanted.isinf() & found.isfinite()
    if not wrong.any():
        return None
    at = int(wrong.nonzero()[0, 0])
    return f"{float(found[at])} and not {float(wanted[at])} at {[x[at].tolist() for x in arrays]}"


TESTED = [form for form in FORMS if form[0] not in LEFT_OUT and not form[1].startswith("method")]


@pytest.mark.parametrize("name, where, fn", TESTED, ids=[form[1] for form in TESTED])  # no addresses: processes that share the tests must agree on names
def test_functions(name, where, fn):
    two = name in TWO or (name in OPERATORS and name != "invert") or (where.startswith("operator.") and name not in ("abs", "neg", "pos"))
    pairs = [(a, b) for a, b in itertools.product(SIXTEEN + OTHERS, repeat=2) if a in SIXTEEN or b in SIXTEEN]
    found = {}
    for dtypes in pairs if two else [(dtype,) * (3 if name in THREE else 1) for dtype in SIXTEEN]:
        arrays = [operand(at, dtype) for at, dtype in enumerate(dtypes)]
        if name in DIVISIONS:
            arrays[-1] = arrays[-1] | True if arrays[-1].dtype == torch.bool else torch.where(arrays[-1] == 0, torch.ones_like(arrays[-1]), arrays[-1])
        try:
            torch.vmap(fn)(*arrays)
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        found[dtypes] = difference(fn, *arrays)
    assert not any(found.values()), {key: value for key, value in found.items() if value}


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("name", "add sub mul truediv floordiv mod lt le eq ne".split())
def test_numbers(name, dtype):
    """A number is rounded first, except in products and quotients of tensors that have dimensions."""
    fn, found = getattr(operator, name), {}
    single, row = operand(0, dtype), ROWS[0].to(dtype)
    for number in (2, -3, 0.1, 0.3, 257, 1e-3):
        tensor = torch.tensor(number)
        found[number] = [
            difference(lambda x: fn(x, number), single), difference(lambda x: fn(number, x), single),
            difference(lambda x: fn(x, number)[1], row), difference(lambda x: fn(number, x)[1], row),
            difference(lambda x: fn(x, tensor)[1], row),
        ]  # fmt: skip
    assert not any(map(any, found.values())), found


COMPOSED = {
    "comparison": lambda a: ((a[0] + a[1]) < (a[2] * 0.1)).float(),
    "quotient times divisor": lambda a: ((a[0] / a[1]) * a[1] == a[0]).float(),
    "floor": lambda a: torch.floor(a[0] * a[1] * 7.3),
    "index": lambda a: (a[0] * a[1] * 100).long() // 3,
    "infinite": lambda a: (a[0] * 300) * (a[1] * 300) / 1000.0,
    "polynomial": lambda a: ((a[0] * a[1] + a[2]) * a[3] + a[4]) / a[5],
    "powers": lambda a: a[0] ** 3 + a[1] ** -2 + a[2].abs() ** 0.5 + 2 ** a[3],
    "alpha": lambda a: torch.sub(a[0], a[1], alpha=0.3) + torch.add(a[2], a[3], alpha=3),
    "decimals": lambda a: torch.round(a[0], decimals=1),
    "whole quotients": lambda a: torch.div(a[0] * 100, 0.3, rounding_mode="trunc") + torch.div(a[1], a[2], rounding_mode="trunc"),
    "lerp": lambda a: torch.lerp(a[0], a[1], 0.3),
    "where": lambda a: torch.where(a[0] > 0.1, a[1], 0.3) * a[2].clamp(-0.3, 0.3),
    "sums": lambda a: a.sum() * a.mean() + a.prod() - a.amax(),
    "norms": lambda a: a.norm() + a.norm(p=1),
    "variances": lambda a: a.var() + a.std(correction=0),
    "logsumexp": lambda a: a.logsumexp(0),
    "softmax": lambda a: a.softmax(0)[1],
    "dot": lambda a: torch.dot(a, a.flip(0)) + a @ a,
    "activations": lambda a: F.softplus(a[0], 2.0, 1.0) + F.leaky_relu(a[1]) + F.elu(a[2], 0.3) + F.mish(a[3]),
    "reciprocal": lambda a: 1 / a[0] + 3 / a[1],
    "cosine": lambda a: F.cosine_similarity(a, a.flip(0) + 0.3, dim=0),
    "normalize": lambda a: F.normalize(a, dim=0)[1],
    "layer_norm": lambda a: F.layer_norm(a, (WIDTH,))[2],
    "layer_norm with weights": lambda a: F.layer_norm(a, (WIDTH,), *[row.to(a.dtype) for row in ROWS[1][:2]])[2],
    "rms_norm": lambda a: F.rms_norm(a, (WIDTH,))[2],
    "rms_norm with weights": lambda a: F.rms_norm(a, (WIDTH,), ROWS[1][0].to(a.dtype))[2],
    "group_norm": lambda a: F.group_norm(a.reshape(1, WIDTH), 2)[0, 2],
    "cumsum": lambda a: a.cumsum(0)[4],
    "cumprod": lambda a: a.cumprod(0)[4],
    "linear": lambda a: F.linear(a, ROWS[1][:2].to(a.dtype))[1],
    "einsum": lambda a: torch.einsum("d,d->", a, a.flip(0)),
    "addcmul": lambda a: torch.addcmul(a[0], a[1], a[2], value=0.3) + torch.addcdiv(a[3], a[4], a[5], value=0.3),
    "number less": lambda a: (a[0] * 0.1 < 0.1).float(),
}


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("name", COMPOSED)
def test_composed(name, dtype):
    assert difference(COMPOSED[name], ROWS[0].to(dtype)) is None


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_beside_integers_and_scores(dtype):
    """A position beyond 256 is not a number of bfloat16; a score of float32 is one where it meets a vector."""
    row, positions, score = ROWS[0].to(dtype), torch.arange(N) * 37, REALS[0]
    assert difference(lambda a, i: a[0] * (i - 5), row, positions) is None
    assert difference(lambda a, i: (a[0] * 1000 < i).float(), row, positions) is None
    assert difference(lambda a, s: (a * s).sum(), row, score) is None
    assert difference(lambda a, s: s + a[0], row, score) is None


@pytest.mark.parametrize("dtype", [torch.float32, *SIXTEEN])
def test_a_number_over_a_tensor_is_its_reciprocal_times_the_number(dtype):
    """In torch: 49 * (1 / 49) is below 1, of which floor is 0."""
    x = torch.arange(1, 200)
    for fn in (lambda x: torch.floor(49 / x), lambda x: ((7 / x.to(dtype)) * x == 7).float(), lambda x: (1 / x.to(dtype) * 49).floor()):
        assert difference(fn, x) is None


def test_gradients_pass_the_roundings():
    q, table = torch.zeros(1, N, 1, 1, dtype=torch.float64), REALS[0].bfloat16().requires_grad_()
    lse = foveal.torch.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: (s + (table[i] * 0.3) * (i - 200)).double(), return_lse=True)[1][0, 0]
    (found,) = torch.autograd.grad(lse.sum(), table)
    (expected,) = torch.autograd.grad((table * 0.3 * (torch.arange(N) - 200)).sum(), table)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=0)
