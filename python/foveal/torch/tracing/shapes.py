"""What functions of torch mean that only move elements: views, joins, and constant indices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...framework_calls import Call
from ...meanings import Meaning, layout

_on_cpu = layout(lambda first, last, shape: torch.arange(first, last).reshape(shape), lambda found: found.reshape(-1).tolist())


def moved(call: Call) -> Any:
    """The numbers of elements lie on the CPU; a tensor that is an index may lie elsewhere."""
    return _on_cpu(replace(call, args=(call.args[0], *_cpu(call.args[1:])), kwargs={name: _cpu(value) for name, value in call.kwargs.items()}))


def _cpu(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_cpu(item) for item in value])
    return value.cpu() if isinstance(value, torch.Tensor) else value


def moved_as(call: Call) -> Any:
    """The other tensor gives its shape."""
    given = [*call.args, *call.kwargs.values()]
    return moved(replace(call, args=(given[0], torch.empty(tuple(given[1].shape))), kwargs={}))


TABLE: dict[str, Meaning] = {
    **dict.fromkeys(
        "getitem unsqueeze squeeze reshape view flatten ravel unflatten expand broadcast_to permute transpose t "
        "swapaxes swapdims movedim narrow select unbind split chunk stack cat concat hstack vstack flip roll repeat tile diagonal "
        "atleast_1d atleast_2d moveaxis flipud fliplr rot90 unfold tensor_split dstack column_stack repeat_interleave".split(),
        moved,
    ),
    **dict.fromkeys("expand_as reshape_as view_as".split(), moved_as),
}
