"""Arrays without elements, as torch and JAX have it: zeros, and no key is lse = -inf, or the sink."""

import numpy as np
import pytest

import foveal

SHAPES = {  # q, k, v
    "batch": ((0, 5, 2, 4), (0, 6, 2, 4), (0, 6, 2, 3)),
    "queries": ((1, 0, 2, 4), (1, 6, 2, 4), (1, 6, 2, 3)),
    "keys": ((1, 5, 2, 4), (1, 0, 2, 4), (1, 0, 2, 3)),
    "heads": ((1, 5, 0, 4), (1, 6, 0, 4), (1, 6, 0, 3)),
    "values": ((1, 5, 2, 4), (1, 6, 2, 4), (1, 6, 2, 0)),
}
SINK = np.array([0.5, -1.0], np.float32)


def expected_lse(q, sink):
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf, np.float32)
    lse[...] = lse if sink is None else sink[:, None]
    return lse


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_numpy(name, with_sink):
    q, k, v = (np.ones(shape, np.float32) for shape in SHAPES[name])
    with_sink = with_sink and name != "heads"
    arguments = {"sink": SINK} if with_sink else {}
    for out, lse in (
        foveal.attention(q, k, v, foveal.softcap(2.0), foveal.causal(), return_lse=True, **arguments),
        foveal.forward(q, k, v, foveal.softcap(2.0), foveal.causal(), **arguments),
    ):
        np.testing.assert_array_equal(out, np.zeros((*q.shape[:-1], v.shape[-1]), np.float32), strict=True)
        np.testing.assert_array_equal(lse, expected_lse(q, arguments.get("sink")), strict=True)
    assert foveal.attention(q, k, v).shape == out.shape
    dlse = np.ones_like(lse)
    dq, dk, dv, others = foveal.backward(q, k, v, out, lse, out, dlse=dlse, gradients=tuple(arguments), **arguments)
    for found, x in ((dq, q), (dk, k), (dv, v)):
        np.testing.assert_array_equal(found, np.zeros_like(x), strict=True)
    if with_sink:
        np.testing.assert_array_equal(others["sink"], dlse.sum((0, 2)))


@pytest.mark.parametrize("name", SHAPES)
def test_torch_without_autograd(name):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.ones(shape) for shape in SHAPES[name])
    out, lse = foveal.forward(q, k, v)
    assert out.shape == (*q.shape[:-1], v.shape[-1]) and not out.any() and bool((lse == -torch.inf).all())
    assert [x.shape for x in foveal.backward(q, k, v, out, lse, out)[:3]] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_jax(name, with_sink):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    import foveal.jax

    arrays = [jnp.ones(shape, jnp.float32) for shape in SHAPES[name]]
    with_sink = with_sink and name != "heads"
    sink = jnp.asarray(SINK) if with_sink else None
    attend = lambda q, k, v, sink: foveal.jax.attention(q, k, v, mask=foveal.causal(), sink=sink, return_lse=True)  # noqa: E731
    for run in (attend, jax.jit(attend)):
        out, lse = run(*arrays, sink)
        np.testing.assert_array_equal(out, np.zeros((*arrays[0].shape[:-1], arrays[2].shape[-1]), np.float32), strict=True)
        np.testing.assert_array_equal(lse, expected_lse(arrays[0], sink), strict=True)
    if with_sink:
        found = jax.grad(lambda sink: attend(*arrays, sink)[1].sum())(sink)
        np.testing.assert_array_equal(found, np.ones_like(lse).sum((0, 2)))
    dq = jax.grad(lambda q: attend(q, *arrays[1:], sink)[0].sum())(arrays[0])
    np.testing.assert_array_equal(dq, np.zeros_like(arrays[0]))
    given = {} if sink is None else {"sink": sink}
    dq, dk, dv, others = foveal.jax.backward(*arrays, out, lse, out, dlse=jnp.ones_like(lse), gradients=tuple(given), **given)
    assert [x.shape for x in (dq, dk, dv)] == [x.shape for x in arrays]
    if with_sink:
        np.testing.assert_array_equal(others["sink"], np.ones_like(lse).sum((0, 2)))


def test_jax_dot_product_attention():
    jnp = pytest.importorskip("jax.numpy")
    import foveal.jax

    q = jnp.ones((2, 0, 2, 4))
    assert foveal.jax.dot_product_attention(q, q, q).shape == q.shape


TABLES = {"batch": (0, 6), "queries": (0, 6), "keys": (1, 0)}  # as they are cut with q and k


@pytest.mark.parametrize("name", TABLES)
def test_captured_arrays_without_elements(name):
    """The bias of an empty batch is empty, too."""
    q, k, v = (np.ones(shape, np.float32) for shape in SHAPES[name])
    table = np.ones(TABLES[name], np.float32)
    symbol = {"batch": 1, "queries": 3, "keys": 1}[name]

    def reading(table):
        return lambda *symbols: symbols[0] + table[symbols[symbol], symbols[4]]

    out, lse = foveal.forward(q, k, v, reading(table))
    assert not out.any() and (lse == -np.inf).all()
    assert foveal.backward(q, k, v, out, lse, out, reading(table), gradients=("p0",))[3]["p0"].shape == table.shape
    by_text = foveal.attention(q, k, v, f"score + t[{('batch', 'q_idx')[name == 'queries']}, kv_idx]", params={"t": table})
    np.testing.assert_array_equal(by_text, out)
    with pytest.raises(ValueError, match=r"foveal.attention: parameter p0: shape \[\d, \d\]; expected"):
        foveal.attention(*(np.ones((1, 5, 2, 4), np.float32) for _ in range(3)), reading(table))

    torch, door = pytest.importorskip("torch"), pytest.importorskip("foveal.torch")
    learned = torch.from_numpy(table).requires_grad_()
    door.attention(*(torch.from_numpy(x) for x in (q, k, v)), reading(learned)).sum().backward()
    assert learned.grad.shape == table.shape


def test_door_of_jax_with_an_empty_batch():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    import foveal.jax

    q, bias, keep, lengths = jnp.ones((0, 5, 2, 4)), jnp.ones((0, 1, 5, 5)), jnp.ones((0, 1, 1, 5), bool), jnp.ones(0, jnp.int32)
    for door in (foveal.jax.dot_product_attention, jax.nn.dot_product_attention):
        run = jax.jit(lambda q, bias, door=door: door(q, q, q, bias, keep, key_value_seq_lengths=lengths))
        assert run(q, bias).shape == q.shape
        assert jax.grad(lambda bias, run=run: run(q, bias).sum())(bias).shape == bias.shape
