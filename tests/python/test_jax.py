"""foveal.jax under jit, grad and vmap against jnp, on JAX's default device: on a GPU its kernels run."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402
from foveal.jax import foreign  # noqa: E402

ON_GPU = jax.default_backend() == "gpu"


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


def inputs(batch=2, n=24, heads=2, dim=8, examples=()):
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    q, k, v = (jax.random.normal(key, (*examples, batch, n, heads, dim)) for key in keys[:3])
    return q, k, v, jax.random.normal(keys[3], (heads, 2 * n - 1))


def close(found, expected, atol=1e-4):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and jnp.allclose(a, b, atol=atol), float(jnp.abs(a - b).max())


def squared(fn):
    return lambda *arguments: (fn(*arguments) ** 2).sum()


def calls_made(fn, *arguments):
    """Foreign calls in the compiled program: what runs, after all transformations."""
    return jax.jit(fn).lower(*arguments).as_text().count("custom_call @foveal_call")


def test_runs_on_the_default_device():
    q, k, v, _ = inputs(dim=64)
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    report = foveal.explain(q, k, v, mask=foveal.causal())
    assert report["backend"] == ("cuda" if ON_GPU else "cpu")
    out = foveal.attention(q, k, v, mask=foveal.causal())
    assert isinstance(out, jax.Array) and out.devices() == q.devices()


def test_forward_and_gradients_under_jit():
    arguments = inputs()
    close(jax.jit(ours)(*arguments), reference(*arguments), 1e-5)
    found = jax.jit(jax.grad(squared(ours), argnums=(0, 1, 2, 3)))(*arguments)
    close(found, jax.grad(squared(reference), argnums=(0, 1, 2, 3))(*arguments))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype):
    q, k, v, bias = inputs(n=128, dim=64)
    arguments = tuple(x.astype(dtype) for x in (q, k, v))
    found = jax.jit(jax.grad(squared(ours), argnums=(0, 1, 2, 3)))(*arguments, bias)
    expected = jax.grad(squared(reference), argnums=(0, 1, 2, 3))(*(x.astype(jnp.float32) for x in arguments), bias)
    for a, b in zip(found, expected):
        error = jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b)
        assert error < (3e-2 if dtype == "bfloat16" else 5e-3), error


def test_vmap_is_one_call():
    q, k, v, bias = inputs(examples=(3,))
    mapped = jax.vmap(ours, in_axes=(0, 0, 0, None))
    assert calls_made(mapped, q, k, v, bias) == 1
    close(mapped(q, k, v, bias), jax.vmap(reference, in_axes=(0, 0, 0, None))(q, k, v, bias), 1e-5)
    gradients = jax.grad(squared(mapped), argnums=(0, 1, 2, 3))
    assert calls_made(gradients, q, k, v, bias) == 2
    close(gradients(q, k, v, bias), jax.grad(squared(jax.vmap(reference, in_axes=(0, 0, 0, None))), argnums=(0, 1, 2, 3))(q, k, v, bias))


def test_vmap_over_parameters_and_of_gradients():
    q, k, v, bias = inputs(examples=(3,))
    biases = jnp.stack([bias, bias * 0.5, -bias])
    close(jax.vmap(ours)(q, k, v, biases), jax.vmap(reference)(q, k, v, biases), 1e-5)
    close(jax.vmap(ours, in_axes=(None, None, None, 0))(q[0], k[0], v[0], biases), jnp.stack([reference(q[0], k[0], v[0], b) for b in biases]), 1e-5)
    each = lambda fn: jax.vmap(jax.grad(squared(fn), argnums=(0, 3)), in_axes=(0, 0, 0, None))  # noqa: E731
    assert calls_made(each(ours), q, k, v, bias) == 2
    close(each(ours)(q, k, v, bias), each(reference)(q, k, v, bias))


def test_vmap_keeps_the_meaning_of_batch():
    """What reads `batch` sees the row within its example; a parameter with a row for each keeps its gradient exact."""
    q, k, v, _ = inputs(batch=2, examples=(3,))
    rows, lengths = jnp.array([[0.5, -1.0], [2.0, 0.3], [1.0, 1.5]]), jnp.array([[5, 24], [12, 3], [24, 9]], jnp.int32)

    def ours(q, k, v, rows, lengths):
        return foveal.jax.attention(
            q, k, v, lambda s, b, h, i, j: s * rows[b] + foveal.to_real(b) * 0.01 * (i - j), lambda b, h, i, j: j < lengths[b]
        )

    def reference(q, k, v, rows, lengths):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1]) * rows[:, None, None, None]
        n = q.shape[1]
        s = s + jnp.arange(2.0)[:, None, None, None] * 0.01 * (jnp.arange(n)[:, None] - jnp.arange(n))
        s = jnp.where(jnp.arange(n) < lengths[:, None, None, None], s, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    for axes in ((0, 0, 0, 0, 0), (0, 0, 0, None, None), (0, None, 0, 0, None)):
        arguments = [x if axis == 0 else x[0] for x, axis in zip((q, k, v, rows, lengths), axes)]
        gradient = lambda fn: jax.grad(squared(jax.vmap(fn, in_axes=axes)), argnums=(0, 1, 3))(*arguments)  # noqa: B023, E731
        assert calls_made(jax.vmap(ours, in_axes=axes), *arguments) == 1
        close(gradient(ours), gradient(reference))


def test_nested_vmap():
    q, k, v, bias = inputs(examples=(2, 3))
    nested = lambda fn: jax.vmap(jax.vmap(fn, in_axes=(0, 0, 0, None)), in_axes=(0, 0, 0, None))  # noqa: E731
    assert calls_made(nested(ours), q, k, v, bias) == 1
    close(nested(ours)(q, k, v, bias), nested(reference)(q, k, v, bias), 1e-5)


def test_what_does_not_fold_runs_one_by_one():
    q, k, v, _ = inputs(examples=(3,))
    dropped = lambda q, k, v: foveal.jax.attention(q, k, v, dropout_p=0.5, seed=7)  # noqa: E731
    close(jax.vmap(dropped)(q, k, v), jnp.stack([dropped(*x) for x in zip(q, k, v)]), 1e-6)
    sinks = jnp.array([[0.0, 1.0], [2.0, 3.0], [-1.0, 0.5]])
    sunk = lambda q, k, v, sink: foveal.jax.attention(q, k, v, sink=sink)  # noqa: E731
    close(jax.vmap(sunk)(q, k, v, sinks), jnp.stack([sunk(*x) for x in zip(q, k, v, sinks)]), 1e-6)
    cu = jnp.array([0, 10, 48], jnp.int32)
    packed = lambda q, k, v: foveal.jax.attention(q, k, v, mask=foveal.causal(), cu_seqlens=(cu, cu), max_seqlens=(38, 38))  # noqa: E731
    flat = [x.reshape(3, 48, 2, 8) for x in (q, k, v)]
    close(jax.vmap(packed)(*flat), jnp.stack([packed(*x) for x in zip(*flat)]), 1e-6)


def test_seeds_are_traced():
    q, k, v, _ = inputs()
    dropped = lambda q, k, v, seed, offset=0: foveal.jax.attention(q, k, v, dropout_p=0.5, seed=seed, offset=offset)  # noqa: E731
    loss = lambda *x: (dropped(*x) ** 2).sum()  # noqa: E731
    compiled, gradient = jax.jit(dropped), jax.jit(jax.grad(loss))
    compiled(q, k, v, 1, 2), gradient(q, k, v, 1, 2)
    made = len(foreign.planned)
    for seed in range(50):
        close(compiled(q, k, v, seed, seed + 1), dropped(q, k, v, seed, seed + 1), 1e-7)
    close(gradient(q, k, v, 5, 6), jax.grad(loss)(q, k, v, 5, 6), 1e-6)
    assert len(foreign.planned) == made and compiled._cache_size() == 1
    seeds = jnp.arange(3)
    close(jax.vmap(lambda s: dropped(q, k, v, s))(seeds), jnp.stack([dropped(q, k, v, int(s)) for s in seeds]), 1e-7)
    numbers = [np.asarray(x) for x in (q, k, v)]
    for seed, offset in ((7, 8), (2**64 - 1, 2**63 + 5)):
        expected = foveal.attention(*numbers, dropout_p=0.5, seed=seed, offset=offset)
        close(dropped(q, k, v, seed, offset), expected, 1e-7)
        words = jnp.array([seed % 2**32, seed // 2**32, offset % 2**32, offset // 2**32], jnp.uint32)
        close(foveal.jax.attention(q, k, v, dropout_p=0.5, rng_state=words), expected, 1e-7)
    with pytest.raises(ValueError, match="seed: found int -1"):
        dropped(q, k, v, -1)
    with pytest.raises(ValueError, match="rng_state: float32"):
        foveal.jax.attention(q, k, v, dropout_p=0.5, rng_state=jnp.zeros(2))


def test_lse_gradient_and_sink():
    q, k, v, _ = inputs()
    lse = lambda q: foveal.jax.attention(q, k, v, return_lse=True)[1].sum()  # noqa: E731
    direct = lambda q: jax.nn.logsumexp(jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8.0), -1).sum()  # noqa: E731
    close(jax.grad(lse)(q), jax.grad(direct)(q), 1e-5)

    def with_sink(sink):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8.0)
        s = jnp.concatenate([s, jnp.broadcast_to(sink[None, :, None, None], (*s.shape[:3], 1))], -1)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1)[..., :-1], v)

    sink = jnp.array([0.5, -0.5])
    found = jax.jit(jax.grad(squared(lambda sink: foveal.jax.attention(q, k, v, sink=sink))))(sink)
    close(found, jax.grad(squared(with_sink))(sink))


def test_forward_and_backward_without_autodiff():
    q, k, v, bias = inputs()
    out, lse = foveal.forward(q, k, v, mask=foveal.causal())
    dq, dk, dv, _ = foveal.backward(q, k, v, out, lse, 2 * out, mask=foveal.causal())
    expected = jax.grad(squared(lambda *t: reference(*t, jnp.zeros_like(bias))), argnums=(0, 1, 2))(q, k, v)
    close((dq, dk, dv), expected)


def test_a_wrong_call_is_a_value_error():
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match="heads"):
        foveal.jax.attention(q, k[:, :, :1].repeat(3, 2), v)
    with pytest.raises(ValueError, match="rank 2"):
        foveal.jax.attention(q[0, 0], k[0, 0], v[0, 0])


def test_arrays_become_parameters_once_per_shape():
    """A jitted function is planned once, and runs with the values it is given then."""
    q, k, v, bias = inputs()
    step = jax.jit(ours)
    first, second = step(q, k, v, bias), step(q, k, v, bias * 2)
    close(second, reference(q, k, v, bias * 2), 1e-5)
    assert not np.allclose(first, second)


DOOR_CASES = {
    "plain": {},
    "causal": dict(is_causal=True),
    "scale": dict(scale=0.3),
    "bias": dict(bias=jax.random.normal(jax.random.key(7), (2, 1, 9, 7))),
    "bias of heads": dict(bias=jax.random.normal(jax.random.key(7), (4, 9, 1))),
    "mask": dict(mask=jax.random.uniform(jax.random.key(8), (1, 4, 9, 7)) > 0.3),
    "window": dict(local_window_size=3),
    "two windows": dict(local_window_size=(4, 1), is_causal=True),
    "window of NumPy's integers": dict(local_window_size=(np.int32(2), np.int64(1))),
    "lengths": dict(query_seq_lengths=jnp.array([3, 9]), key_value_seq_lengths=jnp.array([7, 4])),
    "residual": dict(return_residual=True),
}


@pytest.mark.parametrize("name", DOOR_CASES)
def test_the_door_of_dot_product_attention(name):
    """Beside JAX's own: outputs, and gradients of the inputs and of the bias."""
    q = jax.random.normal(jax.random.key(1), (2, 9, 4, 8))
    k, v = (jax.random.normal(jax.random.key(i), (2, 7, 2, 8)) for i in (2, 3))
    arguments = dict(DOOR_CASES[name])
    bias = arguments.pop("bias", None)
    jax_bias = bias if bias is None or bias.ndim == 4 else bias[None]

    def run(door, bias):
        outputs = door(q, k, v, bias, **arguments)
        traced = (q, k, v) if bias is None else (q, k, v, bias)
        loss = lambda q, k, v, bias=None: (jax.tree.leaves(door(q, k, v, bias, **arguments))[0] ** 2).sum()  # noqa: E731
        return outputs, jax.grad(loss, argnums=tuple(range(len(traced))))(*traced)

    found, expected = run(foveal.jax.dot_product_attention, bias), run(jax.nn.dot_product_attention, jax_bias)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b.reshape(a.shape), rtol=2e-4, atol=2e-5)
    if bias is None and not arguments.keys() & {"query_seq_lengths", "mask"}:
        one = foveal.jax.dot_product_attention(q[0], k[0], v[0], **arguments)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(found[0]), strict=True):
            np.testing.assert_allclose(a, b[0], rtol=1e-6, atol=1e-6)


WINDOWS = {
    "one array": lambda left, right: jnp.stack([left, right]),
    "one of NumPy's": lambda left, right: np.array([4, 1]),
    "two arrays": lambda left, right: (left, right),
    "an array beside a number": lambda left, right: [4, right.astype(jnp.uint8)],
    "an array of NumPy's": lambda left, right: (np.array(4), np.array(1)),
}


@pytest.mark.parametrize("window, bias", list(zip(WINDOWS, ["bool", "int8", "uint16", "uint32", "int32"])))
def test_the_door_takes_integers_as_bias_and_arrays_as_windows(window, bias):
    """As JAX's own does, traced or not."""
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 9, 2, 8)) for i in (1, 2, 3))
    table = jax.random.randint(jax.random.key(4), (1, 1, 9, 9), 0, 3).astype(bias)
    run = lambda door: lambda q, left, right: (door(q, k, v, table, local_window_size=WINDOWS[window](left, right)) ** 2).sum()  # noqa: E731
    sides = jnp.int32(4), jnp.int32(1)
    expected = jax.grad(run(jax.nn.dot_product_attention))(q, *sides)
    for way in (lambda fn: fn, jax.jit):
        found = way(jax.grad(run(foveal.jax.dot_product_attention)))(q, *sides)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_the_door_of_dot_product_attention_refuses_by_name():
    q = jnp.zeros((2, 9, 4, 8))
    for change, words in (
        (dict(mask=jnp.zeros((9, 9))), "mask: dtype float32; expected bool"),
        (dict(bias=jnp.zeros((9, 8))), r"bias: shape \(1, 1, 9, 8\); expected one that broadcasts to \(2, 4, 9, 9\)"),
        (dict(local_window_size=(jnp.float32(1.0), 2)), "local_window_size: found .*; expected an integer, or a pair of integers"),
        (dict(local_window_size=jnp.arange(3)), "local_window_size: found .*; expected an integer, or a pair of integers"),
        (dict(query_seq_lengths=jnp.zeros(3, jnp.int32)), r"query_seq_lengths: int32\[3\]; expected integers \[2\]"),
    ):
        with pytest.raises(ValueError, match=f"dot_product_attention: {words}"):
            foveal.jax.dot_product_attention(q, q, q, **change)
    with pytest.raises(ValueError, match="query, key, value: ranks"):
        foveal.jax.dot_product_attention(q[0], q, q)


def test_shard_map_with_gradients():
    """Over batch and heads on four devices of one process, with the check of what differs between them; shared parameters sum over shards."""
    code = """
import jax, jax.numpy as jnp, numpy as np, foveal, foveal.jax
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("b", "h"))
q, k, v = (jax.random.normal(jax.random.key(i), (4, 16, 4, 8)) for i in range(3))
slopes, gate = jnp.arange(4.0) / 10, jnp.float32(1.2)
def attend(q, k, v, slopes, gate):
    return foveal.jax.attention(q, k, v, "score * gate[] + slopes[head] * kv_idx", foveal.causal(), params={"slopes": slopes, "gate": gate})
def dense(q, k, v, slopes, gate):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8 ** 0.5 * gate + slopes[:, None, None] * jnp.arange(16)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((16, 16), bool)), scores, -jnp.inf)), v)
spec = P("b", None, "h", None)
sharded = jax.shard_map(attend, mesh=mesh, in_specs=(spec, spec, spec, P("h"), P()), out_specs=spec)
arguments = (q, k, v, slopes, gate)
for wrap in (lambda f: f, jax.jit):
    found = wrap(jax.grad(lambda *a: (sharded(*a) ** 2).sum(), argnums=tuple(range(5))))(*arguments)
    expected = jax.grad(lambda *a: (dense(*a) ** 2).sum(), argnums=tuple(range(5)))(*arguments)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
"""
    import os
    import subprocess
    import sys

    if not hasattr(jax, "shard_map"):
        pytest.skip("this JAX has no jax.shard_map")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"})


def test_arrays_of_numpy_may_change_after_the_call():
    """They count as they were: JAX reads what it was given later, when it computes or compiles."""
    arrays = {name: np.random.default_rng(i).normal(size=(1, 16, 1, 8)).astype(np.float32) for i, name in enumerate("qkv")}
    bias, lengths = np.random.default_rng(4).normal(size=(16, 16)).astype(np.float32), np.array([7], np.int32)

    def attend(one):
        score = lambda s, b, h, i, j: s * one + bias[i, j] + jnp.tanh(bias)[j, i]  # noqa: E731
        out = foveal.jax.attention(*arrays.values(), score, lambda b, h, i, j: j < lengths[b], dropout_p=0.1, rng_state=state)
        return out, foveal.jax.dot_product_attention(*arrays.values(), bias[None, None], bias[None, None] > 0, key_value_seq_lengths=lengths)

    state = np.array([1, 0, 0, 0], np.uint32)
    expected = jax.tree.map(np.array, attend(1.0))
    traced = jax.jit(attend).trace(1.0)
    for array in (*arrays.values(), bias, lengths, state):
        array[...] = 3
    for found, wanted in zip(traced.lower().compile()(1.0), expected):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_refs_are_read_when_the_call_is_made():
    """jax.Ref, an array that programs write into: in a score as an array, with its gradient."""
    q, k, v, _ = inputs()
    table, sink = jax.random.normal(jax.random.key(1), (24, 24)), jnp.array([0.5, -0.5])

    def attend(table, sink):
        return foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s + table[i, j], sink=sink)

    def written(table):
        ref, of_sink = jax.new_ref(table), jax.new_ref(sink)
        before = attend(ref, of_sink)
        ref[...] = ref[...] * 2
        return before, attend(ref, of_sink), foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s + ref[...][i, j])

    expected = attend(table, sink), attend(table * 2, sink), foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s + 2 * table[i, j])
    close(written(table), expected)
    close(jax.jit(written)(table), expected)
    close(jax.grad(lambda table: (written(table)[1] ** 2).sum())(table), jax.grad(lambda table: (attend(table * 2, sink) ** 2).sum())(table))


def test_refs_that_are_not_read_are_refused():
    q, k, v, _ = inputs()
    for run in (lambda ref: foveal.jax.attention(ref, k, v), jax.jit(lambda ref: foveal.jax.attention(ref, k, v))):
        with pytest.raises(TypeError, match=r"attention: q: found a jax.Ref; expected its elements: ref\[...\]"):
            run(jax.new_ref(q))
    ref = jax.new_ref(jnp.zeros((24, 24)))
    with pytest.raises(TypeError, match=r"of a jax.Ref only ref\[i, j\]"):
        foveal.jax.attention(q, k, v, lambda s, b, h, i, j: s + jnp.sin(ref[...])[i, j])


def test_export_to_another_process(tmp_path):
    import subprocess
    import sys

    pytest.importorskip("flatbuffers")
    from jax import export

    arguments = inputs()
    fn = jax.jit(lambda *x: (ours(*x), jax.grad(squared(ours), argnums=(0, 3))(*x)))
    with pytest.raises(ValueError, match="foveal_call"):
        export.export(fn)(*arguments).serialize()
    exported = export.export(fn, disabled_checks=[export.DisabledSafetyCheck.custom_call("foveal_call")])(*arguments)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays.npz", *arguments, *jax.tree.leaves(fn(*arguments)))
    code = """
import sys, numpy as np, jax, foveal.jax
folder = sys.argv[1]
*arguments, out, dq, dbias = np.load(folder + "/arrays.npz").values()
program = jax.export.deserialize(bytearray(open(folder + "/program", "rb").read()))
for found, expected in zip(jax.tree.leaves(program.call(*arguments)), (out, dq, dbias), strict=True):
    np.testing.assert_allclose(found, expected, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=300)


def test_a_traced_scale():
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 7, 2, 8)) for i in range(3))
    sink = jnp.array([0.3, -0.2])
    for score_mod, rest in ((None, {}), ("3.0 * tanh(score / 3.0) + gate[head]", {"params": {"gate": jnp.array([0.1, 0.2])}, "sink": sink})):
        attend = lambda scale, score_mod=score_mod, rest=rest: foveal.jax.attention(q, k, v, score_mod, scale=scale, **rest)  # noqa: E731
        np.testing.assert_allclose(jax.jit(attend)(jnp.float32(0.3)), attend(0.3), rtol=1e-5, atol=1e-6)
        slope = jax.grad(lambda scale, attend=attend: (attend(scale) ** 2).sum())(jnp.float32(0.3))
        difference = ((attend(0.301) ** 2).sum() - (attend(0.299) ** 2).sum()) / 0.002
        np.testing.assert_allclose(slope, difference, rtol=2e-2)
    with pytest.raises(ValueError, match=r"scale: float32\[2\]; expected a number"):
        foveal.jax.attention(q, k, v, scale=jnp.ones(2))
