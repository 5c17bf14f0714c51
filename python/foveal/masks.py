"""Common masks and scores. Most are expressions: combine masks with &, | and ~.

Those that read an array are functions of the symbols, like a mask that you write yourself: combine them inside another function,
`lambda *symbols: document(*symbols) & (symbols[3] <= symbols[2])`, or write text: mask="document(ids) & causal()", params={"ids": ids}.
"""

from __future__ import annotations

import operator
from typing import Any, Callable

from . import _core, arrays
from ._core import Expr, Type

MaskFunction = Callable[[Any, Any, Any, Any], Any]


def causal() -> Expr:
    """kv_idx <= q_idx (top-left aligned when the lengths differ)."""
    return _core.causal()


def causal_bottom_right() -> Expr:
    """kv_idx <= q_idx + (seqlen_kv - seqlen_q)."""
    return _core.causal_bottom_right()


def window(w: int) -> Expr:
    """abs(q_idx - kv_idx) <= w."""
    return _core.window(_known("window: w", w, "lambda batch, head, q_idx, kv_idx: abs(q_idx - kv_idx) <= w"))


def prefix_lm(prefix: int) -> Expr:
    """kv_idx < prefix | kv_idx <= q_idx."""
    return _core.prefix_lm(_known("prefix_lm: prefix", prefix, "lambda batch, head, q_idx, kv_idx: (kv_idx < prefix) | (kv_idx <= q_idx)"))


def _known(name: str, value: Any, written: str, kind: str = "mask") -> int:
    """An integer that is known now; an array, perhaps traced, belongs into a function of one's own."""
    try:
        known = operator.index(value)
        if not -(2**63) <= known < 2**63:
            raise ValueError(f"{name}: found {known}; expected an integer of 64 bits")
        return known
    except TypeError:
        raise _unknown(name, value, "an integer", written, kind) from None


def _unknown(name: str, value: Any, expected: str, written: str, kind: str) -> TypeError:
    of_array = arrays.is_array(value)
    found = f"an array of {value.dtype}{list(value.shape)}" if of_array else f"{type(value).__name__} {value!r}"
    return TypeError(f"{name}: found {found}; expected {expected}" + (f"; a {kind} of your own may read an array: {written}" if of_array else ""))


def _check(array: Any, name: str, types: tuple[Type, ...], shapes: dict[int, str]) -> None:
    kinds = " or ".join(kind.name for kind in types)
    expected = f"expected {'an' if kinds[0] == 'i' else 'a'} {kinds} array of shape {' or '.join(shapes.values())}"
    if not arrays.is_array(array):
        raise TypeError(f"{name} is a {type(array).__name__}; {expected}")
    if len(array.shape) not in shapes or arrays.type_of(array, name) not in types:
        raise ValueError(f"{name} is of shape {tuple(array.shape)} and dtype {array.dtype}; {expected}")


def document(ids: Any) -> MaskFunction:
    """Keeps keys of the query's own document: ids[q_idx] == ids[kv_idx].

    ids: an integer array (seqlen) or (batch, seqlen), of any framework. With ids in ascending order whole tiles are skipped. Raises TypeError for what is
    no array, ValueError for another shape or dtype.
    """
    _check(ids, "document: ids", (Type.integer,), {1: "(seqlen)", 2: "(batch, seqlen)"})
    if len(ids.shape) == 1:
        return lambda batch, head, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]
    return lambda batch, head, q_idx, kv_idx: ids[batch, q_idx] == ids[batch, kv_idx]


def padding(lengths: Any) -> MaskFunction:
    """Keeps queries and keys within the length of their batch row: (q_idx < lengths[batch]) & (kv_idx < lengths[batch]).

    lengths: an integer array (batch), of any framework. Queries beyond it give out = 0 and lse = -inf. Raises TypeError for what is no array,
    ValueError for another shape or dtype.
    """
    _check(lengths, "padding: lengths", (Type.integer,), {1: "(batch)"})
    return lambda batch, head, q_idx, kv_idx: (q_idx < lengths[batch]) & (kv_idx < lengths[batch])


def global_tokens(w: int, is_global: Any) -> MaskFunction:
    """A window of w positions on both sides, plus tokens that see all and are seen by all (Longformer, BigBird).

    w: 0 or more. is_global: a boolean or integer array (seqlen), of any framework; nonzero for the global tokens. Raises TypeError for what is
    no array, ValueError for another shape or dtype or a negative w.
    """
    w = _known("global_tokens: w", w, "lambda batch, head, q_idx, kv_idx: (abs(q_idx - kv_idx) <= w) | is_global[q_idx] | is_global[kv_idx]")
    if w < 0:
        raise ValueError(f"global_tokens: w is {w}; expected 0 or more")
    _check(is_global, "global_tokens: is_global", (Type.boolean, Type.integer), {1: "(seqlen)"})

    def mask(batch: Any, head: Any, q_idx: Any, kv_idx: Any) -> Any:
        near = (q_idx - kv_idx <= w) & (kv_idx - q_idx <= w)
        return near | (is_global[q_idx] != 0) | (is_global[kv_idx] != 0)

    return mask


def dilated(w: int, d: int) -> Expr:
    """window(w) and abs(q_idx - kv_idx) % d == 0."""
    near = "lambda batch, head, q_idx, kv_idx: (abs(q_idx - kv_idx) <= w) & (abs(q_idx - kv_idx) % d == 0)"
    return _core.dilated(_known("dilated: w", w, near), _known("dilated: d", d, near))


def alibi(heads: int) -> Expr:
    """The score plus (kv_idx - q_idx) * 2 ** (-8 * (head + 1) / heads)."""
    return _core.alibi(_known("alibi: heads", heads, "lambda score, batch, head, q_idx, kv_idx: score + slopes[head] * (kv_idx - q_idx)", "score"))


def softcap(cap: float) -> Expr:
    """The score as cap * tanh(score / cap)."""
    if isinstance(cap, str) or not hasattr(cap, "__float__") or getattr(cap, "shape", ()) != ():
        raise _unknown("softcap: cap", cap, "a number", "lambda score, batch, head, q_idx, kv_idx: cap[head] * foveal.tanh(score / cap[head])", "score")
    return _core.softcap(float(cap))
