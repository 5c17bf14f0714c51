"""Expressions evaluated with torch's operations: differentiable any number of times, in forward and in reverse mode."""

from __future__ import annotations

import ast
from typing import Any, Callable, Mapping

import torch
from torch import Tensor

from .. import evaluation
from ..evaluation import Symbols


class Evaluation(evaluation.Evaluation):
    """compact: the symbols are one-dimensional, one element for each pair. Then a branch of a `where` is evaluated only at the pairs that take it,
    so that an infinite derivative of the other branch has no part in the gradient, as in foveal's kernels.
    """

    library = "torch"

    def __init__(self, text: str, symbols: Symbols, params: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device, compact: bool = False):
        super().__init__(text, symbols, params)
        self._dtype, self._device, self._compact = dtype, device, compact

    def _narrowed(self, pairs: Tensor) -> evaluation.Evaluation:
        """At some of the pairs. What was computed already is taken over."""
        other = self.branch()
        take: Callable[[Any], Any] = lambda x: x[pairs] if isinstance(x, Tensor) and x.dim() > 0 else x  # noqa: E731
        other._symbols = {name: take(value) for name, value in self._symbols.items()}
        other._values = {name: take(value) for name, value in self._values.items()}
        return other

    def real(self, x: Tensor) -> Tensor:
        return x if x.is_floating_point() else x.to(self._dtype)

    def numbers(self, *values: Tensor) -> tuple[Tensor, ...]:
        real = next((x.dtype for x in values if x.is_floating_point()), torch.int64)
        return tuple([x.to(real) for x in values])

    def constant(self, value: bool | int | float) -> Tensor:
        dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else self._dtype
        return torch.tensor(value, dtype=dtype, device=self._device)

    def read(self, array: Tensor, indices: list[Tensor]) -> Tensor:
        if indices:
            array = array[tuple([index.clamp(0, extent - 1) for index, extent in zip(indices, array.shape)])]
        return array if array.dtype == torch.bool else array.to(self._dtype) if array.is_floating_point() else array.to(torch.int64)

    def where(self, condition: ast.expr, if_true: ast.expr, if_false: ast.expr) -> Tensor:
        kept = self.of(condition)
        if not self._compact or kept.dim() == 0:
            whole = self._alike(self.of(if_true), self.of(if_false))
            return torch.where(kept, whole[0], whole[1])
        taken, other = kept.nonzero()[:, 0], (~kept).nonzero()[:, 0]
        a, b = self._alike(self._narrowed(taken).of(if_true), self._narrowed(other).of(if_false))
        joined = torch.cat([a.expand(len(taken)), b.expand(len(other))])
        return joined[torch.argsort(torch.cat([taken, other]))]

    def _alike(self, *values: Tensor) -> tuple[Tensor, ...]:
        return values if all([x.dtype == torch.bool for x in values]) else self.numbers(*values)


def _floor_div(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return torch.div(a, b, rounding_mode="floor")
    return torch.where(b == 0, 0, torch.div(a, torch.where(b == 0, 1, b), rounding_mode="floor"))


class _Stop(torch.autograd.Function):
    """No derivative in either mode: detach() would keep tangents."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> None:
        return None  # zeros would become NaN where they meet an infinite derivative

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return torch.zeros_like(tangent)


Evaluation.of_reals = {
    **{name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "tan", "erf", "floor")},
    **{f"to_{name}": lambda x, dtype=getattr(torch, name): x.to(dtype).to(x.dtype) for name in ("float32", "bfloat16", "float16")},
    "Div": torch.div,
    "Pow": torch.pow,
    "pow": torch.pow,
}
Evaluation.of_numbers = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mult": torch.mul,
    "FloorDiv": _floor_div,
    "Mod": lambda a, b: torch.remainder(a, b) if a.is_floating_point() else torch.where(b == 0, 0, a - b * _floor_div(a, b)),
    "abs": torch.abs,
    "min": torch.minimum,
    "max": torch.maximum,
    "stop_gradient": _Stop.apply,
    "LShift": torch.bitwise_left_shift,
    "RShift": torch.bitwise_right_shift,
    "to_int32": lambda x: x.to(torch.int32).to(torch.int64),
    "to_integer": lambda x: x.detach().to(torch.int64),
    "to_boolean": lambda x: x != 0,
}
Evaluation.of_booleans = {"BitAnd": torch.bitwise_and, "BitOr": torch.bitwise_or, "BitXor": torch.bitwise_xor}
Evaluation.comparisons = {"Eq": torch.eq, "NotEq": torch.ne, "Lt": torch.lt, "LtE": torch.le}
