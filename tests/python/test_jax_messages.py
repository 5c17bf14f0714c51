"""Wrong calls at the doors of JAX: the public function, the argument, what was found, what is accepted."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.export  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402

q, k, v = (jax.random.normal(jax.random.key(i), (1, 5, 2, 8)) for i in range(3))
CU = jnp.array([0, 5], jnp.int32)
TABLE = jnp.zeros(5)


def there(x, at):
    """On one device of several."""
    devices = jax.devices("cpu")
    return jax.device_put(x, devices[at]) if len(devices) > at else pytest.skip("JAX was started with one device")


def deleted():
    """As its donation to a compiled function leaves it."""
    array = jnp.ones((5, 5))
    array.delete()
    return array


class Stranger:
    """A tensor of another framework."""

    shape, dtype = (1, 5, 2, 8), "float32"

    def __dlpack__(self):
        raise AssertionError


def exported(function, **how):
    shape = jax.export.symbolic_shape("n, 5, 2, 8")
    allowed = [jax.export.DisabledSafetyCheck.custom_call("foveal_call")]
    jax.export.export(jax.jit(function), disabled_checks=allowed, **how)(jax.ShapeDtypeStruct(shape, jnp.float32))


attention, door, backward = foveal.jax.attention, foveal.jax.dot_product_attention, foveal.jax.backward
WRONG = {
    "a keyword of others": (lambda: attention(q, k, v, is_causal=True), "foveal.jax.attention: is_causal: .*mask=foveal.causal()"),
    "by the first array": (lambda: foveal.attention(q, k, v, is_causal=True), "foveal.attention: is_causal: .*mask=foveal.causal()"),
    "a list": (lambda: attention([1.0], k, v), "foveal.jax.attention: q: found list; expected a JAX array, or one of NumPy"),
    "nothing": (lambda: attention(q, None, v), "foveal.jax.attention: k: found NoneType; expected a JAX array"),
    "another framework": (lambda: attention(q, Stranger(), v), "foveal.jax.attention: k: found an array of .*; expected a JAX array, or one of NumPy"),
    "objects of NumPy": (lambda: attention(np.asarray(q).astype(object), k, v), "foveal.jax.attention: q: dtype object; expected float64, float32"),
    "big endian": (lambda: attention(np.asarray(q).astype(">f4"), k, v), "foveal.jax.attention: q: dtype >f4; expected float64"),
    "a masked array": (lambda: attention(np.ma.masked_array(np.asarray(q)), k, v), "q: a NumPy masked array"),
    "integers": (lambda: attention(*[x.astype(int) for x in (q, k, v)]), "foveal.jax.attention: q: dtype int32; expected float64"),
    "ranks": (lambda: attention(q[0], k, v), r"foveal.jax.attention: q: rank 3, v: rank 4; expected both \[batch, seqlen"),
    "ranks under jit": (lambda: jax.jit(lambda q: attention(q[0], k, v))(q), "foveal.jax.attention: q: rank 3, v: rank 4"),
    "heads": (lambda: attention(q, k[:, :, :1].repeat(3, 2), v), "foveal.jax.attention: k: heads 3 does not divide q's 2"),
    "head_dim": (lambda: attention(q, k[..., :4], v), "foveal.jax.attention: k: head_dim 4 differs from q's 8"),
    "an update where a symbol says": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + TABLE.at[j].apply(jnp.sin)[2]),
                                      "foveal.jax.attention: .*traced by JAX: jax.scatter in a score or mask: a function of elements"),
    "scale as text": (lambda: attention(q, k, v, scale="0.1"), "foveal.jax.attention: scale: found str '0.1'; expected a number"),
    "one cu_seqlens": (lambda: attention(q[0], k[0], v[0], cu_seqlens=CU), "foveal.jax.attention: cu_seqlens: found one array"),
    "lists of lengths": (lambda: attention(q[0], k[0], v[0], cu_seqlens=([0, 5], [0, 5])), "foveal.jax.attention: cu_seqlens: for q: found list"),
    "one length": (lambda: attention(q[0], k[0], v[0], cu_seqlens=(CU, CU), max_seqlens=5), "foveal.jax.attention: max_seqlens: found 5; expected a pair"),
    "a mask without its call": (lambda: attention(q, k, v, mask=foveal.causal), r"foveal.jax.attention: mask: found foveal.causal itself"),
    "a mask as array": (lambda: attention(q, k, v, mask=jnp.ones((5, 5), bool)), "foveal.jax.attention: mask: found .*; expected a function"),
    "a real mask": (lambda: attention(q, k, v, mask=lambda b, h, i, j: i * 1.0), "foveal.jax.attention: mask: the function returned a real"),
    "a number that no integer holds": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + (i + 2**40)), "foveal.jax.attention: jax's add in a score or mask: .*overflow"),
    "a branch": (lambda: attention(q, k, v, lambda s, b, h, i, j: s if i > j else -s), "foveal.jax.attention: .*no truth value.*foveal.where"),
    "no seed": (lambda: attention(q, k, v, dropout_p=0.1), "foveal.jax.attention: seed: found None; expected an integer"),
    "a key as seed": (lambda: attention(q, k, v, dropout_p=0.1, seed=jax.random.key(0)), "foveal.jax.attention: seed: key.*expected one integer: of a key, jax.random.bits"),
    "a traced dropout_p": (lambda: jax.jit(lambda p: attention(q, k, v, dropout_p=p, seed=1))(0.1), "foveal.jax.attention: dropout_p: found jax array.*traced"),
    "a traced window": (lambda: jax.jit(lambda w: attention(q, k, v, mask=foveal.window(w)))(3), r"window: w: found an array of int32\[\]; expected an integer; a mask of"),
    "a window as text": (lambda: foveal.window("3"), "window: w: found str '3'; expected an integer"),
    "a traced length": (lambda: jax.jit(lambda n: attention(q[0], k[0], v[0], cu_seqlens=(CU, CU), max_seqlens=(n, n)))(5),
                        "foveal.jax.attention: max_seqlens: found .*expected a pair of integers .* known when a call is traced"),
    "a state of dropout as text": (lambda: attention(q, k, v, dropout_p=0.1, rng_state="x"), "foveal.jax.attention: rng_state: found str 'x'; expected an array"),
    "a real seed": (lambda: attention(q, k, v, dropout_p=0.1, seed=1.5), "foveal.jax.attention: seed: found .*1.5"),
    "params": (lambda: attention(q, k, v, "score + b[q_idx]", params=[1]), "foveal.jax.attention: params: found list; expected a dict"),
    "a number as parameter": (lambda: attention(q, k, v, "score + b[q_idx]", params={"b": 1.0}), "params.*found float"),
    "a number as sink": (lambda: attention(q, k, v, sink=1.0), "foveal.jax.attention: sink: found float"),
    "words for threads": (lambda: attention(q, k, v, options=foveal.Options(threads="2")), "foveal.jax.attention: options.threads: found str '2'; expected an integer"),
    "a number as target": (lambda: attention(q, k, v, options=foveal.Options(target=3)), "foveal.jax.attention: options.target: found int 3; expected text"),
    "options": (lambda: attention(q, k, v, options={}), "foveal.jax.attention: options: found dict"),
    "an array that tracing cannot see": (lambda: attention(q, k, v, lambda s, b, h, i, j: s + HOLDER.table[i]), "foveal.jax.attention: score_mod: a symbol indexes"),
    "a deleted array": (lambda: attention(q, k, v, "score + b[q_idx, kv_idx]", params={"b": deleted()}),
                        "foveal.jax.attention: b: an array that was deleted, as donated ones are; expected one that still has"),
    "sizes that are not known": (lambda: exported(lambda q: attention(q, q, q)), r"foveal.jax.attention: q: shape \(n, 5, 2, 8\); expected known sizes"),
    "a parameter's sizes": (lambda: exported(lambda x: attention(q, k, v, "score + x[0, q_idx, 0, 0]", params={"x": x})),
                            r"foveal.jax.attention: x: shape \(n, 5, 2, 8\); expected known sizes"),
    "a captured array's sizes": (lambda: exported(lambda x: attention(q, k, v, lambda s, b, h, i, j: s + x[0, i, 0, 0])),
                                 r"foveal.jax.attention: a captured array: shape \(n, 5, 2, 8\); expected known sizes"),
    "a vmap whose size is not known": (lambda: exported(lambda x: jax.vmap(lambda q: attention(q[None], k, v))(x)),
                                       "foveal.jax.attention: a vmap of n examples; expected a known number"),
    "a program for other devices": (lambda: exported(lambda x: attention(q, k, v), platforms=["cpu", "tpu"]), "attention: a program for tpu; found the call planned for c"),
    "a transpose in q": (lambda: jax.linear_transpose(lambda q: attention(q, k, v), q)(q), "attention: q: found a jax.linear_transpose of it; expected one of v"),
    "a transpose in a parameter": (lambda: jax.linear_transpose(lambda b: attention(q, k, v, "score + b[q_idx]", params={"b": b}), TABLE)(q), "attention: b: found a jax"),
    "NumPy beside what is traced": (lambda: jax.jit(lambda k: foveal.attention(np.asarray(q), k, k))(k), r"foveal.attention: k: a value that JAX traces.*jnp.asarray\(q\)"),
    "an explanation within jit": (lambda: jax.jit(lambda q: foveal.explain(q, q, q))(q), "foveal.explain: q: a value that JAX traces, which has no memory yet"),
    "a check within jit": (lambda: jax.jit(lambda q: foveal.check(q, q, q))(q), "foveal.(check|plan): q: a value that JAX traces, which has no memory yet"),
    "backward's keyword": (lambda: backward(q, k, v, q, q, q, wrong=1), "foveal.jax.backward: wrong: no argument of this function"),
    "backward without out": (lambda: backward(q, k, v, None, q, q), "foveal.jax.backward: out: found NoneType; expected a JAX array"),
    "the door's keyword": (lambda: door(q, k, v, is_causl=True), "foveal.jax.dot_product_attention: is_causl: .*expected is_causal"),
    "the door's query": (lambda: door("x", k, v), "foveal.jax.dot_product_attention: query: found str; expected a JAX array"),
    "the door's value": (lambda: door(q, k, v.astype(int)), "foveal.jax.dot_product_attention: value: dtype int32; expected float64"),
    "the door's traced flag": (lambda: jax.jit(lambda flag: door(q, k, v, is_causal=flag))(True),
                               "foveal.jax.dot_product_attention: is_causal: found a value that JAX traces; expected True or False: static_argnames"),
    "the door's window": (lambda: door(q, k, v, local_window_size="x"), "foveal.jax.dot_product_attention: local_window_size: found 'x'; expected"),
    "keys elsewhere": (lambda: attention(there(q, 0), there(k, 1), there(v, 1)), "foveal.jax.attention: k: on .*; expected all on the same devices .jax.device_put"),
    "keys elsewhere in a gradient": (lambda: jax.grad(lambda q: attention(q, there(k, 1), v).sum())(there(q, 0)), "foveal.jax.attention: k: on .*others on .*0"),
    "a parameter elsewhere": (lambda: attention(there(q, 0), k, v, "score + b[q_idx]", params={"b": there(TABLE, 1)}), "foveal.jax.attention: b: on .*, others on"),
    "the door's query elsewhere": (lambda: door(q, there(k, 1), there(v, 0)), "foveal.jax.dot_product_attention: value: on .*, others on"),
    "the door's implementation": (lambda: door(q, k, v, implementation="flash"), "foveal.jax.dot_product_attention: implementation: found 'flash'; expected None, 'xla'"),
    "the door's mask": (lambda: door(q, k, v, mask=jnp.ones((5, 5))), "foveal.jax.dot_product_attention: mask: dtype float32; expected bool"),
}  # fmt: skip


def test_vmap_over_nothing_and_an_integer_as_traced_scale():
    assert jax.vmap(jax.grad(lambda q: attention(q, k, v).sum()), 0)(q[None][:0]).shape == (0, *q.shape)
    np.testing.assert_array_equal(jax.jit(lambda scale: attention(q, k, v, scale=scale))(2), attention(q, k, v, scale=jnp.float32(2)))


def test_a_parameter_with_the_name_of_a_traced_scale():
    """It was replaced by the scale."""
    three, half = jnp.float32(3), jnp.float32(0.5)
    found = attention(q, k, v, "score * scale_[] + b[kv_idx]", params={"scale_": three, "b": TABLE}, scale=half)
    np.testing.assert_array_equal(found, attention(q, k, v, "score * a[] + b[kv_idx]", params={"a": three, "b": TABLE}, scale=half))


def test_one_array_of_lengths_for_queries_and_keys():
    lengths = jnp.array([3])
    found = door(q, k, v, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
    np.testing.assert_array_equal(found, door(q, k, v, query_seq_lengths=lengths, key_value_seq_lengths=lengths + 0))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_lengths_without_a_sign(dtype):
    found = door(q, k, v, key_value_seq_lengths=jnp.array([3], dtype))
    np.testing.assert_array_equal(found, door(q, k, v, key_value_seq_lengths=jnp.array([3])))


def test_lengths_of_numpy():
    """Their text is not that of Python's integers."""
    find = lambda *longest: attention(q[0], k[0], v[0], cu_seqlens=(CU, CU), max_seqlens=longest)  # noqa: E731
    np.testing.assert_array_equal(find(np.int64(5), np.int32(5)), find(5, 5))


class Holder:
    table = np.ones(5)


HOLDER = Holder()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_explained(name):
    if name == "a program for other devices" and jax.default_backend() != "cpu":
        pytest.skip("the program is for JAX's default device")
    call, words = WRONG[name]
    with pytest.raises((TypeError, ValueError, NotImplementedError, OverflowError), match=words) as caught:
        call()
    assert "describe()" not in str(caught.value) and "incompatible function arguments" not in str(caught.value)
