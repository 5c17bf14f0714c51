"""Every function of JAX that tracing accepts, against JAX: values and gradients over arguments, ties and what is left of arrays."""

import math

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
import pytest

import foveal
import foveal.jax
from foveal.jax.tracing import table

HEADS, LEN, DIM = 2, 7, 4
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def doubles():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def real(*shape, low=-3.0, high=3.0):
    return RANDOM.uniform(low, high, shape)


Q, K, V, WEIGHTS = (RANDOM.standard_normal((1, LEN, HEADS, DIM)) for _ in range(4))
KNOTS = np.array([-3.0, -1.0, 0.0, 1.0, 2.0, 3.0])
X, Y = real(LEN, LEN), real(LEN, LEN)
TIED_X, TIED_Y = (KNOTS[RANDOM.integers(0, 6, (LEN, LEN))] for _ in range(2))
N, M = RANDOM.integers(-9, 9, (LEN, LEN)), RANDOM.integers(1, 5, LEN)


def ours(make, params):
    q, k, v, weights = (jnp.asarray(a) for a in (Q, K, V, WEIGHTS))
    return (foveal.jax.attention(q, k, v, make(*params)) * weights).sum()


def theirs(make, params):
    s = jnp.einsum("bihd,bjhd->bhij", Q, K) / DIM**0.5
    over = lambda fn, *dims: jax.vmap(fn, dims)  # noqa: E731
    score_mod = make(*params)
    every = over(over(over(over(score_mod, 0, None, None, None, 0), 0, None, None, 0, None), 0, None, 0, None, None), 0, 0, None, None, None)
    s = every(s, *(jnp.arange(n, dtype=jnp.int32) for n in (1, HEADS, LEN, LEN)))
    return (jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(s, -1), V) * WEIGHTS).sum()


def compare(make, *params):
    """make(*params) is a score_mod; the sum of weighted results and its gradients, through foveal and through JAX."""
    params = [jnp.asarray(p) for p in params]
    trained = tuple(i for i, p in enumerate(params) if jnp.issubdtype(p.dtype, jnp.floating))
    for found, wanted in zip(*(jax.value_and_grad(lambda *p: way(make, p), trained)(*params) for way in (ours, theirs))) if trained else (
        (ours(make, params), theirs(make, params)),
    ):
        for a, b in zip(found if isinstance(found, tuple) else [found], wanted if isinstance(wanted, tuple) else [wanted]):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


UNARY = {
    **dict.fromkeys("abs absolute fabs exp exp2 tanh sin cos expm1 sinh cosh square negative positive sign floor ceil trunc rint".split(), (-3, 3)),
    **dict.fromkeys("deg2rad rad2deg radians degrees round".split(), (-3, 3)),
    **dict.fromkeys("sqrt log log2 log10 reciprocal".split(), (0.2, 3)),
    "log1p": (-0.9, 3),
    "tan": (-1, 1),
    **dict.fromkeys("atan arctan asinh arcsinh".split(), (-3, 3)),
    **dict.fromkeys("asin arcsin acos arccos atanh arctanh".split(), (-0.95, 0.95)),
    **dict.fromkeys("acosh arccosh".split(), (1.1, 4)),
    **dict.fromkeys("relu relu6 silu swish mish softplus log_sigmoid soft_sign hard_tanh hard_sigmoid hard_silu hard_swish selu elu celu".split(), (-7, 7)),
    **dict.fromkeys("leaky_relu gelu sigmoid".split(), (-7, 7)),
}  # fmt: skip


def of(name):
    return getattr(jnp, name) if hasattr(jnp, name) else getattr(jax.nn, name)


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "kinks"])
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one(name, tied):
    low, high = UNARY[name]
    if tied and low > -3:
        pytest.skip("not defined at the kinks")
    fn = of(name)
    compare(lambda x: lambda s, b, h, i, j: s * 0.1 + fn(x[i, j]), TIED_X if tied else real(LEN, LEN, low=low, high=high))


ARGUMENTS = {
    "add": lambda x, y: jnp.add(x, y),
    "subtract": lambda x, y: jnp.subtract(x, y),
    "multiply": lambda x, y: jnp.multiply(x, y),
    "divide": lambda x, y: jnp.divide(x, y + 5) + jnp.true_divide(x, 4),
    "floor_divide": lambda x, y: jax.lax.stop_gradient(x) // 0.7 + y,
    "mod": lambda x, y: jnp.mod(x, y + 5) + jnp.remainder(x, 0.7),
    "fmod": lambda x, y: jnp.fmod(x, 0.7) + y,
    "power": lambda x, y: jnp.power(x, 3) + x**2,
    "power_of_two": lambda x, y: jnp.power(jnp.abs(x) + 0.1, y),
    "float_power": lambda x, y: jnp.float_power(jnp.abs(x) + 0.1, 1.5) + y,
    "maximum": lambda x, y: jnp.maximum(x, y),
    "minimum": lambda x, y: jnp.minimum(x, y),
    "clip": lambda x, y: jnp.clip(x, -1.0, 2.0) + jnp.clip(y, max=1.0),
    "clip_arrays": lambda x, y: jnp.clip(x, y, y + 1),
    "where": lambda x, y: jnp.where(x > y, x, y * 2) + jnp.where(x > 0, x, -1.0),
    "logaddexp": lambda x, y: jnp.logaddexp(x, y),
    "logaddexp2": lambda x, y: jnp.logaddexp2(x, y),
    "hypot": lambda x, y: jnp.hypot(x, y + 5),
    "atan2": lambda x, y: jnp.atan2(x, y + 0.5) + jnp.arctan2(y - 1.5, -x) + jax.lax.atan2(x - 0.5, y) + jax.lax.atan(x),
    "cbrt": lambda x, y: jnp.cbrt(x + 0.25) + y,
    "erfc": lambda x, y: jnp.log(jax.scipy.special.erfc(x + 3)) + jax.lax.erfc(y),
    "round_decimals": lambda x, y: jnp.round(x, 1) + y,
    "nan_to_num": lambda x, y: jnp.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0) * y,
    "nan": lambda x, y: jnp.where(jnp.isnan(jnp.where(x > 0, x, jnp.nan)), y, x) + jnp.isnan(jax.lax.select(x > 1, x, jnp.full_like(x, jnp.nan))) * y,
    "isfinite": lambda x, y: jnp.isfinite(x) * y + jnp.isnan(x) + jnp.isinf(x),
    "logical": lambda x, y: jnp.logical_and(x > 0, y > 0) * x + jnp.logical_or(x > 0, y > 0) * y + jnp.logical_xor(x > 0, y > 0) + jnp.logical_not(x > 0),
    "comparisons": lambda x, y: (x < y) * 1.0 + (x <= y) * 2.0 + jnp.equal(x, y) * 4.0 + jnp.not_equal(x, y) * 8.0 + jnp.greater_equal(x, y) * y,
    "stop_gradient": lambda x, y: jax.lax.stop_gradient(x) * y,
    "lax": lambda x, y: jax.lax.max(x, y) + jax.lax.min(x, y) * 0.5 + jax.lax.select(x > y, x, y) + jax.lax.rsqrt(x * x + 1) + jax.lax.integer_pow(x, 3),
    "lax_clamp": lambda x, y: jax.lax.clamp(-1.0, x, 2.0) + y,
    "lax_rem": lambda x, y: jax.lax.rem(x, y + 5) + jax.lax.div(x, y + 5),
    "lax_logistic": lambda x, y: jax.lax.logistic(x) * jax.lax.erf(y),
    "expit": lambda x, y: jax.scipy.special.expit(x) + jax.scipy.special.logit(jax.nn.sigmoid(y)),
    "elu": lambda x, y: jax.nn.elu(x, 2.0) + jax.nn.celu(y, 2.0) + jax.nn.leaky_relu(x, 0.2),
    "gelu": lambda x, y: jax.nn.gelu(x, approximate=False) + y,
    "like": lambda x, y: jnp.zeros_like(x) + jnp.ones_like(y) * x + jnp.full_like(x, 2.5) * y,
    "astype": lambda x, y: (x > 0).astype(jnp.float64) * y + x.astype(jnp.int32) * y + jnp.astype(y, jnp.float64),
    "uint8": lambda x, y: (jnp.abs(x) * 60).astype(jnp.int32).astype(jnp.uint8) * 3 * y,
    "rules_of_their_own": lambda x, y: jnp.sinc(x) + jsp.xlogy(x, abs(y) + 0.5) + jsp.xlog1py(y, abs(x)) + jsp.entr(abs(x) + 0.1) + jax.nn.log1mexp(abs(y) + 0.1),
    "normal_distribution": lambda x, y: jsp.log_ndtr(5 * x) + jsp.log_ndtr(y),
    "operators": lambda x, y: (-x + 2 * y - 1) / (x * x + 1) + abs(y),
}


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "ties"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name, tied):
    make = lambda x, y: lambda s, b, h, i, j: s * 0.1 + ARGUMENTS[name](x[i, j], y[j, i])  # noqa: E731
    compare(make, *((TIED_X, TIED_Y) if tied else (X, Y)))


INTEGERS = {
    "bits": lambda n, m: (n & m) + (n | 5) * 2 + (n ^ m) * 3 + ~n,
    "bitwise": lambda n, m: jnp.bitwise_and(n, 3) + jnp.bitwise_or(n, m) + jnp.bitwise_xor(n, m) + jnp.bitwise_not(n) + jnp.invert(m),
    "shifts": lambda n, m: (n << 2) + (n >> m) + jnp.left_shift(n, m) + jnp.right_shift(n, 1),
    "shifts_below_0": lambda n, m: (n << (m - 9)) + (n >> (m - 9)) * 3 + jnp.left_shift(n, -1),
    "shifts_of_all_bits": lambda n, m: (n >> (m + 60)) + jnp.right_shift(n, 100) * 3 + (n << 70),
    "division": lambda n, m: n // m + n % m + jnp.fmod(n, m) + jax.lax.div(n, m) + jax.lax.rem(n, m),
    "true_division": lambda n, m: n / m,
    "power": lambda n, m: n**3,
    "functions": lambda n, m: jnp.abs(n) + jnp.sign(n) + jnp.clip(n, -3, 2) + jnp.maximum(n, m),
    "booleans": lambda n, m: ((n > 0) & (m > 2)) + ((n > 0) | (m > 2)) * 2 + ((n > 0) ^ (m > 2)) * 4,
    "int8": lambda n, m: (n * 37).astype(jnp.int8) * 3,
}


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name, dtype):
    compare(lambda n, m: lambda s, b, h, i, j: s * 0.1 + INTEGERS[name](n[i, j], m[j]) * 0.05, N.astype(dtype), M.astype(dtype))


W = real(HEADS, LEN, LEN)
ARRAYS = {
    "sum": lambda w, h, i, j: w[h, i].sum() + jnp.sum(w[h], axis=0)[1],
    "mean": lambda w, h, i, j: jnp.mean(w[h, i]) + w[h].mean(axis=-1, keepdims=True)[0, 0],
    "prod": lambda w, h, i, j: jnp.prod(w[h, i]),
    "extremes": lambda w, h, i, j: w[h, i].max() - jnp.min(w[h, j]) + jnp.amax(w[h, i]) + jnp.amin(w[h, i]),
    "any": lambda w, h, i, j: jnp.any(w[h, i] > 2.5) + (w[h, j] > -2.9).all(),
    "logsumexp": lambda w, h, i, j: jax.nn.logsumexp(w[h, i]),
    "norm": lambda w, h, i, j: jnp.linalg.norm(w[h, i]) + jnp.linalg.norm(w[h, i] - w[h, j] + 0.1, ord=1) + jnp.linalg.norm(w[h, i], ord=jnp.inf),
    "dot": lambda w, h, i, j: jnp.dot(w[h, i], w[h, j]) + w[h, i] @ w[h, j] + jnp.inner(w[h, i], w[h, j]),
    "matrix": lambda w, h, i, j: (w[h] @ w[h, j]).sum() + jnp.matmul(w[h, j], w[h])[0],
    "slices": lambda w, h, i, j: w[h, 1:3, j].sum() + w[h, -3:, j][-1] + w[..., j][h, i] + w[h, -1, j],
    "layout": lambda w, h, i, j: jnp.reshape(w[h, i], (-1,))[2] + w[h].T[0].sum() + jnp.stack([w[h, i], w[h, j]])[1, 2] + jnp.squeeze(w[h, i][None])[1],
    "more_layout": lambda w, h, i, j: jnp.concatenate([w[h, i], w[h, j]])[9] + jnp.expand_dims(w[h, i], 0)[0, 1] + jnp.flip(w[h, i])[0] + jnp.ravel(w[h, i])[3],
    "places": lambda w, h, i, j: jnp.argmax(w[h, i]) + w[h, j].argmin() * 0.5 + w[h, 0, jnp.argmax(w[h, i])] + jnp.argmax(jnp.where(w[h] > 2.0, jnp.nan, w[h]), axis=0)[i],
    "concrete": lambda w, h, i, j: jnp.tanh(w)[h, i, j] + jnp.sum(w * 2) * j,
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name):
    compare(lambda w: lambda s, b, h, i, j: s * 0.1 + ARRAYS[name](w, h, i, j), W)


def test_inside_jit_and_with_functions_of_foveal():
    make = lambda w: lambda s, b, h, i, j: jnp.where(i >= j, foveal.tanh(s) + jnp.exp(w[h, i, j]), -jnp.inf)  # noqa: E731
    theirs_make = lambda w: lambda s, b, h, i, j: jnp.where(i >= j, jnp.tanh(s) + jnp.exp(w[h, i, j]), -jnp.inf)  # noqa: E731
    found = jax.jit(jax.grad(lambda w: ours(make, [w])))(jnp.asarray(W))
    np.testing.assert_allclose(found, jax.grad(lambda w: theirs(theirs_make, [w]))(jnp.asarray(W)), rtol=1e-7, atol=1e-9)


def helper(x):
    return jnp.maximum(x, 0.0) + jax.nn.silu(x)


def test_functions_that_a_function_calls():
    compare(lambda x: lambda s, b, h, i, j: s * 0.1 + helper(x[i, j]) + sum(map(jnp.cos, [x[i, j]])), X)


OF_NUMPY = {
    **{name: lambda fn, x, y: fn(x * x + 0.1) * y for name in "exp sqrt abs tanh sin negative sign floor rint log1p square isnan".split()},
    **{name: lambda fn, x, y: fn(x * x + 0.1, y) + fn(2.0, y) for name in "add maximum fmod hypot less logaddexp arctan2".split()},
    "multiply": lambda fn, x, y: (np.arange(3.0) * x)[2] + (np.arange(3.0) < y)[1] * x + np.float64(3) / (y + 9) + np.float32(2) * x,
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMPY)
def test_functions_and_operators_of_numpy(name):
    """They mean what jnp's of the name do."""
    make = lambda fn: lambda x, y: lambda s, b, h, i, j: s * 0.1 + OF_NUMPY[name](fn, x[i, j], y[i, j])  # noqa: E731
    params = [jnp.asarray(a) for a in (X, Y)]
    found, wanted = (jax.grad(lambda *p, fn=fn: ours(make(fn), p), (0, 1))(*params) for fn in (getattr(np, name), getattr(jnp, name)))
    for a, b in zip(found, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-12)


AS_JAX = {
    "a sum of integers": lambda s, i, j: jnp.sum(jnp.stack([s, s * 2]), dtype=jnp.int32) + s,
    "a product of integers": lambda s, i, j: jnp.prod(jnp.stack([s * 3, s * 2]), dtype=jnp.int32) + s,
    "// 0": lambda s, i, j: s + i // (j - 3),
    "% 0": lambda s, i, j: s + i % (j - 3),
    "fmod 0": lambda s, i, j: s + jnp.fmod(i, j - 3),
    "lax.div 0": lambda s, i, j: s + jax.lax.div(i, j - 3),
    "lax.rem 0": lambda s, i, j: s + jax.lax.rem(i, j - 3),
    "a gradient inside": lambda s, i, j: jax.grad(lambda x: jax.nn.sigmoid(x) * x * x)(s),
}


@pytest.mark.parametrize("name", AS_JAX)
def test_dtypes_zeros_and_gradients_inside(name):
    fn = AS_JAX[name]
    compare(lambda x: lambda s, b, h, i, j: fn(s * 0.1 + x[i, j], i, j), X)


REFUSED = {
    "a reduction of NumPy's": (lambda s, i, j: np.add.reduce(s), TypeError, "numpy.add: not a function of score expressions"),
    "an argument of NumPy's": (lambda s, i, j: np.exp(s, dtype=float), TypeError, "numpy.exp: not a function of score expressions"),
    "8 bits": (lambda s, i, j: s.astype(jnp.float8_e4m3fn).astype(s.dtype), NotImplementedError, "dtype float8_e4m3fn in a score or mask; expected one of float64"),
    "4 bits": (lambda s, i, j: s + i.astype(jnp.int4).astype(jnp.int32), NotImplementedError, "dtype int4 in a score or mask; expected one of float64"),
    "4 bits without sign": (lambda s, i, j: s + i.astype(jnp.uint4).astype(jnp.int32), NotImplementedError, "dtype uint4 in a score or mask"),
    "a compiled function": (lambda s, i, j: jax.jit(lambda s: s.astype(jnp.float8_e5m2).astype(s.dtype))(s), NotImplementedError,
                            "^foveal.jax.attention: dtype float8_e5m2 in a score or mask"),
    "a type that is not read": (lambda s, i, j: s + W_.astype(jnp.float8_e5m2)[0, i, j].astype(s.dtype), NotImplementedError, "traced by JAX: .*float8_e5m2"),
    "unknown function": (lambda s, i, j: jax.scipy.special.digamma(s), NotImplementedError, "digamma"),
    "unknown argument": (lambda s, i, j: jnp.sum(jnp.asarray(W)[0, i], foo=1), TypeError, "sum"),
    "a function that orders": (lambda s, i, j: jnp.sort(W_[0, i])[0], NotImplementedError, "sort"),
    "a matrix norm": (lambda s, i, j: jnp.linalg.norm(W_[i * 0], ord=2), NotImplementedError, "norm.*ord=2"),
    "a real index": (lambda s, i, j: W_[0, i / 2, j], TypeError, "index.*real"),
    "a number of a symbol": (lambda s, i, j: s * float(i), TypeError, "no value"),
    "a boolean score": (lambda s, i, j: i >= j, TypeError, "mask"),
}
W_ = jnp.asarray(W)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    fn, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        foveal.jax.attention(*(jnp.asarray(a) for a in (Q, K, V)), lambda s, b, h, i, j: fn(s, i, j))


def test_every_function_of_the_table_is_tested():
    import pathlib
    import re

    words = set(re.findall(r"[a-zA-Z_0-9]+", pathlib.Path(__file__).read_text()))
    others = "pos neg truediv floordiv sub mul pow lshift rshift eq ne lt le gt ge and or xor less less_equal greater bitwise_left_shift "
    others += "bitwise_right_shift convert_element_type float32 array copy getitem fix transpose swapaxes moveaxis broadcast_to roll repeat tile hstack "
    others += "vstack diagonal take"
    names = {name.removeprefix("lax.") for name in table.TABLE}
    assert not names - words - set(others.split())
    assert math.isfinite(float(ours(lambda: lambda s, b, h, i, j: s, [])))


def test_settings_of_jax_count_at_each_call():
    """What a function gives on arrays of these dtypes was remembered from a call with other settings: NumPy's int64 wrapped as int32 does."""

    def score_mod(s, b, h, i, j):
        return s + jnp.where(jnp.add(j, np.array(2**31 - 4)) > 0, 1.0, 0.0) * (i - j)

    q = jnp.asarray(Q, jnp.float32)
    for doubles in (False, True, False):
        jax.config.update("jax_enable_x64", doubles)
        kept = 4 if not doubles else LEN
        mask_by_hand = lambda s, b, h, i, j, kept=kept: s + jnp.where(j < kept, 1.0, 0.0) * (i - j)  # noqa: E731
        np.testing.assert_allclose(foveal.jax.attention(q, q, q, score_mod), foveal.jax.attention(q, q, q, mask_by_hand), rtol=1e-5, atol=1e-6)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(ValueError, match="no available implicit dtype promotion path"):
        foveal.jax.attention(q, q, q, lambda s, b, h, i, j: s + jnp.where(jnp.add(j, 0.5) > 0, 1.0, 0.0) + jnp.add(s, j))
