"""Activation checkpointing runs a forward pass again in the backward pass. By then the context that it ran in may have been left: it is entered again."""

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


def rerun_in(context: contextlib.AbstractContextManager[Any]) -> None:
    """The checkpointed functions that call this will be in the context when they run again."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # of the innermost function
    if hooks is not None:
        for cell in getattr(hooks[0], "__closure__", None) or ():
            _wrap(cell.cell_contents, "recompute_fn", context)
    for locals_of in _checkpoints():
        if "gen" in locals_of:  # the generator of one that is not reentrant
            _wrap(locals_of["gen"].gi_frame.f_locals["new_frame"], "recompute_fn", context)
        elif "ctx" in locals_of:
            _wrap(locals_of["ctx"], "run_function", context)


def _checkpoints() -> Iterator[dict[str, Any]]:
    """The local variables of each one on the stack."""
    caller = sys._getframe(1)
    while caller is not None:
        if caller.f_code is _reentrant or caller.f_code is _other:
            yield caller.f_locals
        caller = caller.f_back  # type: ignore[assignment]


def _wrap(holder: Any, name: str, context: contextlib.AbstractContextManager[Any]) -> None:
    run: Callable[..., Any] | None = getattr(holder, name, None)
    if run is None or hasattr(run, "runs_in"):
        return

    def run_in_context(*args: Any) -> Any:
        with context:
            return run(*args)

    run_in_context.runs_in = context  # type: ignore[attr-defined]
    setattr(holder, name, run_in_context)
