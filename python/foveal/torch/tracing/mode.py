"""What a symbol does not notice itself: captured tensors that it indexes, random numbers, and elements that become Python values."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ... import refusals
from ...framework_calls import flat, symbolic
from . import dispatch
from .state import TorchState

# What a tensor says of itself that a key holds, too (trace_key): its shape and dtype.
_LOOKS = {"shape", "dtype", "ndim", "layout"}
_PARTS = {"T", "mT", "H", "mH", "data", "real", "imag"}  # what it says as a tensor of its own elements: all else (grad, _base) may be another tensor, or None
_LOOK_METHODS = {"size", "dim", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "__len__", "element_size", "dtype", "type"}


class OperatorsSeen(TorchDispatchMode):
    """What functions come to, whichever they are: operators that draw random numbers are refused; one that writes into a tensor must do so on every call."""

    def __init__(self, tracer: TorchState):
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile is not switched off within, in other threads either."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            name = func._schema.name.removeprefix("aten::")
            raise refusals.refused(
                NotImplementedError(f"torch.{name} in a score or mask draws random numbers, which would be the same for all pairs; expected a captured tensor of them, or dropout_p")
            )
        if func._schema.is_mutable and not any([isinstance(value, torch.Tensor) and value.is_meta for value in args]):  # those stand for symbols
            self.tracer.saw_values = True
        return func(*args, **(kwargs or {}))


class TracingMode(TorchFunctionMode):
    """Reads of captured tensors, torch functions that mix tensors and symbols, and elements that become Python values."""

    def __init__(self, tracer: TorchState):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__getitem__" and isinstance(args[0], torch.Tensor) and symbolic(args[1]):
            try:
                self.tracer.check_transforms("getitem")
                return self.tracer.capture(args[0])[args[1]]
            except (TypeError, ValueError, NotImplementedError) as error:
                raise refusals.refused(error)
        if symbolic(args) or any(symbolic(value) for value in kwargs.values()):
            return dispatch.call(self.tracer, func, args, kwargs)
        result = func(*args, **kwargs)
        if name == "__getitem__" and not self.tracer.gradient_stopped() and _is_basic(args[1]):
            self.tracer.views[id(result)] = (result, self.tracer.capture(args[0])[args[1]])
        if not self.tracer.saw_values:
            self._note_values(func, name, [value for value in flat((*args, *kwargs.values())) if isinstance(value, torch.Tensor)], result)
        return result

    def _note_values(self, func: Any, name: str, given: list[torch.Tensor], result: Any) -> None:
        """Elements that became Python values, be it as the shape of what was computed of them: nonzero(), x[x > 0]."""
        computed = self.tracer.computed
        # A property's getter is called __get__, its owner tells which.
        attribute = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else None
        if isinstance(result, torch.Tensor):
            if given:
                computed[id(result)] = result
            self.tracer.saw_values = attribute is not None and attribute not in _PARTS
            return
        of_computed = any([id(value) in computed for value in given])
        if all(isinstance(value, torch.Tensor) for value in flat([result])):
            self.tracer.saw_values = of_computed
            computed.update((id(value), value) for value in flat([result]))
            return
        look = name in _LOOK_METHODS or attribute in _LOOKS
        self.tracer.saw_values = of_computed or (bool(given) and not look)


def _is_basic(index: Any) -> bool:
    """Integers and forward slices: what makes a view."""
    whole: Callable[[Any], bool] = lambda i: i is None or i is Ellipsis or type(i) is int or isinstance(i, slice)  # noqa: E731
    return all(map(whole, index)) if isinstance(index, tuple) else whole(index)


def function_modes() -> tuple[type, ...]:
    return tuple([type(mode) for mode in torch.overrides._get_current_function_mode_stack()])
