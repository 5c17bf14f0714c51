"""Common masks and scores. Combine masks with &, | and ~: `foveal.document(ids) & foveal.causal()`.

Most are expressions. Those that read an array are functions of the symbols, like a mask that you write yourself, and combine with those too.
"""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any, Callable, Generic, ParamSpec, Sequence, TypeVar

from . import _core, arrays
from ._core import Expr, Type

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
SYMBOLS = ("batch", "head", "q_idx", "kv_idx")  # what masks are called with; scores, too, after the score


def read_by_pair(name: str, shape: Sequence[int]) -> str:
    """The text of a read of an array that broadcasts to the scores, [batch, heads, seqlen_q, seqlen_kv]."""
    return f"{name}[{', '.join([symbol if extent > 1 else '0' for extent, symbol in zip(shape, SYMBOLS)])}]"


class Maker(Generic[P, R]):
    """A function that makes a mask or a score. Where the mask itself belongs, it says that it is to be called."""

    def __init__(self, make: Callable[P, R]):
        self._make = make
        functools.update_wrapper(self, make)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) >= len(SYMBOLS):  # more than any takes: and_masks() and the like call it as a mask
            raise self.refused("mask" if len(args) == len(SYMBOLS) else "score_mod")
        return self._make(*args, **kwargs)

    def refused(self, where: str) -> TypeError:
        name, arguments = self._make.__name__, ", ".join(inspect.signature(self._make).parameters)
        return TypeError(f"{where}: found foveal.{name} itself; expected what it makes: foveal.{name}({arguments})")

    def _refuse(self, *_: Any) -> Any:
        raise self.refused("mask")

    __and__ = __or__ = __rand__ = __ror__ = __invert__ = _refuse

    def __reduce__(self) -> str:  # by its name, as functions are
        return self._make.__name__


class MaskFunction(functools.partial[Any]):  # so that tracing sees through it, as through every partial
    """A mask as a function of (batch, head, q_idx, kv_idx), which combines by &, | and ~ with expressions and with other functions."""

    def __and__(self, other: Any) -> MaskFunction:
        return _combined(operator.and_, self.func, other)

    def __or__(self, other: Any) -> MaskFunction:
        return _combined(operator.or_, self.func, other)

    def __invert__(self) -> MaskFunction:
        keeps = self.func
        return MaskFunction(lambda batch, head, q_idx, kv_idx: ~keeps(batch, head, q_idx, kv_idx))

    __rand__, __ror__ = __and__, __or__

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value: write & for `and`, | for `or`, ~ for `not`")


def _combined(operation: Callable[[Any, Any], Any], one: Callable[..., Any], other: Any) -> MaskFunction:
    if isinstance(other, Maker):
        raise other.refused("mask")
    if isinstance(other, Expr):
        return MaskFunction(lambda batch, head, q_idx, kv_idx: operation(one(batch, head, q_idx, kv_idx), other))
    if not callable(other):
        raise TypeError(f"mask: found {type(other).__name__} {other!r}; a mask combines with an expression or with a function of (batch, head, q_idx, kv_idx)")
    return MaskFunction(lambda batch, head, q_idx, kv_idx: operation(one(batch, head, q_idx, kv_idx), other(batch, head, q_idx, kv_idx)))


def _combines_with_functions(name: str, operation: Callable[[Any, Any], Any]) -> None:
    """An expression beside a function of (batch, head, q_idx, kv_idx): as MaskFunction has it."""
    own = getattr(Expr, name)

    @functools.wraps(own)
    def combined(self: Expr, other: Any) -> Any:
        found = own(self, other)
        is_function = found is NotImplemented and inspect.isroutine(other)
        return _combined(operation, other, self) if is_function else found

    setattr(Expr, name, combined)


for _name, _operation in {"__and__": operator.and_, "__rand__": operator.and_, "__or__": operator.or_, "__ror__": operator.or_}.items():
    _combines_with_functions(_name, _operation)


@Maker
def causal() -> Expr:
    """kv_idx <= q_idx (top-left aligned when the lengths differ)."""
    return _core.causal()


@Maker
def causal_bottom_right() -> Expr:
    """kv_idx <= q_idx + (seqlen_kv - seqlen_q)."""
    return _core.causal_bottom_right()


@Maker
def window(w: int) -> Expr:
    """Keeps keys at most w positions away, on both sides: abs(q_idx - kv_idx) <= w. With `& causal()` it has one side.

    w: an integer, 0 or more. Raises TypeError for what is no integer, ValueError for one below 0 or beyond 64 bits.
    """
    return _core.window(_known("window: w", w, "lambda batch, head, q_idx, kv_idx: abs(q_idx - kv_idx) <= w"))


@Maker
def prefix_lm(prefix: int) -> Expr:
    """Keeps the first `prefix` keys for all queries, and behind them the causal ones: (kv_idx < prefix) | (kv_idx <= q_idx).

    prefix: an integer, 0 or more. Raises TypeError for what is no integer, ValueError for one below 0 or beyond 64 bits.
    """
    return _core.prefix_lm(_known("prefix_lm: prefix", prefix, "lambda batch, head, q_idx, kv_idx: (kv_idx < prefix) | (kv_idx <= q_idx)"))


def _known(name: str, value: Any, written: str, kind: str = "mask") -> int:
    """An integer that is known now; an array, perhaps traced, needs a function of your own that reads it."""
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


@Maker
def document(ids: Any) -> MaskFunction:
    """Keeps keys of the query's own document: ids[q_idx] == ids[kv_idx].

    ids: an integer array (seqlen) or (batch, seqlen), of any framework. With ids in ascending order whole tiles are skipped. Raises TypeError for what is
    no array, ValueError for another shape or dtype.
    """
    _check(ids, "document: ids", (Type.integer,), {1: "(seqlen)", 2: "(batch, seqlen)"})
    if len(ids.shape) == 1:
        return MaskFunction(lambda batch, head, q_idx, kv_idx: ids[q_idx] == ids[kv_idx])
    return MaskFunction(lambda batch, head, q_idx, kv_idx: ids[batch, q_idx] == ids[batch, kv_idx])


@Maker
def padding(lengths: Any) -> MaskFunction:
    """Keeps queries and keys within the length of their batch row: (q_idx < lengths[batch]) & (kv_idx < lengths[batch]).

    lengths: an integer array (batch), of any framework. Queries beyond it give out = 0 and lse = -inf. Raises TypeError for what is no array,
    ValueError for another shape or dtype.
    """
    _check(lengths, "padding: lengths", (Type.integer,), {1: "(batch)"})
    return MaskFunction(lambda batch, head, q_idx, kv_idx: (q_idx < lengths[batch]) & (kv_idx < lengths[batch]))


@Maker
def global_tokens(w: int, is_global: Any) -> MaskFunction:
    """A window of w positions on both sides, plus tokens that see all and are seen by all (Longformer, BigBird).

    w: 0 or more.
    is_global: a boolean or integer array (seqlen), of any framework; nonzero for the global tokens.

    Raises TypeError for what is no array, ValueError for another shape or dtype or a negative w.
    """
    w = _known("global_tokens: w", w, "lambda batch, head, q_idx, kv_idx: (abs(q_idx - kv_idx) <= w) | is_global[q_idx] | is_global[kv_idx]")
    if w < 0:
        raise ValueError(f"global_tokens: w is {w}; expected 0 or more")
    _check(is_global, "global_tokens: is_global", (Type.boolean, Type.integer), {1: "(seqlen)"})

    def mask(batch: Any, head: Any, q_idx: Any, kv_idx: Any) -> Any:
        near = (q_idx - kv_idx <= w) & (kv_idx - q_idx <= w)
        return near | (is_global[q_idx] != 0) | (is_global[kv_idx] != 0)

    return MaskFunction(mask)


@Maker
def dilated(w: int, d: int) -> Expr:
    """Keeps every d-th key of a window: (abs(q_idx - kv_idx) <= w) & (abs(q_idx - kv_idx) % d == 0) (Longformer, arXiv:2004.05150).

    w: an integer, 0 or more.
    d: an integer, 1 or more.

    Raises TypeError for what is no integer, ValueError for others.
    """
    near = "lambda batch, head, q_idx, kv_idx: (abs(q_idx - kv_idx) <= w) & (abs(q_idx - kv_idx) % d == 0)"
    return _core.dilated(_known("dilated: w", w, near), _known("dilated: d", d, near))


@Maker
def alibi(heads: int) -> Expr:
    """ALiBi (arXiv:2108.12409): the score plus (kv_idx - q_idx) * 2 ** (-8 * (head + 1) / heads).

    heads: the number of query heads, 1 or more, whose slopes are those of the paper where it is a power of two. Raises TypeError for what is no integer,
    ValueError for one below 1.
    """
    return _core.alibi(_known("alibi: heads", heads, "lambda score, batch, head, q_idx, kv_idx: score + slopes[head] * (kv_idx - q_idx)", "score"))


@Maker
def softcap(cap: float) -> Expr:
    """The score as cap * tanh(score / cap), as in Gemma 2 (arXiv:2408.00118).

    cap: a number. Raises TypeError for an array, which belongs into a score of your own.
    """
    if isinstance(cap, str) or not hasattr(cap, "__float__") or getattr(cap, "shape", ()) != ():
        raise _unknown("softcap: cap", cap, "a number", "lambda score, batch, head, q_idx, kv_idx: cap[head] * foveal.tanh(score / cap[head])", "score")
    return _core.softcap(float(cap))
