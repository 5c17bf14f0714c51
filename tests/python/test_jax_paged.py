"""Keys and values in pages through JAX, beside the same keys in one piece."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402
from foveal import MaterializedWarning  # noqa: E402

LENGTHS, PAGE, CU_Q = np.array([40, 17, 0, 64], np.int32), 16, np.array([0, 3, 4, 6, 11], np.int32)
COUNTS = -(-LENGTHS // PAGE)
BIAS = np.arange(4, dtype=np.float32)


def pools(dtype=np.float32, heads=2, seed=0):
    """(k, v, block_table): pages in no order, NaN in every row that is no key."""
    random = np.random.default_rng(seed)
    order = random.permutation(COUNTS.sum() + 2).tolist()
    table = np.full((len(LENGTHS), COUNTS.max()), -1, np.int32)
    k, v = (np.full((len(order), PAGE, heads, 8), np.nan, np.float32) for _ in range(2))
    for b, length in enumerate(LENGTHS):
        for i in range(COUNTS[b]):
            table[b, i] = order.pop()
            rows = min(PAGE, length - i * PAGE)
            for pool in (k, v):
                pool[table[b, i], :rows] = random.standard_normal((rows, heads, 8))
    return jnp.asarray(k, dtype), jnp.asarray(v, dtype), jnp.asarray(table)


def queries(*shape, dtype=np.float32, seed=9):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def attend(q, k, v, bias, table, lengths=LENGTHS, **arguments):
    score = lambda s, b, h, i, j: s + bias[h]  # noqa: E731
    return foveal.jax.attention(q, k, v, score, foveal.causal_bottom_right(), block_table=table, seqlens_kv=lengths, **arguments)


def alone(q, k, v, bias, table, cu_q=None):
    """Each sequence by itself, its keys put together."""
    outs = []
    for b, length in enumerate(LENGTHS.tolist()):
        rows = q[b] if cu_q is None else q[cu_q[b] : cu_q[b + 1]]
        if length == 0:
            outs.append(jnp.zeros_like(rows))
            continue
        own = [pool[table[b, : COUNTS[b]]].reshape(-1, *pool.shape[2:])[:length] for pool in (k, v)]
        score = lambda s, b, h, i, j: s + bias[h]  # noqa: E731
        outs.append(foveal.jax.attention(rows[None], own[0][None], own[1][None], score, foveal.causal_bottom_right())[0])
    return jnp.stack(outs) if cu_q is None else jnp.concatenate(outs)


def gradients(fn, *arguments):
    return jax.grad(lambda *x: (fn(*x).astype(jnp.float32) ** 2).sum(), (0, 1, 2, 3))(*arguments)


def close(found, expected, dtype=np.float32):
    exact = jnp.dtype(dtype).itemsize >= 4
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(expected, np.float64), rtol=1e-5 if exact else 2e-2, atol=1e-5 if exact else 2e-2
    )


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("seqlen", [1, 5])
@pytest.mark.parametrize("jit", [False, True])
def test_batches_and_their_gradients(dtype, seqlen, jit):
    k, v, table = pools(dtype)
    q = queries(4, seqlen, 4, 8, dtype=dtype)
    paged, whole = (lambda *x: attend(*x, table)), (lambda *x: alone(*x, table))
    fn = jax.jit(paged) if jit else paged
    close(fn(q, k, v, BIAS), whole(q, k, v, BIAS), dtype)
    for found, expected in zip(gradients(fn, q, k, v, jnp.asarray(BIAS)), gradients(whole, q, k, v, jnp.asarray(BIAS))):
        assert found.shape == expected.shape and found.dtype == expected.dtype
        close(found, expected, dtype)


@pytest.mark.usefixtures("jax_on_cpu")  # lengths are looked at there
def test_packed_queries():
    k, v, table = pools()
    q = queries(11, 4, 8)
    paged, whole = (lambda *x: attend(*x, table, cu_seqlens=(CU_Q, None))), (lambda *x: alone(*x, table, cu_q=CU_Q))
    close(paged(q, k, v, BIAS), whole(q, k, v, BIAS))
    for found, expected in zip(gradients(paged, q, k, v, jnp.asarray(BIAS)), gradients(whole, q, k, v, jnp.asarray(BIAS))):
        close(found, expected)
    finite = [jnp.nan_to_num(x) for x in (k, v)]
    with pytest.warns(MaterializedWarning):
        close(*[jax.jvp(lambda *x: fn(*x, BIAS), (q, *finite), (q, *finite))[1] for fn in (paged, whole)])


def test_shared_pages_sum_their_gradients():
    k, v = queries(3, PAGE, 2, 8, seed=1), queries(3, PAGE, 2, 8, seed=2)
    q, table, lengths = queries(2, 3, 2, 8), np.array([[2, 0], [2, 1]], np.int32), np.array([30, 20])
    found = jax.grad(lambda k: foveal.jax.attention(q, k, v, block_table=table, seqlens_kv=lengths).sum())(k)

    def apart(k):
        own = [[x[table[b]].reshape(-1, 2, 8)[: lengths[b]] for x in (k, v)] for b in range(2)]
        return sum(foveal.jax.attention(q[b : b + 1], own[b][0][None], own[b][1][None]).sum() for b in range(2))

    close(found, jax.grad(apart)(k))


def test_forward_mode_and_second_derivatives():
    k, v, table = pools()
    q, bias = queries(4, 3, 4, 8), jnp.asarray(BIAS)
    tangents = tuple(map(jnp.ones_like, (q, k, v, bias)))
    paged, whole = (lambda *x: attend(*x, table)), (lambda *x: alone(*x, table))
    with pytest.warns(MaterializedWarning):
        close(*[jax.jvp(fn, (q, k, v, bias), tangents)[1] for fn in (paged, whole)])
    for found, expected in zip(*[jax.jvp(lambda *x: gradients(fn, *x), (q, k, v, bias), tangents)[1] for fn in (paged, whole)]):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_vmap_over_each_argument():
    k, v, table = pools()
    q, bias = queries(4, 3, 4, 8), jnp.asarray(BIAS)
    fewer = np.minimum(LENGTHS, 20)
    cases = {0: (q, 2 * q), 1: (k, 2 * k), 2: (v, 3 * v), 3: (bias, -bias), 4: (table, jnp.where(table < 0, table, table[::-1])), 5: (LENGTHS, fewer)}
    given = (q, jnp.nan_to_num(k), jnp.nan_to_num(v), bias, table, LENGTHS)
    for at, pair in cases.items():
        both = [jnp.nan_to_num(x) if at in (1, 2) else jnp.asarray(x) for x in pair]
        single = [attend(*[x if i == at else y for i, y in enumerate(given)]) for x in both] if at != 4 else None
        axes = [0 if i == at else None for i in range(6)]
        if at == 4:  # a table whose pages serve the shorter of two sequences
            both = [table, jnp.roll(table, 0, 0)]
            single = [attend(*given)] * 2
        found = jax.vmap(attend, axes)(*[jnp.stack(both) if i == at else y for i, y in enumerate(given)])
        np.testing.assert_array_equal(found, jnp.stack(single))


def test_one_program_for_all_tables_and_lengths():
    k, v, table = pools()
    k, v, q = jnp.nan_to_num(k), jnp.nan_to_num(v), queries(4, 1, 4, 8)
    traces = []

    @jax.jit
    def fn(table, lengths):
        traces.append(1)
        return attend(q, k, v, BIAS, table, lengths)

    for n in (1, 16, 17):
        lengths = np.array([n, 1, 0, n], np.int32)
        close(fn(table, lengths), attend(q, k, v, BIAS, table, lengths))
    assert len(traces) == 1

    def step(carry, n):  # decoding: one token more at each step
        return carry, attend(q, k, v, BIAS, table, jnp.stack([n, n, 0 * n, n]))

    _, outs = jax.lax.scan(step, 0, jnp.arange(1, 5, dtype=jnp.int32))
    close(outs[2], attend(q, k, v, BIAS, table, np.array([3, 3, 0, 3], np.int32)))


@pytest.mark.usefixtures("jax_on_cpu")
def test_the_backward_door_and_the_doors_for_all_arrays():
    k, v, table = pools()
    k, v, q = jnp.nan_to_num(k), jnp.nan_to_num(v), queries(4, 3, 4, 8)
    paged = dict(block_table=table, seqlens_kv=LENGTHS, mask="causal_bottom_right()")
    out, lse = foveal.forward(q, k, v, **paged)
    np.testing.assert_array_equal(out, foveal.attention(q, k, v, **paged))
    found = foveal.backward(q, k, v, out, lse, jnp.ones_like(out), **paged)
    expected = jax.grad(lambda *x: foveal.jax.attention(*x, **paged).sum(), (0, 1, 2))(q, k, v)
    for x, y in zip(found, expected):
        np.testing.assert_array_equal(x, y)
    assert "pages=16" in foveal.explain(q, k, v, **paged)["problem"]
    assert foveal.check(q, k, v, dout=jnp.ones_like(out), **paged)


needs_devices = pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX was started with fewer than 4 devices")


@pytest.mark.usefixtures("jax_on_cpu")
@needs_devices
@pytest.mark.parametrize("b, h, heads, heads_kv", [(2, 2, 4, 2), (4, 1, 4, 2), (1, 4, 4, 2), (2, 2, 4, 1)])
def test_jit_splits_the_batch_and_the_heads(b, h, heads, heads_kv):
    mesh = Mesh(np.array(jax.devices("cpu")[:4]).reshape(b, h), ("b", "h"))
    k, v, table = pools(heads=heads_kv)
    q = queries(4, 5, heads, 8)
    on_kv = "h" if heads_kv % h == 0 else None
    specs = (P("b", None, "h"), P(None, None, on_kv), P(None, None, on_kv), P("h"), P("b"), P("b"))
    given = (q, k, v, jnp.asarray(BIAS), table, jnp.asarray(LENGTHS))
    shards = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(given, specs)]
    compiled = jax.jit(attend).lower(*shards).compile()
    close(compiled(*shards), attend(*given))
    assert f"f32[{4 // b},5,{heads // h},8]" in compiled.as_text() and "all-gather" not in compiled.as_text()
    for found, expected in zip(jax.jit(lambda *x: gradients(lambda *y: attend(*y, *x[4:]), *x[:4]))(*shards), gradients(lambda *y: attend(*y, *given[4:]), *given[:4])):
        close(found, expected)


@pytest.mark.usefixtures("jax_on_cpu")
@needs_devices
def test_shard_map_over_the_batch():
    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("b",))
    k, v, table = pools()
    q, bias = queries(4, 5, 4, 8), jnp.asarray(BIAS)
    sharded = jax.shard_map(attend, mesh=mesh, in_specs=(P("b"), P(), P(), P(), P("b"), P("b")), out_specs=P("b"))
    close(sharded(q, k, v, bias, table, LENGTHS), attend(q, k, v, bias, table))
    both = [gradients(lambda *x: fn(*x, table, jnp.asarray(LENGTHS)), q, k, v, bias) for fn in (sharded, attend)]
    for found, expected in zip(*both):
        close(found, expected)


def test_export():
    pytest.importorskip("flatbuffers")
    k, v, table = pools()
    q = queries(4, 5, 4, 8)
    checks = [jax.export.DisabledSafetyCheck.custom_call("foveal_call")]
    exported = jax.export.export(jax.jit(lambda *x: gradients(lambda *y: attend(*y, *x[4:]), *x[:4])), disabled_checks=checks)
    given = (q, k, v, jnp.asarray(BIAS), table, jnp.asarray(LENGTHS))
    again = jax.export.deserialize(exported(*[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given]).serialize())
    for found, expected in zip(again.call(*given), gradients(lambda *y: attend(*y, *given[4:]), *given[:4])):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(seqlens_kv=None), ValueError, "seqlens_kv: absent beside block_table"),
        (dict(block_table=None), ValueError, "block_table: absent beside seqlens_kv"),
        (dict(block_table=jnp.zeros((4, 4))), ValueError, "block_table: dtype f32; expected i32"),
        (dict(block_table=jnp.zeros((4, 4), jnp.int16)), ValueError, "block_table: dtype i16; expected i32"),
        (dict(block_table=[[0]]), TypeError, "block_table: found list; expected an array of jax"),
        (dict(block_table=jnp.zeros((3, 4), jnp.int32)), ValueError, "block_table: 3 rows; expected 4, one for each sequence"),
        (dict(seqlens_kv=jnp.zeros((4, 1), jnp.int32)), ValueError, r"seqlens_kv: shape \[4, 1\]; expected \[4\]"),
        (dict(block_table=jnp.full((4, 4), 99, jnp.int32)), Exception, r"block_table: page 99 at \[0, 0\]; expected 0 to 10"),
        (dict(seqlens_kv=jnp.array([65, 0, 0, 0])), Exception, "seqlens_kv: 65 of sequence 0; expected 0 to 64"),
        (dict(cu_seqlens=(CU_Q, CU_Q)), ValueError, "cu_seqlens: for kv: given beside a block_table"),
        (dict(page_table=1), TypeError, "page_table: no argument of this function; expected block_table"),
    ],
)
@pytest.mark.parametrize("door", [foveal.jax.attention, foveal.attention])
@pytest.mark.usefixtures("jax_on_cpu")  # pages and lengths are looked at there
def test_wrong_calls(change, error, words, door):
    k, v, table = pools()
    with pytest.raises(error, match=words):
        jax.block_until_ready(door(queries(4, 1, 4, 8), k, v, **{"block_table": table, "seqlens_kv": LENGTHS, **change}))
