"""foveal.jax under jit, grad and vmap on the CPU, against jnp."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402


def reference(q, k, v, bias, causal=True):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    n = q.shape[1]
    relative = jnp.arange(n)[:, None] - jnp.arange(n)[None]
    s = s + bias[:, relative + n - 1][None]
    s = jnp.where(relative >= 0, s, -jnp.inf) if causal else s
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


def ours(q, k, v, bias):
    n = q.shape[1]
    return foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s + bias[h, i - j + n - 1], foveal.causal())


def inputs(batch=2, n=24, heads=2, dim=8):
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    q, k, v = (jax.random.normal(key, (batch, n, heads, dim)) for key in keys[:3])
    return q, k, v, jax.random.normal(keys[3], (heads, 2 * n - 1))


def test_forward_and_gradients_under_jit():
    arguments = inputs()
    assert jnp.allclose(jax.jit(ours)(*arguments), reference(*arguments), atol=1e-5)
    loss = lambda fn: lambda *a: (fn(*a) ** 2).sum()  # noqa: E731
    found = jax.jit(jax.grad(loss(ours), argnums=(0, 1, 2, 3)))(*arguments)
    expected = jax.grad(loss(reference), argnums=(0, 1, 2, 3))(*arguments)
    for a, b in zip(found, expected):
        assert jnp.allclose(a, b, atol=1e-4), float(jnp.abs(a - b).max())


def test_vmap_and_lse_gradient():
    q, k, v, bias = inputs()
    stacked = tuple(jnp.stack([t, t * 0.5]) for t in (q, k, v))
    found = jax.vmap(ours, in_axes=(0, 0, 0, None))(*stacked, bias)
    assert jnp.allclose(found[1], reference(*(t * 0.5 for t in (q, k, v)), bias), atol=1e-5)
    lse = lambda q: foveal.jax.attention(q, k, v, return_lse=True)[1].sum()  # noqa: E731
    direct = lambda q: jax.nn.logsumexp(jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8.0), -1).sum()  # noqa: E731
    assert jnp.allclose(jax.grad(lse)(q), jax.grad(direct)(q), atol=1e-5)


def test_a_wrong_call_is_a_value_error():
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match="heads"):
        foveal.jax.attention(q, k[:, :, :1].repeat(3, 2), v)
