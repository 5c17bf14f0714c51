"""Each function of JAX that scores may use, over dtypes, against JAX's own result and gradient; and each source of a value, traced again.

One key for each query: the log of the softmax's denominator is the score, which is the function's value.
"""

import functools
import os
import types

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import foveal  # noqa: E402
import foveal.jax  # noqa: E402
from foveal.jax.tracing import table  # noqa: E402

REALS = np.array([-2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.75, 3.0], np.float32)  # with the kinks and ties of the functions below
OTHERS = np.array([0.5, -1.0, 2.0, 0.0, 1.0, 0.25, -0.5, 1.0, 1.5, -3.0], np.float32)
DTYPES = ("float32", "bfloat16", "float16", "int32", "int8", "uint8", "bool")


def function_of(name):
    places = {"lax": jax.lax}.get(name.partition(".")[0])
    if places is not None:
        return getattr(places, name.partition(".")[2])
    return next((getattr(module, name) for module in (jnp, jax.nn, jax.lax, jax.scipy.special) if hasattr(module, name)), None)


def arrays_of(dtype):
    whole = (REALS * 4, OTHERS * 4) if dtype.startswith("int") else (abs(REALS) * 4, abs(OTHERS) * 4) if dtype == "uint8" else (REALS, OTHERS)
    return tuple(jnp.asarray(x).astype(dtype) for x in whole)


def values(fn, *arrays):
    """fn of the arrays' elements, by attention."""
    n = len(REALS)
    q = jnp.zeros((1, n, 1, 1), jnp.float32)
    score_mod = lambda s, b, h, i, j: fn(*(x[i] for x in arrays)).astype(jnp.float32)  # noqa: E731
    return foveal.jax.attention(q, q[:, :1], q[:, :1], score_mod, return_lse=True)[1][0, 0]


TAKES_TWO = [*table.BINARY, "mul", "multiply", "floordiv", "floor_divide", "lax.max", "lax.min", "lax.div", "lax.rem", "power", "pow"]
OTHER_ONES = "square relu relu6 silu swish mish softplus log_sigmoid soft_sign hard_tanh hard_sigmoid hard_silu hard_swish selu elu celu leaky_relu gelu round log_ndtr".split()
CASES = [(name, 1) for name in (*table.UNARY, *OTHER_ONES)] + [(name, 2) for name in TAKES_TWO]
CASES = [(name, count) for name, count in CASES if function_of(name) is not None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, count", CASES, ids=[name for name, _ in CASES])
def test_values(name, count, dtype):
    fn, arrays = function_of(name), arrays_of(dtype)[:count]
    try:
        expected = fn(*arrays)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            values(fn, *arrays)
        return
    if name in ("pow", "power") and not jnp.issubdtype(expected.dtype, jnp.floating):
        with pytest.raises(NotImplementedError, match="pow of integers"):
            values(fn, *arrays)
        return
    if jnp.issubdtype(expected.dtype, jnp.integer):  # division by 0, shifts by more than the width: whatever the machine gives
        usual = np.asarray(arrays[-1]) > 0 if count == 2 else np.ones(len(REALS), bool)
    else:
        usual = np.isfinite(np.asarray(expected, np.float32))
    with np.errstate(all="ignore"):
        found = np.asarray(values(fn, *arrays))[usual]
    tolerance = {"bfloat16": 2e-2, "float16": 3e-3}.get(str(expected.dtype), 2e-5)
    np.testing.assert_allclose(found, np.asarray(expected, np.float32)[usual], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name, count", CASES, ids=[name for name, _ in CASES])
def test_gradients_at_kinks_and_ties(name, count):
    fn, arrays = function_of(name), arrays_of("float32")[:count]
    try:
        if not jnp.issubdtype(fn(*arrays).dtype, jnp.floating):
            pytest.skip("no gradient")
    except TypeError:
        pytest.skip("no function of reals")
    which = tuple(range(count))
    expected = jax.grad(lambda *x: fn(*x).sum(), which)(*arrays)
    usual = np.isfinite(np.stack([*map(np.asarray, expected), np.asarray(fn(*arrays))])).all(0)
    safe = tuple(x[usual] for x in arrays)
    padded = tuple(jnp.resize(x, len(REALS)) for x in safe)
    found = jax.grad(lambda *x: values(fn, *x).sum(), which)(*padded)
    for a, b in zip(found, jax.grad(lambda *x: fn(*x).sum(), which)(*padded)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


FAR = np.array([np.nan, np.inf, -np.inf, 0.0, 1.5, np.nan, np.inf, -np.inf, -2.5, np.nan], np.float32)
BESIDE = np.array([1.0, 2.0, -1.0, np.nan, np.nan, np.nan, np.inf, np.inf, -np.inf, -np.inf], np.float32)


@pytest.mark.parametrize("name, count", CASES, ids=[name for name, _ in CASES])
def test_infinities_and_nan(name, count):
    """A NaN stays one; the larger or smaller of a NaN and a number was the number."""
    fn, arrays = function_of(name), [jnp.asarray(x) for x in (FAR, BESIDE)[:count]]
    try:
        expected = np.asarray(fn(*arrays), np.float32)
    except TypeError:
        pytest.skip("no function of reals")
    found = np.asarray(values(fn, *arrays))
    finite, infinite = np.isfinite(expected), np.isinf(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=2e-5, atol=2e-5)
    assert np.isnan(found[np.isnan(expected)]).all() and not np.isfinite(found[infinite]).any()


def compared(fn, *arrays):
    np.testing.assert_array_equal(values(fn, *arrays), jnp.broadcast_to(fn(*arrays), len(REALS)).astype("float32"))


WHOLE = np.array([-128, -127, -1, 0, 1, 2, 44, 100, 126, 127], np.int8)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@pytest.mark.parametrize("number", [-129, -1, 0, 44, 128, 200, 255, 300])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_python_numbers_are_held_as_the_array_holds_them(dtype, number):
    """uint8 == -1 is uint8 == 255 in JAX."""
    x = jnp.asarray(WHOLE.astype(dtype))
    for name in COMPARISONS:
        compared(lambda x, name=name: getattr(x, f"__{name}__")(number), x)
    for fn in (jnp.maximum, jnp.minimum, jnp.logical_and, jnp.logical_or):
        compared(lambda x, fn=fn: fn(x, number), x)


WEAK, WEAK_REAL, STRONG = jnp.asarray(100), jnp.asarray(0.1), jnp.int32(100)
PYTHON_NUMBERS = {  # dtypes and what is done with arrays of them
    "a captured array": ("int8", lambda x: x + WEAK),
    "a captured real": ("bfloat16", lambda x: x * WEAK_REAL),
    "a choice of two": ("int8", lambda x: jnp.where(x > 0, 1, 100) + x),
    "a choice of two reals": ("bfloat16", lambda x: jnp.where(x > 0, 0.1, 0.2) * x),
    "a choice beside no sign": ("uint8", lambda x: jnp.where(x > 5, -1, 1) + x),
    "a comparison": ("int8", lambda x: x < jnp.where(x > 5, 100, 228)),
    "elements of an array": ("int8", lambda x: jnp.stack([jnp.where(x > 0, 100, 2), 3 * jnp.where(x > 0, 100, 2)])[1] + x),
    "a copy": ("int8", lambda x: jnp.copy(jnp.where(x > 0, 100, 2)) + x),
    "a dtype that was asked for": ("int8", lambda x: jnp.where(x > 0, 100, 2).astype(jnp.int32) + x),
    "an array with a dtype of its own": ("int8", lambda x: x + STRONG),
    "two captured arrays": ("bfloat16", lambda x: (WEAK_REAL * WHOLES_16[0]) * x),
    "an array beside one that is reached": ("bfloat16", lambda x: (WHOLES_16[0] * HELD.number) * x),
    "such a scalar of NumPy's": ("bfloat16", lambda x: (WHOLES_16[0] * HELD.scalar) * x),
}  # fmt: skip
WHOLES_16 = jnp.asarray([1.234, 2.345], jnp.bfloat16)
HELD = types.SimpleNamespace(number=jnp.float32(0.1), scalar=np.float32(0.1))


@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize("name", PYTHON_NUMBERS)
def test_arrays_of_python_numbers_take_the_dtype_beside_them(name, doubles):
    """JAX's weak types: jnp.where(c, 1, 100) + x of int8 wraps as int8, not as int32."""
    dtype, fn = PYTHON_NUMBERS[name]
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", doubles)
    try:
        x = jnp.asarray(WHOLE).astype(dtype)
        np.testing.assert_allclose(values(fn, x), fn(x).astype("float32"), rtol=1e-6)  # of bfloat16 no other rounding is as near
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("doubles", [False, True])
def test_integers_of_two_dtypes_are_promoted_before_they_are_used(doubles):
    """Without 64 bits uint32 and int32 become int32, which wraps."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", doubles)
    try:
        x = jnp.asarray(WHOLE.astype("int32"))
        for fn in (jnp.maximum, jnp.minimum, jnp.floor_divide, jnp.right_shift, *(getattr(jnp, n) for n in ("less", "greater", "equal"))):
            compared(lambda x, fn=fn: fn(x.astype(jnp.uint32) // 1000, jnp.abs(x) + 1), x)
            compared(lambda x, fn=fn: fn(x.astype(jnp.uint32), jnp.abs(x) + 1) // 1000, x)
        compared(lambda x: jnp.where(x > 1, x.astype(jnp.uint32), x) // 1000, x)
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8"])
@pytest.mark.parametrize("fn", [jnp.floor_divide, jnp.remainder, jnp.fmod, jax.lax.div, jax.lax.rem], ids=lambda fn: fn.__name__)
def test_division_by_zero_gives_what_xla_gives(fn, dtype):
    x = jnp.asarray(WHOLE.astype(dtype))
    compared(lambda x: fn(x, x * 0), x)


def test_integers_of_64_bits_without_a_sign_are_refused():
    jax.config.update("jax_enable_x64", True)
    try:
        with pytest.raises(NotImplementedError, match="dtype uint64 in a score or mask"):
            values(lambda x: x.astype(jnp.uint64) - 3, jnp.asarray(WHOLE))
    finally:
        jax.config.update("jax_enable_x64", False)


TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)
SLICES = {"from": (slice(2, None), 0), "to": (slice(None, 6), 1), "steps": (slice(1, 9, 3), 2), "backwards": (slice(7, 2, -2), 0), "one": (slice(4, 5), 1)}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("shift", [-25, -12, -4, 0, 3])
def test_an_index_outside_of_a_slice_reads_the_nearest_of_the_slice(name, shift):
    """It read what lies beside the slice in the whole array."""
    rows, column = SLICES[name]
    i = jnp.arange(10)
    expected = TABLE[rows][np.asarray(jnp.arange(len(TABLE[rows])).at[i + shift].get(mode="clip", wrap_negative_indices=True)), column]
    q = jnp.zeros((1, 10, 1, 1), jnp.float32)
    for score_mod in (lambda s, b, h, i, j: jnp.asarray(TABLE)[rows][i + shift, column], lambda s, b, h, i, j: TABLE[rows, column][i + shift]):
        found = foveal.jax.attention(q, q[:, :1], q[:, :1], score_mod, return_lse=True)[1][0, 0]
        np.testing.assert_array_equal(found, expected)


# ---- retraces ----

number = 1.0
holder = types.SimpleNamespace(value=1.0, items=[1.0], table={"a": 1.0})
module = types.ModuleType("settings")
module.value = 1.0


class Settings:
    value = 1.0


def helper(s):
    return s + number


def set_global(x):
    global number
    number = x


SOURCES = {
    "a global": (lambda s, b, h, i, j: s + number, set_global),
    "a global of a helper": (lambda s, b, h, i, j: helper(s), set_global),
    "an attribute": (lambda s, b, h, i, j: s + holder.value, lambda x: setattr(holder, "value", x)),
    "an item": (lambda s, b, h, i, j: s + holder.items[0], lambda x: holder.items.__setitem__(0, x)),
    "an entry": (lambda s, b, h, i, j: s + holder.table["a"], lambda x: holder.table.__setitem__("a", x)),
    "a class": (lambda s, b, h, i, j: s + Settings.value, lambda x: setattr(Settings, "value", x)),
    "a module": (lambda s, b, h, i, j: s + module.value, lambda x: setattr(module, "value", x)),
    "the environment": (lambda s, b, h, i, j: s + float(os.environ["FOVEAL_TEST_VALUE"]), lambda x: os.environ.__setitem__("FOVEAL_TEST_VALUE", str(x))),
}  # fmt: skip


def lse(score_mod):
    q = jnp.zeros((1, 1, 1, 1))
    return float(foveal.jax.attention(q, q, q, score_mod, return_lse=True)[1][0, 0, 0])


@pytest.mark.parametrize("name", SOURCES)
def test_a_changed_value_is_seen(name):
    score_mod, change = SOURCES[name]
    for value in (1.0, 2.5, 1.0):
        change(value)
        assert lse(score_mod) == value


@pytest.mark.parametrize("name", SOURCES)
def test_a_changed_value_is_seen_where_jax_traces(name):
    """JAX keeps jaxprs by the identity of the function."""
    score_mod, change = SOURCES[name]
    zeros = jnp.zeros(1)

    def with_an_index_of_jax(s, b, h, i, j):
        return score_mod(s, b, h, i, j) + zeros.at[j].get()

    for value in (1.0, 2.5, 1.0):
        change(value)
        assert lse(with_an_index_of_jax) == value


class Layer:
    """With weights in an attribute, which a training step replaces."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, s, b, h, i, j):
        return s + self.weights[j]

    def method(self, s, b, h, i, j):
        return jax.lax.cond(j >= 0, lambda: s + self.weights[0], lambda: s)


@pytest.mark.parametrize("made", ["object", "method", "partial", "attribute of jit"])
def test_a_changed_array_of_an_object_is_seen(made):
    layer = Layer(jnp.ones(1))
    functions = {
        "object": layer,
        "method": layer.method,
        "partial": functools.partial(lambda table, s, b, h, i, j: s + table["weights"].at[j].get(), vars(layer)),
        "attribute of jit": layer,
    }
    score_mod = functions[made]

    @jax.jit
    def step(weights):
        layer.weights = weights
        q = jnp.zeros((1, 1, 1, 1))
        return foveal.jax.attention(q, q, q, score_mod, return_lse=True)[1][0, 0, 0]

    for value in (1.0, 2.5, 1.0):
        if made == "attribute of jit":
            assert float(step(jnp.full(1, value))) == value
        layer.weights = jnp.full(1, value)
        assert lse(score_mod) == value


def test_changed_arrays_closures_and_defaults_are_seen():
    array, cell = np.ones(3, np.float32), [1.0]
    step = 1.0

    def closure(s, b, h, i, j):
        return s + step

    def default(s, b, h, i, j, extra=cell):
        return s + extra[0]

    def element(s, b, h, i, j):
        return s + float(array[0])

    for value in (1.0, 2.5):
        array[:], cell[0], step = value, value, value
        assert lse(closure) == lse(default) == lse(element) == lse(lambda s, b, h, i, j: s + array[i]) == value


def test_inside_jit_values_are_those_of_the_trace():
    """As for all of JAX: what is not an argument is read once for each compilation."""
    q = jnp.zeros((1, 1, 1, 1))
    run = jax.jit(lambda q, x: foveal.jax.attention(q, q, q, lambda s, b, h, i, j: s + x, return_lse=True)[1])
    assert [float(run(q, x)[0, 0, 0]) for x in (1.0, 2.5)] == [1.0, 2.5] and run._cache_size() == 1
