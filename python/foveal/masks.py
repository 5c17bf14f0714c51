"""Masks and scores that everybody uses. Each is an expression: combine masks with &, | and ~."""

from __future__ import annotations

from . import _core
from ._core import Expr


def causal() -> Expr:
    """kv_idx <= q_idx (top-left aligned when the lengths differ)."""
    return _core.causal()


def causal_bottom_right() -> Expr:
    """kv_idx <= q_idx + (seqlen_kv - seqlen_q)."""
    return _core.causal_bottom_right()


def window(w: int) -> Expr:
    """abs(q_idx - kv_idx) <= w."""
    return _core.window(w)


def prefix_lm(prefix: int) -> Expr:
    """kv_idx < prefix | kv_idx <= q_idx."""
    return _core.prefix_lm(prefix)


def dilated(w: int, d: int) -> Expr:
    """window(w) and abs(q_idx - kv_idx) % d == 0."""
    return _core.dilated(w, d)


def alibi(heads: int) -> Expr:
    """The score plus (kv_idx - q_idx) * 2 ** (-8 * (head + 1) / heads)."""
    return _core.alibi(heads)


def softcap(cap: float) -> Expr:
    """The score as cap * tanh(score / cap)."""
    return _core.softcap(cap)
