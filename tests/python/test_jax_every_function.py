"""Every function of jax.numpy, jax.lax, jax.nn and jax.scipy.special in a score: what JAX computes, gradients too, or a clear refusal; never something else.

One key for each query: the log of the softmax's denominator is the score, a weighted sum of all elements of what the function gives.
"""

import math

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest

import foveal.jax

N = 3  # examples
RANDOM = np.random.default_rng(0)
MODULES = {"jnp": jnp, "linalg": jnp.linalg, "lax": jax.lax, "lax.linalg": jax.lax.linalg, "nn": jax.nn, "special": jax.scipy.special}
LEFT_OUT = {  # files, texts, functions over functions of other shapes, collectives
    *"save savez savez_compressed load fromfile fromfunction fromstring fromiter from_dlpack frombuffer frompyfunc printoptions set_printoptions".split(),
    *"get_printoptions array_repr array_str array2string result_type promote_types issubdtype isdtype can_cast iinfo finfo dtype".split(),
    *"infeed outfeed iterable".split(),
}
FUNCTIONS = {  # each once, under one of its names
    id(fn): (f"{where}.{name}", fn)
    for where, module in MODULES.items()
    for name, fn in sorted(vars(module).items())
    if callable(fn) and not name.startswith("_") and name not in LEFT_OUT and not (isinstance(fn, type) and name[0].isupper())
}.values()


def real(*shape, low=-2.0, high=2.0):
    return jnp.asarray(RANDOM.uniform(low, high, (N, *shape)).astype(np.float32))


def whole(*shape, low=-4, high=6):
    return jnp.asarray(RANDOM.integers(low, high, (N, *shape)).astype(np.int32))


F, G, P, Q = real(), real(), real(low=0.1, high=0.9), real(low=1.1, high=3.0)
I, J, U = whole(), whole(), whole(low=1, high=4)
V, W, VI, M, L = real(4), real(4), whole(4), real(3, 3), real(3, 3)
# Of each group, the first that JAX itself takes: arrays, an example in front, and constants after them.
GROUPS = {
    "reals": [((F,), ()), ((P,), ()), ((Q,), ()), ((F, G), ()), ((P, Q), ()), ((Q, P), ()), ((U, F), ()), ((F, U), ()), ((F, G, P), ()), ((P, Q, Q), ()),
              ((F > 0, F, G), ()), ((F,), (0,)), ((F,), (2,)), ((F,), ("float32",)), ((F,), ((1,),)), ((P, Q, Q, F), ())],
    "integers": [((I,), ()), ((I, J), ()), ((I, U), ()), ((I > 0, J > 0), ()), ((I > 0, I, J), ()), ((I,), (2,)), ((I,), ("int32",)), ((I,), ((1,),)), ((I, I, J), ())],
    "rows": [((V,), ()), ((V, W), ()), ((V, F), ()), ((F, V), ()), ((V, U), ()), ((V > 0, V, W), ()), ((V,), (0,)), ((V,), (2,)), ((V,), (1, 0)), ((V,), ((2, 2),)),
             ((V,), ((0,),)), ((V, W, V), ()), ((V, F, G), ()), ((F, V, W), ()), ((V, VI), ()), ((V, W), (0,))],
    "rows of integers": [((VI,), ()), ((VI, VI), ()), ((VI,), (0,)), ((VI, I), ()), ((VI,), (2,)), ((VI > 0,), ())],
    "matrices": [((M,), ()), ((M, L), ()), ((M, V[:, :3]), ()), ((M, F), ()), ((M,), (0,)), ((M,), (1,)), ((M,), (0, 1)), ((M,), ((9,),)), ((M,), ((1, 0),)), ((M, M, L), ())],
}  # fmt: skip
WINDOW = (3,), (1,), "VALID"
AT, MANY = jnp.array([[1], [0]], jnp.int32), jnp.array([2, 0], jnp.int32)
OF_ROWS = jax.lax.GatherDimensionNumbers((0,), (), (0,))
INTO_ROWS = jax.lax.ScatterDimensionNumbers((0,), (), (0,))
POINTS = jax.lax.ScatterDimensionNumbers((), (0,), (0,))
# What no group fits: calls of x, y [4], n, an integer, and m [3, 3].
CALLS = {
    "apply_along_axis": lambda x, y, n, m: jnp.apply_along_axis(jnp.cumsum, 0, m),
    "apply_over_axes": lambda x, y, n, m: jnp.apply_over_axes(jnp.sum, m, [0, 1]),
    "choose": lambda x, y, n, m: jnp.choose(n % 2, [x, y], mode="wrap"),
    "fill_diagonal": lambda x, y, n, m: jnp.fill_diagonal(m, x[0], inplace=False),
    "place": lambda x, y, n, m: jnp.place(x, x > 0, y, inplace=False),
    "put": lambda x, y, n, m: jnp.put(x, MANY, y[:2], inplace=False),
    "put at a symbol": lambda x, y, n, m: jnp.put(x, n, y[0], inplace=False),
    "put_along_axis": lambda x, y, n, m: jnp.put_along_axis(m, jnp.array([[1], [0], [2]]), x[:1], axis=1, inplace=False),
    "ravel_multi_index": lambda x, y, n, m: jnp.ravel_multi_index((n % 3, n % 2), (3, 2), mode="clip"),
    "select": lambda x, y, n, m: jnp.select([x > 0, y > 0], [x, y], n),
    "vectorize": lambda x, y, n, m: jnp.vectorize(lambda a, b: a * b, signature="(k),(k)->(k)")(x, y),
    "multi_dot": lambda x, y, n, m: jnp.linalg.multi_dot([m, m, x[:3]]),
    "pad": lambda x, y, n, m: jnp.pad(x, 2, mode="reflect"),
    "einsum": lambda x, y, n, m: jnp.einsum("i,ij->j", x[:3], m),
    "fromiter": lambda x, y, n, m: jnp.asarray([a * a for a in x]),
    "linspace": lambda x, y, n, m: jnp.linspace(x[0], y[0], 5),
    "quantile": lambda x, y, n, m: jnp.quantile(x, jnp.array([0.2, 0.5])),
    "sort": lambda x, y, n, m: jnp.sort(x, descending=True) * jnp.argsort(y),
    "top_k": lambda x, y, n, m: jax.lax.top_k(x, 2),
    "lax.argmax": lambda x, y, n, m: jax.lax.argmax(x, 0, np.int32) + jax.lax.argmin(m, 1, np.int32),
    "lax.associative_scan": lambda x, y, n, m: jax.lax.associative_scan(jnp.multiply, x),
    "lax.broadcast_in_dim": lambda x, y, n, m: jax.lax.broadcast_in_dim(x, (2, 4), (1,)) * y,
    "lax.cond": lambda x, y, n, m: jax.lax.cond(n > 1, jnp.sin, jnp.cos, x),
    "lax.conv": lambda x, y, n, m: jax.lax.conv_general_dilated(x[None, None], y[None, None, :2], (1,), "SAME"),
    "lax.conv_general_dilated_patches": lambda x, y, n, m: jax.lax.conv_general_dilated_patches(x[None, None], (2,), (1,), "VALID"),
    "lax.dot_general": lambda x, y, n, m: jax.lax.dot_general(m, x[:3], (((0,), (0,)), ((), ()))),
    "lax.dynamic_slice": lambda x, y, n, m: jax.lax.dynamic_slice(m, (n, n - 3), (2, 2)),
    "lax.dynamic_slice_in_dim": lambda x, y, n, m: jax.lax.dynamic_slice_in_dim(x, n, 3),
    "lax.dynamic_update_slice": lambda x, y, n, m: jax.lax.dynamic_update_slice(x, y[:2], (n,)),
    "lax.dynamic_update_slice_in_dim": lambda x, y, n, m: jax.lax.dynamic_update_slice_in_dim(m, x[None, :3], n, 0),
    "lax.dynamic_update_index_in_dim": lambda x, y, n, m: jax.lax.dynamic_update_index_in_dim(x, y[0], n, 0),
    "lax.fori_loop": lambda x, y, n, m: jax.lax.fori_loop(0, 3, lambda at, carried: carried * y[at] + at, x),
    "lax.fori_loop of a symbol": lambda x, y, n, m: jax.lax.fori_loop(0, n, lambda at, carried: carried * 2, x),
    "lax.gather": lambda x, y, n, m: jax.lax.gather(m, AT, OF_ROWS._replace(offset_dims=(1,), collapsed_slice_dims=(0,)), (1, 3)),
    "lax.gather of windows": lambda x, y, n, m: jax.lax.gather(x, n[None], OF_ROWS, (2,), mode="clip"),
    "lax.gather filled": lambda x, y, n, m: jax.lax.gather(x, n[None], OF_ROWS, (2,), mode="fill", fill_value=0.5),
    "lax.map": lambda x, y, n, m: jax.lax.map(jnp.sin, x),
    "lax.pad": lambda x, y, n, m: jax.lax.pad(x, y[0], [(2, -1, 1)]),
    "lax.platform_dependent": lambda x, y, n, m: jax.lax.platform_dependent(x, default=jnp.sin),
    "lax.ragged_dot": lambda x, y, n, m: jax.lax.ragged_dot(m, m[None], jnp.array([3], jnp.int32)),
    "lax.reduce": lambda x, y, n, m: jax.lax.reduce(m, np.float32(0), jax.lax.add, (0,)),
    "lax.reduce of another kind": lambda x, y, n, m: jax.lax.reduce(m, np.float32(1), lambda a, b: a + b + a * b, (0,)),
    "lax.reduce_and": lambda x, y, n, m: jax.lax.reduce_and(x > 0, (0,)) | jax.lax.reduce_or(y > 1, (0,)),
    "lax.reduce_and of integers": lambda x, y, n, m: jax.lax.reduce_and(jnp.stack([n, n + 3]), (0,)),
    "lax.reduce_xor": lambda x, y, n, m: jax.lax.reduce_xor(x > 0, (0,)),
    "lax.reduce_precision": lambda x, y, n, m: jax.lax.reduce_precision(x, 8, 7),
    "lax.reduce_window": lambda x, y, n, m: jax.lax.reduce_window(x, np.float32(0), jax.lax.add, *WINDOW),
    "lax.reduce_window of maxima": lambda x, y, n, m: jax.lax.reduce_window(x, -np.inf, jax.lax.max, *WINDOW),
    "lax.scan": lambda x, y, n, m: jax.lax.scan(lambda carried, row: (carried + row.sum(), carried * row), x[0], m),
    "lax.scan reversed": lambda x, y, n, m: jax.lax.scan(lambda carried, a: (carried * a, carried), y[0], x, reverse=True),
    "lax.scatter": lambda x, y, n, m: jax.lax.scatter(x, AT, y[:2], POINTS) + jax.lax.scatter_add(x, AT, y[:2], POINTS),
    "lax.scatter of windows": lambda x, y, n, m: jax.lax.scatter_add(x, n[None], y[:2], INTO_ROWS, mode="clip"),
    "lax.scatter_max": lambda x, y, n, m: jax.lax.scatter_max(x, AT, y[:2], POINTS) * jax.lax.scatter_min(x, AT, y[:2], POINTS),
    "lax.scatter_mul": lambda x, y, n, m: jax.lax.scatter_mul(x, AT, y[:2], POINTS, unique_indices=True) + jax.lax.scatter_sub(x, AT, y[:2], POINTS),
    "lax.select_n": lambda x, y, n, m: jax.lax.select_n(jnp.full(4, n % 3), x, y, x * y),
    "lax.slice": lambda x, y, n, m: jax.lax.slice(m, (0, 1), (3, 3), (2, 1)),
    "lax.sort": lambda x, y, n, m: jax.lax.sort((x, y), num_keys=1),
    "lax.squeeze": lambda x, y, n, m: jax.lax.squeeze(x[None], (0,)),
    "lax.switch": lambda x, y, n, m: jax.lax.switch(n, [jnp.sin, jnp.cos, jnp.exp], x),
    "lax.tile": lambda x, y, n, m: jnp.tile(m, (1, 2)),
    "lax.while_loop": lambda x, y, n, m: jax.lax.while_loop(lambda a: a[0] < 3, lambda a: (a[0] + 1, a[1] * 2), (0, x)),
    "nn.one_hot": lambda x, y, n, m: jax.nn.one_hot(n, 4) * x,
    "nn.dot_product_attention": lambda x, y, n, m: jax.nn.dot_product_attention(m[:, None], m[:, None], m[:, None]),
}  # fmt: skip
CLEAR = (TypeError, ValueError, NotImplementedError, IndexError)
# At a bin's edge, where JAX's own rounding decides, and not the same under jit.
AT_EDGES = {(f"jnp.{name}", "reals") for name in ("histogram", "histogram2d", "histogramdd")}
AT_EDGES |= {("lax.select_n", "reals")}  # of a case that there is not
AT_EDGES |= {(name, group.replace("reals", "integers")) for name, group in AT_EDGES}


def leaves(found):
    """Not by jax.tree, which symbols cannot follow."""
    return [x for part in found for x in leaves(part)] if isinstance(found, (list, tuple)) else [found]


def looks(found):
    return [(str(x.dtype), tuple(x.shape)) if hasattr(x, "shape") else x for x in leaves(found)]


def weighted(found):
    total, at = 0.0, 0
    for x in leaves(found):
        size = math.prod(x.shape)
        if size > 0:
            weights = [math.cos(place + 1.0) for place in range(at, at + size)]
            total = total + sum([item * weight for item, weight in zip(x.astype("float32").reshape(size), weights)])
        at += size
    return total


def arrays_of(found):
    """Whether a score can hold what JAX gives: arrays of numbers, some."""
    parts = leaves(found)
    numbers = [jnp.issubdtype(x.dtype, kind) for x in parts if hasattr(x, "dtype") for kind in (jnp.floating, jnp.integer, jnp.bool_)]
    return len(parts) > 0 and all(hasattr(x, "dtype") for x in parts) and sum(numbers) == len(parts) and any(math.prod(x.shape) for x in parts)


def ours(fn, arrays):
    q, look = jnp.zeros((1, N, 1, 1), jnp.float32), []

    def score_mod(s, b, h, i, j):
        found = fn(*[x[i] for x in arrays])
        look.append(looks(found))
        return weighted(found) + 0 * s

    return foveal.jax.attention(q, q[:, :1], q[:, :1], score_mod, return_lse=True)[1][0, 0], look[-1]


def first_that_jax_takes(fn, group):
    for arrays, constants in GROUPS[group]:
        call = lambda *x, constants=constants: fn(*x, *constants)  # noqa: E731
        try:
            try:
                found = jax.eval_shape(call, *[jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in arrays])
            except jax.errors.JAXTypeError:  # which looks at values
                found = call(*[x[0] for x in arrays])
            if arrays_of(found):
                return call, arrays, looks(found)
        except Exception:  # noqa: S112 - JAX's own word, whatever it is, that it takes something else
            continue
    return None


def theirs(call, *arrays):
    try:
        return jax.jit(jax.vmap(lambda *x: weighted(call(*x))))(*arrays)
    except jax.errors.JAXTypeError:
        return jnp.stack([weighted(call(*[x[at] for x in arrays])) for at in range(N)])


def difference(call, arrays, look):
    """Of what foveal gives; None: none, or a clear refusal."""
    try:
        found, own_look = ours(call, arrays)
    except CLEAR as error:
        words = str(error).removeprefix("foveal.jax.attention: ")
        return None if words != str(error) and len(words) > 20 and words[0] not in ";:" else f"refused without a clear word: {error!r}"
    if own_look != look:
        return f"{own_look} and not {look}"
    try:
        expected = np.asarray(theirs(call, *arrays), np.float32)
    except OverflowError:  # of integers, whose least one JAX makes an infinity
        return None
    usual = np.isfinite(expected)
    if not np.allclose(np.asarray(found)[usual], expected[usual], rtol=2e-4, atol=2e-4) or np.isfinite(np.asarray(found)[~usual]).any():
        return f"{np.asarray(found)} and not {expected} of {[np.asarray(x).tolist() for x in arrays]}"
    trained = [at for at, x in enumerate(arrays) if x.dtype == jnp.float32]
    if not trained or not usual.all() or not any(jnp.issubdtype(kind, jnp.floating) for kind, _ in look):
        return None
    try:
        gradients = jax.jit(jax.grad(lambda *x: theirs(call, *x).sum(), trained))(*arrays)
    except Exception:  # JAX has none
        return None
    own = jax.grad(lambda *x: ours(call, x)[0].sum(), trained)(*arrays)
    for a, b in zip(own, gradients):
        if not np.allclose(np.where(np.isfinite(b), a, 0.0), np.where(np.isfinite(b), b, 0.0), rtol=1e-3, atol=1e-3):
            return f"gradient {np.asarray(a)} and not {np.asarray(b)} of {[np.asarray(x).tolist() for x in arrays]}"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, fn", FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_right_or_refused(name, fn):
    found = {}
    for group in GROUPS:
        taken = first_that_jax_takes(fn, group)
        if taken is not None and (name, group) not in AT_EDGES:
            found[group] = difference(*taken)
    found = {group: words for group, words in found.items() if words is not None}
    assert not found, "; ".join(f"{group}: {words}" for group, words in found.items())


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_right_or_refused(name):
    call, arrays = CALLS[name], (V, W, I, M)
    look = looks(jax.eval_shape(call, *[jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in arrays]))
    assert difference(call, arrays, look) is None
