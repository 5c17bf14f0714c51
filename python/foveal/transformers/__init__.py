"""foveal as an attention implementation of transformers:

    foveal.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="foveal")

Softcaps, sinks, windows, chunks, position biases, padding, packed sequences, grouped heads, dropout, caches: each becomes part of the score or the
mask of one fused call. Masks are expressions: no seqlen_q x seqlen_kv tensor is made, and empty tiles are skipped.
"""

from .attention import attention_forward
from .masks import Mask, attention_mask
from .registration import register

__all__ = ["Mask", "attention_forward", "attention_mask", "register"]
