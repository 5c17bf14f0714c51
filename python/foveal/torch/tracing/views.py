"""Views of what is left of a captured tensor that symbols indexed: bias[head].t()[kv_idx, q_idx] reads one element, not all.

torch itself makes the view, of a stand-in without data whose strides tell its dimensions apart; where it starts and what its strides have become
say which elements the view has. A view that joins dimensions, splits one or repeats elements is none of these: such elements are read one by one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Callable, Sequence

import torch

from ...captures import Along, At, Capture

NAMES = frozenset(
    "t transpose permute swapaxes swapdims movedim moveaxis unsqueeze squeeze select narrow unbind split chunk tensor_split view reshape flatten "
    "ravel expand broadcast_to expand_as".split()
)
PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "T": lambda x: torch.permute(x, tuple(reversed(range(x.ndim)))),
    "mT": lambda x: torch.transpose(x, -2, -1),
}
_MOST = 1 << 40  # elements of a stand-in


def view(capture: Capture, func: Callable[..., Any], rest: Sequence[Any], named: dict[str, Any]) -> Any:
    """func(capture, *rest, **named) without reading; None where that is not possible."""
    strides = _telling_apart(capture.shape)
    if strides is None:
        return None
    stand_in = torch.empty_strided(capture.shape, strides, device="meta")
    try:
        found = func(stand_in, *rest, **named)
    except RuntimeError:  # no view of such strides
        return None
    if not isinstance(found, (tuple, list)):
        return _part(capture, strides, stand_in, found)
    parts = [_part(capture, strides, stand_in, one) for one in found]
    return None if any(part is None for part in parts) else type(found)(parts)


def _telling_apart(shape: tuple[int, ...]) -> list[int] | None:
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = step
        step *= 4 * shape[dim]  # more than its elements: dimensions cannot be joined
    return strides if 0 < math.prod(shape) and step < _MOST else None


def _part(capture: Capture, strides: list[int], stand_in: torch.Tensor, found: torch.Tensor) -> Any:
    if found.untyped_storage()._cdata != stand_in.untyped_storage()._cdata or 0 in found.shape:
        return None
    axes, order = list(capture._axes), list[int | None]()
    start, offset = list[int](), int(found.storage_offset())
    for stride in strides:
        start.append(offset // stride)
        offset %= stride
    starts = dict[int, int]()
    for axis, first in zip(capture._order, start):
        if axis is not None:
            starts[axis] = axes[axis].start + axes[axis].step * first
            axes[axis] = At(starts[axis])
    for extent, stride in zip(found.shape, found.stride()):
        dim = next((d for d, own in enumerate(strides) if own <= stride), None)
        if extent == 1:
            order.append(None)
            continue
        if dim is None or stride % strides[dim] != 0:  # repeated elements, a diagonal
            return None
        taken = capture._order[dim]
        along = None if taken is None else capture._axes[taken]
        if taken is None or taken in order or not isinstance(along, Along):
            return None
        axes[taken] = replace(along, start=starts[taken], step=along.step * (stride // strides[dim]), count=extent)
        order.append(taken)
    return capture._part(axes, order)
