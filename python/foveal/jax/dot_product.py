"""A drop-in for jax.nn.dot_product_attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..argument_errors import public
from ..masks import read_by_pair
from .native import attention
from .operands import array, owned


@public("foveal.jax.dot_product_attention")
def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | jax.Array | tuple[int | jax.Array, int | jax.Array] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Drop-in for jax.nn.dot_product_attention: bias and scale may be traced and trained; tiles that masks leave empty are skipped.

    query: [batch, seqlen_q, heads_q, head_dim], or without batch.
    key, value: [batch, seqlen_kv, heads_kv, ...], or without batch.
    bias: added to the scores, of any real or integer dtype; broadcast to [batch, heads_q, seqlen_q, seqlen_kv].
    mask: bool, True = keep; broadcast likewise.
    query_seq_lengths, key_value_seq_lengths: integers [batch]; queries past theirs give zeros.
    local_window_size: keys to the left and to the right of its own position that a query sees; integers or arrays of one, which may be traced.
    implementation: None, "xla" or "cudnn"; has no effect.

    Returns the output; with return_residual also lse without gradient, [batch, seqlen_q, heads_q] in query's dtype. A query that sees no key gives
    zeros, as with cuDNN; XLA's implementation gives the mean of all values.
    """
    for name, flag in (("is_causal", is_causal), ("return_residual", return_residual)):
        if isinstance(flag, jax.core.Tracer):
            raise TypeError(f"dot_product_attention: {name}: found a value that JAX traces; expected True or False: static_argnames={name!r}")
    query, key, value = (array(x, name) for name, x in (("query", query), ("key", key), ("value", value)))
    if not (implementation is None or implementation in ("xla", "cudnn")):
        raise ValueError(f"dot_product_attention: implementation: found {implementation!r}; expected None, 'xla' or 'cudnn', of which none changes anything")
    ranks = [x.ndim for x in (query, key, value)]
    if ranks[0] not in (3, 4) or len(set(ranks)) != 1:
        raise ValueError(f"dot_product_attention: query, key, value: ranks {ranks}; expected all 4, [batch, seqlen, heads, dim], or all 3")
    batched = [x[None] if x.ndim == 3 else x for x in (query, key, value)]
    batch, seqlen_q, heads, _ = batched[0].shape
    full = (batch, heads, seqlen_q, batched[1].shape[1])
    params: dict[str, Any] = {}
    score_mod, masks = None, []
    if bias is not None:
        bias = owned(bias)
        if not jnp.issubdtype(bias.dtype, jnp.floating):  # integers of any width, and booleans, are numbers to add
            bias = bias.astype(jnp.promote_types(query.dtype, jnp.float32))
        score_mod = "score + " + _read("bias", bias, full, params)
    if mask is not None:
        mask = owned(mask)
        if mask.dtype != jnp.bool_:
            raise ValueError(f"dot_product_attention: mask: dtype {mask.dtype}; expected bool (True = keep); numbers to add are a bias")
        masks.append(_read("mask", mask, full, params))
    if is_causal:
        masks.append("kv_idx <= q_idx")
    if local_window_size is not None:
        masks.append(_window(local_window_size, params))
    for name, lengths, symbol in (("query_seq_lengths", query_seq_lengths, "q_idx"), ("key_value_seq_lengths", key_value_seq_lengths, "kv_idx")):
        if lengths is not None:
            lengths = owned(lengths)
            if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
                raise ValueError(f"dot_product_attention: {name}: {lengths.dtype}{list(lengths.shape)}; expected integers [{batch}]")
            if jnp.issubdtype(lengths.dtype, jnp.unsignedinteger):  # which scores do not read; longer ones leave nothing out
                lengths = jnp.minimum(lengths, min(int(np.iinfo(lengths.dtype).max), 2**31 - 1)).astype(jnp.int32)
            params[name] = lengths
            masks.append(f"{symbol} < {name}[batch]")
    text = " & ".join([f"({part})" for part in masks]) or None
    out, lse = attention(batched[0], batched[1], batched[2], score_mod, text, scale=scale, params=params, return_lse=True)
    residual = jax.lax.stop_gradient(lse.transpose(0, 2, 1).astype(query.dtype))
    if query.ndim == 3:
        out, residual = out[0], residual[0]
    return (out, residual) if return_residual else out


def _read(name: str, array: Any, full: tuple[int, ...], params: dict[str, Any]) -> str:
    """Binds an array that broadcasts to the scores; the text of its read."""
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.ndim != 4 or any(extent not in (1, whole) for extent, whole in zip(array.shape, full)):
        raise ValueError(f"dot_product_attention: {name}: shape {array.shape}; expected one that broadcasts to {full}")
    params[name] = array
    return read_by_pair(name, array.shape)


def _window(size: Any, params: dict[str, Any]) -> str:
    """The text of a local_window_size; sides that are arrays, perhaps traced, become parameters."""
    if isinstance(size, (int, np.integer)):
        size = (size, size)
    sides = list(size) if isinstance(size, (tuple, list)) or isinstance(size, (np.ndarray, jax.Array)) and size.ndim == 1 else []
    texts = []
    for name, side in zip(("left", "right"), sides):
        side = owned(side) if isinstance(side, np.ndarray) else side
        if isinstance(side, jax.Array) and side.ndim == 0 and jnp.issubdtype(side.dtype, jnp.integer):
            params[f"window_{name}"] = side.astype(jnp.promote_types(side.dtype, jnp.int32))
            texts.append(f"window_{name}[]")
        elif type(side) is int or isinstance(side, np.integer):
            texts.append(str(int(side)))
    if len(sides) != 2 or len(texts) != 2:
        raise ValueError(f"dot_product_attention: local_window_size: found {size!r}; expected an integer, or a pair of integers (to the left, to the right)")
    return f"kv_idx >= q_idx - {texts[0]} and kv_idx <= q_idx + {texts[1]}"
