"""What products of vectors and matrices of torch mean."""

from __future__ import annotations

import itertools
import math
from typing import Any

from ... import arrays, formulas
from ...framework_calls import Call, flat
from ...meanings import Meaning, inner, matmul, signature_of
from ...symbols import MAX_UNROLL


@signature_of
def _LINEAR(input: Any, weight: Any, bias: Any = None) -> None: ...  # noqa: N802


def _linear(call: Call) -> Any:
    arguments = call.bind(_LINEAR)
    x, weight = call.symbol(arguments["input"]), call.symbol(arguments["weight"])
    bias = None if arguments["bias"] is None else call.symbol(arguments["bias"])
    inner = weight._shape[-1]
    columns = [weight._items[at : at + inner] for at in range(0, len(weight._items), inner)]
    added = [0.0] * len(columns) if bias is None else bias._items * (len(columns) // len(bias._items))
    rows = [x._items[at : at + inner] for at in range(0, len(x._items), inner)]
    return call.made([formulas.dot(row, column, call.factor) + more for row in rows for column, more in zip(columns, added)], call.result)


def _einsum(call: Call) -> Any:
    """torch.einsum of names of dimensions that are letters, each once in an operand."""
    equation, *given = flat(call.args)
    if not isinstance(equation, str) or "." in equation or call.kwargs:
        raise call.refuse(f"found {equation!r}; expected names of dimensions as in 'd,d->', without ...")
    names, _, kept = equation.replace(" ", "").partition("->")
    operands, labels = [call.symbol(x) for x in given], names.split(",")
    if any([len(set(own)) != len(own) for own in labels]):
        raise call.refuse(f"{equation!r} names a dimension twice in one operand; expected diagonal()")
    if "->" not in equation:  # in order, those that are named once
        kept = "".join(sorted([name for name in set(names) - {","} if names.count(name) == 1]))
    sizes: dict[str, int] = {}
    for own, x in zip(labels, operands):
        sizes.update({name: max(size, sizes.get(name, 1)) for name, size in zip(own, x._shape)})
    summed = [name for name in sizes if name not in kept]
    if math.prod(sizes.values()) > MAX_UNROLL:
        raise call.refuse(f"{math.prod(sizes.values())} products at every pair; at most {MAX_UNROLL} are unrolled")
    items = []
    for place in itertools.product(*[range(sizes[name]) for name in kept]):
        terms = []
        for over in itertools.product(*[range(sizes[name]) for name in summed]):
            at = dict(zip((*kept, *summed), (*place, *over)))
            factors = [
                x._items[sum([(at[name] if size != 1 else 0) * step for name, size, step in zip(own, x._shape, arrays.row_major(x._shape))])]
                for own, x in zip(labels, operands)
            ]
            terms.append(formulas.product(factors, call.factor))
        items.append(formulas.total(terms))
    return call.made(items, call.result)


TABLE: dict[str, Meaning] = {
    "dot": matmul,
    "inner": inner,
    "matmul": matmul,
    "mv": matmul,
    "mm": matmul,
    "linear": _linear,
    "einsum": _einsum,
}
