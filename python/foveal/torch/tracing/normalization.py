"""torch's layer_norm, rms_norm, group_norm, normalize and cosine_similarity, of the small vectors in a score or mask."""

from __future__ import annotations

import operator
from typing import Any, Callable, Sequence

import torch

from ... import formulas
from ...framework_calls import Call
from ...meanings import Meaning, signature_of
from ...symbols import broadcast, groups


@signature_of
def _LAYER(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enable: bool = True) -> None: ...  # noqa: N802


@signature_of
def _RMS(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> None: ...  # noqa: N802


@signature_of
def _GROUP(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True) -> None: ...  # noqa: N802


def layer_norm(call: Call) -> Any:
    given, last, weight, bias, eps, _ = call.bind(_LAYER).values()
    x = _real(call, given)
    return _scaled(call, _over(x._items, x._shape, len(last), lambda items: formulas.standardized(items, eps)), x._shape, (weight, bias))


def rms_norm(call: Call) -> Any:
    given, last, weight, eps = call.bind(_RMS).values()
    x = _real(call, given)
    least = torch.finfo(torch.float64 if x._dtype == torch.float64 else torch.float32).eps if eps is None else eps  # of what torch computes in
    return _scaled(call, _over(x._items, x._shape, len(last), lambda items: formulas.of_unit_square(items, least)), x._shape, (weight, None))


def group_norm(call: Call) -> Any:
    """Of [rows, channels, ...]: the channels of a group together."""
    given, count, weight, bias, eps, _ = call.bind(_GROUP).values()
    x = _real(call, given)
    rows, channels = x._shape[:2]
    items = _over(x._items, (rows, count, len(x._items) // max(rows * count, 1)), 1, lambda group: formulas.standardized(group, eps))
    return _scaled(call, items, x._shape, (weight, bias), (channels, *[1] * (len(x._shape) - 2)))


def _real(call: Call, given: Any) -> Any:
    x = call.symbol(given)
    if not x._dtype.is_floating_point:
        raise call.refuse(f"of {x._dtype}; expected reals")
    return x


def _over(items: Sequence[Any], shape: tuple[int, ...], count: int, fn: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
    """fn of the items along the last `count` dimensions, in their places."""
    found: dict[int, Any] = {}
    for places in groups(range(len(items)), shape, range(len(shape) - count, len(shape))):
        found.update(zip(places, fn([items[place] for place in places])))
    return [found[place] for place in range(len(found))]


def _scaled(call: Call, items: list[Any], shape: tuple[int, ...], by: tuple[Any, Any], as_shape: tuple[int, ...] | None = None) -> Any:
    """items * weight + bias, each of which may be None."""
    combine: tuple[Callable[[Any, Any], Any], ...] = (operator.mul, operator.add)
    for tensor, combined in zip(by, combine):
        if tensor is not None:
            own = call.symbol(tensor)
            items = [combined(*both) for both in broadcast([(items, shape), (own._items, as_shape or own._shape)], shape)]
    return call.made(items, call.result)


@signature_of
def _NORMALIZE(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> None: ...  # noqa: N802


def _normalize(call: Call) -> Any:
    """torch.nn.functional.normalize."""
    given, p, dim, eps = call.bind(_NORMALIZE).values()
    x = call.symbol(given)
    return x / x.norm(p, dim, keepdim=True).clamp_min(eps)


@signature_of
def _SIMILARITY(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> None: ...  # noqa: N802


def _cosine_similarity(call: Call) -> Any:
    a, b, dim, eps = call.bind(_SIMILARITY).values()
    a, b = call.symbol(a), call.symbol(b)
    return ((a / a.norm(2, dim, keepdim=True).clamp_min(eps)) * (b / b.norm(2, dim, keepdim=True).clamp_min(eps))).sum(dim)


TABLE: dict[str, Meaning] = {
    "normalize": _normalize,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "cosine_similarity": _cosine_similarity,
}
