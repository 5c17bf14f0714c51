"""What is left of a NumPy array when a traced function has indexed its leading dimensions with symbols."""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, Sequence

from . import formulas, numpy_on_symbols, refusals
from ._core import Expr
from .captures import as_scalar
from .symbols import IN_PLACE, Symbols, broadcast, groups, no_writing


class Vector(Symbols):
    """What is left of a NumPy array after indexing its leading dimensions with symbols. Numbers are plain expressions."""

    def _made(self, items: Sequence[Expr], shape: tuple[int, ...]) -> Any:
        return Vector(self._tracer, items, shape) if shape else items[0]

    def __stands_for__(self) -> type:
        import numpy

        return numpy.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def _operate(self, fn: Callable[..., Any], *operands: Any) -> Any:
        if fn is operator.matmul:
            return operands[0].dot(operands[1])
        parts = []
        for operand in operands:
            value = as_scalar(operand)
            parts.append((value._items, value._shape) if isinstance(value, Vector) else ([value], ()))
        shapes = [shape for _, shape in parts if shape]
        shape = max(shapes, key=len)
        if any(own != shape for own in shapes):
            raise ValueError(f"arrays of shapes {' and '.join(str(list(own)) for own in shapes)} do not combine")
        return self._made([fn(*items) for items in broadcast(parts, shape)], shape)

    def __getitem__(self, index: Any) -> Any:
        from_shape = _numbers(self._shape)
        found = from_shape[index]
        return self._made([self._items[i] for i in found.reshape(-1).tolist()], tuple(found.shape))

    def __getattr__(self, name: str) -> Any:
        import numpy

        if not name.startswith("_") and hasattr(numpy.ndarray, name):  # for which hasattr() and getattr() would have another answer than for an array
            raise refusals.refused_here(
                NotImplementedError(f"numpy.ndarray.{name} in a score or mask: not of an array of expressions; expected its shape, elements and reductions")
            )
        raise AttributeError(f"{name}: no attribute of an array in a score or mask")

    def __array_function__(self, function: Any, types: Any, inputs: Any, keywords: Any) -> Any:
        """NumPy's reductions are the methods."""
        if function.__name__ in ("sum", "mean", "max", "min", "any", "all") and inputs and inputs[0] is self:
            return getattr(self, function.__name__)(*inputs[1:], **keywords)
        return numpy_on_symbols.refused(self, function, types, inputs, keywords)

    def _reduced(self, name: str, fn: Callable[[Sequence[Expr]], Expr], axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """dtype and out: as NumPy's functions pass them on to methods."""
        if dtype is not None or out is not None:
            raise TypeError(f"numpy.{name} in a score or mask: dtype or out; expected axis alone")
        dims = range(len(self._shape)) if axis is None else [axis] if isinstance(axis, int) else axis
        dims = [operator.index(d) % len(self._shape) for d in dims]
        rest = tuple(extent for d, extent in enumerate(self._shape) if d not in dims)
        return self._made([fn(group) for group in groups(self._items, self._shape, dims)], rest)

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._reduced("sum", formulas.total, axis, dtype, out)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._reduced("mean", formulas.mean, axis, dtype, out)

    def max(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("max", formulas.largest, axis, out=out)

    def min(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("min", formulas.smallest, axis, out=out)

    def any(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("any", formulas.any_of, axis, out=out)

    def all(self, axis: Any = None, out: Any = None) -> Any:
        return self._reduced("all", formulas.all_of, axis, out=out)

    def norm(self) -> Any:
        return self._reduced("norm", lambda items: formulas.norm(items, 2, at_zero=True))

    def dot(self, other: Any) -> Any:
        return (self * other).sum()


def _numbers(shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.arange(math.prod(shape)).reshape(shape)


for _name in IN_PLACE:
    setattr(Vector, _name, no_writing)
