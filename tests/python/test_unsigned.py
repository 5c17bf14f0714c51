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


BITS = [3, 2**31 - 1, 2**31, 4294967295, 65536, 65537, 7, 0, 2**16 + 9, 123456789]
PRODUCTS = {
    "product": lambda xp, x, y: x * y,
    "product of three": lambda xp, x, y: x * y * x - y,
    "product by a number": lambda xp, x, y: x * 1000003,
    "square": lambda xp, x, y: xp.square(x),
    "cube": lambda xp, x, y: x**3,
    "fifth power": lambda xp, x, y: x**5,
    "product of all": lambda xp, x, y: xp.prod(xp.stack([x, y, x, y])),
    "products of rows": lambda xp, x, y: (xp.stack([x, y, x])[None] @ xp.stack([y, y, x]))[0],
    "running products": lambda xp, x, y: xp.cumprod(xp.stack([x, y, x]), 0)[2],
    "sum of products": lambda xp, x, y: xp.einsum("i,i->", xp.stack([x, y, x]), xp.stack([y, y, x])),
}


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
@pytest.mark.parametrize("name", [*PRODUCTS, "updates", "by JAX's trace"])
def test_products_wrap_in_jax(dtype, name):
    """They were refused where what comes between passes 64 bits."""
    jax = pytest.importorskip("jax")
    import foveal.jax

    jnp = jax.numpy
    others = {
        "updates": lambda xp, x, y: xp.stack([x, y]).at[0].multiply(y)[0] * y,
        "by JAX's trace": lambda xp, x, y: jax.jit(lambda a, b: a * b * a + jnp.prod(jnp.stack([a, b, b])) + a**5 + jnp.cumprod(jnp.stack([a, b, a]))[2])(x, y),
    }
    fn = {**PRODUCTS, **others}[name]
    x, y = (jnp.asarray(np.array(BITS[::step], np.int64).astype(dtype)) for step in (1, -1))
    q = jnp.zeros((1, len(BITS), 1, 1))
    score = lambda s, b, h, i, j: fn(jnp, x[i], y[i]).astype(jnp.float32)  # noqa: E731
    expected = jax.vmap(lambda a, b: fn(jnp, a, b))(x, y)
    compare(foveal.jax.attention(q, q[:, :1], q[:, :1], score, return_lse=True)[1][0, 0], expected)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8"])
@pytest.mark.parametrize("name", [name for name in PRODUCTS if name not in ("product of all", "running products")])  # of which torch makes int64
def test_products_wrap_in_torch(dtype, name):
    torch = pytest.importorskip("torch")
    import foveal.torch

    x, y = (torch.from_numpy(np.array(BITS[::step], np.int64).astype(dtype)) for step in (1, -1))
    q = torch.zeros(1, len(BITS), 1, 1, dtype=torch.float64)
    found = foveal.torch.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: PRODUCTS[name](torch, x[i], y[i]).double(), return_lse=True)[1][0, 0]
    compare(found, torch.stack([PRODUCTS[name](torch, a, b) for a, b in zip(x, y)]))


def test_products_of_one_dtype_in_torch():
    torch = pytest.importorskip("torch")
    import foveal.torch

    x, y = (torch.tensor(BITS[::step]).int() for step in (1, -1))
    q = torch.zeros(1, len(BITS), 1, 1, dtype=torch.float64)
    for fn in (
        lambda x, y: torch.stack([x, y, x]).prod(dtype=torch.int32), lambda x, y: torch.cumprod(torch.stack([x, y, x]), 0, dtype=torch.int32)[2],
        lambda x, y: torch.addcmul(x, x, y, value=3),
    ):  # fmt: skip
        found = foveal.torch.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: fn(x[i], y[i]).double(), return_lse=True)[1][0, 0]  # noqa: B023
        compare(found, torch.stack([fn(a, b) for a, b in zip(x, y)]))
