"""Activation checkpointing runs a forward pass again in the backward pass. By then what it ran in may have been left (a context, patch()): it is entered
again."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

_reentrant = torch.utils.checkpoint.CheckpointFunction.forward.__code__
_other = getattr(inspect.unwrap(torch.utils.checkpoint.checkpoint), "__code__")


def rerun_in(what: str, enter: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    """The checkpointed functions that call this will be in enter() when they run again. what: known to each of them once."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # of the innermost function, unless it is reentrant
    if hooks is None and torch.is_grad_enabled():
        return
    for cell in getattr(hooks[0], "__closure__", None) or () if hooks is not None else ():
        _wrap(cell.cell_contents, "recompute_fn", what, enter)
    for local in _checkpoints():
        if "gen" in local:  # the generator of one that is not reentrant
            _wrap(local["gen"].gi_frame.f_locals["new_frame"], "recompute_fn", what, enter)
        elif "ctx" in local:
            _wrap(local["ctx"], "run_function", what, enter)


def _checkpoints() -> Iterator[dict[str, Any]]:
    """The local variables of each one on the stack."""
    caller = sys._getframe(1)
    while caller is not None:
        if caller.f_code is _reentrant or caller.f_code is _other:
            yield caller.f_locals
        caller = caller.f_back  # type: ignore[assignment]


def _wrap(holder: Any, name: str, what: str, enter: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    run: Callable[..., Any] | None = getattr(holder, name, None)
    known: frozenset[str] = getattr(holder, "foveal_reruns_in", frozenset())
    if run is None or what in known:
        return

    def run_again(*args: Any) -> Any:
        with enter():
            return run(*args)

    setattr(holder, name, run_again)
    holder.foveal_reruns_in = known | {what}
