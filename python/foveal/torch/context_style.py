"""Context parallelism as a style of parallelize_module. Not imported by the package: torch's tensor parallelism takes seconds to import."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from .context_parallel import ContextParallel, context_parallel
from .routing import patch


class ContextParallelStyle(ParallelStyle):
    """A style for torch.distributed.tensor.parallel.parallelize_module: within the module, scaled_dot_product_attention and flex_attention (torch's
    names too) run under a context_parallel() over the mesh.

        style = foveal.torch.ContextParallelStyle(seqlen=4096, seq_dim=2)
        parallelize_module(model.attention, mesh, style)

    seqlen, seq_dim and the other arguments are those of context_parallel(). The module takes and returns local shards, in the order
    of style.context.shard(); DTensors of placement Shard(seq_dim) are accepted as such shards and returned. style.context: the context, once the
    style has been applied.
    """

    def __init__(self, seqlen: int, *, seq_dim: int = 2, **options: Any):
        super().__init__()
        self._arguments = {"seqlen": seqlen, "seq_dim": seq_dim, **options}
        self.context: ContextParallel

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        self.context = context = context_parallel(device_mesh, **self._arguments)
        placement, forward = Shard(context.seq_dim), module.forward

        def local(which: Any, value: Any) -> Any:
            if not isinstance(value, DTensor):
                return value
            if value.placements != (placement,):
                raise ValueError(
                    f"context_parallel: argument {which}: a DTensor of placements {value.placements}; expected Shard({context.seq_dim})"
                )
            return value.to_local()

        @functools.wraps(forward)
        def sharded(*args: Any, **kwargs: Any) -> Any:
            distributes = any(isinstance(value, DTensor) for value in (*args, *kwargs.values()))
            args = tuple([local(i, value) for i, value in enumerate(args)])
            kwargs = {name: local(name, value) for name, value in kwargs.items()}
            with context, patch():
                out = forward(*args, **kwargs)
            if not distributes:
                return out
            return torch.utils._pytree.tree_map_only(Tensor, lambda t: DTensor.from_local(t, device_mesh, [placement], run_check=False), out)

        module.forward = sharded
        return module
