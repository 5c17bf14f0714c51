"""Context parallelism inside shard_map: tokens of a sequence are shared among the devices of a mesh axis; keys and values are gathered by jax.lax.

A device computes its rows of the scores for the keys that the mask may keep there: all of them, or those of its neighbours. Score and mask see
global positions, as q_idx + the first token of a stretch of rows, which is a parameter, so one program serves all devices, and tiles that the mask
empties there are skipped when it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _core
from .argument_errors import public
from .describe import Description, describe
from .jax_trace import JaxTracer
from .signatures import Mask, Options, ScoreMod, Settings, check_flags, check_names

_DEALS = {"contiguous": 1, "zigzag": 2}  # stretches of tokens that a device holds
_FIRST, _FIRST_KEY = "q_first_", "kv_first_"  # parameters: the token of row 0 and of column 0

_PACKED = "packed sequences are not shared among devices; expected tensors with a batch dimension, and documents as a mask"
_PAGED = "keys in pages are not shared among devices; expected keys and values with a batch dimension, or attention() with pages of the whole sequences"
_REFUSED = {"cu_seqlens": _PACKED, "max_seqlens": _PACKED, "block_table": _PAGED, "seqlens_kv": _PAGED}

_MOST_MASKS = 4096  # of batches and heads that are looked at to see how far a mask reaches

Tokens = np.ndarray[Any, np.dtype[np.int64]]


def context_order(seqlen: int, ranks: int, deal: str = "zigzag", pad: bool = False) -> Tokens:
    """The tokens in the order of the shards, int64 [seqlen]: x[:, order], split evenly along the axis, gives each device its rows;
    x[:, context_places()] undoes it.

    deal: "zigzag", where device r of n holds the stretches r and 2n - 1 - r of 2n, which is even for causal masks; or "contiguous".
    pad: accept every length. The shards are then those of the next multiple. The places after the last token repeat that token, and
    context_attention() needs `seqlen` to leave them out.

    Raises ValueError for other lengths without pad."""
    stretches = _stretches("context_order", deal)
    seqlen, ranks = (_index("context_order", argument, value) for argument, value in (("seqlen", seqlen), ("ranks", ranks)))
    if ranks < 1 or seqlen < 1 or (seqlen % (ranks * stretches) != 0 and not pad):
        raise ValueError(
            f"context_order: seqlen: {seqlen} for {ranks} ranks; expected a multiple of {stretches} x ranks for deal {deal!r}, or pad=True and"
            " context_attention(seqlen=)"
        )
    rows = -(-seqlen // (ranks * stretches))
    tokens = np.arange(rows * ranks * stretches, dtype=np.int64).reshape(-1, rows)
    dealt = tokens[[stretch for rank in range(ranks) for stretch in _held(rank, ranks, stretches)]].reshape(-1)
    return np.minimum(dealt, seqlen - 1)


def context_places(seqlen: int, ranks: int, deal: str = "zigzag") -> Tokens:
    """Where context_order(pad=True) puts each token, int64 [seqlen]: x[:, context_places(...)] puts results of the devices back in token order."""
    stretches = _stretches("context_places", deal)
    seqlen, ranks = (_index("context_places", argument, value) for argument, value in (("seqlen", seqlen), ("ranks", ranks)))
    if ranks < 1 or seqlen < 1:
        raise ValueError(f"context_places: seqlen: {seqlen} for {ranks} ranks; expected both to be 1 or more")
    padded = -(-seqlen // (ranks * stretches)) * ranks * stretches
    return np.argsort(context_order(padded, ranks, deal))[:seqlen]


def context_positions(rows: int, axis_name: str, deal: str = "zigzag") -> jax.Array:
    """Inside shard_map: the tokens of this device's rows, int32 [rows]."""
    stretches = _stretches("context_positions", deal)
    ranks = _axis_size("context_positions", axis_name)
    each = _rows("context_positions", rows, deal)
    first = [_first(i, axis_name, ranks, stretches) * each for i in range(stretches)]
    return jnp.concatenate([start + jnp.arange(each, dtype=jnp.int32) for start in first])


@public("foveal.jax.context_attention")
def context_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    axis_name: str,
    deal: str = "zigzag",
    seqlen: int | None = None,
    seqlen_kv: int | None = None,
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Any,
) -> Any:
    """foveal.jax.attention() of a sequence whose tokens are divided among the devices of a mesh axis: inside shard_map, on local shards.

        order = foveal.jax.context_order(seqlen, ranks)
        attend = functools.partial(foveal.jax.context_attention, mask=foveal.causal(), axis_name="context")
        sharded = jax.shard_map(attend, mesh=mesh, in_specs=P(None, "context"), out_specs=P(None, "context"))
        out = sharded(q[:, order], k[:, order], v[:, order])[:, foveal.jax.context_places(seqlen, ranks)]

    q, k, v: [batch, rows, heads, head_dim], this device's rows in the order of context_order(). Queries and keys may differ in number.
    seqlen, seqlen_kv: tokens of the whole sequence, where the shards contain padding after them (context_order(pad=True)). Rows of padding give out 0
    and lse -inf (with a sink, the sink), and keys of padding are not seen. By default all rows are tokens; seqlen_kv is seqlen where there are as many
    keys as queries.
    dropout_p: with seed, offset or rng_state the same on every device, drops the pairs that attention() of the whole drops. Every device then gathers
    all keys, and the program holds a plan for each device.

    Score and mask see global positions and lengths. Tensors that they capture, and the sink, are whole and the same on every device; their gradients
    are summed over the devices.

    With the contiguous deal and a mask whose reach is known (a window, say), a device gets only the keys and values of the neighbours within it
    (jax.lax.ppermute). Otherwise every device gathers those of all (jax.lax.all_gather) and holds them while it computes. Their gradients return the
    same way.

    Returns this device's rows of out, and with return_lse of lse [batch, heads_q, rows]. Differentiable as attention() is; other arguments and errors
    as there. Raises NotImplementedError for packed and paged sequences.
    """
    from .jax import _array, _axes, _rng_state, _varying_with, attention

    name = "context_attention"
    for refused, instead in _REFUSED.items():
        if arguments.get(refused) is not None:
            raise NotImplementedError(f"{name}: {refused}: {instead}")
    check_flags(name, return_lse=return_lse)
    settings: dict[str, Any] = {key: value for key, value in arguments.items() if key not in _REFUSED}
    check_names(name, settings, (*Settings.__annotations__, "seed", "offset", "rng_state"))
    seed, offset, rng_state = settings.pop("seed", None), settings.pop("offset", 0), settings.pop("rng_state", None)
    q, k, v = (_array(x, role) for x, role in ((q, "q"), (k, "k"), (v, "v")))
    for role, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name}: {role}: rank {x.ndim}; expected [batch, rows, heads, head_dim]")
    stretches, ranks = _stretches(name, deal), _axis_size(name, axis_name)
    rows, rows_kv = _rows(name, q.shape[1], deal), _rows(name, k.shape[1], deal)
    described = describe(score_mod, mask, tracer=JaxTracer.like(q.dtype), **{**settings, "scale": 1.0})
    whole = _Whole(
        _length(name, "seqlen", seqlen, q.shape[1] * ranks),
        _length(name, "seqlen_kv", seqlen if seqlen_kv is None and k.shape[1] == q.shape[1] else seqlen_kv, k.shape[1] * ranks),
        max(q.shape[1], k.shape[1]) * ranks,
        int(settings.get("q_offset", 0)),
        int(settings.get("kv_offset", 0)),
    )
    params = {param.name: array for param, array in zip(described.params, described.arrays)}
    for taken in (_FIRST, _FIRST_KEY):
        if taken in params:
            raise ValueError(f"{name}: params: {taken}; expected another name, for this is what the first token of a stretch is called")
    settings["sink"] = None if described.sink is None else params.pop(described.sink.name)

    dropped = _rng_state(described, seed, offset, rng_state)
    near = deal == "contiguous" and dropped is None
    steps = whole.steps(described, ranks, rows, rows_kv, q.shape[0], q.shape[2]) if near else range(ranks)
    if len(steps) < ranks:
        k, v = (_of_neighbours(x, axis_name, ranks, steps) for x in (k, v))
        first_key = ((jax.lax.axis_index(axis_name) + steps.start) * rows_kv).astype(jnp.int32).reshape(1)
        params[_FIRST_KEY] = first_key
    else:
        k, v = (_gathered(x, axis_name, ranks, rows_kv, stretches)[:, : whole.seqlen_kv] for x in (k, v))
    part_mask = whole.mask(described.mask, padded=whole.seqlen_q < q.shape[1] * ranks, neighbours=_FIRST_KEY in params)
    part_score = None if described.score_mod is None else whole.text(described.score_mod, _FIRST_KEY in params)

    def part(stretch: int, first: jax.Array, operands: Any, **own: Any) -> tuple[jax.Array, jax.Array]:
        q, k, v, params, arrays = operands
        given = {**settings, **arrays, **own, "params": {**params, _FIRST: first}}
        of_rows = q[:, stretch * rows : (stretch + 1) * rows]
        found: tuple[jax.Array, jax.Array] = attention(of_rows, k, v, part_score, part_mask, return_lse=True, options=options, **given)
        return found

    parts = []
    arrays = {"rng_state": dropped, **{key: value for key, value in settings.items() if isinstance(value, jax.Array)}}
    operands = (q, k, v, params, arrays)
    if dropped is not None:  # in no branch the gradient of what is the same everywhere may be summed: other devices take other branches
        axes = frozenset().union(*map(_axes, jax.tree.leaves(operands)))
        operands = jax.tree.map(lambda x: _varying_with(x, axes), operands)
    for i in range(stretches):
        if dropped is None:
            parts.append(part(i, (_first(i, axis_name, ranks, stretches) * rows).astype(jnp.int32).reshape(1), operands))
            continue
        # What is dropped follows from the positions that a plan knows, not a parameter: a plan for each device, of which it takes its own.
        firsts = [_held(rank, ranks, stretches)[i] * rows for rank in range(ranks)]
        zero = _varying_with(jnp.zeros(1, jnp.int32), axes)
        of_rank = [functools.partial(part, i, zero, q_offset=whole.q_offset + first) for first in firsts]
        parts.append(jax.lax.switch(jax.lax.axis_index(axis_name), of_rank, operands))
    out, lse = jnp.concatenate([out for out, _ in parts], 1), jnp.concatenate([lse for _, lse in parts], 2)
    return (out, lse) if return_lse else out


@dataclasses.dataclass(frozen=True)
class _Whole:
    """The whole sequence, seen from a stretch of its rows."""

    seqlen_q: int
    seqlen_kv: int
    most: int  # rows of all devices, padding included
    q_offset: int
    kv_offset: int

    def text(self, expr: Any, neighbours: bool) -> str:
        """Of a score or a mask, for rows that begin at token `_FIRST`, and with `neighbours` columns that begin at token `_FIRST_KEY`."""
        text = self._with_lengths(expr)
        text = re.sub(r"\bq_idx\b", f"(q_idx + {self._first(_FIRST)})", text)
        return re.sub(r"\bkv_idx\b", f"(kv_idx + {self._first(_FIRST_KEY)})", text) if neighbours else text

    def mask(self, expr: Any, padded: bool, neighbours: bool) -> str | None:
        """Without the rows of padding, and the columns of neighbours that are not there or of padding."""
        terms = [] if expr is None else [f"({self.text(expr, neighbours)})"]
        if padded:
            terms.append(f"(q_idx + {self._first(_FIRST)} < {self.seqlen_q + self.q_offset})")
        if neighbours:
            token = f"kv_idx + {self._first(_FIRST_KEY)}"
            terms.append(f"({token} >= {self.kv_offset}) & ({token} < {self.seqlen_kv + self.kv_offset})")
        return " & ".join(terms) or None

    def steps(self, described: Description, ranks: int, rows: int, rows_kv: int, batch: int, heads: int) -> range:
        """Which stretches of keys the mask may keep for device r: r + those. All that it does not show are kept."""
        all_keys = range(ranks)
        text = "" if described.mask is None else repr(described.mask)
        batches = range(batch if re.search(r"\bbatch\b", text) else 1)
        each_head = range(heads if re.search(r"\bhead\b", text) else 1)
        if described.mask is None or len(batches) * len(each_head) > _MOST_MASKS:
            return all_keys
        text = self._with_lengths(described.mask)
        text = re.sub(r"\bq_idx\b", f"(q_idx + {self.q_offset})", re.sub(r"\bkv_idx\b", f"(kv_idx + {self.kv_offset})", text))
        sizes, unknown = (self.seqlen_q, self.seqlen_kv, rows, rows_kv), [None] * len(described.params)
        mask, kept = _core.parse(text, described.params), {0}
        for b in batches:
            for h in each_head:
                classes = np.frombuffer(_core.tile_classes(mask, described.params, unknown, *sizes, b, h), np.uint8)
                stretch_q, stretch_kv = np.nonzero(classes.reshape(-1, -(-self.seqlen_kv // rows_kv)))
                kept.update((stretch_kv - stretch_q).tolist())
        return range(min(kept), max(kept) + 1)

    def _with_lengths(self, expr: Any) -> str:
        return re.sub(r"\bseqlen_kv\b", str(self.seqlen_kv), re.sub(r"\bseqlen_q\b", str(self.seqlen_q), repr(expr)))

    def _first(self, param: str) -> str:
        return f"clamp({param}[0], {0 if param == _FIRST else -self.most}, {self.most})"


def _length(name: str, argument: str, given: int | None, rows: int) -> int:
    if given is None:
        return rows
    given = _index(name, argument, given)
    if not 1 <= given <= rows:
        raise ValueError(f"{name}: {argument}: {given}; expected 1 to {rows}, the rows of all devices")
    return given


def _index(name: str, argument: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        traced = ", which JAX traces" if isinstance(value, jax.core.Tracer) else ""
        raise TypeError(f"{name}: {argument}: found {type(value).__name__} {value!r}{traced}; expected an integer") from None


def _of_neighbours(x: jax.Array, axis_name: str, ranks: int, steps: range) -> jax.Array:
    """The rows of the devices at these steps from this one, in the order of their tokens; zeros where there is no such device."""

    def of(step: int) -> jax.Array:
        pairs = [(rank + step, rank) for rank in range(ranks) if 0 <= rank + step < ranks]
        return x if step == 0 else jax.lax.ppermute(x, axis_name, pairs)

    return jnp.concatenate([of(step) for step in steps], 1)


def _gathered(x: jax.Array, axis_name: str, ranks: int, rows: int, stretches: int) -> jax.Array:
    """All tokens in their own order."""
    shards = jax.lax.all_gather(x, axis_name, axis=1, tiled=True)
    held = [stretch for rank in range(ranks) for stretch in _held(rank, ranks, stretches)]
    return jnp.concatenate([shards[:, i * rows : (i + 1) * rows] for i in np.argsort(held)], 1)


def _held(rank: int, ranks: int, stretches: int) -> list[int]:
    return [rank] if stretches == 1 else [rank, 2 * ranks - 1 - rank]


def _first(stretch: int, axis_name: str, ranks: int, stretches: int) -> jax.Array:
    """This device's stretches, in units of one."""
    rank = jax.lax.axis_index(axis_name)
    return rank if stretch == 0 else 2 * ranks - 1 - rank


def _stretches(name: str, deal: str) -> int:
    if not isinstance(deal, str) or deal not in _DEALS:
        raise ValueError(f"{name}: deal: {deal!r}; expected {' or '.join(map(repr, _DEALS))}")
    return _DEALS[deal]


def _rows(name: str, rows: int, deal: str) -> int:
    """Of one stretch."""
    if rows % _DEALS[deal] != 0:
        raise ValueError(f"{name}: {rows} rows of a device; expected an even number for deal {deal!r}")
    return rows // _DEALS[deal]


def _axis_size(name: str, axis_name: str) -> int:
    try:
        return int(jax.lax.axis_size(axis_name))
    except NameError:
        raise ValueError(f"{name}: axis_name: {axis_name!r} is no axis here; expected one of the mesh of a shard_map around the call") from None
