"""Context parallelism inside shard_map: tokens of a sequence are shared among the devices of a mesh axis; keys and values are gathered by jax.lax.

A device computes its rows of the scores for the keys that the mask may keep there: all of them, or those of its neighbours. Score and mask see
global positions, as q_idx + the first token of a stretch of rows, which is a parameter, so one program serves all devices, and tiles that the mask
empties there are skipped when it runs.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from ..argument_errors import public
from ..describe import Description, describe
from ..signatures import Mask, Options, ScoreMod, Settings, check_flags, check_names
from .context_order import Deal, index
from .mesh import all_varying
from .native import attention
from .operands import array, state_of_dropout
from .tracing import JaxTracer

_FIRST, _FIRST_KEY = "q_first_", "kv_first_"  # parameters: the token of row 0 and of column 0

_PACKED = "packed sequences are not shared among devices; expected tensors with a batch dimension, and documents as a mask"
_PAGED = "keys in pages are not shared among devices; expected keys and values with a batch dimension, or attention() with pages of the whole sequences"
_REFUSED = {"cu_seqlens": _PACKED, "max_seqlens": _PACKED, "block_table": _PAGED, "seqlens_kv": _PAGED}

_MOST_MASKS = 4096  # of batches and heads that are looked at to see how far a mask reaches


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
    name = "context_attention"
    for refused, instead in _REFUSED.items():
        if arguments.get(refused) is not None:
            raise NotImplementedError(f"{name}: {refused}: {instead}")
    check_flags(name, return_lse=return_lse)
    settings: dict[str, Any] = {key: value for key, value in arguments.items() if key not in _REFUSED}
    check_names(name, settings, (*Settings.__annotations__, "seed", "offset", "rng_state"))
    seed, offset, rng_state = settings.pop("seed", None), settings.pop("offset", 0), settings.pop("rng_state", None)
    q, k, v = (array(x, role) for x, role in ((q, "q"), (k, "k"), (v, "v")))
    for role, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(f"{name}: {role}: rank {x.ndim}; expected [batch, rows, heads, head_dim]")
    dealt = Deal.along(name, deal, axis_name)
    rows, rows_kv = dealt.rows(q.shape[1]), dealt.rows(k.shape[1])
    described = describe(score_mod, mask, tracer=JaxTracer.like(q.dtype), **{**settings, "scale": 1.0})
    whole = _Whole(
        dealt, axis_name, rows, rows_kv,
        _length(name, "seqlen", seqlen, q.shape[1] * dealt.ranks),
        _length(name, "seqlen_kv", seqlen if seqlen_kv is None and k.shape[1] == q.shape[1] else seqlen_kv, k.shape[1] * dealt.ranks),
        int(settings.get("q_offset", 0)), int(settings.get("kv_offset", 0)),
    )  # fmt: skip
    params, settings["sink"] = _parameters(name, described)

    dropped = state_of_dropout(described, seed, offset, rng_state)
    steps = whole.steps(described, q.shape[0], q.shape[2]) if dropped is None else range(dealt.ranks)
    near = len(steps) < dealt.ranks
    k, v = (whole.of_neighbours(x, steps) if near else whole.gathered(x) for x in (k, v))
    if near:
        params[_FIRST_KEY] = ((jax.lax.axis_index(axis_name) + steps.start) * rows_kv).astype(jnp.int32).reshape(1)
    score, kept = None if described.score_mod is None else whole.text(described.score_mod, near), whole.mask(described.mask, near)

    def part(stretch: int, first: jax.Array, operands: Any, **own: Any) -> Any:
        q, k, v, params, arrays = operands
        given = {**settings, **arrays, **own, "params": {**params, _FIRST: first}}
        return attention(q[:, stretch * rows : (stretch + 1) * rows], k, v, score, kept, return_lse=True, options=options, **given)

    arrays = {"rng_state": dropped, **{key: value for key, value in settings.items() if isinstance(value, jax.Array)}}
    out, lse = whole.in_parts(part, (q, k, v, params, arrays), drops=dropped is not None)
    return (out, lse) if return_lse else out


@dataclass(frozen=True)
class _Whole:
    """The whole sequence, seen from a stretch of its rows."""

    dealt: Deal
    axis_name: str
    rows: int  # of a stretch
    rows_kv: int
    seqlen_q: int
    seqlen_kv: int
    q_offset: int
    kv_offset: int

    def text(self, expr: Any, near: bool) -> str:
        """Of a score or a mask, for rows that begin at token `_FIRST`, and with the keys of neighbours for columns that begin at token `_FIRST_KEY`."""
        text = self._with_lengths(expr)
        text = re.sub(r"\bq_idx\b", f"(q_idx + {self._first(_FIRST)})", text)
        return re.sub(r"\bkv_idx\b", f"(kv_idx + {self._first(_FIRST_KEY)})", text) if near else text

    def mask(self, expr: Any, near: bool) -> str | None:
        """Without the rows of padding, and the columns of neighbours that are not there or of padding."""
        terms = [] if expr is None else [f"({self.text(expr, near)})"]
        if self.seqlen_q < self.rows * self.dealt.each * self.dealt.ranks:
            terms.append(f"(q_idx + {self._first(_FIRST)} < {self.seqlen_q + self.q_offset})")
        if near:
            token = f"kv_idx + {self._first(_FIRST_KEY)}"
            terms.append(f"({token} >= {self.kv_offset}) & ({token} < {self.seqlen_kv + self.kv_offset})")
        return " & ".join(terms) or None

    def steps(self, described: Description, batch: int, heads: int) -> range:
        """Which stretches of keys the mask may keep for device r: r + those. All that it does not show are kept."""
        all_keys = range(self.dealt.ranks)
        text = "" if described.mask is None else repr(described.mask)
        batches = range(batch if re.search(r"\bbatch\b", text) else 1)
        each_head = range(heads if re.search(r"\bhead\b", text) else 1)
        if self.dealt.each > 1 or described.mask is None or len(batches) * len(each_head) > _MOST_MASKS:
            return all_keys
        text = self._with_lengths(described.mask)
        text = re.sub(r"\bq_idx\b", f"(q_idx + {self.q_offset})", re.sub(r"\bkv_idx\b", f"(kv_idx + {self.kv_offset})", text))
        sizes, unknown = (self.seqlen_q, self.seqlen_kv, self.rows, self.rows_kv), [None] * len(described.params)
        mask, kept = _core.parse(text, described.params), {0}
        for b in batches:
            for h in each_head:
                classes = np.frombuffer(_core.tile_classes(mask, described.params, unknown, *sizes, b, h), np.uint8)
                stretch_q, stretch_kv = np.nonzero(classes.reshape(-1, -(-self.seqlen_kv // self.rows_kv)))
                kept.update((stretch_kv - stretch_q).tolist())
        return range(min(kept), max(kept) + 1)

    def of_neighbours(self, x: jax.Array, steps: range) -> jax.Array:
        """The rows of the devices at these steps from this one, in the order of their tokens; zeros where there is no such device."""
        ranks = self.dealt.ranks

        def of(step: int) -> jax.Array:
            pairs = [(rank + step, rank) for rank in range(ranks) if 0 <= rank + step < ranks]
            return x if step == 0 else jax.lax.ppermute(x, self.axis_name, pairs)

        return jnp.concatenate([of(step) for step in steps], 1)

    def gathered(self, x: jax.Array) -> jax.Array:
        """All keys or values in the order of their tokens, without padding."""
        shards, rows = jax.lax.all_gather(x, self.axis_name, axis=1, tiled=True), self.rows_kv
        return jnp.concatenate([shards[:, i * rows : (i + 1) * rows] for i in np.argsort(self.dealt.order())], 1)[:, : self.seqlen_kv]

    def in_parts(self, part: Callable[..., Any], operands: Any, drops: bool) -> tuple[jax.Array, jax.Array]:
        """(out, lse) of this device's rows, by part(stretch, its first token, operands, q_offset)."""
        rank, rows = jax.lax.axis_index(self.axis_name), self.rows
        if not drops:
            firsts = [(stretch * rows).astype(jnp.int32).reshape(1) for stretch in self.dealt.held(rank)]
            parts = [part(i, first, operands) for i, first in enumerate(firsts)]
        else:
            # What is dropped follows from the positions that a plan knows, not a parameter: a plan for each device, of which it takes its own. In
            # no branch the gradient of what is the same everywhere may be summed: other devices take other branches.
            operands, zero = all_varying((operands, jnp.zeros(1, jnp.int32)))
            parts = []
            for i, stretches in enumerate(zip(*map(self.dealt.held, range(self.dealt.ranks)))):
                of_rank = [functools.partial(part, i, zero, q_offset=self.q_offset + stretch * rows) for stretch in stretches]
                parts.append(jax.lax.switch(rank, of_rank, operands))
        return jnp.concatenate([out for out, _ in parts], 1), jnp.concatenate([lse for _, lse in parts], 2)

    def _with_lengths(self, expr: Any) -> str:
        return re.sub(r"\bseqlen_kv\b", str(self.seqlen_kv), re.sub(r"\bseqlen_q\b", str(self.seqlen_q), repr(expr)))

    def _first(self, param: str) -> str:
        most = max(self.rows, self.rows_kv) * self.dealt.each * self.dealt.ranks
        return f"clamp({param}[0], {0 if param == _FIRST else -most}, {most})"


def _length(name: str, argument: str, given: int | None, rows: int) -> int:
    if given is None:
        return rows
    given = index(name, argument, given)
    if not 1 <= given <= rows:
        raise ValueError(f"{name}: {argument}: {given}; expected 1 to {rows}, the rows of all devices")
    return given


def _parameters(name: str, described: Description) -> tuple[dict[str, Any], Any]:
    """(those of score and mask, the sink)."""
    params = dict(zip([param.name for param in described.params], described.arrays))
    for taken in (_FIRST, _FIRST_KEY):
        if taken in params:
            raise ValueError(f"{name}: params: {taken}; expected another name, for this is what the first token of a stretch is called")
    return params, None if described.sink is None else params.pop(described.sink.name)
