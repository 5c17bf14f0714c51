"""What foveal needs to know of an array, whatever made it: NumPy, torch, JAX, CuPy, or anything else with DLPack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import _core
from ._core import DType, Type

_DTYPES = {
    "float64": DType.f64,
    "float32": DType.f32,
    "bfloat16": DType.bf16,
    "float16": DType.f16,
    "int64": DType.i64,
    "int32": DType.i32,
    "int16": DType.i16,
    "int8": DType.i8,
    "uint8": DType.u8,
    "bool": DType.boolean,
}
_REAL = {DType.f64, DType.f32, DType.bf16, DType.f16}


@dataclass(frozen=True)
class ArraySpec:
    dtype: DType
    cuda: bool
    index: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    def core(self) -> _core.Spec:
        return _core.Spec(self.dtype, self.cuda, self.index, list(self.shape), list(self.strides))


def is_array(value: Any) -> bool:
    """JAX's tracers count: they have no memory yet, but shape and dtype."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return False
    return hasattr(value, "__dlpack__") or type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def dtype_of(array: Any, argument: str = "array") -> DType:
    name = str(array.dtype).replace("torch.", "")
    try:
        return _DTYPES[name]
    except KeyError:
        raise ValueError(f"{argument}: dtype {name} is not supported; expected one of {', '.join(_DTYPES)}") from None


def type_of(array: Any) -> Type:
    """How a score sees the array's elements."""
    dtype = dtype_of(array)
    if dtype in _REAL:
        return Type.real
    return Type.boolean if dtype == DType.boolean else Type.integer


def spec(array: Any, argument: str = "array") -> ArraySpec:
    """Shape, strides, dtype and device of an array."""
    if not is_array(array):
        raise TypeError(f"{argument}: found {type(array).__name__}; expected an array with DLPack (NumPy, torch, JAX, CuPy)")
    shape = tuple(int(extent) for extent in array.shape)
    kind, index = _device(array)
    stride = getattr(array, "stride", None)
    if callable(stride):  # torch
        strides = tuple(stride())
    elif getattr(array, "strides", None) is not None:  # NumPy, CuPy: bytes
        itemsize = array.dtype.itemsize
        strides = tuple(step // itemsize for step in array.strides)
    else:
        strides = row_major(shape)
    return ArraySpec(dtype_of(array, argument), kind, index, shape, strides)


def _device(array: Any) -> tuple[bool, int]:
    kind, index = array.__dlpack_device__()
    if kind in (1, 3):  # CPU, pinned CPU
        return False, 0
    if kind in (2, 13):  # CUDA, CUDA managed
        return True, int(index)
    raise ValueError(f"an array lives on DLPack device type {int(kind)}; expected CPU or CUDA")


def pointer(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    if hasattr(array, "__array_interface__"):
        return array.__array_interface__["data"][0]
    if hasattr(array, "__cuda_array_interface__"):
        return array.__cuda_array_interface__["data"][0]
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer()
    raise TypeError(f"cannot find the memory of a {type(array).__name__}")


def empty(shape: tuple[int, ...], dtype: DType | None, like: Any) -> Any:
    """A new array of `like`'s kind, on its device; dtype None means its dtype."""
    module = type(like).__module__.partition(".")[0]
    name = {v: k for k, v in _DTYPES.items()}[dtype] if dtype is not None else None
    if module == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, name) if name else like.dtype, device=like.device)
    if module == "cupy":
        import cupy

        return cupy.empty(shape, dtype=name or like.dtype)
    import numpy

    return numpy.empty(shape, dtype=name or like.dtype)


def default_scale(head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim)
