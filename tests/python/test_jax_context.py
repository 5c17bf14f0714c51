"""foveal.jax.context_attention inside shard_map: values and gradients of one device, on 1, 2 and 4. conftest.py gives JAX four devices."""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402

DEVICES = jax.devices("cpu")
pytestmark = [
    pytest.mark.usefixtures("jax_on_cpu"),
    pytest.mark.skipif(len(DEVICES) < 4, reason="JAX was started with fewer than 4 devices"),
    pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has no jax.shard_map"),
]
S = 48


def normal(key, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(key), shape, dtype)


def sharded(attend, ranks, deal, captured=0, lse=False):
    """attend(q, k, v, *captured, **how) on shards, as a function of whole tensors. Under jit: without, XLA compiles shard_map's operations one by one."""
    mesh, rows = Mesh(np.array(DEVICES[:ranks]), ("context",)), P(None, "context")
    order = lambda x: foveal.jax.context_order(x, ranks, deal, pad=True)  # noqa: E731
    local = functools.partial(attend, axis_name="context", deal=deal)
    inner = jax.shard_map(
        lambda *x: local(*x), mesh=mesh, in_specs=(rows,) * 3 + (P(),) * captured, out_specs=(rows, P(None, None, "context")) if lse else rows
    )

    def run(q, k, v, *rest):
        found = inner(q[:, order(q.shape[1])], k[:, order(k.shape[1])], v[:, order(k.shape[1])], *rest)
        back = foveal.jax.context_places(q.shape[1], ranks, deal)
        return (found[0][:, back], found[1][:, :, back]) if lse else found[:, back]

    return run


RNG_STATE = np.array([5, 0, 9, 0], np.uint32)
DOCUMENTS = jnp.arange(S) // 11
FEATURES = {
    "plain": (lambda q, k, v, **how: how["door"](q, k, v), ()),
    "causal": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.causal()), ()),
    "window": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.causal() & foveal.window(7)), ()),
    "documents": (lambda q, k, v, **how: how["door"](q, k, v, mask=lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (j <= i)), ()),
    "lengths": (lambda q, k, v, **how: how["door"](q, k, v, mask="kv_idx - q_idx < seqlen_kv - seqlen_q + 5 & q_idx < seqlen_q - 3"), ()),
    "table": (lambda q, k, v, t, **how: how["door"](q, k, v, lambda s, b, h, i, j: s + t[h, i - j + S], foveal.causal()), ((4, 2 * S),)),
    "rows": (lambda q, k, v, t, **how: how["door"](q, k, v, lambda s, b, h, i, j: s * jax.nn.sigmoid(t[b, i])), ((2, S),)),
    "bias": (lambda q, k, v, t, **how: how["door"](q, k, v, lambda s, b, h, i, j: s + t[i, j]), ((S, S),)),
    "sink": (lambda q, k, v, t, **how: how["door"](q, k, v, mask=foveal.causal(), sink=t), ((4,),)),
    "scale": (lambda q, k, v, t, **how: how["door"](q, k, v, mask=foveal.causal(), scale=t), ((),)),
    "offsets": (lambda q, k, v, **how: how["door"](q, k, v, "score + 0.01 * to_real(q_idx + kv_idx)", foveal.causal(), q_offset=9, kv_offset=4), ()),
    "dropout": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.causal(), dropout_p=0.3, seed=7, offset=2), ()),
    "dropout and offsets": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.window(9), dropout_p=0.3, seed=2**40 + 1, q_offset=9, kv_offset=6), ()),
    "dropout and what is trained": (
        lambda q, k, v, t, sink, scale, **how: how["door"](
            q, k, v, lambda s, b, h, i, j: s + t[h, i - j + S], foveal.causal(), sink=sink, scale=scale, dropout_p=0.3, rng_state=RNG_STATE
        ),
        ((4, 2 * S), (4,), ()),
    ),
}


CASES = [(feature, ranks, "zigzag") for feature in FEATURES for ranks in (2, 4)]
CASES += [(feature, ranks, deal) for feature in ("causal", "table") for ranks, deal in ((1, "zigzag"), (2, "contiguous"), (4, "contiguous"))]
CASES += [("dropout and offsets", 4, "contiguous")]


@pytest.mark.parametrize("feature,ranks,deal", CASES)
def test_features_are_those_of_one_device(feature, ranks, deal):
    attend, shapes = FEATURES[feature]
    tensors = [normal(1, 2, S, 4, 16), normal(2, 2, S, 2, 16), normal(3, 2, S, 2, 24), *[0.5 * normal(4 + i, *s) for i, s in enumerate(shapes)]]
    alone = functools.partial(attend, door=foveal.jax.attention)

    def of_shards(*x, axis_name, deal):
        return attend(*x, door=functools.partial(foveal.jax.context_attention, axis_name=axis_name, deal=deal))

    def both(f):
        return jax.jit(lambda *x: (f(*x), jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=tuple(range(len(tensors))))(*x)))

    (out, gradients), (out_alone, gradients_alone) = (both(f)(*tensors) for f in (sharded(of_shards, ranks, deal, len(shapes)), alone))
    np.testing.assert_allclose(out, out_alone, rtol=1e-5, atol=1e-5)
    for found, expected in zip(gradients, gradients_alone):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("deal", ["zigzag", "contiguous"])
@pytest.mark.filterwarnings("ignore::foveal.MaterializedWarning")
def test_other_derivatives_are_those_of_one_device(deal):
    tensors = [normal(i, 1, 16, 2, 8) for i in range(3)] + [normal(3, 2, 32)]

    def attend(q, k, v, t, door=foveal.jax.context_attention, **how):
        return door(q, k, v, lambda s, b, h, i, j: s + t[h, i - j + 16], foveal.causal(), **how)

    def both(f):
        loss = lambda *x: (f(*x) ** 2).sum()  # noqa: E731
        return jax.jit(lambda *x: (jax.jvp(f, x, x)[1], jax.jvp(jax.grad(loss, (0, 1, 2, 3)), x, x)[1]))(*tensors)

    alone = both(functools.partial(attend, door=foveal.jax.attention))
    for found, expected in zip(jax.tree.leaves(both(sharded(attend, 2, deal, 1))), jax.tree.leaves(alone)):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_lse_cross_attention_types_and_captured_tensors():
    def both(q, k, v, **how):
        return foveal.jax.context_attention(q, k, v, mask="kv_idx <= q_idx + (seqlen_kv - seqlen_q)", return_lse=True, **how)

    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)):
        q, k, v = normal(1, 1, 24, 2, 16, dtype=dtype), normal(2, 1, S, 2, 16, dtype=dtype), normal(3, 1, S, 2, 16, dtype=dtype)
        many = sharded(both, 4, "zigzag", lse=True)
        alone = functools.partial(foveal.jax.attention, mask="kv_idx <= q_idx + (seqlen_kv - seqlen_q)", return_lse=True)
        for found, expected in zip(jax.jit(many)(q, k, v), alone(q, k, v)):
            np.testing.assert_allclose(found.astype(jnp.float32), expected.astype(jnp.float32), rtol=tolerance, atol=tolerance)
        loss = lambda f: lambda *x: sum((y.astype(jnp.float32) ** 2).sum() for y in f(*x))  # noqa: E731 - through lse, too
        for found, expected in zip(*(jax.jit(jax.grad(loss(f), (0, 1, 2)))(q, k, v) for f in (many, alone))):
            np.testing.assert_allclose(found.astype(jnp.float32), expected.astype(jnp.float32), rtol=0.05, atol=30 * tolerance)
    # What a function captures, without being an argument of the shard_map.
    bias, (q, k, v) = normal(5, S), (normal(i, 1, S, 2, 8) for i in range(3))

    def loss_of(bias, shards):
        def attend(q, k, v, **how):
            door = functools.partial(foveal.jax.context_attention, **how) if shards else foveal.jax.attention
            return door(q, k, v, lambda s, b, h, i, j: s + bias[i - j], foveal.causal())

        return ((sharded(attend, 2, "zigzag") if shards else attend)(q, k, v) ** 2).sum()

    found, expected = (jax.jit(jax.grad(functools.partial(loss_of, shards=shards)))(bias) for shards in (True, False))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


REACH = {  # of masks: what one device of four gets by ppermute; None: all by all_gather
    "window": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.causal() & foveal.window(7)), 2),
    "both sides": (lambda q, k, v, **how: how["door"](q, k, v, mask="abs(q_idx - kv_idx) <= 9"), 3),
    "ahead": (lambda q, k, v, **how: how["door"](q, k, v, mask="(kv_idx > q_idx + 12) & (kv_idx < q_idx + 24)"), 3),
    "by head": (lambda q, k, v, **how: how["door"](q, k, v, mask="(kv_idx <= q_idx) & (q_idx - kv_idx < 3 * (head + 1))"), 2),
    "offsets": (lambda q, k, v, **how: how["door"](q, k, v, "score + 0.01 * to_real(q_idx + kv_idx)", "(kv_idx <= q_idx) & (q_idx - kv_idx < 9)", q_offset=9, kv_offset=4), 3),
    "table": (
        lambda q, k, v, **how: how["door"](q, k, v, lambda s, b, h, i, j: s + jnp.sin(jnp.arange(S * 1.0))[i - j], foveal.causal() & foveal.window(7)),
        2,
    ),
    "sink": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.causal() & foveal.window(7), sink=jnp.arange(4.0)), 2),
    "documents": (lambda q, k, v, **how: how["door"](q, k, v, mask=lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (j <= i)), None),
    "causal": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.causal()), None),
    "dropout": (lambda q, k, v, **how: how["door"](q, k, v, mask=foveal.causal() & foveal.window(7), dropout_p=0.3, seed=3), None),
    "first token": (lambda q, k, v, **how: how["door"](q, k, v, mask="(kv_idx == 0) | (q_idx == kv_idx)"), None),
}


@pytest.mark.parametrize("name,seqlen", [*((name, S) for name in REACH), ("window", S - 1), ("ahead", S - 1), ("documents", S - 7), ("dropout", S - 7)])
def test_only_neighbours_within_reach_are_fetched(name, seqlen):
    attend, devices = REACH[name]
    tensors = [normal(i, 1, seqlen, 4 if i == 1 else 2, 8) for i in (1, 2, 3)]

    def of_shards(*x, **how):
        return attend(*x, door=functools.partial(foveal.jax.context_attention, seqlen=seqlen, **how))

    many = sharded(of_shards, 4, "contiguous")
    text = str(jax.make_jaxpr(many)(*tensors))
    assert (text.count("all_gather["), text.count("ppermute[")) == ((2, 0) if devices is None else (0, 2 * (devices - 1)))
    both = [lambda *x, f=f: (f(*x), jax.grad(lambda *x: (f(*x) ** 2).sum(), (0, 1, 2))(*x)) for f in (many, functools.partial(attend, door=foveal.jax.attention))]
    for found, expected in zip(jax.tree.leaves(jax.jit(both[0])(*tensors)), jax.tree.leaves(both[1](*tensors))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("deal", ["zigzag", "contiguous"])
@pytest.mark.parametrize("length,length_kv", [(S - 5, S - 5), (9, 45), (1, 1)])
def test_lengths_that_are_no_multiples(deal, length, length_kv):
    """Padding holds the last token again, which would be seen in every lse."""

    def of_shards(*x, **how):
        return foveal.jax.context_attention(*x, "score + 0.01 * to_real(seqlen_q - q_idx + seqlen_kv)", seqlen=length, seqlen_kv=length_kv, return_lse=True, **how)

    def alone(*x):
        return foveal.jax.attention(*x, "score + 0.01 * to_real(seqlen_q - q_idx + seqlen_kv)", return_lse=True)

    tensors = [normal(1, 2, length, 4, 16), normal(2, 2, length_kv, 2, 16), normal(3, 2, length_kv, 2, 16)]
    many = sharded(of_shards, 4, deal, lse=True)
    loss = lambda f: lambda *x: sum((y**2).sum() for y in f(*x))  # noqa: E731
    both = [lambda *x, f=f: (f(*x), jax.grad(loss(f), (0, 1, 2))(*x)) for f in (many, alone)]
    for found, expected in zip(*(jax.tree.leaves(jax.jit(f)(*tensors)) for f in both)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_order_and_positions():
    for deal, want in (("zigzag", [0, 1, 6, 7, 2, 3, 4, 5]), ("contiguous", list(range(8)))):
        order = foveal.jax.context_order(8, 2, deal)
        assert order.tolist() == want
        mesh = Mesh(np.array(DEVICES[:2]), ("context",))
        positions = jax.shard_map(lambda x: foveal.jax.context_positions(x.shape[0], "context", deal), mesh=mesh, in_specs=P("context"), out_specs=P("context"))
        assert positions(jnp.zeros(8)).tolist() == want


def test_rows_without_keys_on_some_devices():
    def attend(q, k, v, **how):
        return foveal.jax.context_attention(q, k, v, mask="(q_idx < 8) & (kv_idx <= q_idx)", return_lse=True, **how)

    q = normal(1, 1, S, 1, 8)
    out, lse = jax.jit(sharded(attend, 4, "contiguous", lse=True))(q, q, q)
    assert (out[:, 8:] == 0).all() and jnp.isneginf(lse[:, :, 8:]).all() and jnp.isfinite(lse[:, :, :8]).all()


def test_refusals():
    q = normal(1, 1, S, 2, 8)
    attend = foveal.jax.context_attention

    def inside(ranks=2, shape=q, **how):
        mesh = Mesh(np.array(DEVICES[:ranks]), ("context",))
        return jax.shard_map(lambda x: attend(x, x, x, **{"axis_name": "context", **how}), mesh=mesh, in_specs=P(None, "context"), out_specs=P(None, "context"))(shape)

    for call, error, text in [
        (lambda: attend(q, q, q, axis_name="context"), ValueError, "axis_name: 'context' is no axis here"),
        (lambda: inside(axis_name="batch"), ValueError, "axis_name: 'batch' is no axis here"),
        (lambda: inside(deal="ring"), ValueError, "deal: 'ring'; expected 'contiguous' or 'zigzag'"),
        (lambda: inside(shape=q[:, :46]), ValueError, "23 rows of a device; expected an even number"),
        (lambda: inside(shape=q[0]), ValueError, "q: rank 3; expected"),
        (lambda: inside(dropout_p=0.1), ValueError, "context_attention: seed: found None; expected an integer"),
        (lambda: inside(dropout_p=0.1, seed="a"), TypeError, "context_attention: seed: found str 'a'; expected an integer"),
        (lambda: inside(cu_seqlens=(q, q)), NotImplementedError, "cu_seqlens: packed sequences"),
        (lambda: inside(block_table=q), NotImplementedError, "block_table: keys in pages are not shared among devices"),
        (lambda: inside(seqlens_kv=q), NotImplementedError, "seqlens_kv: keys in pages are not shared among devices"),
        (lambda: inside(causal=True), TypeError, "causal"),
        (lambda: inside(params={"q_first_": q}, mask="q_first_[0, 0, 0, 0] > 0"), ValueError, "params: q_first_"),
        (lambda: foveal.jax.context_order(10, 4), ValueError, "seqlen: 10 for 4 ranks"),
        (lambda: inside(seqlen=49), ValueError, "seqlen: 49; expected 1 to 48"),
        (lambda: inside(seqlen=12.5), TypeError, "foveal.jax.context_attention: seqlen: found float 12.5; expected an integer"),
        (lambda: jax.jit(lambda n: inside(seqlen=n))(12), TypeError, "which JAX traces; expected an integer"),
        (lambda: inside(q_offset="x"), TypeError, "q_offset: found str 'x'; expected an integer"),
        (lambda: inside(deal=[]), ValueError, "deal: []; expected 'contiguous' or 'zigzag'"),
        (lambda: inside(return_lse="x"), TypeError, "return_lse: found str 'x'; expected True or False"),
        (lambda: foveal.jax.context_order("x", 2), TypeError, "context_order: seqlen: found str 'x'; expected an integer"),
        (lambda: foveal.jax.context_places(8, 0), ValueError, "context_places: seqlen: 8 for 0 ranks; expected both to be 1 or more"),
        (lambda: inside(seqlen_kv=0), ValueError, "seqlen_kv: 0; expected 1 to 48"),
    ]:
        with pytest.raises(error, match=".*") as found:
            call()
        assert text in str(found.value), found.value
