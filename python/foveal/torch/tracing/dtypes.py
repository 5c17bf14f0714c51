"""torch's dtypes, as far as scores and masks know them."""

from __future__ import annotations

import torch

from ..._core import Type

DTYPES = {Type.boolean: torch.bool, Type.integer: torch.int64, Type.real: torch.float32}  # of expressions that have none
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
INDICES = (torch.int64, torch.int32)  # torch takes uint8 for a mask, and other integers not at all
# (offset, size) of integers that wrap before 32 bits do.
NARROW = {torch.uint8: (0, 256), torch.uint16: (0, 65536), torch.uint32: (0, 2**32), torch.int8: (128, 256), torch.int16: (32768, 65536)}


def is_integral(dtype: torch.dtype) -> bool:
    return dtype != torch.bool and not dtype.is_floating_point and not dtype.is_complex
