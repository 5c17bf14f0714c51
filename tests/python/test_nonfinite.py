"""NaN, infinities and large numbers in the functions of scores: the values and derivatives that torch and JAX have.

There is one key, so that lse is the score itself. A score of 7 stands for NaN, 5 and -5 for the infinities.
"""

import itertools
import math

import numpy as np
import pytest

import foveal

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.5, 0.3, -1.0]
X, Y, Z = (np.array(column, np.float32) for column in zip(*itertools.product(SPECIAL, SPECIAL, SPECIAL)))
LARGE = np.array([89.0, -89.0, 88.9, 21.0, 3.0, -0.2, 1e-7, 200.0, INF, -INF, NAN], np.float32)
SMALL = np.array([3e-8, -5e-8, 1e-7, -2e-7, 1e-5, -3e-4, 0.2, -0.4], np.float32)


def of_one_key(count):
    """q and k whose scores are 0, and values that nothing reads."""
    return np.zeros((1, count, 1, 4), np.float32), np.zeros((1, 1, 1, 4), np.float32), np.ones((1, 1, 1, 4), np.float32)


def agree(found, wanted, rtol=1e-6):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=rtol, atol=1e-6)


def test_a_score_of_infinity():
    """docs/numerics.md: out is NaN, as softmax is, and so is lse, in this row alone."""
    q = k = v = np.ones((1, 3, 1, 4), np.float32)
    out, lse = foveal.attention(q, k, v, "where((q_idx == 1) & (kv_idx == 0), inf, score)", return_lse=True)
    assert np.isnan(lse[0, 0]).tolist() == np.isnan(out[0, :, 0, 0]).tolist() == [False, True, False]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nan", ["inf * 0.0", "inf * (0.0 * score)", "0.0 * score * inf", "tanh(inf * (0.0 * score))", "(inf - inf) * score"])
def test_a_nan_of_constants_is_kept(nan, dtype, backend):
    """Where the mask keeps it, beside other constants."""
    q = np.linspace(-1, 1, 32, dtype=dtype).reshape(1, 4, 1, 8)
    text = f"where(kv_idx <= q_idx, score * 1.25 + 0.5, {nan})"
    out = foveal.attention(q, q, q, text, options=foveal.Options(backend=backend))
    assert np.isnan(out[0, :, 0, 0]).tolist() == [True, True, True, False]


class TestTorch:
    torch = pytest.importorskip("torch")

    def results(self, fn, columns, backend):
        """(scores, gradients) by foveal and by torch."""
        import foveal.torch

        torch = self.torch
        found = []
        for ours in (True, False):
            given = [torch.tensor(column, requires_grad=True) for column in columns]
            if ours:
                q, k, v = map(torch.tensor, of_one_key(len(columns[0])))
                score = lambda s, b, h, i, j: s + fn(*[x[i] for x in given])  # noqa: E731
                options = foveal.Options(backend=backend)
                scores = foveal.torch.attention(q, k, v, score, return_lse=True, options=options)[1].reshape(-1)
            else:
                scores = fn(*given)
            torch.where(scores.abs() < 4, scores, 0).sum().backward()
            found.append((scores.detach(), [x.grad for x in given]))
        return found

    THREE = {
        "clamp": lambda x, low, high: x.clamp(low, high),
        "clamp below": lambda x, low, _: x.clamp(min=low),
        "clamp above": lambda x, _, high: x.clamp(max=high),
        "clamp by numbers": lambda x, *_: x.clamp(-0.5, 0.4),
        "maximum": lambda x, y, _: x.maximum(y),
        "minimum": lambda x, y, _: x.minimum(y),
        "fmax": lambda x, y, _: x.fmax(y),
        "fmin": lambda x, y, _: x.fmin(y),
        "hypot": lambda x, y, _: x.hypot(y),
        "relu6": lambda x, *_: TestTorch.torch.nn.functional.relu6(x),
        "hardtanh": lambda x, *_: TestTorch.torch.nn.functional.hardtanh(x, -0.8, 0.4),
        "hardswish": lambda x, *_: TestTorch.torch.nn.functional.hardswish(x),
        "amax": lambda x, y, z: TestTorch.torch.stack([x, y, z], -1).amax(-1),
        "amin": lambda x, y, z: TestTorch.torch.stack([x, y, z], -1).amin(-1),
    }

    @pytest.mark.parametrize("backend", ["cpu", "reference"])
    @pytest.mark.parametrize("name", THREE)
    def test_special_numbers(self, name, backend):
        fn = lambda *given: self.torch.nan_to_num(self.THREE[name](*given), 7.0, 5.0, -5.0)  # noqa: E731
        (found, gradients), (wanted, expected) = self.results(fn, (X, Y, Z), backend)
        agree(found, wanted)
        for mine, theirs in zip(gradients, expected):
            if theirs is not None and mine is not None:
                known = self.torch.isfinite(theirs)
                agree(mine[known], theirs[known])

    @pytest.mark.parametrize("backend", ["cpu", "reference"])
    @pytest.mark.parametrize("name", ["sinh", "cosh"])
    def test_large_numbers(self, name, backend):
        fn = lambda x: self.torch.nan_to_num(getattr(self.torch, name)(x) * 2.0**-126, 7.0, 5.0, -5.0)  # noqa: E731
        (found, _), (wanted, _) = self.results(fn, (LARGE,), backend)
        agree(found, wanted, rtol=4e-6)

    def test_log1p_keeps_its_digits_under_a_factor(self):
        (found, _), (wanted, _) = self.results(lambda x: self.torch.log1p(x) * 1e7, (SMALL,), "cpu")
        agree(found, wanted, rtol=2e-6)


class TestJax:
    jax = pytest.importorskip("jax")

    def results(self, fn, columns, backend):
        import foveal.jax

        jax, jnp = self.jax, self.jax.numpy
        q, k, v = map(jnp.asarray, of_one_key(len(columns[0])))

        def ours(*given):
            score = lambda s, b, h, i, j: s + fn(*[x[i] for x in given])  # noqa: E731
            return foveal.jax.attention(q, k, v, score, return_lse=True, options=foveal.Options(backend=backend))[1].reshape(-1)

        def loss(scores):
            return lambda *given: ((found := scores(*given)) * (jnp.abs(found) < 4)).sum()

        given = [jnp.asarray(column) for column in columns]
        return [(scores(*given), jax.grad(loss(scores), range(len(given)))(*given)) for scores in (ours, fn)]

    THREE = {
        "clip": lambda x, low, high: TestJax.jax.numpy.clip(x, low, high),
        "clamp": lambda x, low, high: TestJax.jax.lax.clamp(low, x, high),
        "fmax": lambda x, y, _: TestJax.jax.numpy.fmax(x, y),
        "hypot": lambda x, y, _: TestJax.jax.numpy.hypot(x, y),
        "max": lambda x, y, z: TestJax.jax.numpy.stack([x, y, z], -1).max(-1),
        "min": lambda x, y, z: TestJax.jax.numpy.stack([x, y, z], -1).min(-1),
    }

    @pytest.mark.parametrize("name", THREE)
    def test_special_numbers(self, name):
        fn = lambda *given: self.jax.numpy.nan_to_num(self.THREE[name](*given), nan=7.0, posinf=5.0, neginf=-5.0)  # noqa: E731
        (found, gradients), (wanted, expected) = self.results(fn, (X, Y, Z), "cpu")
        agree(found, wanted)
        for mine, theirs in zip(gradients, expected):
            known = np.isfinite(theirs)
            agree(mine[known], theirs[known])

    def test_large_and_small_numbers(self):
        jnp = self.jax.numpy
        (found, _), (wanted, _) = self.results(lambda x: jnp.nan_to_num(jnp.sinh(x) * 2.0**-126, nan=7.0, posinf=5.0, neginf=-5.0), (LARGE,), "cpu")
        agree(found, wanted, rtol=4e-6)
        (found, _), (wanted, _) = self.results(lambda x: jnp.log1p(x) * 1e7, (SMALL,), "cpu")
        agree(found, wanted, rtol=2e-6)
