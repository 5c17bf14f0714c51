"""foveal's own signature for torch: a function, and a module that is traced once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..describe import Mask, Options, Rng, ScoreMod, bind, describe
from ..torch_trace import TorchTracer
from .operators import bound, call


class Attention(torch.nn.Module):
    """A score and a mask, traced once: call it on q, k, v as often as you like, also inside torch.compile (no graph break).

    Tensors that the functions capture become parameters (torch.nn.Parameter) or buffers (the others, not in the state dict) of this module,
    under their names in `params`, or p0, p1, ... in the order of their first read. Arguments as in foveal.attention().
    """

    def __init__(self, score_mod: ScoreMod = None, mask: Mask = None, *, options: Options = Options(), **arguments: Any):
        super().__init__()
        found = bind(describe(score_mod, mask, tracer=TorchTracer(), **arguments), options)
        self.key = found.key
        self.names = found.names
        for name, array in zip(found.names, found.arrays):
            if isinstance(array, torch.nn.Parameter):
                self.register_parameter(name, array)
            else:
                self.register_buffer(name, array, persistent=False)

    def extra_repr(self) -> str:
        return self.key

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens: tuple[Tensor, Tensor] | None = None,
        max_seqlens: tuple[int, int] = (0, 0),
        seed: int = 0,
        offset: int = 0,
        rng_state: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """(out, lse) or out: q [batch, seqlen_q, heads_q, head_dim] and so on, as foveal.attention(). seed, offset, rng_state: of dropout."""
        captured = [getattr(self, name) for name in self.names]
        out, lse = call(self.key, captured, q, k, v, cu_seqlens, max_seqlens, Rng(seed, offset, rng_state))
        return (out, lse) if return_lse else out


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    cu_seqlens: tuple[Tensor, Tensor] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    seed: int = 0,
    offset: int = 0,
    rng_state: Tensor | None = None,
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Any,
) -> Any:
    """foveal.attention() with autograd: gradients reach q, k, v, the sink and every captured tensor that requires one, and flow through lse.

    q: [batch, seqlen_q, heads_q, head_dim] and so on, see foveal.attention(). Under autocast q, k, v are cast to its dtype.
    """
    key, captured = bound(score_mod, mask, options, arguments, heads_first=False)
    out, lse = call(key, captured, q, k, v, cu_seqlens, max_seqlens, Rng(seed, offset, rng_state))
    return (out, lse) if return_lse else out
