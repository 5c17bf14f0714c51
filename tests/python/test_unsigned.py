"""Captured arrays of unsigned integers of 16 and 32 bits: their upper half is not negative."""

import numpy as np
import pytest

import foveal

N = 40
VALUES = {"uint16": np.linspace(0, 65535, N).astype(np.uint16), "uint32": np.linspace(0, 2**32 - 1, N).astype(np.uint32)}


def compare(found, expected):
    """lse of one key for each query is the score."""
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", VALUES)
def test_in_torch(dtype):
    torch = pytest.importorskip("torch")
    import foveal.torch

    x, q = torch.from_numpy(VALUES[dtype]), torch.zeros(1, N, 1, 1)
    scores = [
        lambda s, b, h, i, j: s + x[i].float() * 1e-5,
        lambda s, b, h, i, j: s + (x[i].long() - x[N - 1 - i].long()) * 1e-9,
        lambda s, b, h, i, j: s + torch.where(x.view(2, -1)[i // (N // 2), i % (N // 2)].long() > 40000, 1.0, 2.0) + x[3].double() * 1e-9,
        lambda s, b, h, i, j: s + x[i].to(torch.uint8) + x[i].to(torch.int32).float() * 1e-9,
    ]
    for score in scores:
        expected = score(0.0, 0, 0, torch.arange(N), 0)
        compare(foveal.torch.attention(q, q[:, :1], q[:, :1], score, return_lse=True)[1][0, 0], expected)
        compare(foveal.torch.flex_attention(q.transpose(1, 2), q[:, :1], q[:, :1], score, return_lse=True)[1][0, 0], expected)
    x[5] = 7  # read anew by each call
    compare(foveal.torch.attention(q, q[:, :1], q[:, :1], scores[0], return_lse=True)[1][0, 0], scores[0](0.0, 0, 0, torch.arange(N), 0))


@pytest.mark.parametrize("dtype", VALUES)
def test_in_jax(dtype):
    jax = pytest.importorskip("jax")
    import foveal.jax

    x, q = jax.numpy.asarray(VALUES[dtype]), jax.numpy.zeros((1, N, 1, 1))
    scores = [
        lambda s, b, h, i, j: s + x[i].astype("float32") * 1e-5,
        lambda s, b, h, i, j: s + (x[i] - x[N - 1 - i]).astype("float32") * 1e-9,  # which wraps
        lambda s, b, h, i, j: s + jax.numpy.where(x[i] > 40000, 1.0, 2.0) + jax.numpy.take(x, i) // 7 * 1e-9,
    ]
    for score in scores:
        for run in (foveal.jax.attention, jax.jit(foveal.jax.attention, static_argnums=(3,), static_argnames="return_lse")):
            expected = jax.vmap(lambda i: score(jax.numpy.float32(0), 0, 0, i, 0))(jax.numpy.arange(N))  # noqa: B023
            compare(run(q, q[:, :1], q[:, :1], score, return_lse=True)[1][0, 0], expected)


@pytest.mark.parametrize("dtype", VALUES)
def test_in_numpy(dtype):
    x, q = VALUES[dtype], np.zeros((1, N, 1, 1), np.float32)
    found = foveal.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: s + x[i] * 1e-5, return_lse=True)[1][0, 0]
    compare(found, x * 1e-5)


def test_other_places_take_none():
    q, x = np.zeros((1, N, 1, 1), np.float32), VALUES["uint16"]
    with pytest.raises(ValueError, match="t: dtype uint16 is not supported"):
        foveal.attention(q, q, q, "score + t[q_idx]", params={"t": x})
    with pytest.raises(ValueError, match="q: dtype uint16 is not supported; expected one of float64, float32, bfloat16, float16$"):
        foveal.attention(x.reshape(1, N, 1, 1), q, q)
    wide = x.astype(np.uint64)
    with pytest.raises(ValueError, match="uint64 is not supported"):
        foveal.attention(q, q, q, lambda s, b, h, i, j: s + wide[i])
