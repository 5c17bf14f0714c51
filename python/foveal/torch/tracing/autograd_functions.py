"""Refuses torch.autograd.Function in scores and masks."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Iterator

import torch

from ...framework_calls import symbolic


_lock = threading.Lock()
_running = 0  # functions that are traced, in all threads
_utils = torch._functorch.utils  # Function.apply calls it on its arguments, also an apply that was taken from its class before
_apply, _unwrap = torch.autograd.Function.__dict__["apply"], _utils.unwrap_dead_wrappers


def _refuse(name: str, values: Any) -> None:
    if any(symbolic(value) for value in values):
        raise NotImplementedError(f"{name}: a torch.autograd.Function inside a score or mask; its backward would be ignored: write its forward in place")


def _guarded(cls: type, *args: Any, **kwargs: Any) -> Any:
    _refuse(cls.__name__, (*args, *kwargs.values()))
    return _apply.__func__(cls, *args, **kwargs)


def _guarded_unwrap(args: tuple[Any, ...]) -> tuple[Any, ...]:
    _refuse("apply", args)
    return _unwrap(args)


def _install(apply: Any, unwrap: Any) -> None:
    torch.autograd.Function.apply = apply  # type: ignore[method-assign]
    _utils.unwrap_dead_wrappers = unwrap


@contextlib.contextmanager
def refused_on_symbols() -> Iterator[None]:
    """A torch.autograd.Function brings a derivative of its own, which an expression cannot hold: said, not dropped. Threads may trace at once."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            _install(classmethod(_guarded), _guarded_unwrap)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                _install(_apply, _unwrap)
