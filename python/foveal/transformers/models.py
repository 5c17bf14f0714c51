"""What the code of a model of transformers says of its attention."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from transformers import PreTrainedModel


def modeling_of(config: Any) -> str:
    """The name of the module with the model's own code; "" without a configuration."""
    return "" if config is None else type(config).__module__.replace(".configuration_", ".modeling_")


@functools.lru_cache(256)
def asks_for_tensors(modeling: str) -> bool:
    """Whether the model's own code asks what its mask is, and leaves out what is no tensor where it makes another mask of it: Doge asks for BlockMasks,
    DeepSeek V4 for tensors."""
    module = sys.modules.get(modeling)
    if module is None or hasattr(module, "BlockMask"):
        return module is not None
    try:
        return "isinstance(attention_mask, torch.Tensor)" in inspect.getsource(module)
    except (OSError, TypeError):  # no source
        return False


@functools.lru_cache(256)
def has_interface(modeling: str) -> bool:
    """Whether some model in this module calls its attention through transformers' interface."""
    return hasattr(sys.modules.get(modeling), "ALL_ATTENTION_FUNCTIONS")


@functools.lru_cache(256)
def takes_bool_masks(modeling: str) -> bool:
    """Whether some model in this module takes masks of SDPA's or FlexAttention's. The code of others adds its mask to the scores, as eager attention
    does: True and False would count as 1 and 0."""
    kinds = [kind for kind in getattr(sys.modules.get(modeling), "__dict__", {}).values() if isinstance(kind, type) and issubclass(kind, PreTrainedModel)]
    return any([kind._supports_sdpa or kind._supports_flex_attn for kind in kinds if kind.__module__ == modeling])
