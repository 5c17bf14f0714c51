"""Every torch function that tracing accepts, against torch: values and gradients over dtypes, arguments and views.

A score is `s * 0.1 + f(...)` over all pairs; torch computes the same from tensors of positions that broadcast over [head, q, kv].
"""

import math
import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import foveal
import foveal.torch
from foveal.torch import tracing
from places import seeded

HEADS, LEN, DIM = 2, 7, 4
ON_GPU = os.environ.get("FOVEAL_TEST_DEVICE") == "cuda"
BACKENDS = ["cuda"] if ON_GPU else ["cpu", "reference"]
GENERATOR = seeded(0)


def real(*shape, low=-3.0, high=3.0):
    return (torch.rand(*shape, generator=GENERATOR, dtype=torch.float64) * (high - low) + low).requires_grad_()


Q, K, V = (torch.randn(1, LEN, HEADS, DIM, generator=GENERATOR, dtype=torch.float64) for _ in range(3))


def expected(score_mod, mask=None):
    """out by torch alone."""
    q, k, v = (t.transpose(1, 2) for t in (Q, K, V))
    s = q @ k.transpose(-1, -2) / DIM**0.5
    places = [torch.arange(n).reshape([n if d == at else 1 for d in range(4)]) for at, n in enumerate((1, HEADS, LEN, LEN))]
    s = torch.broadcast_to(score_mod(s, *places), s.shape)
    if mask is not None:
        s = s.masked_fill(~mask(*places), -math.inf)
    return (torch.softmax(s, -1) @ v).transpose(1, 2)


# On GPUs torch's own hardsigmoid and hardswish of doubles have a sixth of 32 bits, and its quotients of integers, of 32 bits, differ by 3e-7.
ROUGH = ("hardsigmoid", "hardswish", "div") if ON_GPU else ()


def tolerance(name):
    return dict(rtol=1e-6, atol=2e-8) if name in ROUGH else {}


def compare(score_mod, *parameters, mask=None, rtol=1e-7, atol=1e-9):
    """The same function through foveal and through torch: out, and the gradients of the parameters."""
    weights = torch.randn(1, LEN, HEADS, DIM, generator=seeded(1), dtype=torch.float64)
    results = [foveal.torch.attention(Q, K, V, score_mod, mask), expected(score_mod, mask)]
    torch.testing.assert_close(results[0], results[1], rtol=rtol, atol=atol)
    parameters = [p for p in parameters if p.requires_grad]
    if not parameters:
        return
    found, wanted = (
        torch.autograd.grad((out * weights).sum(), parameters, allow_unused=True) if out.requires_grad else [None] * len(parameters)
        for out in results
    )
    for a, b in zip(found, wanted):
        zero = torch.zeros(())
        torch.testing.assert_close(
            zero if a is None else a, zero if b is None else b, rtol=rtol, atol=atol, equal_nan=True, check_dtype=False
        ) if a is not None and b is not None else torch.testing.assert_close(
            (a if a is not None else b).abs().max() if a is not None or b is not None else zero, zero, check_dtype=False, atol=atol, rtol=0
        ) if a is not None or b is not None else None


# ---- functions of one real ----

# name -> where it is defined
UNARY = {
    **dict.fromkeys("abs absolute exp exp2 tanh sigmoid sin cos erf expm1 sinh cosh square neg negative positive".split(), (-3, 3)),
    **dict.fromkeys("sign sgn floor ceil trunc fix frac round deg2rad rad2deg".split(), (-3, 3)),
    **dict.fromkeys("log log2 log10 sqrt rsqrt reciprocal".split(), (0.2, 3)),
    "log1p": (-0.9, 3),
    "tan": (-1, 1),
    "logit": (0.1, 0.9),
    **dict.fromkeys("atan arctan asinh arcsinh erfc".split(), (-7, 7)),
    **dict.fromkeys("asin arcsin acos arccos atanh arctanh".split(), (-0.95, 0.95)),
    **dict.fromkeys("acosh arccosh".split(), (1.1, 4)),
    **dict.fromkeys("relu relu6 silu mish selu hardsigmoid hardswish logsigmoid tanhshrink softsign elu celu leaky_relu hardtanh gelu softplus".split(), (-7, 7)),
}  # fmt: skip

# Where a function has a kink, a pole or a limit.
SPECIAL = [-6.0, -3.0, -2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0, 6.0]


def of(name):
    return getattr(torch, name, None) if hasattr(torch, name) else getattr(F, name)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one(name):
    low, high = UNARY[name]
    x, fn = real(LEN, LEN, low=low, high=high), of(name)
    compare(lambda s, b, h, i, j: s * 0.1 + fn(x[i, j]), x, **tolerance(name))


@pytest.mark.parametrize("name", [name for name, (low, high) in UNARY.items() if low < 0 and high >= 3 and name != "log1p"])
def test_derivatives_at_kinks(name):
    fn = of(name)
    x = torch.tensor([[SPECIAL[(i + j) % len(SPECIAL)] for j in range(LEN)] for i in range(LEN)], dtype=torch.float64, requires_grad=True)
    compare(lambda s, b, h, i, j: s * 0.1 + fn(x[i, j]), x, **tolerance(name))


METHODS = "abs exp tanh sigmoid square neg sign floor ceil trunc frac round relu log1p expm1 cos clamp_min".split()


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    x = real(LEN, LEN, low=0.1)
    arguments = (0.5,) if name == "clamp_min" else ()
    compare(lambda s, b, h, i, j: s * 0.1 + getattr(x[i, j], name)(*arguments), x)


# ---- arguments ----

X, Y, Z = real(LEN, LEN), real(LEN, LEN), real(LEN)
KNOTS = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
TIED_X = KNOTS[torch.randint(0, 4, (LEN, LEN), generator=GENERATOR)].clone().requires_grad_()
TIED_Y = KNOTS[torch.randint(0, 4, (LEN, LEN), generator=GENERATOR)].clone().requires_grad_()
WEIGHT = torch.full((1,), 0.3, dtype=torch.float64, requires_grad=True)
N = torch.randint(-9, 9, (LEN, LEN), generator=GENERATOR)
M = torch.randint(1, 5, (LEN,), generator=GENERATOR)

ARGUMENTS = {
    "add_alpha": lambda x, y: torch.add(x, y, alpha=2.5),
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=-2),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "rsub_number": lambda x, y: 2.0 - x,
    "add_method_alpha": lambda x, y: x.add(y, alpha=3),
    "div": lambda x, y: torch.div(x, y + 5),
    "div_floor": lambda x, y: torch.div(x, y + 5, rounding_mode="floor") + y,
    "div_trunc": lambda x, y: torch.div(x, y + 5, rounding_mode="trunc") + y,
    "div_number_trunc": lambda x, y: x.div(0.7, rounding_mode="trunc"),
    "true_divide": lambda x, y: torch.true_divide(x, 4),
    "floor_divide": lambda x, y: torch.floor_divide(x.detach(), 0.7) + y,
    "floor_divide_operator": lambda x, y: x.detach() // 0.7 + y,
    "remainder": lambda x, y: torch.remainder(x, y + 5),
    "remainder_negative": lambda x, y: x % -0.7,
    "fmod": lambda x, y: torch.fmod(x, y + 5),
    "fmod_negative": lambda x, y: torch.fmod(x, -0.7),
    "pow_2": lambda x, y: x**2,
    "pow_3": lambda x, y: torch.pow(x, 3),
    "pow_negative": lambda x, y: (x.abs() + 1) ** -1.5,
    "pow_of_a_number": lambda x, y: 2.0**x,
    "pow_of_two": lambda x, y: torch.pow(x.abs() + 0.1, y),
    "float_power": lambda x, y: torch.float_power(x.abs() + 0.1, 1.5),
    "clamp": lambda x, y: torch.clamp(x, -1, 1),
    "clamp_min": lambda x, y: torch.clamp(x, min=0.5),
    "clamp_max": lambda x, y: x.clamp(max=0.5),
    "clamp_tensors": lambda x, y: torch.clamp(x, y, y + 1),
    "clamp_crossed": lambda x, y: torch.clamp(x, 1.0, -1.0),
    "clip": lambda x, y: x.clip(-1, 1),
    "hardtanh": lambda x, y: F.hardtanh(x, -2, 1),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.2),
    "elu": lambda x, y: F.elu(x, alpha=2.0),
    "celu": lambda x, y: F.celu(x, 2.0),
    "gelu_tanh": lambda x, y: F.gelu(x, approximate="tanh"),
    "softplus": lambda x, y: F.softplus(x, beta=2, threshold=3),
    "threshold": lambda x, y: F.threshold(x, 0.5, 20.0),
    "prelu": lambda x, y: F.prelu(x, WEIGHT),
    "round": lambda x, y: torch.round(x, decimals=1),
    "round_negative": lambda x, y: torch.round(x * 10, decimals=-1),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "max_of_two": lambda x, y: torch.max(x, y),
    "min_of_two": lambda x, y: x.min(y),
    "where": lambda x, y: torch.where(x > y, x, y * 2),
    "where_number": lambda x, y: torch.where(x > 0, x, -1.0),
    "where_method": lambda x, y: x.where(x > y, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 2.0),
    "logaddexp": lambda x, y: torch.logaddexp(x, y),
    "logaddexp2": lambda x, y: torch.logaddexp2(x, y),
    "fmax": lambda x, y: torch.fmax(x, y),
    "fmin": lambda x, y: torch.fmin(x, y) + x.fmin(x),
    "hypot": lambda x, y: torch.hypot(x, y + 5),
    "atan2": lambda x, y: torch.atan2(x, y + 0.5) + torch.arctan2(y - 1.5, -x),
    "special": lambda x, y: torch.log(torch.special.erfc(x + 3)) + torch.acos(1 - (x * 1e-4) ** 2 - 1e-9) + torch.asinh(x * 1e9) + torch.acosh(3e9 + y),
    "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 1),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp_far": lambda x, y: torch.lerp(x, y, 0.9),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y + 5, value=0.5),
    "nan_to_num": lambda x, y: torch.nan_to_num(x, 1.0, 2.0, -2.0),
    "nan": lambda x, y: torch.where(torch.isnan(torch.where(x > 0, x, math.nan)), y, x) + torch.full_like(x, math.nan).isnan() * x.masked_fill(x > 1, math.nan).isnan(),
    "detach": lambda x, y: x.detach() * y,
    "data": lambda x, y: x.data * y if isinstance(x, tracing.Symbol) else x.detach() * y,
    "zeros_like": lambda x, y: torch.zeros_like(x) + y,
    "full_like": lambda x, y: torch.full_like(x, 2.5) * y,
    "new_full": lambda x, y: x.new_full((), 2.5) * y,
    "new_ones": lambda x, y: x * x.new_ones(()),
    "new_tensor": lambda x, y: x * x.new_tensor(1.5),
    "type_as": lambda x, y: (y > 0).type_as(x) * x,
    "to_dtype": lambda x, y: (y > 0).to(torch.float64) * x,
    "to_other": lambda x, y: (y > 0).to(x) * x,
    "int": lambda x, y: x.int() * y,
    "long": lambda x, y: x.long() * y,
    "uint8": lambda x, y: (x.abs() * 60).to(torch.uint8) * y,
    "int8": lambda x, y: (x * 100).long().to(torch.int8) * y,
    "bool": lambda x, y: x.floor().bool() * y,
    "matmul_reciprocal": lambda x, y: 1 / (x.square() + 1),
    "comparisons": lambda x, y: (x < y) * 1.0 + (x <= y) * 2.0 + (x == y) * 4.0 + (x != y) * 8.0 + (x >= y) * 16.0,
    "logic": lambda x, y: torch.logical_and(x, y > 0) * 1.0 + torch.logical_xor(x > 0, y) * 2.0 + torch.logical_not(x) * 4.0,
    "booleans": lambda x, y: ((x > 0) & (y > 0)) * 1.0 + ((x > 0) | ~(y > 0)) * 2.0 + ((x > 0) ^ (y > 0)) * 4.0 + ((x > 0) + (y > 0)) * 8.0,
    "isfinite": lambda x, y: torch.isfinite(x) * 1.0 + torch.isnan(x) * 2.0 + torch.isinf(y) * 4.0,
    "isclose": lambda x, y: torch.isclose(x, y, rtol=0.5, atol=0.1) * x,
}


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "ties"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name, tied):
    x, y = (TIED_X, TIED_Y) if tied else (X, Y)
    compare(lambda s, b, h, i, j: s * 0.1 + ARGUMENTS[name](x[i, j], y[j, i]), x, y, WEIGHT)


def test_no_grad_inside_a_function():
    def score_mod(s, b, h, i, j):
        with torch.no_grad():
            stopped = X[i, j] * Y[i, j]
        return s * 0.1 + stopped * X[i, j] + Z[j]

    compare(score_mod, X, Y, Z)


# ---- names of arguments ----

NAMED = {
    "axis": lambda x, i, j: torch.stack([x[i, j], x[j, i]]).sum(axis=0) + torch.amax(torch.stack([x[i, j], x[j, i]]), axis=0, keepdims=True)[0],
    "axis_of_softmax": lambda x, i, j: torch.softmax(torch.stack([x[i, j], x[j, i]], axis=0), axis=0)[1],
    "type": lambda x, i, j: x[i, j].float().type("torch.DoubleTensor") + i.type(dtype=torch.float64),
    "type_of": lambda x, i, j: x[i, j] * (2 if x[i, j].type() == "torch.DoubleTensor" else 3),
}


@pytest.mark.parametrize("name", NAMED)
def test_other_names_of_arguments(name):
    compare(lambda s, b, h, i, j: s * 0.1 + NAMED[name](X, i, j), X, **({"rtol": 1e-6, "atol": 1e-6} if name == "type" else {}))


# ---- integers ----

INTEGERS = {
    "and": lambda n, m: n & m,
    "or": lambda n, m: n | m,
    "xor": lambda n, m: n ^ 3,
    "invert": lambda n, m: ~n,
    "shift_left": lambda n, m: n << m,
    "shift_right": lambda n, m: n >> m,
    "shift_of_a_number": lambda n, m: 1 << m,
    "shift_below_0": lambda n, m: (n << (m - 9)) + (n >> (m - 9)) * 3 + (n << -1) + (n >> -1),
    "shift_of_all_bits": lambda n, m: (n >> (m + 60)) + (n >> 64) * 3 + (n << 70),
    "bitwise_and": lambda n, m: torch.bitwise_and(n, 5),
    "bitwise_left_shift": lambda n, m: torch.bitwise_left_shift(n, m),
    "floor_divide": lambda n, m: n // m,
    "div_trunc": lambda n, m: torch.div(n, m, rounding_mode="trunc"),
    "div": lambda n, m: n / m,
    "remainder": lambda n, m: n % m,
    "fmod": lambda n, m: torch.fmod(n, m),
    "pow": lambda n, m: n**3,
    "abs": lambda n, m: n.abs(),
    "sign": lambda n, m: torch.sign(n),
    "clamp": lambda n, m: n.clamp(-3, 2),
    "clamp_real": lambda n, m: n.clamp(-2.5, 2.5),
    "maximum": lambda n, m: torch.maximum(n, m),
    "round": lambda n, m: n.round() + n.floor() + n.ceil() + n.trunc(),
    "to_uint8": lambda n, m: n.to(torch.uint8),
    "to_int8": lambda n, m: (n * 37).to(torch.int8),
    "to_int16": lambda n, m: (n * 5003).short(),
    "uint8_arithmetic": lambda n, m: n.to(torch.uint8) - m.to(torch.uint8) * 90,
    "int8_negation": lambda n, m: -(n * 37).to(torch.int8) * 3,
    "uint8_invert": lambda n, m: ~n.to(torch.uint8),
    "uint8_shift": lambda n, m: n.to(torch.uint8) << 3,
    "bool_sum": lambda n, m: (n > 0) + (m > 2),
    "bool_times": lambda n, m: (n > 0) * m,
    "exp": lambda n, m: torch.exp(m * 0.5),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name, dtype):
    n, m = N.to(dtype), M.to(dtype)
    compare(lambda s, b, h, i, j: s * 0.1 + INTEGERS[name](n[i, j], m[j]).double() * 0.05, **tolerance(name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_captures_of_other_dtypes(dtype):
    x = X.detach().to(dtype).requires_grad_()
    compare(lambda s, b, h, i, j: s * 0.1 + torch.tanh(x[i, j].double()) + (x[j, i] > 0) * 1.0, x, rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-3 if dtype != torch.float32 else 1e-6)


# ---- arrays of expressions ----

E = real(LEN, 3)
T = real(LEN, 2, 3)
TIED_E = KNOTS[torch.randint(0, 4, (LEN, 3), generator=GENERATOR)].clone().requires_grad_()

REDUCTIONS = {
    "sum": lambda e: e.sum(-1),
    "sum_function": lambda e: torch.sum(e, dim=-1),
    "mean": lambda e: e.mean(-1),
    "prod": lambda e: torch.prod(e, -1),
    "amax": lambda e: e.amax(-1),
    "amin": lambda e: torch.amin(e, dim=-1),
    "norm": lambda e: torch.norm(e, dim=-1),
    "norm_1": lambda e: torch.norm(e, p=1, dim=-1),
    "norm_inf": lambda e: torch.norm(e, p=math.inf, dim=-1),
    "vector_norm": lambda e: torch.linalg.vector_norm(e, ord=1, dim=-1),
    "linalg_norm": lambda e: torch.linalg.norm(e, dim=-1),
    "logsumexp": lambda e: torch.logsumexp(e, -1),
    "max": lambda e: e.max(-1).values * 2 + torch.max(e, dim=-1, keepdim=True)[1].squeeze(-1),
    "min": lambda e: torch.min(e, -1)[0] * 2 + e.min(-1).indices,
    "argmax": lambda e: torch.argmax(e, -1) * 1.0 + (e > 0).long().argmax(-1),
    "argmin": lambda e: e.argmin(dim=-1, keepdim=True).squeeze(-1) * e[..., 1],
    "cumsum": lambda e: e.cumsum(-1)[..., 1] * torch.cumsum(e, dim=-1)[..., 2] + (e > 0).cumsum(-1)[..., 1],
    "cumprod": lambda e: e.cumprod(-1)[..., 1] + torch.cumprod(e, dim=-1)[..., 2] + (e > 0).long().cumprod(-1)[..., 2],
    "layer_norm": lambda e: F.layer_norm(e, (3,), E[0], E[1])[..., 0] + torch.layer_norm(e, [3], eps=0.5)[..., 2],
    "rms_norm": lambda e: F.rms_norm(e, (3,), E[2], eps=0.25)[..., 1],
    "any": lambda e: (e > 1).any(-1) * 1.0,
    "all": lambda e: torch.all(e > -1, -1) * 1.0,
    "count_nonzero": lambda e: torch.count_nonzero(e > 0, -1) * 1.0,
    "keepdim": lambda e: e.sum(-1, keepdim=True).squeeze(-1),
    "unsqueeze": lambda e: (e.unsqueeze(-1) * e.unsqueeze(-2)).sum((-1, -2)),
    "index": lambda e: e[..., 0] * e[..., -1],
    "slice": lambda e: e[..., 1:].sum(-1) + e[..., ::2].sum(-1),
    "unbind": lambda e: e.unbind(-1)[1] * 2,
    "stack": lambda e: torch.stack([e[..., 0], e[..., 2]], -1).amax(-1),
    "cat": lambda e: torch.cat([e, e * 2], -1).sum(-1),
    "flip": lambda e: (e.flip(-1) * e).sum(-1),
    "where": lambda e: torch.where(e > 0, e, -e).sum(-1),
}


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "ties"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, tied):
    """(e[i] - e[j]) is 0 for i = j: norms and extremes have torch's derivatives there."""
    e = TIED_E if tied else E
    compare(lambda s, b, h, i, j: s * 0.1 + REDUCTIONS[name](e[i] - e[j]), e)
    if name not in ("norm", "norm_inf", "linalg_norm"):  # of a vector alone
        x = (lambda i: e[i] * 1.0) if tied else (lambda i: e[i])
        compare(lambda s, b, h, i, j: s * 0.1 + REDUCTIONS[name](x(i)) * j, e)


@pytest.mark.parametrize("name", ["dot", "inner", "matmul", "sum"])
def test_products_of_vectors(name):
    def score_mod(s, b, h, i, j):
        a, c = E[i], T[j, 0]
        if name == "sum" or not isinstance(s, tracing.Symbol):
            return s * 0.1 + (a * c).sum(-1)
        return s * 0.1 + (a @ c if name == "matmul" else getattr(torch, name)(a, c))

    compare(score_mod, E, T)


# ---- indexing of captured tensors ----

W = real(HEADS, LEN, LEN)
INDICES = {
    "constant": lambda h, i, j: W[h, -1, 0] + W[h, i, -1],
    "ellipsis": lambda h, i, j: W[..., 0][h, i] + W[h, ..., j][..., 0] * 1.0 if False else W[..., 0][h, i],
    "steps": lambda h, i, j: W[h][i, j] if False else W[h, i, j],
    "view": lambda h, i, j: W[1][i, j] + W[0, 2][j],
    "slice": lambda h, i, j: W[:, 1:][h, i // 2, j],
    "reversed": lambda h, i, j: W.flip(0)[h, i, j],
    "transposed": lambda h, i, j: W.transpose(1, 2)[h, i, j],
    "strided": lambda h, i, j: W[:, ::2, ::3][h, i // 2, j // 3],
    "expanded": lambda h, i, j: Z.expand(LEN, LEN)[i, j],
    "computed": lambda h, i, j: torch.tanh(W)[h, i, j],
    "by_tensor": lambda h, i, j: Z[N.abs()[i, j] % LEN],
    "negative_constants": lambda h, i, j: W[-1, i, j] + W[h, -2, j],
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(name):
    compare(lambda s, b, h, i, j: s * 0.1 + INDICES[name](h, i, j), W, Z)


def eager_like(score_mod):
    """torch.vmap over single positions: indexing as FlexAttention does it."""
    over = lambda fn, *dims: torch.vmap(fn, in_dims=dims, out_dims=0)  # noqa: E731
    per_kv = over(score_mod, 0, None, None, None, 0)
    per_q = over(per_kv, 0, None, None, 0, None)
    per_head = over(per_q, 0, None, 0, None, None)
    return over(per_head, 0, 0, None, None, None)


EDGES = torch.tensor([1, 2, 5])
PARTIAL = {
    "rest": lambda h, i, j: W[h, i].sum() + W[h][i][j],
    "rest_in_front": lambda h, i, j: W[:, i, j].mean(),
    "rest_between": lambda h, i, j: W[h, :, j].amax() + W[h, ..., j][1],
    "slices": lambda h, i, j: W[h, 1:3, j].sum() + W[h, i, ::2].sum() + W[h, -3:, j][-1],
    "new_dimension": lambda h, i, j: W[h, None, i].sum() + W[h, i, None, j][0],
    "constant_tensor": lambda h, i, j: W[h, torch.tensor([0, 2]), j].sum(),
    "constant_list": lambda h, i, j: W[h, [0, 2], j].sum(),
    "ellipsis": lambda h, i, j: W[..., j][h, i] + W[h, ...][i, j],
    "unsqueeze": lambda h, i, j: (W[h, i].unsqueeze(0) * W[h, j].unsqueeze(0)).sum(),
    "squeeze": lambda h, i, j: W[h, i, j].unsqueeze(0).squeeze(),
    "dot": lambda h, i, j: torch.dot(W[h, i], W[h, j]),
    "matmul": lambda h, i, j: W[h, i] @ W[h, j],
    "matrix": lambda h, i, j: (W[h] @ W[h, j]).sum(),
    "norm": lambda h, i, j: (W[h, i] - W[h, j]).norm(),
    "norm_2d": lambda h, i, j: torch.norm(W[h]) * j,
    "max": lambda h, i, j: W[h, i].max() - W[h, j].min(),
    "var": lambda h, i, j: (W[h, i] - W[h, j]).var() + W[h].var(dim=(0, 1), correction=3) + torch.var(W[h, i], False) + W[h].var(1, unbiased=False)[2],
    "std": lambda h, i, j: (W[h, i] + 0.1 * W[h, j]).std() + torch.std(W[:, i], -1, keepdim=True).sum() + W[:, j].std(correction=0),
    "var_of_too_few": lambda h, i, j: torch.where(W[h, i, :1].var().isnan() & W[h, j, 0].std().isnan(), W[h, i, j], 7.0),
    "std_of_equals": lambda h, i, j: (0.0 * W[h, i]).std() + W[h, j, 0],
    "isin": lambda h, i, j: torch.isin(j, torch.tensor([[1, 2], [3, 1]])) * W[h, i, j] + torch.isin(N[i], j, invert=True).sum() + torch.isin(3, torch.stack([i, j])),
    "isin_nothing": lambda h, i, j: torch.isin(j, N[:0, 0]) + W[h, i, j],
    "bucketize": lambda h, i, j: W[h, torch.bucketize(i, EDGES), torch.bucketize(j - 1, EDGES, right=True, out_int32=True)] + torch.bucketize(X[i, j], KNOTS),
    "bucketize_nan": lambda h, i, j: torch.bucketize(torch.log(-1 - X[i, j].square()), KNOTS) + torch.bucketize(TIED_X[i, j], KNOTS, right=True) + W[h, i, j],
    "searchsorted": lambda h, i, j: W[h, i, torch.searchsorted(EDGES, j)] + torch.searchsorted(EDGES, torch.stack([i, j]), side="right").sum(),
    "any": lambda h, i, j: (W[h, i] > 2.5).any() * 1.0 + (W[h, j] > -2.9).all() * 1.0,
    "reshape": lambda h, i, j: W[h].reshape(-1)[:5].sum() + W[h].view(-1)[3] + W[h].t()[0].sum(),
    "gather": lambda h, i, j: torch.gather(Z, 0, j.long().reshape(1))[0] + W[h].gather(1, (i * j % LEN).long().expand(LEN, 1))[2, 0],
    "gather_of_expressions": lambda h, i, j: torch.stack([Z[i], Z[j] * 2]).gather(0, (i % 2).long().reshape(1)).sum() * W[h, i, j],
    "take": lambda h, i, j: torch.take(W, (h * LEN * LEN + i * LEN + j).long()) + W.take((-1 - j).long()),
    "take_along_dim": lambda h, i, j: torch.take_along_dim(W[h], (j % LEN).long().reshape(1, 1), dim=1)[3, 0] + W.take_along_dim((i + 50).long().reshape(1))[0],
    "index_select": lambda h, i, j: Z.index_select(0, i.reshape(1))[0] * torch.index_select(W[h], 1, j.reshape(1))[0, 0],
    "einsum": lambda h, i, j: torch.einsum("d,d->", W[h, i], W[h, j]) + torch.einsum("de, e", W[h, :3], W[h, i])[1] + torch.einsum("a,b->ba", W[h, i, :3], W[h, j, :2])[1, 2],
    "normalize": lambda h, i, j: F.normalize(W[h, i], dim=0) @ F.normalize(W[h], p=1, dim=-1)[j] + F.normalize(W[h, i] * 0, dim=-1)[2],
    "cosine_similarity": lambda h, i, j: torch.cosine_similarity(W[h, i], W[h, j], dim=0) + F.cosine_similarity(W[h, i], W[h] * 0 + 1, dim=-1)[j],
    "layer_norm": lambda h, i, j: F.layer_norm(W[h, i], (LEN,), W[0, j], W[1, 2])[3] + F.layer_norm(W[h], W[h].shape, eps=0.1)[i, 2] * W[h, j, i],
    "rms_norm": lambda h, i, j: F.rms_norm(W[h, i], (LEN,), W[1, j])[2] * torch.rms_norm(W[h, i, :3], [3])[0] + F.rms_norm(W[h, j], (LEN,), eps=0.5)[1],
    "group_norm": lambda h, i, j: F.group_norm(W[h, i, :6].reshape(1, 6, 1), 2, W[0, 0, :6], W[0, 1, :6])[0, 4, 0] + F.group_norm(W[:, j], 1)[1, 3],
    "dropout": lambda h, i, j: F.dropout(W[h, i, j], 0.5, False) + F.dropout(W[h, j, i], p=0.0),
    "loop": lambda h, i, j: sum(x * n for n, x in enumerate(W[h, i])),
}


BIG = real(HEADS, LEN, 4096)  # more elements than a pair may read: a view of it has to be made without reading
VIEWS = {
    "t": lambda h, i, j: BIG[h].t()[4095 - j, i],
    "T": lambda h, i, j: BIG[h].T[j, i],
    "mT": lambda h, i, j: BIG[h].mT[j, i] + BIG[:, i].mT[j + 7, h],
    "twice": lambda h, i, j: BIG[h].t().t()[i, j] - BIG[h, 1:].t()[5:][j, i // 2],
    "transpose": lambda h, i, j: BIG[:, i].transpose(0, 1)[j * 3, h],
    "of_a_part": lambda h, i, j: BIG[h, ::2, 3::5].transpose(0, 1)[j, i // 2],
    "permute": lambda h, i, j: BIG[h, None].permute(2, 0, 1)[j, 0, i],
    "movedim": lambda h, i, j: torch.movedim(BIG[h], -1, 0)[j, i],
    "swapaxes": lambda h, i, j: torch.swapaxes(BIG[h], 0, 1)[j, i],
    "unsqueeze": lambda h, i, j: BIG[h].unsqueeze(1)[i, 0, j],
    "squeeze": lambda h, i, j: BIG[h, 2:3].squeeze(0)[j] * BIG[h, None].squeeze()[i, j],
    "select": lambda h, i, j: BIG[h].select(0, 3)[j] + torch.select(BIG[:, i], 0, -1)[j],
    "narrow": lambda h, i, j: BIG[h].narrow(1, 100, 50)[i, j],
    "unbind": lambda h, i, j: BIG[:, i].unbind(0)[1][j] + BIG[h].unbind()[-1][j],
    "split": lambda h, i, j: BIG[h].split(1024, -1)[2][i, j] + BIG[h].split([96, 4000], 1)[1][i, j],
    "chunk": lambda h, i, j: torch.chunk(BIG[h], 4, 1)[3][i, j],
    "flatten": lambda h, i, j: BIG[h, 2:3].flatten(0, 1)[j] + BIG[h, None].view(LEN, 4096)[i, j],
    "detach": lambda h, i, j: BIG[h].detach()[i, j] * BIG[h].t()[j, i],
    "detached_between": lambda h, i, j: BIG[h].t().detach().t()[i, j] * BIG[h, i, j],
}


@pytest.mark.parametrize("table, name", [(PARTIAL, name) for name in PARTIAL] + [(VIEWS, name) for name in VIEWS])
def test_what_is_left_of_an_array(table, name):
    score_mod = lambda s, b, h, i, j: s * 0.1 + table[name](h, i, j)  # noqa: E731
    weights = torch.randn(1, LEN, HEADS, DIM, generator=seeded(1), dtype=torch.float64)
    found = foveal.torch.attention(Q, K, V, score_mod)
    q, k, v = (t.transpose(1, 2) for t in (Q, K, V))
    places = (torch.arange(1), torch.arange(HEADS), torch.arange(LEN), torch.arange(LEN))
    wanted = (torch.softmax(eager_like(score_mod)(q @ k.transpose(-1, -2) / DIM**0.5, *places), -1) @ v).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)
    if wanted.requires_grad:
        parameter = W if table is PARTIAL else BIG
        a, b = (torch.autograd.grad((x * weights).sum(), parameter, retain_graph=True)[0] for x in (found, wanted))
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


FROM_ZERO = {
    "gather": lambda at: torch.gather(Z, 0, at.reshape(1))[0],
    "gather of expressions": lambda at: torch.stack([Z[n] * 2 + 0 * at for n in range(LEN)]).gather(0, at.reshape(1))[0] / 2,
    "index_select": lambda at: Z.index_select(0, at.reshape(1))[0],
    "embedding": lambda at: F.embedding(at, Z[:, None])[0],
}


@pytest.mark.parametrize("name", FROM_ZERO)
def test_what_takes_no_negative_index_in_torch(name):
    """It does not count from the end: it is out of range, and so the nearest element is read, or none where reads are checked."""
    read = FROM_ZERO[name]
    clamped = expected(lambda s, b, h, i, j: s + Z[(i - j).clamp(min=0)])
    with pytest.raises((RuntimeError, IndexError), match="out of"):
        read(torch.tensor(-1))
    torch.testing.assert_close(foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: s + read(i - j)), clamped, rtol=1e-7, atol=1e-9)
    with pytest.raises(ValueError, match="index -1 in dimension 0"):
        foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: s + read(i - j), checked=True)
    if name != "gather of expressions":
        with pytest.raises(ValueError, match="index 0 is -7 to -1, outside at every pair"):
            foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: s + read(-1 - j))


def test_every_function_of_the_table_is_tested():
    """By its name in this file, so that a new row brings a test."""
    import pathlib
    import re

    words = set(re.findall(r"[a-zA-Z_0-9]+", pathlib.Path(__file__).read_text()))
    # Other names of functions that are tested, and operators.
    others = "expit log_sigmoid subtract multiply divide not_equal less less_equal greater greater_equal truediv floordiv mod pos and or xor mm mv "
    others += "softmax log_softmax linear embedding index_select "  # in test_torch_generated
    others += " ".join([*tracing.composed.TABLE, *"flipud fliplr rot90 moveaxis unfold tensor_split dstack column_stack repeat_interleave".split()]) + " "
    others += "sinc ndtr log_ndtr entr copysign signbit hardshrink softshrink isposinf isneginf isreal real conj conj_physical resolve_conj resolve_neg "
    others += "bitwise_not bitwise_or bitwise_xor bitwise_right_shift logical_or contiguous clone cpu cuda item byte char short half bfloat16 double "
    others += "float type new_zeros ones_like ravel flatten unflatten expand_as broadcast_to reshape_as view_as permute swapaxes swapdims movedim "
    others += "narrow select split chunk concat hstack vstack roll repeat tile diagonal atleast_1d atleast_2d getitem eq ne lt le gt ge lshift rshift mul"
    assert not set(tracing.table.TABLE) - words - set(others.split())


DTYPES = sorted({str(x).removeprefix("torch.") for x in vars(torch).values() if isinstance(x, torch.dtype)})


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_converted_to_or_refused(name):
    """Types of 8 bits were not rounded to, and uint64 was int64."""
    dtype = getattr(torch, name)
    for to in (lambda x: x.to(dtype), lambda x: x.type(dtype)):
        for of in (lambda s, i, j: Z[i].detach() * Z[j].detach() * 7, lambda s, i, j: i * 37 - j * 90):
            fn = lambda s, b, h, i, j: s + to(of(s, i, j)).to(torch.float64)  # noqa: B023, E731
            try:
                found = foveal.torch.attention(Q, K, V, fn)
            except NotImplementedError as error:
                assert name not in "float64 float32 bfloat16 float16 int64 int32 int16 int8 uint8 bool".split()
                assert f"dtype torch.{name} in a score or mask; expected" in str(error) or "uint" in name, error
            else:
                torch.testing.assert_close(found, expected(fn), rtol=1e-6, atol=1e-8)


# ---- what is refused ----

REFUSED = {
    "unknown function": (lambda s, i, j: torch.digamma(s), NotImplementedError, "digamma"),
    "in place, of no function": (lambda s, i, j: s.normal_(), NotImplementedError, "normal_"),
    "unknown shape": (lambda s, i, j: torch.where(E[i] > 0)[0].sum(), NotImplementedError, "where.*shape of its result follows from values"),
    "an array of NumPy": (lambda s, i, j: i + np.array(2), TypeError, "torch.add .*found an array of numpy beside tensors; expected a tensor: torch.as_tensor"),
    "an array of NumPy, left": (lambda s, i, j: np.ones(2) * s, TypeError, "torch.mul .*found an array of numpy beside tensors"),
    "unknown argument": (lambda s, i, j: torch.add(s, s, out=torch.zeros(())), (NotImplementedError, TypeError, RuntimeError), "add"),
    "in place, of a view": (lambda s, i, j: s.unsqueeze_(0)[0], NotImplementedError, "unsqueeze_.*expected torch.unsqueeze"),
    "in place argument": (lambda s, i, j: F.relu(T[i], inplace=True).sum(), NotImplementedError, "relu.*inplace=True, which writes into a captured tensor"),
    "norm": (lambda s, i, j: torch.norm(E[i], p=3), NotImplementedError, "norm.*p=3"),
    "other boundaries": (lambda s, i, j: torch.bucketize(i, KNOTS), NotImplementedError, "bucketize.*boundaries of torch.float64 .*for values of torch.int64"),
    "dropout": (lambda s, i, j: F.dropout(s), NotImplementedError, "draws random numbers"),
    "names twice": (lambda s, i, j: torch.einsum("aa->", T[i] * s), (NotImplementedError, RuntimeError), "einsum"),
    "a sorter": (lambda s, i, j: torch.searchsorted(EDGES, i, sorter=torch.arange(3)), NotImplementedError, "searchsorted.*without a sorter"),
    "matrix norm": (lambda s, i, j: torch.linalg.norm(T[i], ord=2), NotImplementedError, "norm.*ord=2"),
    "uint64": (lambda s, i, j: s + torch.arange(LEN).to(torch.uint64)[i], ValueError, "uint64 is not supported"),
    "a real index": (lambda s, i, j: Z[i / 2], TypeError, "index.*real"),
    "a boolean index": (lambda s, i, j: Z[i >= j], TypeError, "index.*boolean"),
    "too many indices": (lambda s, i, j: Z[i, j], IndexError, "2 indices"),
    "an index out of range": (lambda s, i, j: W[0, LEN, j], IndexError, "out of"),
    "an array as the score": (lambda s, i, j: E[i], TypeError, "shape"),
    "a number of a symbol": (lambda s, i, j: s * float(i), TypeError, "no value"),
    "8 bits": (lambda s, i, j: s.to(torch.float8_e4m3fn).float(), NotImplementedError, "dtype torch.float8_e4m3fn in a score or mask; expected one of float64"),
    "a conversion to uint64": (lambda s, i, j: s.to(torch.uint64).float(), NotImplementedError, "dtype torch.uint64 in a score or mask; expected one of float64"),
    "dtype": (lambda s, i, j: s.to(torch.complex64), (NotImplementedError, TypeError), "complex"),
    "a symbolic option": (lambda s, i, j: torch.clamp(E[i], 0, 1).sum(dim=j), Exception, "."),
    "many reads": (lambda s, i, j: real(40, 40)[i * 0 :].sum() if False else torch.zeros(2, 2000)[i].sum(), ValueError, "2000"),
    "a boolean score": (lambda s, i, j: i >= j, TypeError, "mask"),
    "nan_to_num": (lambda s, i, j: torch.nan_to_num(s), NotImplementedError, "posinf"),
    "a negated view": (lambda s, i, j: s * torch._neg_view(Z)[i], ValueError, "resolve_neg"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    fn, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: fn(s, i, j))


def test_masks_are_boolean_and_have_four_arguments():
    keep = torch.ones(LEN, LEN, dtype=torch.bool)
    with pytest.raises(TypeError, match="mask: the function returned a real"):
        foveal.torch.attention(Q, K, V, mask=lambda b, h, i, j: torch.where(keep[i, j], 0.0, -math.inf))
    with pytest.raises(TypeError, match="mask: the function returned an integer"):
        foveal.torch.attention(Q, K, V, mask=lambda b, h, i, j: i - j)
    with pytest.raises(TypeError, match=r"score_mod: .*a function of \(batch, head, q_idx, kv_idx\) is a mask"):
        foveal.torch.attention(Q, K, V, lambda b, h, i, j: i >= j)
    with pytest.raises(TypeError, match=r"mask: .*is a score_mod"):
        foveal.torch.attention(Q, K, V, None, lambda s, b, h, i, j: s)
    compare(lambda s, b, h, i, j: s, mask=lambda b, h, i, j: torch.where(i >= j, True, False) | keep.new_zeros(()))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dx):
        return dx


BOUND = Twice.apply


def test_an_apply_that_was_taken_before_is_refused():
    with pytest.raises(NotImplementedError, match="autograd.Function"):
        foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: BOUND(s))
    assert BOUND(X).requires_grad  # as before


def test_dtype_and_device_of_symbols():
    seen = []

    def score_mod(s, b, h, i, j):
        seen.extend([s.device.type, s.dtype, i.dtype, (i >= j).dtype, s.shape, s.ndim, foveal.exp(s).dtype, torch.zeros((), device=s.device).device.type])
        return s + torch.finfo(s.dtype).eps

    foveal.torch.attention(Q, K, V, score_mod)
    assert seen[1] == torch.float64  # q's
    assert seen[0] == seen[-1] == Q.device.type and seen[1].is_floating_point and not seen[2].is_floating_point
    assert seen[3:6] == [torch.bool, torch.Size([]), 0] and seen[6].is_floating_point


def test_indices_that_leave_a_tensor_are_refused_when_checked():
    q, k, v = (t.transpose(1, 2) for t in (Q, K, V))
    arrays = [(t, t.cpu().numpy()) for t in (Q, K, V)]
    leaves = lambda z: lambda s, b, h, i, j: s + z[i + LEN - j - 1]  # noqa: E731 - where j < i
    inside = lambda z: lambda s, b, h, i, j: s + z[abs(i - j)]  # noqa: E731
    for attend, z in (
        (lambda fn: foveal.torch.attention(Q, K, V, fn, checked=True), Z),
        (lambda fn: foveal.torch.flex_attention(q, k, v, fn, kernel_options={"checked": True}), Z),
        (lambda fn: foveal.attention(Q, K, V, fn, checked=True), Z),
        (lambda fn: foveal.attention(*(a for _, a in arrays), fn, checked=True), Z.detach().cpu().numpy()),
    ):
        attend(inside(z))
        with pytest.raises((ValueError, IndexError), match="index"):
            attend(leaves(z))
    two = lambda s, b, h, i, j: s + torch.stack([Z[i], 2 * Z[j]])[i - j]  # noqa: E731 - of expressions
    foveal.torch.attention(Q, K, V, two, lambda b, h, i, j: abs(i - j) < 2, checked=True)
    with pytest.raises(ValueError, match="index .* in dimension 0.*expected 0 to 1"):
        foveal.torch.attention(Q, K, V, two, checked=True)
    # A mask that keeps no such pair makes it right; a read that is outside at every pair is refused anyway.
    foveal.torch.attention(Q, K, V, leaves(Z), lambda b, h, i, j: i <= j, checked=True)
    with pytest.raises(ValueError, match="outside at every pair"):
        foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: s + Z[LEN + abs(i - j)])


TABLE = real(LEN)
PAIRS = real(HEADS, LEN, LEN)
NEGATIVE = torch.tensor([-1, 3, -LEN, 0, 2, -2, 1])
WRAPPED = {
    "always negative": lambda i, j, h: TABLE[i - LEN],
    "a step back": lambda i, j, h: TABLE[i - 1],
    "both signs": lambda i, j, h: TABLE[i - j],
    "of heads": lambda i, j, h: TABLE[-1 - h],
    "two dimensions": lambda i, j, h: PAIRS[h - 1, i - j, -1 - j],
    "a constant beside": lambda i, j, h: PAIRS[-1, i - 2, -3],
    "a captured tensor's": lambda i, j, h: TABLE[NEGATIVE[i]],
    "narrow": lambda i, j, h: TABLE[NEGATIVE.to(torch.int8)[j].long()],
    "a slice": lambda i, j, h: TABLE[1:][i - j - (i == LEN - 1) * 0 - (j - i == -6) * 7],
    "a row": lambda i, j, h: PAIRS[h, i - LEN].sum(),
    "gathered": lambda i, j, h: TABLE[NEGATIVE[torch.stack([i, j])]].sum(0),
    "of an index": lambda i, j, h: TABLE[NEGATIVE[i - LEN] - 0],
    "remainder": lambda i, j, h: TABLE[(i - j) % LEN],
}


@pytest.mark.parametrize("name", WRAPPED)
def test_negative_indices_count_from_the_end(name):
    fn = WRAPPED[name]
    if name in ("a row", "gathered"):  # torch's own on whole tensors has other dimensions: at each pair alone
        at = torch.stack([torch.stack([torch.stack([fn(i, j, h) for j in torch.arange(LEN)]) for i in torch.arange(LEN)]) for h in torch.arange(HEADS)])
        found = foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: s + fn(i, j, h))
        torch.testing.assert_close(found, expected(lambda s, b, h, i, j: s + at), rtol=1e-7, atol=1e-9)
    else:
        compare(lambda s, b, h, i, j: s + fn(i, j, h), TABLE, PAIRS)
        compare(lambda s, b, h, i, j: s, mask=lambda b, h, i, j: (fn(i, j, h) > 0) | (i == j))


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "int8", "int64", "uint8", "bool"])
def test_scalars_of_numpy_are_numbers(name):
    scalar = getattr(np, "bool_" if name == "bool" else name)(2)
    q = torch.randn(1, 2, 5, 4, generator=seeded(0))
    for score_mod in (
        lambda n: lambda s, b, h, i, j: s * n + (n + i) * 0.1 - n * s,
        lambda n: lambda s, b, h, i, j: torch.where(i > n, s, n * s),
        lambda n: lambda s, b, h, i, j: torch.clamp(s, max=n),
    ):
        found, expected = (foveal.torch.flex_attention(q, q, q, score_mod(n)) for n in (scalar, scalar.item()))
        assert torch.equal(found, expected)
    by_expression = [foveal.where(foveal.q_idx > n, foveal.score, foveal.score * n) for n in (scalar, scalar.item())]
    assert repr(by_expression[0]) == repr(by_expression[1])


def test_negative_indices_of_numpy_arrays():
    q, k, v = (t.cpu().numpy() for t in (Q, K, V))
    table = TABLE.detach().cpu().numpy()
    found = foveal.attention(q, k, v, lambda s, b, h, i, j: s + table[i - j] + table[-1 - h])
    wanted = expected(lambda s, b, h, i, j: s + TABLE[i - j] + TABLE[-1 - h]).detach()
    torch.testing.assert_close(torch.from_numpy(found), wanted.cpu(), rtol=1e-7, atol=1e-9)


def test_indices_that_are_never_negative_cost_nothing():
    """What lengths and the mask say is settled before kernels are made: the same work as of an index without a choice."""
    table = real(2 * LEN - 1)
    of = lambda *arguments: foveal.explain(Q, K, V, *arguments, params={"t": table})["text"].split("\n", 1)[1]  # noqa: E731 - but for the problem
    assert of(lambda s, b, h, i, j: s + table[j - i + 6]) == of("score + t[kv_idx - q_idx + 6]")
    assert of(lambda s, b, h, i, j: s + table[i - j], lambda b, h, i, j: j <= i) == of("score + t[q_idx - kv_idx]", "kv_idx <= q_idx")


WIDE = {
    "sum": lambda a, i, j: a[i] + a[j],
    "difference": lambda a, i, j: a[i] - a[j],
    "product": lambda a, i, j: a[i] * a[j].clamp(-9, 9),
    "square": lambda a, i, j: a[i] * a[i] // (a[j].abs() + 1),
    "quotient": lambda a, i, j: a[i] // (a[j] | 1),
    "remainder": lambda a, i, j: a[i] % (a[j] | 1),
    "bits": lambda a, i, j: (a[i] ^ a[j]) & (a[i] | ~a[j]),
    "shifts": lambda a, i, j: (a[i] >> (j + 1)) + (a[j] << 2),
    "choice": lambda a, i, j: torch.where(a[i] > a[j], a[i], -a[j]),
    "extremes": lambda a, i, j: torch.maximum(a[i], a[j]) - torch.minimum(a[i], a[j]),
    "positions": lambda a, i, j: (i * 3_000_000_000 - j) + a[0] * 0,
    "constant": lambda a, i, j: i + 2**40 + j * 0,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("size", [5, 40_000, 2**31 - 1, 2**31, 2**36])
def test_integers_of_64_bits(name, size, backend):
    """What 32 bits do not hold is computed in 64, at every rank a value can have."""
    a = torch.tensor([0, 1, -size, size - 1, size, 7, -size + 1])
    if name == "square" and size > 2**31:
        a = a.clamp(-(2**31), 2**31)
    fn = WIDE[name]
    options = foveal.Options(backend=backend)
    small = lambda s, b, h, i, j: s + (fn(a, i, j) % 1009).double() * 1e-3  # noqa: E731
    found = foveal.torch.attention(Q, K, V, small, options=options)
    torch.testing.assert_close(found, expected(small), rtol=1e-7, atol=1e-9)
    keep = lambda b, h, i, j: (fn(a, i, j) <= fn(a, j, i)) | (i == j)  # noqa: E731
    found = foveal.torch.attention(Q, K, V, mask=keep, options=options)
    torch.testing.assert_close(found, expected(lambda s, b, h, i, j: s, keep), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [2**40, 2**60, -(2**62), 2**63 - 8, -(2**63)])
def test_64_bits_are_compared_exactly(first, backend):
    """Neighbours that doubles, and tile bounds made of doubles, do not tell apart."""
    ids = torch.tensor([0, 0, 1, 1, 2, 2, 7]) + first
    options = foveal.Options(backend=backend)
    for mask in (lambda b, h, i, j: ids[i] == ids[j], lambda b, h, i, j: ids[i] <= ids[j], lambda b, h, i, j: (ids[j] < ids[i]) | (i == j)):
        found = foveal.torch.attention(Q, K, V, mask=mask, options=options)
        torch.testing.assert_close(found, expected(lambda s, b, h, i, j: s, mask), rtol=1e-7, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [2**53 + 1, 2**61, -(2**62) + 3])
def test_doubles_of_long_integers_are_rounded_one_by_one(first, backend):
    """The difference of two doubles is not that of the integers, and their sum may be more than integers hold."""
    a = torch.arange(0, 3 * LEN, 3) + first
    a[2] = a[1] + 1
    for fn in (
        lambda i, j: (a[i].double() - a[j].double()) * 0.1,
        lambda i, j: (a[i].double() + a[j].double() - 2.0 * first) * 0.01,
        lambda i, j: (a[i].double() + (i - 3).double() - float(first)) * 0.1,
        lambda i, j: (a[i].double() == a[j].double()) * 1.0,
        lambda i, j: (a[i].double() < a[j].double()) * 1.0,
        lambda i, j: torch.maximum(a[i].double(), a[j].double()) / first,
    ):
        score_mod = lambda s, b, h, i, j: s + fn(i, j)  # noqa: E731
        found = foveal.torch.attention(Q, K, V, score_mod, options=foveal.Options(backend=backend))
        torch.testing.assert_close(found, expected(score_mod), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("limit", ["max", "min", 3])
def test_limits_at_the_ends_of_a_type(limit, dtype):
    """Padding and prefixes by numbers that mean "all" or "none"."""
    ends = torch.iinfo(dtype)
    at = torch.full((1,), ends.max if limit == "max" else ends.min if limit == "min" else limit, dtype=dtype)
    for mask in (
        lambda b, h, i, j: j <= at[b],
        lambda b, h, i, j: j < at[b],
        lambda b, h, i, j: j > at[b],
        lambda b, h, i, j: (j >= at[b]) & (j <= i),
        lambda b, h, i, j: (j == at[b]) | (i >= j),
    ):
        everything = lambda b, h, i, j: mask(b, h, i, j) | (i == j)  # noqa: E731
        compare(lambda s, b, h, i, j: s, mask=everything)
        found = foveal.torch.attention(Q, K, V, mask=mask)
        wanted = expected(lambda s, b, h, i, j: s, mask).nan_to_num(0.0)
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


def test_int32_wraps_as_torch_does():
    a = torch.tensor([2**31 - 1, -(2**31), 70_000, -70_000, 5, 1, 0], dtype=torch.int32)
    for fn in (lambda i, j: a[i] + a[j], lambda i, j: a[i] * a[j], lambda i, j: -a[i], lambda i, j: a[i] - a[j], lambda i, j: a[i] << 4):
        compare(lambda s, b, h, i, j: s + (fn(i, j) % 1009).double() * 1e-3)
        compare(lambda s, b, h, i, j: s + (fn(i, j).long() * 3 % 1009).double() * 1e-3)
    compare(lambda s, b, h, i, j: s + (a[i].long() * a[j] % 1009).double() * 1e-3)
    compare(lambda s, b, h, i, j: s + (a[i] * i % 1009).double() * 1e-3)


def test_integers_beyond_64_bits_are_refused():
    """Where it is known that they may: on a GPU nobody reads what tensors hold, and they wrap as torch's."""
    a = torch.full((LEN,), 2**62 + 12345)
    if ON_GPU:
        compare(lambda s, b, h, i, j: s + (a[i] * a[j] % 1009).double() * 1e-3 * (i - j))
        return
    with pytest.raises(ValueError, match="score_mod: an integer may reach.*64 bits"):
        foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: s + (a[i] * a[j] > 0) * 1.0)


@pytest.mark.parametrize("call", [lambda row: row.item(), lambda row: torch.softmax(row, 1), lambda row: torch.softmax(row[0], 2), lambda row: F.log_softmax(row, -2)])
def test_what_torch_refuses_of_shapes_is_refused(call):
    """On meta tensors it does not look."""
    q, table = torch.zeros(1, 5, 1, 4), torch.ones(5, 3)
    with pytest.raises((RuntimeError, IndexError)):
        call(table[0])
    with pytest.raises((ValueError, RuntimeError, NotImplementedError, IndexError), match="foveal.torch.attention: "):
        foveal.torch.attention(q, q, q, lambda s, b, h, i, j: s + call(table[j]).sum())


@pytest.mark.parametrize("ask", [lambda s, row: s.requires_grad, lambda s, row: not row.requires_grad, lambda s, row: row.is_leaf])
def test_whether_a_symbol_requires_a_gradient_is_not_known(ask):
    q = torch.zeros(1, 5, 1, 4, requires_grad=True)
    table = torch.randn(5, generator=seeded(0), requires_grad=True)
    score_mod = lambda s, b, h, i, j: s + table[j] * 2 if ask(s, table[j]) else s + table[j]  # noqa: E731
    with pytest.raises(NotImplementedError, match="foveal.torch.attention: torch.Tensor.(requires_grad|is_leaf) in a score or mask: not known"):
        foveal.torch.attention(q, q, q, score_mod)
    with torch.no_grad():
        assert not torch.isnan(foveal.torch.attention(q, q, q, score_mod)).any()
    asked = lambda s, b, h, i, j: s + table[j] * 2 if i.is_leaf and not i.requires_grad else s + table[j]  # noqa: E731
    torch.testing.assert_close(foveal.torch.attention(q, q, q, asked), foveal.torch.attention(q, q, q, lambda s, b, h, i, j: s + table[j] * 2))


def test_the_default_dtype_counts_at_each_call():
    """The dtype of a quotient of integers was remembered from an earlier call."""
    q, seen = torch.zeros(1, 5, 1, 4), []
    before = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            foveal.torch.attention(q, q, q, lambda s, b, h, i, j: seen.append(torch.true_divide(i + 17, j + 1).dtype) or s)
        finally:
            torch.set_default_dtype(before)
    assert seen == [torch.float32, torch.float64]


# ---- constants beside symbols, and what torch refuses of tensors with elements ----

TWO_ROWS = real(2, LEN)
CUBE = real(3, HEADS, 2, LEN)
CONSTANT_INDICES = {
    "array of NumPy's": (lambda s, b, h, i, j: TWO_ROWS[h, np.array([0, 3])], TWO_ROWS),
    "array of NumPy's first": (lambda s, b, h, i, j: TWO_ROWS[np.array([0, 1]), j], TWO_ROWS),
    "array of int32": (lambda s, b, h, i, j: TWO_ROWS[h, np.array([1, -1], dtype=np.int32)], TWO_ROWS),
    "array of one": (lambda s, b, h, i, j: TWO_ROWS[np.array(1), j][None], TWO_ROWS),
    "number of NumPy's": (lambda s, b, h, i, j: TWO_ROWS[np.int64(1), j][None], TWO_ROWS),
    "mask of NumPy's": (lambda s, b, h, i, j: TWO_ROWS[np.array([True, False]), j], TWO_ROWS),
    "list": (lambda s, b, h, i, j: TWO_ROWS[[0, 1], j], TWO_ROWS),
    "nested list": (lambda s, b, h, i, j: TWO_ROWS[[[0], [1]], j].reshape(-1), TWO_ROWS),
    "tuple": (lambda s, b, h, i, j: TWO_ROWS[(0, -1), j], TWO_ROWS),
    "range": (lambda s, b, h, i, j: TWO_ROWS[range(2), j], TWO_ROWS),
    "mask": (lambda s, b, h, i, j: TWO_ROWS[torch.tensor([True, True]), j], TWO_ROWS),
    "list of booleans": (lambda s, b, h, i, j: TWO_ROWS[[False, True], j], TWO_ROWS),
    "mask of two dimensions": (lambda s, b, h, i, j: CUBE[torch.tensor([[True, False], [False, True], [True, True]]), 1, j], CUBE),
    "mask after an ellipsis": (lambda s, b, h, i, j: CUBE[0, h, ..., torch.arange(LEN) % 2 == 0].reshape(-1), CUBE),
    "True": (lambda s, b, h, i, j: TWO_ROWS[True, h, j], TWO_ROWS),
    "True before a slice": (lambda s, b, h, i, j: TWO_ROWS[True, :, j].reshape(-1), TWO_ROWS),
    "True at the end": (lambda s, b, h, i, j: TWO_ROWS[h, :, True].reshape(-1), TWO_ROWS),
}


def one_by_one(score_mod):
    """out by torch alone, a call of score_mod for each pair."""
    q, k, v = (t.transpose(1, 2) for t in (Q, K, V))
    s = q @ k.transpose(-1, -2) / DIM**0.5
    pairs = [[score_mod(s[0, h, i, j], *map(torch.tensor, (0, h, i, j))) for j in range(LEN)] for h in range(HEADS) for i in range(LEN)]
    s = torch.stack([torch.stack(row) for row in pairs]).reshape(s.shape)
    return (torch.softmax(s, -1) @ v).transpose(1, 2)


@pytest.mark.parametrize("name", CONSTANT_INDICES)
def test_constants_beside_symbols_are_indices(name):
    """An array of NumPy's became a parameter, which is no tensor; the others were refused."""
    chosen, parameter = CONSTANT_INDICES[name]

    def score(s, b, h, i, j):
        x = chosen(s, b, h, i, j)
        return s + (x * torch.linspace(0.3, 1.0, x.shape[0], dtype=torch.float64)).sum()

    found, wanted = foveal.torch.attention(Q, K, V, score), one_by_one(score)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)
    gradients = [torch.autograd.grad(out.sin().sum(), parameter)[0] for out in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


def test_arrays_that_change_are_indices_anew():
    at = np.array([0, 3])
    score = lambda s, b, h, i, j: s + TWO_ROWS[h, at].sum() * j  # noqa: E731
    for places in ([0, 3], [1, 2]):
        at[:] = places
        torch.testing.assert_close(foveal.torch.attention(Q, K, V, score), one_by_one(score), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("index, error, words", [
    (np.array([1.0]), TypeError, "found a real expression; expected an integer"),
    (np.array([1], dtype=np.int16), NotImplementedError, "torch.int16, which torch takes for a mask or not at all"),
    ([], NotImplementedError, "chooses nothing"),
    (torch.tensor([False, False]), NotImplementedError, "chooses nothing"),
    (torch.tensor([True, False, True]), IndexError, r"a mask of shape \[3\]; expected \[2\]"),
    (np.array([2]), IndexError, "index 2 is out of range for a dimension of size 2"),
    ([[0], [0, 1]], ValueError, "foveal.torch.attention"),
])  # fmt: skip
def test_what_is_no_index(index, error, words):
    with pytest.raises(error, match=words):
        foveal.torch.attention(Q, K, V, lambda s, b, h, i, j: s + TWO_ROWS[index, j].sum())


FLAGS = torch.tensor([True, False])
SUBTRACTIONS = {
    "number minus flag": lambda s, b, h, i, j: s + (1 - FLAGS[h]),
    "score minus comparison": lambda s, b, h, i, j: s - (i > j),
    "sub": lambda s, b, h, i, j: torch.sub(s, i > j),
    "subtract": lambda s, b, h, i, j: s.subtract(i > j),
    "rsub": lambda s, b, h, i, j: s + torch.rsub(i > j, 2),
    "flag minus number": lambda s, b, h, i, j: s + (FLAGS[h] - 1),
    "flag minus flag": lambda s, b, h, i, j: s + (FLAGS[h] ^ (FLAGS[h] - (i > j))),
    "True minus integer": lambda s, b, h, i, j: s + (True - i),
    "alpha": lambda s, b, h, i, j: torch.sub(s, i, alpha=True),
}


@pytest.mark.parametrize("name", SUBTRACTIONS)
def test_subtractions_that_torch_refuses(name):
    """Tensors without elements are subtracted where those with elements are not."""
    with pytest.raises(RuntimeError) as theirs:
        one_by_one(SUBTRACTIONS[name])
    with pytest.raises(RuntimeError, match="foveal.torch.attention: torch.(r?sub|subtract) in a score or mask: ") as found:
        foveal.torch.attention(Q, K, V, SUBTRACTIONS[name])
    assert str(theirs.value)[:40] in str(found.value)


@pytest.mark.parametrize("decimals", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_round_keeps_the_sign_of_zero(decimals, dtype):
    x = torch.tensor([-0.3, -0.5, -0.0, 0.3, -1.5, 2.5, 3.5, -3.5, 1e9, -math.inf, -0.04], dtype=dtype)
    n = x.shape[0]
    q, v = torch.zeros(1, n, 1, 4, dtype=dtype), torch.ones(1, n, 1, 4, dtype=dtype)
    found = foveal.torch.attention(q, q, v, lambda s, b, h, i, j: torch.atan2(torch.round(x[i], decimals=decimals), -1.0 - j * 0), return_lse=True)[1]
    expected = torch.atan2(torch.round(x, decimals=decimals), torch.tensor(-1.0, dtype=dtype)) + math.log(n)
    torch.testing.assert_close(found.flatten().to(dtype), expected, rtol=1e-5, atol=1e-5)


def test_a_score_of_one_element_is_no_number():
    """Nor is it to torch's flex_attention."""
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(AssertionError):
        torch.nn.attention.flex_attention.flex_attention(q, q, q, lambda s, b, h, i, j: s[None])
    with pytest.raises(TypeError, match=r"array of shape \[1\]; expected one number"):
        foveal.torch.flex_attention(q, q, q, lambda s, b, h, i, j: s[None])


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((2, 4), (3, 4)), ((4,), (3, 4)), ((3, 4), (4,)), ((4,), (4,)), ((), (4,)), ((3, 4), ())])
def test_inner_products_are_of_rows(shapes):
    """Of the rows of both: those of the columns of the second came, where it has as many."""
    a, b = (torch.randn(LEN, *shape, generator=GENERATOR, dtype=torch.float64) for shape in shapes)
    for fn in (torch.inner, lambda x, y: (x + 0).inner(y)):
        weights = torch.arange(1.0, torch.inner(a[0], b[0]).numel() + 1, dtype=torch.float64).reshape(torch.inner(a[0], b[0]).shape)
        q = torch.zeros(1, LEN, 1, 1, dtype=torch.float64)
        found = foveal.torch.attention(q, q[:, :1], q[:, :1], lambda s, b_, h, i, j: (fn(a[i], b[i]) * weights).sum(), return_lse=True)[1]  # noqa: B023
        torch.testing.assert_close(found[0, 0], torch.stack([(fn(x, y) * weights).sum() for x, y in zip(a, b)]))
