"""What a function written with torch sees for a tensor: expressions with torch's shape and dtype."""

from __future__ import annotations

import operator
from typing import Any, Callable

import torch

from ... import _core, refusals
from ..._core import Expr
from ...symbols import IN_PLACE, Symbols
from . import dispatch, views, writing


class Symbol(Symbols):
    """A tensor of expressions."""

    array_type = torch.Tensor
    __array_priority__ = torch.Tensor.__array_priority__
    _shares = False  # its elements with another symbol
    _recorded = True  # made where derivatives are

    def __stands_for__(self) -> type:
        return torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._shape)

    @property
    def dtype(self) -> torch.dtype:
        result: torch.dtype = self._dtype
        return result

    @property
    def device(self) -> torch.device:
        result: torch.device = self._tracer.device
        return result

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def data(self) -> "Symbol":
        result: "Symbol" = dispatch.call(self._tracer, torch.Tensor.detach, (self,), {})
        return result

    @property
    def T(self) -> "Symbol":  # noqa: N802 - torch's name
        result: "Symbol" = views.PROPERTIES["T"](self)
        return result

    @property
    def mT(self) -> "Symbol":  # noqa: N802 - torch's name
        result: "Symbol" = views.PROPERTIES["mT"](self)
        return result

    requires_grad = property(lambda self: not _without_gradient(self, "requires_grad"))
    is_leaf = property(lambda self: _without_gradient(self, "is_leaf"))
    is_cuda = property(lambda self: self.device.type == "cuda")

    def __score__(self) -> Expr:
        expr = super().__score__()
        return _core.stop_gradient(expr) if self._tracer.gradient_stopped() else expr

    def __getitem__(self, index: Any) -> Any:
        return dispatch.call(self._tracer, torch.Tensor.__getitem__, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise refusals.refused(NotImplementedError("a score or mask writes into a tensor; expected torch.where(condition, a, b)"))

    def _operate(self, fn: Callable[..., Any], *operands: Any) -> Any:
        return dispatch.call(self._tracer, fn, operands, {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return dispatch.call(None, func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        method = getattr(torch.Tensor, name, None)
        if name in _LOOKS_OF_PLAIN:
            return _LOOKS_OF_PLAIN[name](self)
        if method is None or (name.startswith("_") and refusals.asked_by_a_library()):
            raise AttributeError(f"{name}: no attribute of a tensor")
        if name.startswith("_") or not callable(method):  # no AttributeError, for which hasattr() and getattr() would have another answer than for a tensor
            raise refusals.refused_here(
                NotImplementedError(f"torch.Tensor.{name} in a score or mask: a symbol has none; expected shape, dtype, device and functions of torch")
            )
        return lambda *args, **kwargs: dispatch.call(self._tracer, method, (self, *args), kwargs)

    def item(self) -> "Symbol":
        result: "Symbol" = dispatch.call(self._tracer, torch.Tensor.item, (self,), {})
        return result

    def dim(self) -> int:
        return len(self._shape)

    def numel(self) -> int:
        return len(self._items)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def is_floating_point(self) -> bool:
        result: bool = self._dtype.is_floating_point
        return result


def _without_gradient(x: "Symbol", name: str) -> bool:
    """True, or refused: whether a real has one is not known to tracing."""
    if x._dtype.is_floating_point and torch.is_grad_enabled():
        raise refusals.refused_here(
            NotImplementedError(f"torch.Tensor.{name} in a score or mask: not known of a symbol where gradients are recorded; expected shape, dtype and device")
        )
    return True


_LOOKS_OF_PLAIN: dict[str, Callable[[Symbol], Any]] = {
    **dict.fromkeys("is_sparse is_sparse_csr is_nested is_quantized is_mkldnn is_meta".split(), lambda x: False),
    "is_cpu": lambda x: x.device.type == "cpu",
    "layout": lambda x: torch.strided,
    "itemsize": lambda x: x.dtype.itemsize,
}

for _name in IN_PLACE:
    setattr(Symbol, _name, lambda self, other, func=getattr(operator, _name): writing.by_operator(self, func, other))
