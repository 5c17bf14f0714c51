"""Many examples at once, as torch.func.vmap hands them over: as one batch where that is the same, else one after the other."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from .. import _core


def run(
    function: type[torch.autograd.Function], program: _core.Program, run: tuple[Any, ...], run_dims: Any, static: tuple[Any, ...], size: int,
    dims: Sequence[int | None], tensors: Sequence[Tensor | None], first_param: int, alone: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:  # fmt: skip
    """The results of function.apply(program, run, *static, *tensors) for each of `size` examples, stacked, and where: in front.

    dims, run_dims: where each tensor has its examples, None: the same for all. From first_param on they are parameters. alone: results are not by batch row.
    """
    tensor_dims = list(dims[-len(tensors) :])
    run_dims = [None] * len(run) if run_dims is None else list(run_dims)
    if alone or run[0] is not None or run[1] is not None or any([d is not None for d in tensor_dims[first_param:]]) or _looks_at_the_batch(program):
        found = [function.apply(program, tuple(_example(run, run_dims, i)), *static, *_example(tensors, tensor_dims, i)) for i in range(size)]
        results = tuple([torch.stack(parts) for parts in zip(*found)])
    else:
        batch = next(t.shape[0 if d is None else 1 if d == 0 else 0] for t, d in zip(tensors, tensor_dims) if t is not None)
        merged = [
            t if t is None or i >= first_param else (t.expand(size, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1)
            for i, (t, d) in enumerate(zip(tensors, tensor_dims))
        ]
        results = tuple([t.unflatten(0, (size, batch)) for t in function.apply(program, run, *static, *merged)])
    return results, (0,) * len(results)


def _example(values: Sequence[Any], dims: Sequence[int | None], i: int) -> list[Any]:
    return [
        type(t)(*_example(t, d, i)) if isinstance(d, tuple) else t if t is None or d is None else t.select(d, i) for t, d in zip(values, dims)
    ]


def _looks_at_the_batch(program: _core.Program) -> bool:
    """Rows of a larger batch are others to a score that reads `batch`, and to dropout."""
    attention = program.attention
    return attention.dropout_p > 0 or any(["batch" in repr(expr) for expr in (attention.score_mod, attention.mask) if expr is not None])


_is_disguised: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor


def are_disguised(cotangents: Sequence[Tensor | None]) -> bool:
    """Whether they hold many examples each, as torch.autograd.grad(is_grads_batched=True) hands them to a backward pass."""
    return any([t is not None and _is_disguised(t) for t in cotangents])


def run_disguised(function: Callable[..., Sequence[Tensor | None]], cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """function(*cotangents) of each example by itself, stacked, and disguised likewise."""
    level = next(level for level in range(1, 65) if not _is_disguised(torch._remove_batch_dim(_first_disguised(cotangents), level, 1, 0)))
    stacks = [torch._remove_batch_dim(t, level, 1, 0) if t is not None and _is_disguised(t) else None for t in cotangents]
    size = next(stack.shape[0] for stack in stacks if stack is not None)
    found = [function(*[t if stack is None else stack[i] for t, stack in zip(cotangents, stacks)]) for i in range(size)]
    return tuple([None if parts[0] is None else torch._add_batch_dim(torch.stack(parts), 0, level) for parts in zip(*found)])


def _first_disguised(cotangents: Sequence[Tensor | None]) -> Tensor:
    return next(t for t in cotangents if t is not None and _is_disguised(t))
