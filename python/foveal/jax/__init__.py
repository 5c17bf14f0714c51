"""foveal for JAX: attention through XLA's foreign-function interface, under jit, grad and vmap, on CPU and CUDA.

    out = foveal.jax.attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + bias[h, q_idx - kv_idx + n], foveal.causal())
"""

from .context_order import context_order, context_places, context_positions
from .context_parallel import context_attention
from .dot_product import dot_product_attention
from .native import attention, backward

__all__ = ["attention", "backward", "context_attention", "context_order", "context_places", "context_positions", "dot_product_attention"]
