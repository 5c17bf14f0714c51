"""Scores and masks that symbols cannot follow, through JAX's own trace of them: values and gradients against JAX."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from test_jax_functions import LEN, compare, doubles, ours, real, theirs  # noqa: F401

import foveal
import foveal.jax

B, R, T = real(LEN, LEN), real(LEN), real(2, LEN, LEN)
EDGES, MANY, ODD = jnp.array([-2.0, -0.5, 0.0, 0.5, 1.0]), jnp.linspace(-3.0, 3.0, 500), jnp.array([-jnp.inf, -0.0, 0.0, 1.0, jnp.inf, jnp.nan])
IDS = np.array([0, 0, 1, 1, 1, 2, 2], np.int32)


class Biased:
    def __init__(self, bias):
        self.bias = bias

    def score(self, s, b, h, i, j):
        return s + self.bias[i, j]

    __call__ = score


@dataclasses.dataclass
class Data:
    bias: object
    scale: float = 2.0


Named = collections.namedtuple("Named", "bias scale")


def reading(held):
    return lambda s, b, h, i, j: s * held.scale + held.bias[i, j]


@jax.custom_jvp
def own_forward_rule(x):
    return 2.0 * x


own_forward_rule.defjvp(lambda x, t: (own_forward_rule(*x), 7.0 * t[0]))


@jax.custom_vjp
def own_backward_rule(x):
    return x


own_backward_rule.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))

# Functions made of JAX's, which have the name and the module of these.
slope, curve, of_rows = jax.grad(jnp.tanh), jax.hessian(jnp.sin), jax.vmap(jnp.max)
ruled, ruled_by_argument = jax.custom_jvp(jnp.sin), jax.custom_jvp(jnp.sin)
ruled.defjvp(lambda x, t: (jnp.sin(*x), 7.0 * t[0]))
ruled_by_argument.defjvps(lambda t, out, x: 7.0 * t)

ruled_relu, ruled_relu_once_more, ruled_by_jax = (jax.custom_jvp(fn) for fn in (jax.nn.relu, jax.nn.relu.fun, jax.nn.relu))
ruled_relu.defjvps(lambda t, out, x: 7.0 * t)
ruled_relu_once_more.defjvps(lambda t, out, x: 7.0 * t)
ruled_by_jax.defjvp(functools.partial(jax.jvp, jnp.tanh))


@functools.wraps(jnp.tanh)
def doubled(x):
    return 2.0 * jnp.sinh(x)


HALVES = jnp.round(2 * B) / 2
KEYS = jax.random.split(jax.random.PRNGKey(0), LEN)

SCORES = {
    "a derivative of a function of JAX's": (lambda x: lambda s, b, h, i, j: s + slope(s) * x[i, j] + curve(x[j, i]), B),
    "a function under the name of JAX's": (lambda x: lambda s, b, h, i, j: s + doubled(x[i, j] * s), B),
    "a function of JAX's over rows": (lambda x: lambda s, b, h, i, j: s + of_rows(x)[i] * of_rows(jnp.stack([x[i], x[j] * s]))[1], B),
    "rounding away from zero": (lambda x: lambda s, b, h, i, j: s + lax.round(HALVES[i, j]) * x[j, i], B),
    "rounding to even": (lambda x: lambda s, b, h, i, j: s + lax.round(HALVES[i, j], lax.RoundingMethod.TO_NEAREST_EVEN) * x[j, i], B),
    "rounding by JAX's trace": (lambda x: lambda s, b, h, i, j: s + (lax.round(HALVES[i, j]) + jnp.round(HALVES[j, i])) * x.T[i, j], B),
    "full_like of another shape": (lambda x: lambda s, b, h, i, j: s + jnp.full_like(s, 2.0, None, 3)[0] * x[i, j], B),
    "running products": (lambda x: lambda s, b, h, i, j: s + jnp.cumprod(x[i])[j] * 0.1, B),
    "running extremes": (lambda x: lambda s, b, h, i, j: s + lax.cummax(x[i])[j] + lax.cummin(jnp.round(x[j]), reverse=True)[i], B),
    "running logsumexp": (lambda x: lambda s, b, h, i, j: s + lax.cumlogsumexp(x[i])[j], B),
    "a running product that wraps": (lambda x: lambda s, b, h, i, j: s + x[j] * jnp.cumprod(jnp.stack([i, j, i]).astype(jnp.int8) * 9, dtype=jnp.int8)[2], R),
    "searchsorted": (lambda x: lambda s, b, h, i, j: s + x[jnp.searchsorted(EDGES, s)], R),
    "searchsorted from the right": (lambda x: lambda s, b, h, i, j: s + x[jnp.searchsorted(EDGES, i - 3.0, side="right")], R),
    "searchsorted by comparing all": (lambda x: lambda s, b, h, i, j: s + x[jnp.searchsorted(EDGES, x[j], method="compare_all")], R),
    "searchsorted in many": (lambda x: lambda s, b, h, i, j: s + x[jnp.searchsorted(MANY, s) // 100], R),
    "searchsorted in integers": (lambda x: lambda s, b, h, i, j: s + x[jnp.searchsorted(jnp.array([0, 2, 2, 5]), i - j, side="right")], R),
    "searchsorted of NaN": (lambda x: lambda s, b, h, i, j: s + x[jnp.searchsorted(ODD, ODD[i % 6]) + jnp.searchsorted(ODD[:5], ODD[j % 6], side="right") // 2 - 1], R),
    "digitize": (lambda x: lambda s, b, h, i, j: s + x[jnp.digitize(s, EDGES, right=True)], R),
    "interp": (lambda x: lambda s, b, h, i, j: s + jnp.interp(s, jnp.sort(x), x) + jnp.interp(x[i] - x[j], EDGES, x[:5], left=0.0), R),
    "a transpose": (lambda x: lambda s, b, h, i, j: s + x.T[i, j], B),
    "a transpose of matrices": (lambda x: lambda s, b, h, i, j: s + x.mT[h, i, j], T),
    "at[].get": (lambda x: lambda s, b, h, i, j: s + x.at[i, j].get(), B),
    "at[].get filled": (lambda x: lambda s, b, h, i, j: s + x.at[i + 2, j].get(mode="fill", fill_value=3.0), B),
    "at[].get clipped": (lambda x: lambda s, b, h, i, j: s + x.at[i + 2, j].get(mode="clip"), B),
    "at[].get below": (lambda x: lambda s, b, h, i, j: s + x.at[i - 4, j].get(mode="clip"), B),
    "an index below minus the size": (lambda x: lambda s, b, h, i, j: s + x.T[i - LEN - 2, j], B),
    "take": (lambda x: lambda s, b, h, i, j: s + jnp.take(x, j), R),
    "take of rows": (lambda x: lambda s, b, h, i, j: s + jnp.take(x, i, axis=0)[j], B),
    "take that clips": (lambda x: lambda s, b, h, i, j: s + jnp.take(x, j + 2, mode="clip"), R),
    "take that clips negative": (lambda x: lambda s, b, h, i, j: s + jnp.take(x[i], i - j - 1, mode="clip"), B),
    "expressions that are clipped": (lambda x: lambda s, b, h, i, j: jnp.take(jnp.stack([s, s * x[j], s * 3.0]), i - j, mode="clip"), R),
    "take that wraps": (lambda x: lambda s, b, h, i, j: s + jnp.take(x, j + 2, mode="wrap"), R),
    "take gives NaN outside": (lambda x: lambda s, b, h, i, j: jnp.where(jnp.isnan(jnp.take(x, j + 2)), s, 2.0 * s), R),
    "take_along_axis": (lambda x: lambda s, b, h, i, j: s + jnp.take_along_axis(x, j[None], 0)[0], R),
    "dynamic_slice": (lambda x: lambda s, b, h, i, j: s + lax.dynamic_slice(x, (i, j), (1, 1))[0, 0], B),
    "a slice that JAX moves": (lambda x: lambda s, b, h, i, j: s + lax.dynamic_slice(x, (i, j), (2, 3)).sum(), B),
    "a row of a slice": (lambda x: lambda s, b, h, i, j: s + lax.dynamic_index_in_dim(x[1:5], i, 0, keepdims=False)[j], B),
    "lists of indices": (lambda x: lambda s, b, h, i, j: s + x[jnp.array([0, 1])][h, j] + x[np.array([2, 0]), :][h, j], B),
    "what JAX computes of an array": (lambda x: lambda s, b, h, i, j: s + (2 * x)[i, j] + jax.nn.softmax(x)[i, j] + jnp.cumsum(x, 0)[j, i], B),
    "another shape": (lambda x: lambda s, b, h, i, j: s + x.reshape(-1)[i * LEN + j] + x.ravel()[j] + jnp.stack([x, -x])[h, i, j], B),
    "variances, NaN of too few": (lambda x: lambda s, b, h, i, j: s + jnp.var(x[i] - x[j]) + jnp.std(x[:, j], ddof=1) + jnp.stack([x[i], x[j]]).var(0).sum(), B),
    "products of rows": (lambda x: lambda s, b, h, i, j: s + jnp.vdot(x[i], x[j]) + jnp.einsum("d,d->", x[i], x[j]) + x.T[i] @ x[j], B),
    "a method of an object": (lambda x: Biased(x).score, B),
    "an object that is called": (Biased, B),
    "a dataclass": (lambda x: reading(Data(x)), B),
    "a named tuple": (lambda x: reading(Named(x, 3.0)), B),
    "cond": (lambda x: lambda s, b, h, i, j: lax.cond(i >= j, lambda y: y + x[i, j], lambda y: 2 * y, s), B),
    "switch": (lambda x: lambda s, b, h, i, j: lax.switch(i - 1, [lambda y: y, lambda y: y * x[i, j], lambda y: -y], s), B),
    "select_n": (lambda x: lambda s, b, h, i, j: lax.select_n(i % 3, s, x[i, j], 2 * s) + lax.select_n(i > j, s, x[j, i]), B),
    "jnp.select": (lambda x: lambda s, b, h, i, j: jnp.select([i > j, i < j], [s, x[i, j]], 3 * s), B),
    "jnp.piecewise": (lambda x: lambda s, b, h, i, j: jnp.piecewise(s, [s < 0, s >= 1], [lambda y: -y, lambda y: 2 * y]) + x[i, j], B),
    "a loop": (lambda x: lambda s, b, h, i, j: lax.fori_loop(0, 3, lambda n, y: 0.9 * y + x[n, j], s), B),
    "a scan": (lambda x: lambda s, b, h, i, j: (lambda c, ys: c + ys.sum())(*lax.scan(lambda c, y: (c * y, c + y), s, x[:4, 0])), B),
    "jit": (lambda x: jax.jit(lambda s, b, h, i, j: s + x[i, j]), B),
    "checkpoint": (lambda x: lambda s, b, h, i, j: jax.checkpoint(lambda y: jnp.sin(y) * x[i, j])(s), B),
    "vmap": (lambda x: lambda s, b, h, i, j: s + jax.vmap(lambda y: y * s)(x[i]).sum(), B),
    "grad": (lambda x: lambda s, b, h, i, j: jax.grad(lambda y: jnp.sin(y) * x[i, j])(s), B),
    "functions with JAX's own rules": (lambda x: lambda s, b, h, i, j: jax.nn.relu(s) + jax.nn.silu(x.T[i, j]) + jnp.logaddexp(s, x.T[j, i]), B),
    "functions with other rules of JAX's": (
        lambda x: jax.jit(lambda s, b, h, i, j: jnp.sinc(x[i, j]) + jsp.entr(abs(s) + 0.1) + jsp.log_ndtr(s) + jsp.xlogy(s, abs(x[j, i]) + 0.5)), B
    ),
    "derivatives of other functions of JAX's": (
        lambda x: lambda s, b, h, i, j: s + jax.grad(lambda y: jnp.tanh(y) + jnp.arcsin(y / 9))(x[i, j]) + lax.logistic(jax.grad(jnp.tanh)(s)), B
    ),
    "a softmax": (lambda x: lambda s, b, h, i, j: jax.nn.softmax(jnp.stack([s, x[i, j], 2 * s]))[1], B),
    "booleans made in the function": (lambda x: lambda s, b, h, i, j: s + x[jnp.array([True, False, True, False, True, True, False])][j % 4], R),
    "booleans of two dimensions": (lambda x: lambda s, b, h, i, j: s + x[jnp.array([[True] * LEN, [False] * LEN] * 3 + [[True] * LEN])][j], B),
    "booleans beside a symbol": (lambda x: lambda s, b, h, i, j: s + x[i, jnp.array([True, False, False, False, True, True, False])].sum() * x[..., j][np.arange(LEN) > 2].sum(), B),
    "booleans on symbols": (lambda x: lambda s, b, h, i, j: jnp.stack([s, x[i, j], s * 2])[jnp.array([False, True, True])].sum(), B),
    "stopped gradients": (lambda x: lambda s, b, h, i, j: s * lax.stop_gradient(s) + lax.stop_gradient(x.T)[i, j] + lax.stop_gradient(x.T[j, i]), B),
    "a rule of the user's on an array": (lambda x: lambda s, b, h, i, j: s + own_backward_rule(x)[i, j], B),
    "unsigned integers wrap": (lambda x: lambda s, b, h, i, j: jnp.where(i.astype(jnp.uint32) - 3 > 9, s, x[i, j]), B),
    "unsigned integers of 16 bits": (lambda x: lambda s, b, h, i, j: jnp.where((i - 3).astype(jnp.uint16) * 5 > 9, s, x[i, j]), B),
    "a sum of some": (lambda x: lambda s, b, h, i, j: s + jnp.sum(x[i], where=x[i] > 0), B),
    "random numbers": (lambda x: jax.jit(lambda s, b, h, i, j: s + jax.random.uniform(jax.random.key(3)) * x[i, j] + jax.random.normal(KEYS[1], (LEN,))[j]), B),
    "a name for checkpoints": (lambda x: lambda s, b, h, i, j: checkpoint_name(s * x[i, j], "scores"), B),
    "scalars of NumPy": (lambda x: lambda s, b, h, i, j: s * np.float32(1.5) + np.int64(2) * x[i, j] + np.bool_(True) * s, B),
    "an element that is set": (lambda x: lambda s, b, h, i, j: s + (x[i].at[1].set(s) * x[j].at[-1].set(2.0 * s)).sum() * 0.1, B),
    "elements that are added to": (lambda x: lambda s, b, h, i, j: (x[i].at[jnp.array([0, 2, 0])].add(s) + jnp.zeros(LEN).at[3].add(x[j, i])).sum() * x[j, 0], B),
    "elements that are changed": (
        lambda x: lambda s, b, h, i, j: jnp.stack([x[i, 0], s, s]).at[0].multiply(s).at[1].subtract(x[j, 0]).at[2].divide(x[i, 1] + 5).at[1].power(3).sum(), B
    ),
    "the largest of updates": (lambda x: lambda s, b, h, i, j: s + jnp.stack([x[i, 0], s]).at[np.array([0, 0, 1])].max(jnp.stack([s, x[i, 0], s])).sum(), B),
    "the smallest of an update": (lambda x: lambda s, b, h, i, j: s + (jnp.stack([x[i, 0], s, s]).at[j].min(s) * x[i, :3]).sum(), B),
    "an element that a symbol chooses": (
        lambda x: lambda s, b, h, i, j: s + (x[i].at[j].set(s) * x[j] + x[j].at[i - 3].add(s, mode="drop") + x[0].at[i + 5].set(s, mode="clip")).sum(), B
    ),
    "rows that are set": (lambda x: lambda s, b, h, i, j: s + (x[:3].at[1].set(s).at[:, 2].multiply(s).at[j % 3, 1:3].add(x[i, j]) * x[1:4]).sum() * 0.1, B),
    "updates outside": (lambda x: lambda s, b, h, i, j: s + (x[i].at[LEN + 2].set(s) + x[j].at[LEN + 2].set(s, mode="clip")).sum() * 0.1, B),
    "a slice that is updated": (
        lambda x: lambda s, b, h, i, j: s + (lax.dynamic_update_slice(x[i], jnp.stack([s, x[j, i]]), (j + 2,)) * x[j] + x[j].at[1:3].set(s)).sum(), B
    ),
    "padding": (
        lambda x: lambda s, b, h, i, j: s + (lax.pad(x[i, :3], s, [(1, -1, 1)]) * x[j, :5]).sum() + jnp.pad(s[None], (2, 1), mode="edge").sum() + jnp.pad(x[i], 1)[j], B
    ),
    "cube roots": (lambda x: lambda s, b, h, i, j: jnp.cbrt(s) + lax.cbrt(x[i, j]) + jnp.cbrt(i - j), B),
    "functions of lax": (lambda x: lambda s, b, h, i, j: lax.add(s, x[i, j]) * lax.exp(-lax.abs(s)) + lax.select(i > j, s, x[i, j]), B),
}  # fmt: skip


# What JAX makes of some functions differs between its versions: a rule of its own for sinc, and bits of numbers in erfcx.
SINC_HAS_A_RULE = "_sinc_maclaurin" in str(jax.make_jaxpr(jnp.sinc)(1.0))
ERFCX_HAS_BITS = "bitcast_convert_type" in str(jax.make_jaxpr(jsp.erfcx)(1.0))
if not SINC_HAS_A_RULE:
    SCORES["a derivative at a limit"] = (lambda x: lambda s, b, h, i, j: jax.grad(jnp.sinc)(s * (i != j)) * x[i, j] + jnp.sinc(jnp.round(x[j, i])), B)
if not ERFCX_HAS_BITS:
    SCORES["a function with a rule of JAX's"] = (lambda x: jax.jit(lambda s, b, h, i, j: s * x[i, j] + jsp.erfcx(s)), B)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    if name == "interp" and jax.default_backend() == "gpu":
        pytest.skip("it reads more tensors than GPU kernels in f64 take")
    compare(*SCORES[name])


FAR = np.array([[-300.7, -1.5, -0.5, 0.5, 127.9, 130.0, 255.0], [260.0, 1e10, -1e10, 3e9, np.inf, -np.inf, np.nan]], np.float32)


@pytest.mark.parametrize("convert", [
    lambda x, to: x.astype(to), lambda x, to: lax.convert_element_type(x, to), lambda x, to: jax.jit(lambda y: y.astype(to))(x),
], ids=["astype", "lax", "jit"])  # fmt: skip
@pytest.mark.parametrize("to", "bool int8 uint8 int16 uint16 int32 uint32".split())
def test_reals_become_the_nearest_integer(to, convert):
    """As XLA converts. They wrapped around."""
    far, q = jnp.asarray(FAR), jnp.zeros((1, 7, 2, 4), jnp.float32)
    score = lambda s, b, h, i, j: convert(far[h, i], to).astype("float32")  # noqa: E731
    found = foveal.jax.attention(q, q[:, :1], q[:, :1], score, return_lse=True)[1]
    np.testing.assert_array_equal(np.asarray(found)[0], np.asarray(far.astype(to).astype("float32")))


MASKS = {
    "at[].get": lambda x: lambda b, h, i, j: x.at[i].get() == x.at[j].get(),
    "take": lambda x: lambda b, h, i, j: jnp.take(x, i) == jnp.take(x, j),
    "take outside": lambda x: lambda b, h, i, j: (jnp.take(x, i + 3) < 0) | (i == j),
    "isin": lambda x: lambda b, h, i, j: jnp.isin(x[i], jnp.array([1, 2])) | (i == j),
    "an object": lambda x: (lambda held: lambda b, h, i, j: held.bias[i] == held.bias[j])(Data(x)),
    "cond": lambda x: lambda b, h, i, j: lax.cond(i > 3, lambda: x[i] == x[j], lambda: i >= j),
    "argmax": lambda x: lambda b, h, i, j: jnp.argmax(jnp.stack([x[i], x[j], i])) >= 1,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    ids, (q, k, v) = jnp.asarray(IDS), (jnp.asarray(real(1, LEN, 2, 4)) for _ in range(3))
    keep = MASKS[name](ids)
    places = jnp.meshgrid(jnp.arange(LEN, dtype=jnp.int32), jnp.arange(LEN, dtype=jnp.int32), indexing="ij")
    table = jax.vmap(jax.vmap(lambda i, j: keep(0, 0, i, j)))(*places)
    expected = foveal.jax.attention(q, k, v, None, "table[q_idx, kv_idx]", params={"table": table})
    np.testing.assert_array_equal(foveal.jax.attention(q, k, v, None, keep), expected)


REFUSED = {
    "a rule of its own, forwards": (lambda s, b, h, i, j: own_forward_rule(s), "own_forward_rule: a jax.custom_jvp inside a score or mask"),
    "a rule of its own, backwards": (lambda s, b, h, i, j: own_backward_rule(s), "a jax.custom_vjp inside a score or mask"),
    "a rule of the user's for a function of JAX's": (lambda s, b, h, i, j: ruled(s), "sin: a jax.custom_jvp inside a score or mask"),
    "such a rule by argument": (lambda s, b, h, i, j: ruled_by_argument(s), "sin: a jax.custom_jvp inside a score or mask"),
    "a rule by argument for one that has JAX's rule": (lambda s, b, h, i, j: ruled_relu(s), "relu: a jax.custom_jvp inside a score or mask"),
    "such a rule for what that one computes": (lambda s, b, h, i, j: jax.jit(ruled_relu_once_more)(s), "relu: a jax.custom_jvp inside a score or mask"),
    "another function of JAX's as a rule": (lambda s, b, h, i, j: ruled_by_jax(s), "relu: a jax.custom_jvp inside a score or mask"),
    "a function of elements that are set": (lambda s, b, h, i, j: EDGES.at[j].apply(jnp.sin)[0] * s, "scatter in a score or mask: a function of elements"),
    "updates that share a derivative": (lambda s, b, h, i, j: EDGES.at[jnp.stack([i, j])].max(s)[0], "scatter-max in a score or mask: several updates that symbols place"),
    "many updates": (lambda s, b, h, i, j: jnp.zeros(500).at[:].set(s)[0], "500 updates of 500 elements; at most 4096 pairs"),
    "a function that has a name in the table": (lambda s, b, h, i, j: s + jax.random.logistic(KEYS[j]), "of the name logistic that is not jax's own is not part of the score language"),
    "a derivative among foveal's functions": (lambda s, b, h, i, j: foveal.tanh(s) + slope(s), "of the name tanh that is not jax's own is not part of the score language"),
    "a function with a rule of JAX's": (lambda s, b, h, i, j: jnp.frexp(s)[0], "^foveal.jax.attention: jax's frexp is not part of the score language"),
    "booleans that are computed": (lambda s, b, h, i, j: s + EDGES[jnp.arange(5) % 2 == 0][j % 3], "found a boolean expression.*expected some of NumPy's"),
    "booleans of another size": (lambda s, b, h, i, j: s + jnp.asarray(B)[i, jnp.array([True])][0], r"booleans of shape \[1\] index an array of shape \[7, 7\] from dimension 1"),
    "a loop whose end is not known": (lambda s, b, h, i, j: lax.while_loop(lambda y: y < 3, lambda y: y + 1, s), "while_loop is not part of the score"),
    "a long loop": (lambda s, b, h, i, j: lax.fori_loop(0, 1000, lambda n, y: y * 0.9, s), "fori_loop is not part of the score language"),
    "NumPy where JAX traces": (lambda s, b, h, i, j: jax.jit(lambda y: y + B[i, j])(s), "an array of NumPy's meets what JAX traces.*expected jnp.asarray"),
    "a branch": (lambda s, b, h, i, j: s if i > j else -s, "no truth value while it is traced"),
    "an effect": (lambda s, b, h, i, j: (jax.debug.print("{}", s), s)[1], "not a valid JAX type|is not part of the score|of type"),
    "several results": (jax.jit(lambda s, b, h, i, j: (s, s)), "^foveal.jax.attention: the function returned 2 values; expected one number"),
    "sorted symbols": (lambda s, b, h, i, j: jnp.sort(jnp.stack([s, -s]))[0], "jax.sort in a score or mask: not part of the score language"),
}  # fmt: skip


if SINC_HAS_A_RULE:
    REFUSED["a derivative at a limit"] = (lambda s, b, h, i, j: jax.grad(jnp.sinc)(s), "a derivative of jnp.sinc; expected jnp.sinc itself")
if ERFCX_HAS_BITS:
    REFUSED["bits of numbers"] = (lambda s, b, h, i, j: jax.jit(jsp.erfcx)(s), "jax.bitcast_convert_type in a score or mask: not part of the score language")


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    q = jnp.asarray(real(1, LEN, 2, 4))
    score, words = REFUSED[name]
    with pytest.raises((TypeError, NotImplementedError, ValueError, IndexError), match=words):
        foveal.jax.attention(q, q, q, score)


def test_names_and_gradients_of_what_is_read_once():
    """The arrays that a refused attempt read leave no parameters behind."""
    q, bias, other = (jnp.asarray(real(1, LEN, 2, 4)), jnp.asarray(B), jnp.asarray(R))
    score = lambda s, b, h, i, j: s + other[j] + bias.T[i, j]  # noqa: E731
    out = foveal.jax.attention(q, q, q, score)
    found = foveal.jax.backward(q, q, q, out, jnp.zeros((1, 2, LEN)), out, score, gradients=("p0", "p1"))
    assert {name: gradient.shape for name, gradient in found[3].items()} == {"p0": (LEN,), "p1": (LEN, LEN)}


def test_a_partial_of_an_object():
    compare(lambda x: functools.partial(lambda held, s, b, h, i, j: s + held.bias[i, j], Data(x)), B)


def test_dimensions_of_one_element():
    compare(lambda x: lambda s, b, h, i, j: s + x.reshape(1, LEN, 1, LEN).mT[0, i, j, 0] + x[:1].T[i, 0], B)
    compare(lambda x: lambda s, b, h, i, j: s + lax.dynamic_slice(x[:, None], (i, jnp.int32(0), j), (1, 1, 1)).squeeze(1)[0, 0] + x.reshape(LEN, 1, LEN)[i].T[j, 0], B)
