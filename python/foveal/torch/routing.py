"""Routing of existing models: torch's attention functions replaced by foveal's."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch

from .flex import flex_attention
from .sdpa import scaled_dot_product_attention


@contextlib.contextmanager
def patch() -> Iterator[None]:
    """Within this context torch.nn.functional.scaled_dot_product_attention and flex_attention are foveal's."""
    import torch.nn.attention.flex_attention as flex_module

    functional = torch.nn.functional
    saved = functional.scaled_dot_product_attention, flex_module.flex_attention
    functional.scaled_dot_product_attention, flex_module.flex_attention = scaled_dot_product_attention, flex_attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, flex_module.flex_attention = saved
