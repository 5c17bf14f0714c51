"""Derivatives of foveal.jax of every order and mode: against finite differences, against JAX's own operations, under JAX's transformations."""

import warnings

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402
from foveal import MaterializedWarning  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::foveal.MaterializedWarning")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def normal(key, *shape):
    return np.random.default_rng(key).normal(size=shape)


def qkv(batch=2, n=5, heads=2, heads_kv=2, dim=4, m=None):
    return normal(0, batch, n, heads, dim), normal(1, batch, m or n, heads_kv, dim), normal(2, batch, m or n, heads_kv, dim)


def squared(fn):
    return lambda *x: sum((y**2).sum() for y in jax.tree.leaves(fn(*x)))


def near_zero_distance(s, b, h, i, j, slope):
    """A root whose derivative is infinite in the branch that the diagonal does not take."""
    return s - slope[h] * foveal.where(i == j, 0.0, foveal.sqrt(foveal.to_real(foveal.abs(i - j)) * slope[h] ** 2))


CASES = {
    "grouped heads": (lambda q, k, v: foveal.jax.attention(q, k, v, mask=foveal.causal()), qkv(heads=4)),
    "another length": (lambda q, k, v: foveal.jax.attention(q, k, v, mask=foveal.causal_bottom_right(), q_offset=1), qkv(n=3, m=6)),
    "softcap": (lambda q, k, v: foveal.jax.attention(q, k, v, "3.0 * tanh(score / 3.0)", foveal.window(2), scale=0.7), qkv()),
    "sink and lse": (lambda q, k, v, sink: foveal.jax.attention(q, k, v, sink=sink, return_lse=True), (*qkv(), normal(3, 2))),
    "a row without keys": (lambda q, k, v: foveal.jax.attention(q, k, v, mask="kv_idx < q_idx"), qkv()),
    "a bias": (lambda q, k, v, bias: foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s * bias[h, 0] + bias[h, i - j + 4]), (*qkv(), normal(3, 2, 9))),
    "a scale": (lambda q, k, v, scale: foveal.jax.attention(q, k, v, "max(score, 0.0) - abs(score)", scale=scale), (*qkv(), np.float64(0.6))),
    "a branch": (lambda q, k, v, slope: foveal.jax.attention(q, k, v, lambda *x: near_zero_distance(*x, slope)), (*qkv(), normal(3, 2))),
    "a clamp": (lambda q, k, v: foveal.jax.attention(q, k, v, lambda s, b, h, i, j: jnp.clip(s, -0.7, 0.9), "clamp(q_idx - kv_idx, 0, 2) < 2"), qkv()),
    "no score": (lambda q, k, v, bias: foveal.jax.attention(q, k, v, lambda s, b, h, i, j: bias[h, j]), (*qkv(), normal(3, 2, 5))),
    "a stop": (lambda q, k, v: foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s * 0.5 + jnp.tanh(s)), qkv()),
    "dropout": (lambda q, k, v: foveal.jax.attention(q, k, v, dropout_p=0.4, seed=2**40 + 3, offset=2**33 + 1), qkv(n=9)),
    "packed": (
        lambda q, k, v: foveal.jax.attention(
            q, k, v, "score + 0.1 * to_real(kv_idx * (batch + 1)) / to_real(seqlen_kv)", foveal.causal_bottom_right(), dropout_p=0.2, seed=1,
            cu_seqlens=(jnp.array([0, 2, 7], jnp.int32), jnp.array([0, 3, 9], jnp.int32)), max_seqlens=(5, 6),
        ),
        (normal(0, 7, 2, 4), normal(1, 9, 1, 4), normal(2, 9, 1, 4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives(name):
    """Against finite differences."""
    fn, arguments = CASES[name]
    for order, mode in ((1, "fwd"), (2, "rev")):
        check_grads(jax.jit(fn), tuple(map(jnp.asarray, arguments)), order, modes=[mode], rtol=2e-5, atol=2e-5)


def plain(q, k, v):
    s = jnp.einsum("bihd,bjhd->bhij", q, k) / 2
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), 3 * jnp.tanh(s / 3), -jnp.inf)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(s), v)


def ours(q, k, v):
    return foveal.jax.attention(q, k, v, "3.0 * tanh(score / 3.0)", foveal.causal())


def scanned(fn):
    return lambda q, k, v: jax.lax.scan(lambda x, _: (fn(x, k, v), None), q, None, length=2)[0]


def penalty(fn):
    return lambda *x: (jax.grad(squared(fn), 1)(*x) ** 2).sum()


def vmapped(fn):
    return jax.vmap(fn, in_axes=(0, None, None))


TRANSFORMED = {
    "jvp": lambda fn: lambda *x: jax.jvp(fn, x, x[::-1]),
    "linearize": lambda fn: lambda *x: jax.linearize(fn, *x)[1](*x[::-1]),
    "jacfwd": lambda fn: jax.jacfwd(fn, (0, 1, 2)),
    "jacrev": lambda fn: jax.jacrev(fn, (0, 1, 2)),
    "hessian": lambda fn: jax.hessian(squared(fn), (0, 1, 2)),
    "hessian by reverse": lambda fn: jax.jacrev(jax.jacrev(squared(fn))),
    "hessian by forward": lambda fn: jax.jacfwd(jax.jacfwd(squared(fn))),
    "forward, then reverse": lambda fn: jax.jacrev(jax.jacfwd(squared(fn))),
    "a gradient's penalty": lambda fn: jax.grad(penalty(fn), (0, 1, 2)),
    "a third derivative": lambda fn: jax.grad(lambda *x: (jax.grad(penalty(fn))(*x) ** 2).sum(), (0, 2)),
    "checkpoint": lambda fn: jax.grad(squared(jax.checkpoint(fn)), (0, 1, 2)),
    "a checkpoint's hessian": lambda fn: jax.hessian(squared(jax.checkpoint(fn))),
    "scan": lambda fn: jax.grad(squared(scanned(fn)), (0, 1, 2)),
    "a scan's hessian": lambda fn: jax.hessian(squared(scanned(fn))),
    "vmap": lambda fn: lambda q, k, v: jax.grad(squared(vmapped(fn)), (0, 1))(jnp.stack([q, k, v]), k, v),
    "vmap of gradients": lambda fn: lambda q, k, v: vmapped(jax.grad(squared(fn), (0, 1)))(jnp.stack([q, k, v]), k, v),
    "vmap of a hessian": lambda fn: lambda q, k, v: vmapped(jax.hessian(squared(fn)))(jnp.stack([q, k, v]), k, v),
    "a hessian of vmap": lambda fn: lambda q, k, v: jax.hessian(squared(vmapped(fn)), 1)(jnp.stack([q, k, v]), k, v),
    "vmap along other axes": lambda fn: lambda q, k, v: jax.jacfwd(jax.vmap(fn, in_axes=(2, None, 4), out_axes=1), (0, 2))(
        jnp.stack([q, k], 2), k, jnp.stack([v, q], 4)
    ),
    "while": lambda fn: lambda q, k, v: jax.jvp(lambda q: jax.lax.fori_loop(0, jnp.int32(3), lambda i, x: fn(x, k, v), q), (q,), (k,)),
    "cond": lambda fn: jax.grad(squared(lambda q, k, v: jax.lax.cond(q.sum() > 1e9, lambda: q, lambda: fn(q, k, v))), (0, 2)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(name):
    wrap = (lambda fn: fn) if name in ("jvp", "jacfwd") else jax.jit
    arguments = tuple(map(jnp.asarray, qkv(batch=1, n=3)))
    found, expected = (wrap(TRANSFORMED[name](fn))(*arguments) for fn in (ours, plain))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_integers_without_64_bits_in_jax():
    """Scores have integers of 64 bits in every mode."""
    q, k, v = (jnp.asarray(x, jnp.float32) for x in qkv())
    far = jnp.array([0, 1, 2**31, 3_000_000_000, 2**32 - 1], jnp.uint32)
    scores = ["score * to_real(kv_idx * 3000000000 % 7)", lambda s, b, h, i, j: s * (far[j] % 5), lambda s, b, h, i, j: s * jnp.searchsorted(jnp.array([0, 2, 3]), j)]
    with jax.enable_x64(False):
        for score_mod in scores:
            attend = lambda q, score_mod=score_mod: foveal.jax.attention(q, k, v, score_mod)  # noqa: E731
            slope = jax.jvp(attend, (q,), (k,))[1]
            assert slope.dtype == jnp.float32
            np.testing.assert_allclose((slope * v).sum(), (jax.grad(lambda q, attend=attend: (attend(q) * v).sum())(q) * k).sum(), rtol=1e-4)
            gradient = jax.grad(squared(attend))
            np.testing.assert_allclose(jax.vjp(gradient, q)[1](k)[0], jax.jvp(gradient, (q,), (k,))[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_linear_transpose(name):
    """Of a forward pass in v, and of a backward pass in what comes from behind."""
    q, k, v = map(jnp.asarray, qkv())

    def of(fn):
        if name == "forward":
            return jax.linear_transpose(lambda v: fn(q, k, v), v)(q)
        return jax.linear_transpose(jax.vjp(fn, q, k, v)[1], q)((k, v, q))

    for way in (lambda fn: of(fn), jax.jit(of, static_argnums=0)):
        for a, b in zip(way(ours), way(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smaller_dtypes(dtype):
    arguments = tuple(map(jnp.asarray, qkv()))
    narrow = tuple(x.astype(dtype) for x in arguments)
    both = lambda fn: jax.jit(lambda *x: (jax.jvp(fn, x, x[::-1]), jax.grad(penalty(fn))(*x)))  # noqa: E731
    found, expected = both(ours)(*narrow), both(plain)(*arguments)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert a.dtype == dtype
        assert jnp.linalg.norm(a.astype(b.dtype) - b) < (1e-5 if dtype == "float32" else 5e-2) * jnp.linalg.norm(b)


def test_only_other_derivatives_hold_all_scores():
    q, k, v = map(jnp.asarray, qkv())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(jax.grad(squared(ours), (0, 1, 2)))(q, k, v)
        jax.jit(jax.grad(squared(vmapped(ours)))).lower(jnp.stack([q, k]), k, v)
    with pytest.warns(MaterializedWarning, match="all seqlen_q x seqlen_kv scores in memory"):
        jax.jvp(ours, (q, k, v), (q, k, v))
    with pytest.warns(MaterializedWarning, match="all seqlen_q x seqlen_kv scores in memory"):
        jax.jit(jax.hessian(squared(ours))).lower(q, k, v)


def test_what_wants_no_gradient_gets_none():
    """A mask of numbers that is added costs no gradient in memory."""
    q, k, v = map(jnp.asarray, qkv())
    bias = jnp.where(normal(4, 5, 5) > 0.5, -1e9, 0.0)

    def calls(*wanted):
        loss = lambda q, bias: squared(foveal.jax.attention)(q, k, v, lambda s, b, h, i, j: s + bias[i, j])  # noqa: E731
        text = jax.jit(jax.grad(loss, wanted)).lower(q, bias).as_text()
        return [line.rpartition("->")[2] for line in text.splitlines() if "custom_call @foveal_call" in line]

    assert "tensor<5x5x" not in calls(0)[1] and "tensor<5x5x" in calls(0, 1)[1]
    frozen = lambda q: squared(foveal.jax.attention)(q, k, v, lambda s, b, h, i, j: s + jax.lax.stop_gradient(bias)[i, j])  # noqa: E731
    assert jnp.isfinite(jax.grad(frozen)(q)).all()
