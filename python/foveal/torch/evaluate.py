"""Expressions evaluated with torch's operations: differentiable any number of times, in forward and in reverse mode.

An expression's canonical text is Python's syntax; it is read as such and evaluated over pairs.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, Callable, Mapping

import torch
from torch import Tensor

Symbols = Mapping[str, Any]  # batch, head, q_idx, kv_idx: int64 tensors that broadcast; seqlen_q, seqlen_kv: ints; score: a real tensor


class Evaluation:
    """Values of an expression at the pairs that the symbols stand for.

    compact: the symbols are one-dimensional, one element for each pair. Then a branch of a `where` is evaluated only at the pairs that take it,
    so that an infinite derivative of the other branch has no part in the gradient, as in foveal's kernels.
    """

    def __init__(self, text: str, symbols: Symbols, params: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device, compact: bool = False):
        self._lets, self._result = _parsed(text)
        self._symbols, self._params, self._dtype, self._device, self._compact = symbols, params, dtype, device, compact
        self._values: dict[str, Tensor] = {}

    def result(self) -> Tensor:
        return self._of(self._result)

    def _narrowed(self, pairs: Tensor) -> "Evaluation":
        """At some of the pairs. What was computed already is taken over."""
        other = object.__new__(Evaluation)
        other.__dict__.update(self.__dict__)
        take = lambda x: x[pairs] if isinstance(x, Tensor) and x.dim() > 0 else x  # noqa: E731
        other._symbols = {name: take(value) for name, value in self._symbols.items()}
        other._values = {name: take(value) for name, value in self._values.items()}
        return other

    def _of(self, node: ast.expr) -> Tensor:
        if isinstance(node, ast.Constant):
            return self._constant(node.value)
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Subscript):
            return self._read(node)
        if isinstance(node, ast.UnaryOp):
            value = self._of(node.operand)
            return ~value if isinstance(node.op, ast.Invert) else -_number(value)
        if isinstance(node, ast.BinOp):
            return self._apply(type(node.op).__name__, self._of(node.left), self._of(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = _numbers(self._of(node.left), self._of(node.comparators[0]))
            return _COMPARISONS[type(node.ops[0]).__name__](left, right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "where":
                return self._where(*node.args)
            return self._apply(node.func.id, *[self._of(argument) for argument in node.args])
        raise NotImplementedError(f"higher derivatives: {ast.unparse(node)} has no differentiable form in torch")

    def _apply(self, name: str, *operands: Tensor) -> Tensor:
        if name in _OF_REALS:
            return _OF_REALS[name](*[self._real(x) for x in operands])
        if name in _OF_NUMBERS:
            return _OF_NUMBERS[name](*_numbers(*operands))
        if name in _OF_BOOLEANS:
            return _OF_BOOLEANS[name](*operands)
        if name == "to_real":
            return self._real(operands[0])
        raise NotImplementedError(f"higher derivatives: {name} has no differentiable form in torch")

    def _real(self, x: Tensor) -> Tensor:
        return x if x.is_floating_point() else x.to(self._dtype)

    def _constant(self, value: bool | int | float) -> Tensor:
        dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else self._dtype
        return torch.tensor(value, dtype=dtype, device=self._device)

    def _name(self, name: str) -> Tensor:
        if name == "inf":
            return self._constant(float("inf"))
        if name in self._symbols:
            value = self._symbols[name]
            return value if isinstance(value, Tensor) else self._constant(value)
        if name not in self._values:
            self._values[name] = self._of(self._lets[name])
        return self._values[name]

    def _read(self, node: ast.Subscript) -> Tensor:
        """As everywhere in foveal, an index outside is moved to the nearest one inside."""
        assert isinstance(node.value, ast.Name)
        array = self._params[node.value.id]
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if indices:
            array = array[tuple([self._of(index).clamp(0, extent - 1) for index, extent in zip(indices, array.shape)])]
        return array if array.dtype == torch.bool else array.to(self._dtype) if array.is_floating_point() else array.to(torch.int64)

    def _where(self, condition: ast.expr, if_true: ast.expr, if_false: ast.expr) -> Tensor:
        kept = self._of(condition)
        if not self._compact or kept.dim() == 0:
            return torch.where(kept, *_alike(self._of(if_true), self._of(if_false)))
        taken, other = kept.nonzero()[:, 0], (~kept).nonzero()[:, 0]
        a, b = _alike(self._narrowed(taken)._of(if_true), self._narrowed(other)._of(if_false))
        joined = torch.cat([a.expand(len(taken)), b.expand(len(other))])
        return joined[torch.argsort(torch.cat([taken, other]))]


@functools.lru_cache(256)
def _parsed(text: str) -> tuple[dict[str, ast.expr], ast.expr]:
    """`_1 = a; _2 = b; c`: the named parts, and the whole."""
    *lets, last = ast.parse(re.sub(r"\[\]", "[()]", text)).body
    named = {}
    for let in lets:
        assert isinstance(let, ast.Assign) and isinstance(let.targets[0], ast.Name)
        named[let.targets[0].id] = let.value
    assert isinstance(last, ast.Expr)
    return named, last.value


def _number(x: Tensor) -> Tensor:
    return x.to(torch.int64) if x.dtype == torch.bool else x


def _numbers(*values: Tensor) -> tuple[Tensor, ...]:
    """Of one type, integers or reals."""
    real = next((x.dtype for x in values if x.is_floating_point()), torch.int64)
    return tuple([x.to(real) for x in values])


def _alike(*values: Tensor) -> tuple[Tensor, ...]:
    return values if all([x.dtype == torch.bool for x in values]) else _numbers(*values)


def _floor_div(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return torch.floor(a / b)
    return torch.div(a, torch.where(b == 0, 1, b), rounding_mode="floor")  # by 0: any number, but no trap


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
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return torch.zeros_like(dx)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return torch.zeros_like(tangent)


_OF_REALS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "tan", "erf", "floor")},
    "Div": torch.div,
    "Pow": torch.pow,
    "pow": torch.pow,
}
_OF_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mult": torch.mul,
    "FloorDiv": _floor_div,
    "Mod": lambda a, b: a - b * _floor_div(a, b),
    "abs": torch.abs,
    "min": torch.minimum,
    "max": torch.maximum,
    "stop_gradient": _Stop.apply,
    "LShift": torch.bitwise_left_shift,
    "RShift": torch.bitwise_right_shift,
    "to_integer": lambda x: x.detach().to(torch.int64),
    "to_boolean": lambda x: x != 0,
}
_OF_BOOLEANS: dict[str, Callable[..., Tensor]] = {"BitAnd": torch.bitwise_and, "BitOr": torch.bitwise_or, "BitXor": torch.bitwise_xor}
_COMPARISONS: dict[str, Callable[..., Tensor]] = {"Eq": torch.eq, "NotEq": torch.ne, "Lt": torch.lt, "LtE": torch.le}
