"""Distributed tensors (DTensor): each rank attends with its shard of the batch and of the heads."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from .._core import Type
from ..describe import SEPARATOR, bind, describe, program, read
from ..signatures import Options
from .tracing import TorchTracer

_DTYPES = {Type.boolean: torch.bool, Type.integer: torch.int64, Type.real: torch.float32}
_FIRST = {"batch": "first_batch_", "head": "first_head_"}  # scalars that a rank's program reads: where its shard begins


def is_sharded(tensors: Sequence[Tensor]) -> bool:
    return any([(type(t).__module__, type(t).__name__) == ("torch.distributed.tensor", "DTensor") for t in tensors])


def attend(
    call: Callable[..., tuple[Tensor, Tensor]], key: str, params: Sequence[Any], q: Any, k: Any, v: Any, packed: bool
) -> tuple[Tensor, Tensor]:
    """(out, lse), split as q is; call: the public function's own, for what each rank holds."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    made = program(key)
    dims = {0: "batch", 1 if made.heads_first else 2: "head"}
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, DTensor):
            raise TypeError(f"{name}: found a torch.Tensor beside distributed ones; expected a DTensor, as the others are")
        if t.device_mesh != q.device_mesh or t.placements != q.placements:
            raise ValueError(f"{name}: placed as {t.placements} on {t.device_mesh}; expected {q.placements} on {q.device_mesh}, as q is: redistribute()")
    if packed or made.attention.dropout_p > 0:
        found = "cu_seqlens: packed sequences" if packed else "dropout_p: dropout"
        raise NotImplementedError(f"{found} of distributed tensors; expected {'a batch' if packed else 'dropout_p=0'}, or to_local() tensors")
    mesh = q.device_mesh
    first, ranks = {"batch": 0, "head": 0}, {"batch": 1, "head": 1}
    for axis, placement in enumerate(q.placements):
        if isinstance(placement, Replicate):
            continue
        what = dims.get(placement.dim) if type(placement) is Shard else None
        if what is None:
            raise NotImplementedError(
                f"q: placed as {placement}; expected Replicate() or Shard() of the batch or the heads (dims {', '.join(map(str, dims))}): "
                "redistribute(), or to_local() within foveal.torch.context_parallel() for shards of the sequence"
            )
        ranks[what] *= mesh.size(axis)
        for name, t in (("q", q), ("k", k)):
            if t.shape[placement.dim] % ranks[what]:
                raise ValueError(f"{name}: {t.shape[placement.dim]} of dim {placement.dim} over {ranks[what]} ranks; expected a multiple of them")
        first[what] = first[what] * mesh.size(axis) + mesh.get_local_rank(axis)
    local = [t.to_local(grad_placements=q.placements) for t in (q, k, v)]
    everywhere = [Replicate()] * mesh.ndim
    # Each rank has a part of the gradient of what is the same everywhere, or, where q is not split either, all of it.
    summed = [Partial() if isinstance(placement, Shard) else Replicate() for placement in q.placements]
    whole: list[Tensor] = []
    for t, name in zip(params, [param.name for param in made.params]):
        if isinstance(t, DTensor):
            whole.append(t.redistribute(mesh, everywhere).to_local(grad_placements=summed))
        elif t.requires_grad:
            raise TypeError(f"{name}: found a torch.Tensor that requires a gradient beside distributed q, k, v; expected a DTensor")
        else:
            whole.append(t)
    shares = tuple([(dims[d], local[0].shape[d], any([p == Shard(d) for p in q.placements])) for d in sorted(dims)])
    names = [param.name for param in made.params]
    key, seen = _of_a_shard(key, shares)
    begin = {what: first[what] * count for what, count, _ in shares}
    sink = made.attention.sink
    if sink is not None:
        heads = dict([(what, count) for what, count, _ in shares])["head"]
        whole[names.index(sink.name)] = whole[names.index(sink.name)][begin["head"] : begin["head"] + heads]
    scalars = [torch.tensor(begin[what], device=local[0].device) for what in seen]
    out, lse = call(key, [*scalars, *whole], *local)
    placed = [Shard({"batch": 0, "head": 1}[dims[p.dim]]) if isinstance(p, Shard) else p for p in q.placements]
    return DTensor.from_local(out, mesh, q.placements, run_check=False), DTensor.from_local(lse, mesh, placed, run_check=False)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@functools.lru_cache(256)
def _of_a_shard(key: str, shares: tuple[tuple[str, int, bool], ...]) -> tuple[str, tuple[str, ...]]:
    """The program whose scores and masks see the batch and the head of the whole, and which of the two they see; shares: of each dimension its
    name, its size on a rank, and whether it is split."""
    text, how = key.rsplit(SEPARATOR, 1)
    whole = read(text)
    exprs = [None if expr is None else repr(expr) for expr in (whole.score_mod, whole.mask)]
    seen = tuple([what for what, _, split in shares if split and any([expr is not None and re.search(rf"\b{what}\b", expr) for expr in exprs])])
    if not seen and whole.sink is None:
        return key, ()
    for what in seen:
        exprs = [None if expr is None else re.sub(rf"\b{what}\b", f"({what} + {_FIRST[what]}[])", expr) for expr in exprs]
    given = {_FIRST[what]: torch.empty((), dtype=torch.int64, device="meta") for what in seen}
    for param in whole.params:
        shape = [count for what, count, _ in shares if what == "head"] if whole.sink is not None and param.name == whole.sink.name else param.shape
        given[param.name] = torch.empty(shape, dtype=_DTYPES[param.type], device="meta")
    described = describe(
        *exprs, tracer=TorchTracer(), params=given, sink=None if whole.sink is None else given[whole.sink.name], **whole.settings
    )
    options, heads_first = ast.literal_eval(how)
    return bind(described, Options(*options), heads_first).program.key, seen
