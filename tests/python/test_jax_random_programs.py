"""Random scores and masks of JAX as users write them (program_writer), against jax.grad of the same functions on whole matrices, in float64.

FOVEAL_PROGRAMS=COUNT and FOVEAL_SEED=FIRST run more and others than every test run does; a failure names its seed and prints the program."""

import os

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import foveal.jax  # noqa: E402
import program_writer  # noqa: E402

COUNT, FIRST = int(os.environ.get("FOVEAL_PROGRAMS", "60")) // 4, int(os.environ.get("FOVEAL_SEED", "1"))  # JAX compiles each
N, HEADS, BATCH = 12, 2, 2
SHAPES = {"row": (N,), "table": (HEADS, N), "bias": (BATCH, N, N), "scale": (), "slopes": (HEADS,), "points": (N, 3), "mat": (HEADS, 3, 3)}


def captured(seed):
    draw = np.random.default_rng(seed)
    qkv = [jnp.asarray(draw.standard_normal((BATCH, N, HEADS, 8))) for _ in range(4)]
    trained = {name: jnp.asarray(draw.standard_normal(shape)) for name, shape in SHAPES.items()}
    whole = lambda low, high, *shape, dtype="int64": jnp.asarray(draw.integers(low, high, shape).astype(dtype))  # noqa: E731
    read = {"ids": whole(0, 4, N), "near": whole(-3, N, N, dtype="int32"), "few": whole(0, N, N, dtype="uint8"), "bucket": whole(0, N, HEADS, N)}
    return qkv, trained, {**read, "flag": whole(0, 2, N, dtype="bool"), "edges": jnp.asarray([-1.0, 0.0, 0.5, 2.0]), "n": N}


def dense(q, k, v, score_mod, mask_mod):
    def over_all(fn, *scores):
        for at in (3, 2, 1, 0):
            fn = jax.vmap(fn, in_axes=(*[0 for _ in scores], *[0 if d == at else None for d in range(4)]))
        return fn(*scores, *[jnp.arange(n, dtype=jnp.int32) for n in (BATCH, HEADS, N, N)])

    scores = over_all(score_mod, jnp.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5)
    kept = jnp.broadcast_to(over_all(mask_mod), scores.shape)
    some = kept.any(-1, keepdims=True)
    weights = jax.nn.softmax(jnp.where(kept | ~some, scores, -jnp.inf), -1)
    return jnp.einsum("bhij,bjhd->bihd", jnp.where(kept, weights, 0.0), v)


def results(attend, source, seed, factors):
    (q, k, v, dout), trained, read = captured(seed)

    def loss(q, k, v, trained):
        space = {"jax": jax, "jnp": jnp, **trained, **read}
        exec(source, space)  # noqa: S102
        out = attend(q, k, v, space["score_mod"], space["mask_mod"])
        return (out * dout).sum(), out

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))
    for factor in factors:
        (_, out), (*of_qkv, of_trained) = step(q * factor, k, v, {name: x * factor for name, x in trained.items()})
        yield [np.asarray(x) for x in (out, *of_qkv, *[of_trained[name] for name in SHAPES])]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_program_equals_grad(seed):
    source = program_writer.Program(seed, program_writer.JAX).source
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        exact, near = results(dense, source, seed, (1.0, 1 + 1e-12))
        if not np.isfinite(exact[0]).all():
            pytest.skip("a row of NaN, of which JAX and foveal have other derivatives")
        (found,) = results(foveal.jax.attention, source, seed, (1.0,))
    finally:
        jax.config.update("jax_enable_x64", before)
    for name, x, nearby, y in zip(("out", "dq", "dk", "dv", *SHAPES), exact, near, found):
        size, off = 1 + np.abs(x).max(), 1e3 * np.abs(x - nearby).max()
        if not np.isfinite(x).all() or not off <= 1e-4 * size:
            continue  # a jump, or too steep, to tell
        assert np.abs(x - y).max() <= (1e-6 if "float32" in source else 1e-9) * size + off, f"{name} of seed {seed}\n{source}"
