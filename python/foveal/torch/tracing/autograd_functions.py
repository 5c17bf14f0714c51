"""Refuses torch.autograd.Function in scores and masks."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch

from ...framework_calls import symbolic


@contextlib.contextmanager
def refused_on_symbols() -> Iterator[None]:
    """A torch.autograd.Function brings a derivative of its own, which an expression cannot hold: said, not dropped."""
    Function = torch.autograd.Function
    apply = Function.__dict__["apply"]
    utils = torch._functorch.utils  # Function.apply calls it on its arguments, also an apply that was taken from its class before
    unwrap = utils.unwrap_dead_wrappers

    def refuse(name: str, values: Any) -> None:
        if any(symbolic(value) for value in values):
            raise NotImplementedError(
                f"{name}: a torch.autograd.Function inside a score or mask; its backward would be ignored: write its forward in place"
            )

    def guarded(cls: type, *args: Any, **kwargs: Any) -> Any:
        refuse(cls.__name__, (*args, *kwargs.values()))
        return apply.__func__(cls, *args, **kwargs)

    def guarded_unwrap(args: tuple[Any, ...]) -> tuple[Any, ...]:
        refuse("apply", args)
        return unwrap(args)

    Function.apply = classmethod(guarded)  # type: ignore[method-assign, assignment]
    utils.unwrap_dead_wrappers = guarded_unwrap
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]
        utils.unwrap_dead_wrappers = unwrap
