"""A pass as a composition of JAX's operations, exact and with all scores in memory: what is differentiated beyond the first derivative, and in
forward mode."""

from __future__ import annotations

import ast
import math
import warnings
from typing import Any, Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from .. import _core, evaluation, logging
from ..describe import Description
from ..evaluation import MaterializedWarning, Symbols
from .mesh import whole
from .operands import wide


def _integers() -> Any:
    """Of 64 bits, as in foveal's kernels: attend() runs where JAX has them."""
    return jnp.result_type(int)


class Evaluation(evaluation.Evaluation):
    """active: the pairs whose values count. Elsewhere functions of reals are evaluated at 1, so that an infinite derivative of a branch that is
    not taken, or of a pair that is masked, has no part in the gradient, as in foveal's kernels."""

    library = "JAX"

    def __init__(self, text: str, symbols: Symbols, params: Mapping[str, jax.Array], dtype: Any, active: jax.Array | None = None):
        super().__init__(text, symbols, params)
        self._dtype, self._active = dtype, active

    def constant(self, value: bool | int | float) -> jax.Array:
        return jnp.asarray(value, jnp.bool_ if isinstance(value, bool) else _integers() if isinstance(value, int) else self._dtype)

    def real(self, x: jax.Array) -> jax.Array:
        return x.astype(self._dtype)

    def numbers(self, *values: jax.Array) -> tuple[jax.Array, ...]:
        kind = self._dtype if any(jnp.issubdtype(x.dtype, jnp.floating) for x in values) else _integers()
        return tuple(x.astype(kind) for x in values)

    def operands(self, name: str, *values: jax.Array) -> tuple[jax.Array, ...]:
        reals = super().operands(name, *values)
        return reals if self._active is None else tuple(jnp.where(self._active, x, 1.0) for x in reals)

    def read(self, array: jax.Array, indices: list[jax.Array]) -> jax.Array:
        if indices:
            array = whole(array)[tuple(jnp.clip(index, 0, extent - 1) for index, extent in zip(indices, array.shape))]
        if array.dtype == jnp.bool_:
            return array
        return array.astype(self._dtype if jnp.issubdtype(array.dtype, jnp.floating) else _integers())

    def where(self, condition: ast.expr, if_true: ast.expr, if_false: ast.expr) -> jax.Array:
        kept = self.of(condition)
        values: tuple[jax.Array, ...] = (self._where(kept).of(if_true), self._where(~kept).of(if_false))
        if any(x.dtype != jnp.bool_ for x in values):
            values = self.numbers(*values)
        return jnp.where(kept, values[0], values[1])

    def _where(self, kept: jax.Array) -> Evaluation:
        other: Any = self.branch()
        other._active = kept if self._active is None else kept & self._active
        result: Evaluation = other
        return result


def _floor_div(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(jnp.floor_divide(a, b)) if jnp.issubdtype(a.dtype, jnp.floating) else jnp.floor_divide(a, jnp.where(b == 0, 1, b))


Evaluation.of_reals = {
    **{name: getattr(jnp, name) for name in "exp exp2 log log2 sqrt tanh sin cos tan floor".split()},
    "rsqrt": jax.lax.rsqrt,
    "erf": jax.lax.erf,
    "sigmoid": jax.nn.sigmoid,
    "to_float32": lambda x: jax.lax.reduce_precision(x, 8, 23),
    "to_bfloat16": lambda x: jax.lax.reduce_precision(x, 8, 7),
    "to_float16": lambda x: jax.lax.reduce_precision(x, 5, 10),
    "Div": jnp.divide,
    "Pow": jnp.power,
    "pow": jnp.power,
}
Evaluation.of_numbers = {
    "Add": jnp.add,
    "Sub": jnp.subtract,
    "Mult": jnp.multiply,
    "FloorDiv": _floor_div,
    "Mod": lambda a, b: jnp.remainder(a, b) if jnp.issubdtype(a.dtype, jnp.floating) else a - b * _floor_div(a, b),
    "abs": jnp.abs,
    "min": jnp.minimum,
    "max": jnp.maximum,
    "stop_gradient": jax.lax.stop_gradient,
    "LShift": jnp.left_shift,
    "RShift": jnp.right_shift,
    "to_int32": lambda x: x.astype(jnp.int32).astype(_integers()),
    "to_integer": lambda x: jax.lax.stop_gradient(x).astype(_integers()),
    "to_boolean": lambda x: x != 0,
}
Evaluation.of_booleans = {"BitAnd": jnp.bitwise_and, "BitOr": jnp.bitwise_or, "BitXor": jnp.bitwise_xor}
Evaluation.comparisons = {"Eq": jnp.equal, "NotEq": jnp.not_equal, "Lt": jnp.less, "LtE": jnp.less_equal}


def attend(described: Description, given: Mapping[str, jax.Array], params: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """(out, lse) of a forward pass, whose arrays are given by role. Computes in float64 for float64 arrays, else in float32."""
    with jax.enable_x64(True):
        return _attend(described, given, params)


def _for_each_head(x: jax.Array, group: int) -> jax.Array:
    """Each head of k or v, group times. On a mesh with explicit axes jnp.repeat would ask how the result lies."""
    batch, heads, seqlen, head_dim = x.shape
    return jnp.broadcast_to(x[:, :, None], (batch, heads, group, seqlen, head_dim)).reshape(batch, heads * group, seqlen, head_dim)


def _attend(described: Description, given: Mapping[str, jax.Array], params: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    logging.route.debug("a derivative beyond the first, or in forward mode, of %s: by JAX's operations, with all scores in memory", given["q"].shape)
    warnings.warn(
        "foveal: a derivative beyond the first, or in forward mode: computed from all seqlen_q x seqlen_kv scores in memory", MaterializedWarning,
        stacklevel=3,
    )  # fmt: skip
    attention, named = described.attention, dict(zip([param.name for param in described.params], params))
    dtype = wide(given["q"].dtype)
    packed, paged = "cu_seqlens_q" in given, "block_table" in given
    keys = [_in_one_piece(given[role], given["block_table"], given["seqlens_kv"]) if paged else given[role] for role in ("k", "v")]
    if packed:
        keys = [x.reshape(1, -1, *x.shape[-2:]) for x in keys]
    q, k, v = (jnp.swapaxes(x, 1, 2).astype(dtype) for x in (given["q"][None] if packed else given["q"], *keys))
    symbols, same = _symbols(attention, q, k, given) if packed else _dense_symbols(attention, q, k, given)
    group = q.shape[1] // k.shape[1]
    k, v = _for_each_head(k, group), _for_each_head(v, group)

    scale = 1.0 / math.sqrt(q.shape[-1]) if attention.scale is None else attention.scale
    scores = jnp.einsum("bhid,bhjd->bhij", q, k, precision="highest") * scale
    keep = jnp.ones((1, 1, 1, 1), jnp.bool_) if same is None else same
    if attention.mask is not None:
        fixed = {name: jax.lax.stop_gradient(array) for name, array in named.items()}
        keep = keep & Evaluation(repr(attention.mask), symbols, fixed, dtype).result()
    if attention.score_mod is not None:
        changed = Evaluation(repr(attention.score_mod), {**symbols, "score": scores}, named, dtype, keep).result()
        scores = jnp.broadcast_to(changed, scores.shape)
    scores = jnp.where(keep, scores, -jnp.inf)

    highest = jax.lax.stop_gradient(scores).max(-1, keepdims=True)
    sink = None
    if described.sink is not None:
        sink = named[described.sink.name].astype(dtype).reshape(1, -1, 1, 1)
        highest = jnp.maximum(highest, jax.lax.stop_gradient(sink))
    highest = jnp.where(highest == -jnp.inf, 0.0, highest)
    weights = jnp.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total = total + jnp.exp(sink - highest)
    empty = total == 0
    total = jnp.where(empty, 1.0, total)
    lse = jnp.where(empty, -jnp.inf, jnp.log(total) + highest)[..., 0]
    weights = weights / total
    if described.dropout:
        kept = _kept_by_dropout(attention.dropout_p, given["rng_state"], q.shape[1], symbols)
        weights = weights * kept * (1.0 / (1.0 - attention.dropout_p))
    out = jnp.swapaxes(jnp.einsum("bhij,bhjd->bhid", weights, v, precision="highest"), 1, 2).astype(given["q"].dtype)
    return (out[0], lse[0]) if packed else (out, lse)


def _along(x: jax.Array, dim: int) -> jax.Array:
    return x.reshape([-1 if d == dim else 1 for d in range(4)])


def _in_one_piece(pool: jax.Array, block_table: jax.Array, seqlens_kv: jax.Array) -> jax.Array:
    """The keys or values of each sequence [batch, pages of the longest * page_size, heads, dim]; zeros behind the last one."""
    rows = pool[jnp.clip(block_table, 0)].reshape(block_table.shape[0], -1, *pool.shape[2:])
    return jnp.where((jnp.arange(rows.shape[1]) < seqlens_kv[:, None])[..., None, None], rows, 0)


def _dense_symbols(attention: _core.Attention, q: jax.Array, k: jax.Array, given: Mapping[str, jax.Array]) -> tuple[dict[str, Any], jax.Array | None]:
    """Of all pairs, as arrays that broadcast to [batch, heads, seqlen_q, seqlen_kv]; and which keys are there, where these lie in pages."""
    column = _along(jnp.arange(k.shape[2]), 3)
    seqlen_kv = _along(given["seqlens_kv"].astype(_integers()), 0) if "seqlens_kv" in given else k.shape[2]
    symbols = {
        "batch": _along(jnp.arange(q.shape[0]), 0),
        "head": _along(jnp.arange(q.shape[1]), 1),
        "q_idx": _along(jnp.arange(q.shape[2]), 2) + attention.q_offset,
        "kv_idx": column + attention.kv_offset,
        "seqlen_q": q.shape[2],
        "seqlen_kv": seqlen_kv,
    }
    return symbols, column < seqlen_kv if "seqlens_kv" in given else None


def _symbols(attention: _core.Attention, q: jax.Array, k: jax.Array, given: Mapping[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
    """Of packed sequences, whose rows form a batch of one; and which pairs lie in one sequence."""

    def places(role: str, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of each token its sequence, and its place there; how long the sequences are."""
        cu, token = given[role].astype(_integers()), jnp.arange(count)
        sequence = jnp.searchsorted(cu, token, side="right") - 1
        return sequence, token - cu[sequence], jnp.diff(cu)

    row, place_q, seqlens_q = places("cu_seqlens_q", q.shape[2])
    if "seqlens_kv" in given:
        seqlens_kv = given["seqlens_kv"].astype(_integers())
        column, place_kv = map(jnp.ravel, jnp.indices((len(seqlens_kv), k.shape[2] // len(seqlens_kv))))
        column = jnp.where(place_kv < seqlens_kv[column], column, -1)
    else:
        column, place_kv, seqlens_kv = places("cu_seqlens_kv", k.shape[2])
    sequence = jnp.minimum(row, len(seqlens_q) - 1)
    symbols = {
        "batch": _along(sequence, 2),
        "head": _along(jnp.arange(q.shape[1]), 1),
        "q_idx": _along(place_q, 2) + attention.q_offset,
        "kv_idx": _along(place_kv, 3) + attention.kv_offset,
        "seqlen_q": _along(seqlens_q[sequence], 2),
        "seqlen_kv": _along(seqlens_kv[sequence], 2),
    }
    return symbols, (_along(row, 2) == _along(column, 3)) & (_along(row, 2) == symbols["batch"])


def _kept_by_dropout(p: float, rng_state: jax.Array, heads: int, symbols: Mapping[str, Any]) -> jax.Array:
    """The pairs that foveal's dropout keeps: Philox4x32-10 of their global positions, four keys to a call (src/base/philox.h)."""
    if rng_state.dtype == jnp.uint32:
        seed_low, seed_high, offset_low, offset_high = rng_state
    else:
        words = rng_state.astype(jnp.uint64)
        (seed_low, offset_low), (seed_high, offset_high) = words.astype(jnp.uint32), (words >> 32).astype(jnp.uint32)
    u32: Callable[[Any], jax.Array] = lambda x: jnp.asarray(x).astype(jnp.uint32)  # noqa: E731
    kv = u32(symbols["kv_idx"])
    counter = list(jnp.broadcast_arrays(kv // 4, u32(symbols["q_idx"]), u32(symbols["batch"]) * u32(heads) + u32(symbols["head"]), offset_low))
    key = [seed_low, seed_high ^ offset_high]
    for _ in range(10):
        high = [_product_high(0xD2511F53, counter[0]), _product_high(0xCD9E8D57, counter[2])]
        low = [u32(0xD2511F53) * counter[0], u32(0xCD9E8D57) * counter[2]]
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]
        key = [key[0] + u32(0x9E3779B9), key[1] + u32(0xBB67AE85)]
    bits = jnp.select([kv % 4 == i for i in range(3)], counter[:3], counter[3])
    return bits >= u32(min(int(p * 4294967296.0), 0xFFFFFFFF))


def _product_high(factor: int, x: jax.Array) -> jax.Array:
    """The high word of a product of 32 x 32 bits, in words of 32."""
    half, low = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_low, a_high, x_low, x_high = jnp.uint32(factor & 0xFFFF), jnp.uint32(factor >> 16), x & low, x >> half
    middle = a_high * x_low + (a_low * x_low >> half)
    result: jax.Array = a_high * x_high + (middle >> half) + ((a_low * x_high + (middle & low)) >> half)
    return result
