"""NumPy's operators and the functions of its table compute on symbols of a score; its other functions name themselves and say what to use."""

import numpy as np
import pytest

import foveal
from foveal import numpy_on_symbols

X = np.ones((1, 4, 1, 8), np.float32)
RANDOM = np.random.default_rng(0)
Q, K, V = (RANDOM.standard_normal((1, 6, 2, 8)) for _ in range(3))
TABLE = RANDOM.standard_normal((2, 6))


def dense(score_mod):
    """NumPy itself, one pair after the other."""
    scores = np.einsum("bihd,bjhd->bhij", Q, K) * 8**-0.5
    for h, i, j in np.ndindex(2, 6, 6):
        scores[0, h, i, j] = score_mod(scores[0, h, i, j], np.int64(0), np.int64(h), np.int64(i), np.int64(j))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), V)


ONE = "exp exp2 tanh sin cos tan floor ceil trunc rint sign square expm1 sinh cosh isnan isinf isfinite logical_not".split()
POSITIVE = "log log2 sqrt log1p".split()
TWO = "maximum minimum hypot logaddexp logaddexp2 logical_and logical_or logical_xor".split()
CASES = {
    **{name: lambda s, b, h, i, j, fn=getattr(np, name): s + i * fn(s) + 0.25 * fn(i - j) for name in ONE},
    **{name: lambda s, b, h, i, j, fn=getattr(np, name): s + i * fn(s * s + 0.5) + fn(j + 1) for name in POSITIVE},
    **{name: lambda s, b, h, i, j, fn=getattr(np, name): s + i * fn(s, TABLE[h, j]) + fn(i, 2) + fn(0.5, s) for name in TWO},
    "fmod": lambda s, b, h, i, j: s + i * np.fmod(s, 0.3) + np.fmod(i - j, 3),
    "long double": lambda s, b, h, i, j: s * np.longdouble(0.5) + np.longdouble(2) / (i + 1) + np.array(3, np.longdouble) * j,
    "where": lambda s, b, h, i, j: np.where((i >= j) & (h == 0), s, np.where(i - 3, -2.0, TABLE[h, j])),
    "where of booleans": lambda s, b, h, i, j: s + np.where(i > j, True, False),
    "clip": lambda s, b, h, i, j: np.clip(s, -0.5, 0.25) + np.clip(i - j, -2, 2),
    "clip by name": lambda s, b, h, i, j: np.clip(s, a_min=-0.5, a_max=None) + np.clip(s, min=-0.2, max=0.3) * i,
}

REDUCTIONS = {
    "sum": lambda s, b, h, i, j: s + np.sum(TABLE[:, i]) * np.sum(TABLE[:, i] * TABLE[:, j], axis=0),
    "mean": lambda s, b, h, i, j: s + i * np.mean(TABLE[:, j]),
    "max and min": lambda s, b, h, i, j: s + np.max(TABLE[:, i] * TABLE[:, j]) - np.min(TABLE[:, j]) * i,
    "any and all": lambda s, b, h, i, j: s + i * np.any(TABLE[:, j] > 0) + 2 * np.all(TABLE[:, j] < 0.5),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    np.testing.assert_allclose(foveal.attention(Q, K, V, REDUCTIONS[name]), dense(REDUCTIONS[name]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_functions_of_the_table(name):
    np.testing.assert_allclose(foveal.attention(Q, K, V, CASES[name]), dense(CASES[name]), rtol=1e-9, atol=1e-9)


def test_every_function_of_the_table_has_a_case():
    assert set(numpy_on_symbols._MEANINGS) <= set(CASES)


@pytest.mark.parametrize("call", [
    lambda s, q: np.arctan(s), lambda s, q: np.isclose(s, q), lambda s, q: np.round(s), lambda s, q: np.where(q > 2), lambda s, q: np.exp(s, where=True),
    lambda s, q: np.where(q > 2, np.ones(3), s), lambda s, q: np.maximum(s, np.ones(3)), lambda s, q: np.clip(s, -1, 1, out=np.empty(())),
    lambda s, q: np.maximum.reduce([s, q]), lambda s, q: np.sum([s, q]) and np.sort([s, q]),
], ids="arctan isclose round where exp where maximum clip maximum sort".split())  # fmt: skip
def test_others_are_refused(call):
    with pytest.raises(TypeError, match=r"foveal.attention: (numpy\.\w+: .*foveal\.where.*torch\.where.*jnp\.where|a score expression has no truth value)"):
        foveal.attention(Q, K, V, score_mod=lambda s, b, h, q, k: call(s, q))


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_symbols_of_other_frameworks(framework):
    module = pytest.importorskip(framework)
    x = module.ones((1, 4, 1, 8))
    with pytest.raises(TypeError, match=r"foveal.attention: numpy\.where: .*torch\.where.*jnp\.where"):
        foveal.attention(x, x, x, score_mod=lambda s, b, h, q, k: np.where(q > k, s, 0.0))


def test_operators_compute():
    out = foveal.attention(X, X, X, score_mod=lambda s, b, h, q, k: foveal.where(np.int64(3) > q, np.float64(2) * s, np.array(2.0) * s))
    assert np.array_equal(out, foveal.attention(X, X, X, score_mod="2 * score"))
