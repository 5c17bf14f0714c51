"""Functions of torch that are others of the table, put together: they run on symbols."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import torch

from ...framework_calls import Call, flat, symbolic
from ...meanings import Meaning
from .dtypes import SIXTEEN_BITS


def composed(fn: Callable[..., Any]) -> Meaning:
    """fn of symbols, written with torch's functions. Results of 16 bits are rounded once, as by a function that is one kernel."""
    signature = inspect.signature(fn)

    def meaning(call: Call) -> Any:
        looks = list(flat([call.result]))
        wide = any([look.dtype in SIXTEEN_BITS for look in looks])

        def operand(value: Any) -> Any:
            if not (symbolic(value) or isinstance(value, torch.Tensor)):
                return value
            x = call.symbol(value)
            return x.float() if wide and x._dtype in SIXTEEN_BITS else x

        arguments = {name: operand(value) for name, value in call.bind(signature).items()}
        with torch._C._EnableTorchFunction():
            found = list(flat([fn(**arguments)]))
        made = [x if x._dtype == look.dtype else call.converted(x._items, look, x._dtype) for x, look in zip(found, looks)]
        return made[0] if isinstance(call.result, torch.Tensor) else type(call.result)(made)

    return meaning


def _norm(x: Any, p: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return torch.linalg.vector_norm(x, p, dim, keepdim)


def _cross(call: Call) -> Any:
    """Of torch.cross without a dim: the first of size 3."""
    last = -1 if call.func is torch.linalg.cross else list(call.result.shape).index(3)
    shape = call.result.shape

    def cross(input: Any, other: Any, dim: int | None = None) -> Any:
        dim = last if dim is None else dim
        a, b = (x.broadcast_to(shape) for x in (input, other))
        return a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim)

    return composed(cross)(call)


def _diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    x = torch.cat([part for part in (prepend, input, append) if part is not None], dim)
    for _ in range(n):
        later, earlier = x.narrow(dim, 1, x.shape[dim] - 1), x.narrow(dim, 0, x.shape[dim] - 1)
        x = later != earlier if x.dtype == torch.bool else later - earlier
    return x


def _glu(input: Any, dim: int = -1) -> Any:
    a, b = input.chunk(2, dim)
    return a * torch.sigmoid(b)


def _extremes(input: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    dims = () if dim is None else dim
    return torch.amin(input, dims, keepdim), torch.amax(input, dims, keepdim)


def _without_nan(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return torch.where(torch.isnan(input), 0, input).sum(dim, keepdim, dtype=dtype)


def _mean_without_nan(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _without_nan(input, dim, keepdim, dtype=dtype) / (~torch.isnan(input)).sum(dim, keepdim)


def _triangle(keep: Callable[..., torch.Tensor]) -> Meaning:
    """torch.tril and triu."""
    return composed(lambda input, diagonal=0: torch.where(keep(torch.ones(input.shape[-2:], dtype=torch.bool), diagonal), input, 0))


def _one_hot(call: Call) -> Any:
    def one_hot(input: Any, num_classes: int = -1) -> Any:
        if num_classes < 0:
            raise call.refuse("num_classes is left out, which follows from values; expected a number")
        return (input.unsqueeze(-1) == torch.arange(num_classes)).long()

    return composed(one_hot)(call)


def _pad(call: Call) -> Any:
    def padded(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
        if mode != "constant":
            raise call.refuse(f"mode={mode!r}; expected 'constant'")
        x = input
        for at in range(0, len(pad), 2):
            dim = len(x.shape) - 1 - at // 2
            before, after = pad[at : at + 2]
            first, last = max(-before, 0), x.shape[dim] + min(after, 0)
            sides = [torch.full([*x.shape[:dim], max(count, 0), *x.shape[dim + 1 :]], value or 0, dtype=x.dtype) for count in (before, after)]
            parts = [sides[0], x.narrow(dim, first, last - first), sides[1]]
            x = torch.cat([part for part in parts if part.shape[dim]], dim)
        return x

    return composed(padded)(call)


TABLE: dict[str, Meaning] = {
    **dict.fromkeys(("outer", "ger"), composed(lambda input, vec2: input.unsqueeze(-1) * vec2)),
    "vdot": composed(lambda input, other: torch.dot(input, other)),
    "vecdot": composed(lambda x, y, *, dim=-1: (x * y).sum(dim)),
    "cross": _cross,
    "trace": composed(lambda input: input.diagonal().sum()),
    "tril": _triangle(torch.tril),
    "triu": _triangle(torch.triu),
    "dist": composed(lambda input, other, p=2: _norm(input - other, p)),
    "pairwise_distance": composed(lambda x1, x2, p=2.0, eps=1e-6, keepdim=False: _norm(x1 - x2 + eps, p, -1, keepdim)),
    "cdist": composed(lambda x1, x2, p=2.0, compute_mode="": _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)),
    "diff": composed(_diff),
    "glu": composed(_glu),
    "softmin": composed(lambda input, dim, _stacklevel=3, dtype=None: torch.softmax(-input, dim, dtype=dtype)),
    "aminmax": composed(_extremes),
    "nansum": composed(_without_nan),
    "nanmean": composed(_mean_without_nan),
    "one_hot": _one_hot,
    "pad": _pad,
}
