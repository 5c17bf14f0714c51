"""foveal for torch: attention with autograd, and drop-in functions with the signatures of FlexAttention and SDPA.

    out = foveal.torch.attention(q, k, v, score_mod, mask)                      # [batch, seqlen, heads, dim]
    out = foveal.torch.flex_attention(query, key, value, score_mod, block_mask) # [batch, heads, seqlen, dim], as torch's
    out = foveal.torch.scaled_dot_product_attention(query, key, value, ...)     # likewise
    with foveal.torch.patch() as routed: model(x)                               # route a model that calls torch's
"""

from typing import TYPE_CHECKING, Any

from .context_parallel import ContextParallel, context_parallel
from .errors import CallError
from .flex import flex_attention
from .native import Attention, attention
from .packed import varlen_attn
from .routing import Routed, patch
from .sdpa import scaled_dot_product_attention

__all__ = ["Attention", "CallError", "ContextParallel", "ContextParallelStyle", "Routed", "attention", "context_parallel", "flex_attention", "patch", "scaled_dot_product_attention", "varlen_attn"]

if TYPE_CHECKING:
    from .context_style import ContextParallelStyle


def __getattr__(name: str) -> Any:
    if name != "ContextParallelStyle":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .context_style import ContextParallelStyle

    return ContextParallelStyle
