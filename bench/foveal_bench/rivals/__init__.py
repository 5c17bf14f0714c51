"""One file for each contender. Each module has:

    names(device) -> list of contender names it offers on this machine (empty when the library is missing)
    supports(name, case, device) -> None, or the reason why it cannot run the case
    prepare(name, case, tensors, device) -> a Job

A Job holds callables without arguments: `forward()` returns out; `backward()`, after one forward, the gradients of (q, k, v, *learnable). What
does not run on torch's stream brings its own clock: `milliseconds(backward)`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable

ORDER = ("foveal", "torch_sdpa", "flex", "flash_attn", "jax_attention", "jax_pallas", "unfused")


@dataclass
class Job:
    forward: Callable[[], Any]
    backward: Callable[[], list[Any]]
    milliseconds: Callable[[bool], float] | None = None


def modules() -> list[ModuleType]:
    return [importlib.import_module(f"{__name__}.{name}") for name in ORDER]


def autograd_job(attention: Callable[..., Any], tensors: dict[str, Any], learned: list[Any], backward: bool) -> Job:
    """A Job from a torch function of (q, k, v): the backward is timed alone, on a graph that a forward made."""
    import torch

    q, k, v = (tensors[name].detach().requires_grad_(backward) for name in "qkv")
    inputs = [q, k, v, *learned]
    state: list[Any] = [None]

    def forward() -> Any:
        with torch.no_grad():
            return attention(q, k, v)

    def gradients() -> list[Any]:
        if state[0] is None:
            state[0] = attention(q, k, v)
        return list(torch.autograd.grad(state[0], inputs, tensors["dout"], retain_graph=True, allow_unused=True))

    return Job(forward, gradients)
