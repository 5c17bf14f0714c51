"""jit on arrays that lie on several devices: the passes are split along the batch and the heads, and nothing else is gathered or repeated.

conftest.py gives JAX four devices of the host.
"""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402

DEVICES = jax.devices("cpu")
pytestmark = [pytest.mark.usefixtures("jax_on_cpu"), pytest.mark.skipif(len(DEVICES) < 4, reason="JAX was started with fewer than 4 devices")]
GATHERS = re.compile(r"\b(all-gather|all-to-all|collective-permute)(?:-start)?\(")
FOUR = {"b": 4, "h": 1}


def mesh_of(b=2, h=2):
    return Mesh(np.array(DEVICES[:4]).reshape(b, h), ("b", "h"))


def normal(key, *shape):
    return jax.random.normal(jax.random.key(key), shape)


def split(mesh, x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def compile(fn, *arguments):
    compiled = jax.jit(fn).lower(*arguments).compile()
    return compiled(*arguments), compiled.as_text()


def check(attend, mesh, arguments, specs, gathers=False):
    """Outputs and gradients equal the ones of a single device, lie as the inputs do, and cost no gather. Returns the program's text."""
    shards = tuple(split(mesh, x, *spec) for x, spec in zip(arguments, specs))
    out, text = compile(attend, *shards)
    np.testing.assert_allclose(out, attend(*arguments), rtol=1e-4, atol=1e-5)
    assert out.sharding.is_equivalent_to(shards[0].sharding, out.ndim) or gathers
    gradient = jax.grad(lambda *x: (attend(*x) ** 2).sum(), argnums=tuple(range(len(arguments))))
    found, both = compile(gradient, *shards)
    for name, x, y, shard in zip("q k v params".split() + ["params"] * 9, found, gradient(*arguments), shards):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4, err_msg=name)
        assert gathers or x.sharding.is_equivalent_to(shard.sharding, x.ndim), name
    for program in (text, both):
        assert gathers or not GATHERS.search(program), GATHERS.search(program)
    return text


def causal(q, k, v):
    return foveal.jax.attention(q, k, v, mask=foveal.causal())


QKV = P("b", None, "h", None)


@pytest.mark.parametrize("heads, heads_kv", [(4, 4), (4, 2), (8, 2), (4, 1)])
def test_batch_and_heads(heads, heads_kv):
    q, k, v = normal(0, 4, 24, heads, 8), normal(1, 4, 20, heads_kv, 8), normal(2, 4, 20, heads_kv, 16)
    kv = P("b", None, "h" if heads_kv > 1 else None, None)
    text = check(causal, mesh_of(), (q, k, v), (QKV, kv, kv))
    assert f"f32[2,24,{heads // 2},16]" in text and f"f32[4,24,{heads},16]" not in text


@pytest.mark.parametrize("b, h, heads_kv", [(1, 4, 2), (1, 4, 4), (4, 1, 2), (1, 4, 1)])
def test_fewer_kv_heads_than_devices(b, h, heads_kv):
    q, k, v = normal(0, 4, 24, 8, 8), normal(1, 4, 20, heads_kv, 8), normal(2, 4, 20, heads_kv, 8)
    kv = P("b", None, "h" if heads_kv % h == 0 else None, None)
    check(causal, mesh_of(b, h), (q, k, v), (QKV, kv, kv))


@pytest.mark.parametrize("heads, heads_kv", [(12, 6), (6, 6), (6, 3)])
def test_heads_that_do_not_divide_are_whole_on_every_device(heads, heads_kv):
    mesh = Mesh(np.array(DEVICES[:4]).reshape(1, 4), ("b", "h"))
    q, k, v = normal(0, 4, 24, heads, 8), normal(1, 4, 20, heads_kv, 8), normal(2, 4, 20, heads_kv, 8)
    spec = P("b", None, "h" if heads % 4 == 0 else None, None)
    check(causal, mesh, (q, k, v), (spec, P("b"), P("b")), gathers=True)


def test_two_axes_of_a_mesh_for_one_dimension():
    q, k, v = (normal(i, 4, 16, 4, 8) for i in range(3))
    for spec in (P(("b", "h")), P(("h", "b")), P(None, None, ("b", "h")), P(None, None, ("h", "b"))):
        check(causal, mesh_of(), (q, k, v), (spec,) * 3)


def test_sequences_and_head_dims_are_gathered():
    q, k, v = (normal(i, 4, 16, 4, 8) for i in range(3))
    for spec in (P(None, "b"), P("b", "h"), P("b", None, None, "h")):
        check(causal, mesh_of(), (q, k, v), (spec,) * 3, gathers=True)


def test_arrays_outside_of_jit():
    q, k, v = (split(mesh_of(), normal(i, 4, 16, 4, 8), *QKV) for i in range(3))
    out = causal(q, k, v)
    assert out.sharding.is_equivalent_to(q.sharding, 4) and len({s.device for s in out.addressable_shards}) == 4
    np.testing.assert_allclose(out, causal(*(jax.device_put(np.asarray(x), DEVICES[0]) for x in (q, k, v))), atol=1e-5)


def test_what_reads_batch_and_head_sees_global_ones():
    """Parameters split by batch and by head, others whole; slopes computed from the head; a mask of lengths."""
    q, k, v = normal(0, 4, 24, 4, 8), normal(1, 4, 20, 2, 8), normal(2, 4, 20, 2, 8)
    lengths = jnp.array([20, 3, 11, 17])

    def attend(q, k, v, rows, slopes, table, pairs, gate):
        def score_mod(s, b, h, i, j):
            near = (i - j) * (foveal.to_real(h) + 1.0) * 0.02
            return s * gate + rows[b] * slopes[h] * near + table[h // 2, j] + pairs[b, h, i] * foveal.to_real(b) - near * table[h - 1 + (h == 0), i]

        return foveal.jax.attention(q, k, v, score_mod, lambda b, h, i, j: (j < lengths[b]) & (i + h >= j))

    arguments = (q, k, v, normal(3, 4), normal(4, 4), normal(5, 5, 24), normal(6, 4, 4, 24), jnp.float32(1.3))
    specs = (QKV, QKV, QKV, P("b"), P("h"), P(), P("b", "h"), P())
    for mesh in (mesh_of(), mesh_of(4, 1)):
        check(attend, mesh, arguments, specs)


def test_sink_and_lse():
    q, k, v = (normal(i, 4, 16, 4, 8) for i in range(3))
    sink = normal(4, 4)
    check(lambda q, k, v, sink: foveal.jax.attention(q, k, v, sink=sink), mesh_of(), (q, k, v, sink), (QKV, QKV, QKV, P("h")))
    read = lambda q, k, v, sink: foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s + sink[3 - h], sink=sink)  # noqa: E731
    found = jax.jit(read)(*(split(mesh_of(), x, *spec) for x, spec in zip((q, k, v, sink), (QKV, QKV, QKV, P("h")))))
    np.testing.assert_allclose(found, read(q, k, v, sink), atol=1e-5)
    weighted = lambda q, k, v: foveal.jax.attention(q, k, v, return_lse=True)[1].transpose(0, 2, 1)[..., None] * q  # noqa: E731
    check(weighted, mesh_of(), (q, k, v), (QKV,) * 3)


def test_packed_sequences_are_split_by_heads():
    q, k, v = (normal(i, 40, 4, 8) for i in range(3))
    cu, rows = jnp.array([0, 13, 40], jnp.int32), jnp.array([0.5, 2.0])

    def attend(q, k, v, rows):
        score_mod = lambda s, b, h, i, j: s * rows[b] + foveal.to_real(h) * 0.01 * j  # noqa: E731
        return foveal.jax.attention(q, k, v, score_mod, foveal.causal(), cu_seqlens=(cu, cu), max_seqlens=(27, 27))

    spec = P(None, ("b", "h"), None)
    check(attend, mesh_of(), (q, k, v, rows), (spec, spec, spec, P()))


def test_dropout_is_the_same_as_on_one_device():
    q, k, v = (normal(i, 4, 16, 4, 8) for i in range(3))
    check(lambda q, k, v: foveal.jax.attention(q, k, v, dropout_p=0.3, seed=3), mesh_of(), (q, k, v), (QKV,) * 3, gathers=True)


def test_a_layer_with_weights_split_by_heads():
    """The query's split comes from the weights: k and v of fewer heads than devices are cut through their heads."""
    mesh = mesh_of(1, 4)
    x, wq, wk, wo = normal(0, 4, 16, 32), normal(1, 32, 64) / 6, normal(2, 32, 16) / 6, normal(3, 64, 32) / 8

    def layer(x, wq, wk, wo):
        q, k = (x @ wq).reshape(4, 16, 8, 8), (x @ wk).reshape(4, 16, 2, 8)
        return causal(q, k, k).reshape(4, 16, 64) @ wo

    check(layer, mesh, (x, wq, wk, wo), (P("b"), P(None, "h"), P(None, "h"), P("h", None)), gathers=True)
    check(layer, mesh, (x, wq, wk, wo), (P("b"), P(None, "h"), P(), P("h", None)))


def test_vmap_and_scan_over_shards():
    q, k, v = (normal(i, 4, 16, 4, 8) for i in range(3))
    heads_first = lambda q, k, v: jax.vmap(lambda a, b, c: causal(a[None], b[None], c[None])[0])(q, k, v)  # noqa: E731
    check(heads_first, mesh_of(), (q, k, v), (QKV,) * 3, gathers=True)
    repeated = lambda q, k, v: jax.lax.scan(lambda x, _: (causal(x, k, v), None), q, None, length=3)[0]  # noqa: E731
    check(repeated, mesh_of(), (q, k, v), (QKV,) * 3)
    remat = lambda q, k, v: jax.checkpoint(causal)(q, k, v)  # noqa: E731
    check(remat, mesh_of(), (q, k, v), (QKV,) * 3)


explicit = pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this JAX has no explicit axes")


def explicit_mesh():
    return jax.make_mesh((2, 2), ("b", "h"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=DEVICES[:4])


@explicit
def test_shardings_that_are_part_of_types():
    mesh = explicit_mesh()
    arrays = normal(0, 4, 16, 4, 8), normal(1, 4, 16, 1, 8), normal(2, 4, 16, 1, 8), normal(3, 4)

    def attend(q, k, v, slopes):
        return foveal.jax.attention(q, k, v, "score + slopes[head] * kv_idx", params=dict(slopes=slopes), sink=slopes * 2)

    loss = lambda *x: (attend(*x) ** 2).sum()  # noqa: E731
    with jax.set_mesh(mesh):
        shards = tuple(split(mesh, x, *spec) for x, spec in zip(arrays, (QKV, P("b"), P("b"), P())))
        out, text = compile(attend, *shards)
        assert jax.typeof(out) == jax.typeof(shards[0]) and not GATHERS.search(text)
        found = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*shards)
    np.testing.assert_allclose(out, attend(*arrays), atol=1e-5)
    for x, y in zip(found, jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays)):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4)


@explicit
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_higher_derivatives_where_shardings_are_part_of_types(heads_kv):
    """They read captured arrays that are split: JAX does not say how what is read lies."""
    mesh = explicit_mesh()
    arrays = normal(0, 4, 6, 4, 8), normal(1, 4, 6, heads_kv, 8), normal(2, 4, 6, 6), normal(3, 4)

    def attend(q, k, rows, slopes):
        return foveal.jax.attention(q, k, k, lambda s, b, h, i, j: s * slopes[h] + rows[h, i, j])

    second = lambda *x: jax.hessian(lambda slopes: (attend(*x[:3], slopes) ** 2).sum())(x[3])  # noqa: E731
    forwards = lambda *x: jax.jvp(attend, x, jax.tree.map(jnp.cos, x))  # noqa: E731
    with jax.set_mesh(mesh):
        shards = tuple(split(mesh, x, *spec) for x, spec in zip(arrays, (QKV, QKV, P("h"), P("h"))))
        found = jax.jit(second)(*shards), jax.jit(forwards)(*shards)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves((second(*arrays), forwards(*arrays)))):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


VMAPPED = {  # function, axes, shapes, specs
    "rows of each example": (lambda q: causal(q, q, q), (0,), [(2, 4, 6, 2, 8)], [P(None, "b", None, "h")]),
    "rows along all axes": (lambda q: causal(q, q, q), (0,), [(2, 4, 6, 2, 8)], [P(None, ("h", "b"))]),
    "examples": (lambda q: causal(q, q, q), (0,), [(2, 3, 6, 2, 8)], [P("b", None, None, "h")]),
    "examples and rows": (lambda q: causal(q, q, q), (0,), [(4, 4, 6, 2, 8)], [P("b", "h")]),
    "some arrays": (lambda q, k, v: causal(q, k, v), (0, None, 0), [(2, 4, 6, 2, 8), (4, 6, 2, 8), (2, 4, 6, 2, 8)], [P("h", "b"), P("b"), P("h", "b")]),
    "a scale": (lambda q, scale: foveal.jax.attention(q, q, q, scale=scale), (None, 0), [(4, 6, 2, 8), (2,)], [P("b"), P()]),
    "a parameter": (
        lambda q, rows: foveal.jax.attention(q, q, q, lambda s, b, h, i, j: s + rows[b, j]), (None, 0), [(4, 6, 2, 8), (2, 4, 6)], [P("b"), P(None, "b")]
    ),
    "the door": (lambda q, bias: foveal.jax.dot_product_attention(q, q, q, bias), (0, None), [(2, 4, 6, 2, 8), (4, 2, 6, 6)], [P(None, "b"), P("b")]),
}  # fmt: skip


@explicit
@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_of_shardings_that_are_part_of_types(name):
    """Rows that are split within an example cannot become rows of one batch where they lie: JAX refused to."""
    fn, axes, shapes, specs = VMAPPED[name]
    arrays = [normal(i, *shape) for i, shape in enumerate(shapes)]
    every = jax.vmap(fn, axes)
    both = jax.jit(lambda *x: (every(*x), jax.grad(lambda *x: (every(*x) ** 2).sum(), tuple(range(len(x))))(*x)))
    mesh = explicit_mesh()
    with jax.set_mesh(mesh):
        out, gradients = both(*(split(mesh, x, *spec) for x, spec in zip(arrays, specs)))
    for x, y in zip(jax.tree.leaves((out, gradients)), jax.tree.leaves(both(*arrays))):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    for x, spec in zip(gradients, specs):
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim)


def test_the_older_partitioner():
    if not hasattr(jax.config, "jax_use_shardy_partitioner"):
        pytest.skip("this JAX has one partitioner")
    q, k, v = normal(0, 4, 24, 4, 8), normal(1, 4, 20, 2, 8), normal(2, 4, 20, 2, 8)
    jax.eval_shape(causal, q, k, v)  # for the other one
    old = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        (call,) = [equation for equation in jax.make_jaxpr(causal)(q, k, v).eqns if equation.primitive.name == "foveal_pass"]
        assert call.params["jaxpr"].eqns[0].params["infer_sharding_from_operands"] is not None  # without, XLA ends the process
        check(causal, mesh_of(), (q, k, v), (QKV,) * 3)
    finally:
        jax.config.update("jax_use_shardy_partitioner", old)
