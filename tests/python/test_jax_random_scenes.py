"""Random small scenes of several devices: meshes, shardings, heads, scores, under shard_map with its default checks or jit on sharded arrays: outputs and
gradients against unfused jnp on one device.

FOVEAL_PROGRAMS=COUNT (a tenth of it runs) and FOVEAL_SEED=FIRST run more and others."""

import os
import random

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402

DEVICES = jax.devices("cpu")
pytestmark = pytest.mark.skipif(len(DEVICES) < 4, reason="JAX was started with fewer than 4 devices")
COUNT, FIRST = int(os.environ.get("FOVEAL_PROGRAMS", "80")) // 10, int(os.environ.get("FOVEAL_SEED", "1"))
HEADS, LEN = 4, 16


def dense(q, k, v, score_mod, causal):
    k, v = (jnp.repeat(x, HEADS // x.shape[2], 2) for x in (k, v))
    s = jnp.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    b, h, i, j = jnp.meshgrid(*[jnp.arange(n) for n in s.shape], indexing="ij")
    s = s if score_mod is None else score_mod(s, b, h, i, j)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(jnp.where(i >= j, s, -jnp.inf) if causal else s, -1), v)


# Scores that read a weight: of all heads alike, and by the head, which a shard counts from its own first one.
ALIKE = {
    "nothing": lambda w: None,
    "a number": lambda w: lambda s, b, h, i, j: s * w[0] + jnp.tanh(w[1]) * (i - j),
}
BY_HEAD = {"by head": lambda w: lambda s, b, h, i, j: jnp.tanh(s * w[h])}


class Scene:
    def __init__(self, seed):
        draw = random.Random(seed)
        shape = draw.choice([(4,), (2, 2), (2,), (1, 4)])
        names = ("x", "y")[: len(shape)]
        self.mesh = Mesh(np.array(DEVICES[: int(np.prod(shape))]).reshape(shape), names)
        batch = draw.choice([None, "x"])
        head = draw.choice([None, *[name for name in names if name != batch]])
        heads_kv = draw.choice([4, 2, 1])
        self.heads_kv = HEADS if head and heads_kv % self.mesh.shape[head] else heads_kv
        self.by_shard_map, self.jitted, self.causal = draw.random() < 0.6, draw.random() < 0.7, draw.random() < 0.5
        self.score = draw.choice([*ALIKE, *BY_HEAD])
        self.qkv = P(batch, None, head, None)
        self.weights = P(head) if self.score in BY_HEAD else P()
        self.text = f"{shape} {self.qkv} heads_kv={self.heads_kv} {self.score} shard_map={self.by_shard_map} jit={self.jitted} causal={self.causal}"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_scene(seed):
    scene = Scene(seed)
    score_of, mask = {**ALIKE, **BY_HEAD}[scene.score], foveal.causal() if scene.causal else None
    normal = lambda at, heads: jax.random.normal(jax.random.key(10 * seed + at), (4, LEN, heads, 8))  # noqa: E731
    arguments = normal(0, HEADS), normal(1, scene.heads_kv), normal(2, scene.heads_kv), jnp.array([0.5, 1.0, 1.5, 2.0])
    specs = (scene.qkv, scene.qkv, scene.qkv, scene.weights)

    def attend(q, k, v, w):
        return foveal.jax.attention(q, k, v, score_of(w), mask)

    def step(attend):
        return jax.value_and_grad(lambda *x: jnp.sin(attend(*x)).sum(), argnums=(0, 1, 2, 3))

    wanted = step(lambda q, k, v, w: dense(q, k, v, score_of(w), scene.causal))(*arguments)
    if scene.by_shard_map:
        found = step(jax.shard_map(attend, mesh=scene.mesh, in_specs=specs, out_specs=scene.qkv))
        found = (jax.jit(found) if scene.jitted else found)(*arguments)
    else:
        shards = [jax.device_put(x, NamedSharding(scene.mesh, spec)) for x, spec in zip(arguments, specs)]
        found = jax.jit(step(attend))(*shards)
    for name, x, y in zip("loss dq dk dv dw".split(), jax.tree.leaves(found), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=3e-5 * max(1.0, float(jnp.abs(y).max())), err_msg=f"{name} of seed {seed}: {scene.text}")
