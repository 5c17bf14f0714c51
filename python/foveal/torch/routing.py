"""Routing of existing models: torch's attention functions replaced by foveal's, by every name that a module has for them."""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import warnings
from typing import Any, Callable, Iterator

import torch
import torch.nn.attention.flex_attention as torch_flex

from .. import logging
from . import checkpointing, operators
from .flex import flex_attention
from .sdpa import scaled_dot_product_attention


class Routed:
    """What patch() routed.

    calls: of foveal's functions, by name; a call traced by torch.compile counts once.
    compiled: runs of foveal's operators inside compiled code.
    elsewhere: calls that foveal does not serve, by kind."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        self.elsewhere: collections.Counter[str] = collections.Counter()
        self._runs_before = operators.compiled_runs()

    @property
    def compiled(self) -> int:
        return operators.compiled_runs() - self._runs_before

    def __repr__(self) -> str:
        return f"Routed(calls={dict(self.calls)}, compiled={self.compiled}, elsewhere={dict(self.elsewhere)})"


_active: list[Routed] = []


def _count(name: str, elsewhere: bool = False) -> None:
    logging.route.debug("%s: %s", name, "not foveal's" if elsewhere else "foveal's")
    for routed in _active:
        (routed.elsewhere if elsewhere else routed.calls)[name] += 1


_count_traced = torch.compiler.assume_constant_result(_count)  # runs while torch.compile traces


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            _count_traced(function.__name__)
        else:
            _count(function.__name__)
            checkpointing.rerun_in("patch", _patched_again)
        return function(*args, **kwargs)

    return counted


def _never_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile(f) looks through torch.compiler.disable() when f itself is what it gets: it needs a function around it."""
    outside = torch.compiler.disable(function)

    @functools.wraps(function)
    def eager(*args: Any, **kwargs: Any) -> Any:
        return outside(*args, **kwargs)

    return eager


_multi_head_attention_forward = torch.nn.functional.multi_head_attention_forward


@functools.wraps(_multi_head_attention_forward)
def _watched_multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
    """It calls scaled_dot_product_attention unless it must return the probabilities."""
    # Within a TorchFunctionMode, such as a default device, it comes by once more: by the mode.
    by_mode = torch._C._len_torch_function_stack() > 0 and torch._C._is_torch_function_mode_enabled()
    if kwargs.get("need_weights", True) and not by_mode:
        (_count_traced if torch.compiler.is_compiling() else _count)("multi_head_attention_forward(need_weights=True)", True)
    return _multi_head_attention_forward(*args, **kwargs)


# torch's function -> what stands in its place
_ROUTES = {
    torch.nn.functional.scaled_dot_product_attention: _counted(scaled_dot_product_attention),
    torch_flex.flex_attention: _never_compiled(_counted(flex_attention)),  # also by torch.compile(flex_attention): it is fused already
    _multi_head_attention_forward: _watched_multi_head_attention_forward,
}


def _forget_compiled() -> None:
    """transformers keeps one compiled flex_attention for good: it makes a new one of the name it finds."""
    integration = sys.modules.get("transformers.integrations.flex_attention")
    wrapped = getattr(integration, "WrappedFlexAttention", None)
    if wrapped is not None and wrapped._instance is not None:
        wrapped._instance._is_flex_compiled = False


def _replace(replacements: dict[Any, Any]) -> None:
    """Under every name in every module, also those that did `from torch.nn.functional import ...`."""
    by_id = {id(old): new for old, new in replacements.items()}
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if not isinstance(namespace, dict) or str(namespace.get("__name__")).startswith("foveal."):
            continue
        for name, value in list(namespace.items()):
            if id(value) in by_id:
                namespace[name] = by_id[id(value)]
    _forget_compiled()


def _patched_again() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if _active else patch()


@contextlib.contextmanager
def patch() -> Iterator[Routed]:
    """A context in which torch's scaled_dot_product_attention and flex_attention are foveal's, under every name that a module has for them.

    Modules of torch that normally bypass these functions (TransformerEncoder's fast path) call them too. torch.nn.MultiheadAttention with
    need_weights does not, as it computes the probabilities itself. A reference held elsewhere (an attribute of an object, a default argument)
    stays torch's.

    Yields a Routed, which counts calls; a UserWarning is issued when there were none. Afterwards every module has torch's functions again, also
    one that was imported inside. What foveal refuses raises an error, as in foveal's functions. Not for several threads at once.
    """
    routed = Routed()
    outermost = not _active
    fastpath = torch.backends.mha.get_fastpath_enabled()
    _active.append(routed)
    if outermost:
        torch.backends.mha.set_fastpath_enabled(False)
        _replace(_ROUTES)
    try:
        yield routed
    finally:
        _active.remove(routed)
        if outermost:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            _replace({new: old for old, new in _ROUTES.items()})
    if not routed.calls and not routed.compiled:
        others = "; ".join([f"{count} of {name}" for name, count in routed.elsewhere.items()])
        warnings.warn(
            f"foveal.torch.patch: no call of {' or '.join(function.__name__ for function in (scaled_dot_product_attention, flex_attention))} came by"
            + (f"; elsewhere: {others}" if others else ""),
            stacklevel=3,
        )
