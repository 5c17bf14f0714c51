"""Evaluates expressions with a framework's own operations, for derivatives of any order. torch/evaluate.py and jax/evaluate.py have the operations.

An expression's canonical text is Python's syntax; it is read as such and evaluated over pairs.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, Callable, ClassVar, Mapping

Symbols = Mapping[str, Any]  # batch, head, q_idx, kv_idx: integer arrays that broadcast; seqlen_q, seqlen_kv: integers; score: real


class MaterializedWarning(UserWarning):
    """Warns that derivatives beyond the first, or in forward mode, hold all seqlen_q x seqlen_kv scores in memory, as unfused attention does."""


class Evaluation:
    """Values of an expression at the pairs that the symbols stand for."""

    library: ClassVar[str]
    of_reals: ClassVar[Mapping[str, Callable[..., Any]]]  # functions by their names in the text, operators by their names in Python's grammar
    of_numbers: ClassVar[Mapping[str, Callable[..., Any]]]  # operands of one type, integers or reals
    of_booleans: ClassVar[Mapping[str, Callable[..., Any]]]
    comparisons: ClassVar[Mapping[str, Callable[..., Any]]]

    def __init__(self, text: str, symbols: Symbols, params: Mapping[str, Any]):
        self._lets, self._result = _parsed(text)
        self._symbols, self._params = symbols, params
        self._values: dict[str, Any] = {}

    def constant(self, value: bool | int | float) -> Any:
        raise NotImplementedError

    def real(self, x: Any) -> Any:
        raise NotImplementedError

    def numbers(self, *values: Any) -> tuple[Any, ...]:
        """Of one type, integers or reals."""
        raise NotImplementedError

    def read(self, array: Any, indices: list[Any]) -> Any:
        """As everywhere in foveal, an index outside is moved to the nearest one inside."""
        raise NotImplementedError

    def where(self, condition: ast.expr, if_true: ast.expr, if_false: ast.expr) -> Any:
        raise NotImplementedError

    def operands(self, name: str, *values: Any) -> tuple[Any, ...]:
        """Of a function of reals."""
        return tuple([self.real(x) for x in values])

    def result(self) -> Any:
        return self.of(self._result)

    def branch(self) -> Evaluation:
        """Another one for a part of the pairs, which knows what was computed already; its own results are not known here."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._values = dict(self._values)
        return other

    def of(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            return self.constant(node.value)
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return self.read(self._params[node.value.id], [self.of(index) for index in indices])
        if isinstance(node, ast.UnaryOp):
            value = self.of(node.operand)
            return ~value if isinstance(node.op, ast.Invert) else -self.numbers(value)[0]
        if isinstance(node, ast.BinOp):
            return self._apply(type(node.op).__name__, self.of(node.left), self.of(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.numbers(self.of(node.left), self.of(node.comparators[0]))
            return self.comparisons[type(node.ops[0]).__name__](left, right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "where":
                return self.where(*node.args)
            operands = [self.of(argument) for argument in node.args]
            if node.func.id == "clamp":
                return self._apply("min", self._apply("max", *operands[:2]), operands[2])
            return self._apply(node.func.id, *operands)
        raise NotImplementedError(f"higher derivatives: {ast.unparse(node)} has no differentiable form in {self.library}")

    def _apply(self, name: str, *operands: Any) -> Any:
        if name in self.of_reals:
            return self.of_reals[name](*self.operands(name, *operands))
        if name in self.of_numbers:
            return self.of_numbers[name](*self.numbers(*operands))
        if name in self.of_booleans:
            return self.of_booleans[name](*operands)
        if name == "to_real":
            return self.real(operands[0])
        raise NotImplementedError(f"higher derivatives: {name} has no differentiable form in {self.library}")

    def _name(self, name: str) -> Any:
        if name == "inf":
            return self.constant(float("inf"))
        if name in self._symbols:
            value = self._symbols[name]
            return self.constant(value) if isinstance(value, int) else value
        if name not in self._values:
            self._values[name] = self.of(self._lets[name])
        return self._values[name]


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
