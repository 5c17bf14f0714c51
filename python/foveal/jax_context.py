"""Context parallelism inside shard_map: tokens of a sequence are shared among the devices of a mesh axis; keys and values are gathered by jax.lax.

A device computes its rows of the scores for all keys: score and mask see global positions, as q_idx + the first token of a stretch of rows, which
is a parameter, so one program serves all devices, and tiles that the mask empties there are skipped when it runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .describe import Options, describe
from .jax_trace import JaxTracer
from .signatures import Mask, ScoreMod, Settings, check_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DEALS = {"contiguous": 1, "zigzag": 2}  # stretches of tokens that a device holds
_FIRST = "q_first_"


def context_order(seqlen: int, ranks: int, deal: str = "zigzag") -> np.ndarray[Any, np.dtype[np.int64]]:
    """The tokens in the order of the shards, int64 [seqlen]: x[:, order], split evenly along the axis, gives each device its rows; argsort of it
    leads back. deal: zigzag, where device r of n holds the stretches r and 2n - 1 - r of 2n, which is even for causal masks; or contiguous."""
    stretches = _stretches("context_order", deal)
    if ranks < 1 or seqlen < 1 or seqlen % (ranks * stretches) != 0:
        raise ValueError(f"context_order: seqlen: {seqlen} for {ranks} ranks; expected a multiple of {stretches} x ranks for deal {deal!r}")
    rows = seqlen // (ranks * stretches)
    tokens = np.arange(seqlen, dtype=np.int64).reshape(-1, rows)
    return tokens[[stretch for rank in range(ranks) for stretch in _held(rank, ranks, stretches)]].reshape(-1)


def context_positions(rows: int, axis_name: str, deal: str = "zigzag") -> jax.Array:
    """Inside shard_map: the tokens of this device's rows, int32 [rows]."""
    stretches = _stretches("context_positions", deal)
    ranks = _axis_size("context_positions", axis_name)
    each = _rows("context_positions", rows, deal)
    first = [_first(i, axis_name, ranks, stretches) * each for i in range(stretches)]
    return jnp.concatenate([start + jnp.arange(each, dtype=jnp.int32) for start in first])


def context_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    axis_name: str,
    deal: str = "zigzag",
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Unpack[Settings],
) -> Any:
    """foveal.jax.attention() of a sequence whose tokens are shared among the devices of a mesh axis: inside shard_map, on local shards.

        order = foveal.jax.context_order(seqlen, ranks)
        attend = functools.partial(foveal.jax.context_attention, mask=foveal.causal(), axis_name="context")
        sharded = jax.shard_map(attend, mesh=mesh, in_specs=P(None, "context"), out_specs=P(None, "context"))
        out = sharded(q[:, order], k[:, order], v[:, order])[:, np.argsort(order)]

    q, k, v: [batch, rows, heads, head_dim], this device's rows in the order of context_order(); queries and keys may differ in number. Gives this
    device's rows of out, and of lse [batch, heads_q, rows] with return_lse. Score and mask see global positions and lengths; tensors that they
    capture, and the sink, are whole, the same on every device, and their gradients are summed over the devices. Keys and values of all devices are
    gathered by every device (an all-gather; their gradients return by a reduce-scatter), so a device holds all of them while it computes. Differentiable
    as attention() is; other arguments and errors as there. Raises NotImplementedError for dropout and for packed sequences.
    """
    from .jax import _array, attention

    name = "context_attention"
    for refused, what in (("cu_seqlens", "packed sequences"), ("max_seqlens", "packed sequences")):
        if refused in arguments:
            raise NotImplementedError(f"{name}: {refused}: {what}; expected tensors with a batch dimension, and documents as a mask")
    for refused in ("dropout_p", "seed", "offset", "rng_state"):
        if arguments.get(refused, 0.0 if refused == "dropout_p" else None) not in (None, 0.0):
            raise NotImplementedError(f"{name}: {refused}: dropout; expected dropout_p=0: which pairs are dropped follows from global positions")
    settings: dict[str, Any] = {key: value for key, value in arguments.items() if key not in ("dropout_p", "seed", "offset", "rng_state")}
    check_names(name, settings, tuple(Settings.__annotations__))
    q, k, v = (_array(x, role) for x, role in ((q, "q"), (k, "k"), (v, "v")))
    for role, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name}: {role}: rank {x.ndim}; expected [batch, rows, heads, head_dim]")
    stretches, ranks = _stretches(name, deal), _axis_size(name, axis_name)
    rows = _rows(name, q.shape[1], deal)
    seqlen_q = q.shape[1] * ranks
    described = describe(score_mod, mask, tracer=JaxTracer.like(q.dtype), **{**settings, "scale": 1.0})
    params = {param.name: array for param, array in zip(described.params, described.arrays)}
    if _FIRST in params:
        raise ValueError(f"{name}: params: {_FIRST}; expected another name, for this is what the first token of a stretch is called")
    settings["sink"] = None if described.sink is None else params.pop(described.sink.name)
    k, v = (_gathered(x, axis_name, ranks, _rows(name, x.shape[1], deal), stretches) for x in (k, v))

    def whole(expr: Any) -> str | None:
        if expr is None:
            return None
        text = re.sub(r"\bseqlen_q\b", str(seqlen_q), repr(expr))
        return re.sub(r"\bq_idx\b", f"(q_idx + clamp({_FIRST}[0], 0, {seqlen_q}))", text)

    parts = []
    for i in range(stretches):
        first = (_first(i, axis_name, ranks, stretches) * rows).astype(jnp.int32).reshape(1)
        part = {**settings, "params": {**params, _FIRST: first}}
        of_rows = q[:, i * rows : (i + 1) * rows]
        parts.append(attention(of_rows, k, v, whole(described.score_mod), whole(described.mask), return_lse=True, options=options, **part))
    out, lse = jnp.concatenate([out for out, _ in parts], 1), jnp.concatenate([lse for _, lse in parts], 2)
    return (out, lse) if return_lse else out


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
    if deal not in _DEALS:
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
