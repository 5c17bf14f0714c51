"""What a trace of torch notes while its function runs: views of captured tensors, tensors that were computed, and what torch records and transforms."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ... import arrays
from ...captures import Capture
from ...framework_calls import CallTracer


def _active_transforms() -> int:
    """How many of torch.func's are active."""
    return len(torch._C._functorch.get_interpreter_stack() or [])


@dataclass
class TorchState(CallTracer):
    views: dict[int, tuple[torch.Tensor, Capture]] = field(default_factory=dict)  # made while tracing, as reads of what they are views of
    computed: dict[int, torch.Tensor] = field(default_factory=dict)  # made of others while tracing: their shapes may follow from elements
    with_gradients: bool = field(default_factory=torch.is_grad_enabled)  # without them, nothing is there to stop
    transforms: int = field(default_factory=_active_transforms)

    def capture(self, tensor: torch.Tensor) -> Capture:
        if tensor.is_nested:
            arrays.check_plain(tensor, "a captured array")
        known = self.views.get(id(tensor))
        return Capture(self, tensor) if known is None else known[1]

    def gradient_stopped(self) -> bool:
        return self.with_gradients and not torch.is_grad_enabled()

    def check_transforms(self, name: str) -> None:
        """Refuses a function within a transform that began after the trace."""
        if torch._C._are_functorch_transforms_active() and _active_transforms() > self.transforms:
            raise NotImplementedError(f"torch.{name} in a score or mask, within a transform of torch.func (vmap, grad, jvp, ...) of its own; expected the operations themselves")
