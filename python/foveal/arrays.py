"""What foveal needs to know of an array, whatever made it: NumPy, torch, JAX, CuPy, or anything else with DLPack.

The compiled part reads torch tensors and NumPy arrays by itself; it calls read(), maker() and stream() for the rest, and once for each plan.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

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
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BITS = {"uint16": DType.i16, "uint32": DType.i32}  # of arrays that a score or mask reads (bits_of)
_REAL = {DType.f64, DType.f32, DType.bf16, DType.f16}
_REALS = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")  # arguments that are reals
_LENGTHS = ("cu_seqlens", "seqlens_kv", "block_table")  # and integers


@functools.lru_cache(256)
def _framework_of(kind: type) -> str:
    names = [base.__module__.partition(".")[0].removesuffix("lib") for base in kind.__mro__]
    return next((name for name in names if name in ("torch", "jax", "numpy", "cupy")), names[0])


def framework(array: Any) -> str:
    """"torch", "jax", "numpy", "cupy", or the package of the array's type."""
    kind: Any = type(array)
    return _framework_of(kind)


def is_array(value: Any) -> bool:
    """JAX's tracers count: they have no memory yet, but shape and dtype."""
    if hasattr(type(value), "__stands_for__"):  # a symbol
        return False
    try:
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            return False
    except RuntimeError:  # a nested tensor of torch has no shape, and the type of other tensors
        return all([hasattr(type(value), name) for name in ("shape", "dtype", "__dlpack__")])
    except Exception:  # an attribute of the user's that runs code
        return False
    return not isinstance(value, type) and (hasattr(value, "__dlpack__") or framework(value) == "jax")


def plain_number(value: Any) -> Any:
    """The Python number in a scalar of NumPy's; other values as they are."""
    numpy = sys.modules.get("numpy")
    generic: Any = getattr(numpy, "generic", ())
    if not isinstance(value, generic):
        return value
    number = value.item()
    if isinstance(number, generic):  # of more bits than Python's numbers have
        return complex(value) if value.dtype.kind == "c" else float(value) if value.dtype.kind == "f" else number
    return number


def check_ascii(what: str, text: str) -> None:
    """Of a text for the compiled part, whose messages show the bytes around a fault."""
    if not text.isascii():
        at, letter = next((at, letter) for at, letter in enumerate(text) if not letter.isascii())
        raise ValueError(f"{what}: column {at + 1}: found {ascii(letter)}; expected ASCII")


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def dtype_of(array: Any, argument: str = "array", by_bits: bool = False) -> DType:
    """by_bits: unsigned integers of 16 and 32 bits count as signed ones."""
    return dtype_named(str(array.dtype).replace("torch.", ""), argument, by_bits)


def bits_of(array: Any) -> int | None:
    """How many of the bits of a read make up an element, where it is read by its bits."""
    dtype = _BITS.get(str(array.dtype).replace("torch.", ""))
    return None if dtype is None else 16 if dtype == DType.i16 else 32


def dtype_named(name: str, argument: str = "array", by_bits: bool = False) -> DType:
    try:
        return _BITS[name] if by_bits and name in _BITS else _DTYPES[name]
    except KeyError:
        kinds = {DType.i32, DType.i64} if argument.startswith(_LENGTHS) else _REAL if argument in _REALS and not by_bits else set(_DTYPES.values())
        expected = ", ".join([known for known, dtype in (_DTYPES | _BITS if by_bits else _DTYPES).items() if dtype in kinds])
        raise ValueError(f"{argument}: dtype {name} is not supported; expected one of {expected}") from None


def type_of(array: Any, argument: str = "array", by_bits: bool = False) -> Type:
    """How a score sees the array's elements."""
    dtype = dtype_of(array, argument, by_bits)
    if dtype in _REAL:
        return Type.real
    return Type.boolean if dtype == DType.boolean else Type.integer


def check_sizes(array: Any, argument: str) -> None:
    """Refuses what jax.export.symbolic_shape() makes."""
    if framework(array) == "jax" and not all([isinstance(extent, int) for extent in array.shape]):
        sizes = ", ".join(map(str, array.shape))
        raise NotImplementedError(f"{argument}: shape ({sizes}); expected known sizes, as a call is planned for them: export it for each")


def check_plain(array: Any, argument: str) -> None:
    """Refuses arrays whose memory does not hold their elements."""
    package = framework(array)
    if package == "torch":  # on the way of each call of a plan: what a plain tensor lacks is not asked for
        if array.is_neg() or array.is_conj():
            raise ValueError(f"{argument}: a view that negates or conjugates when it is read; expected a plain tensor: resolve_neg(), resolve_conj()")
        if array.is_quantized or array.layout is not sys.modules["torch"].strided or array.is_nested:
            found = "a quantised tensor" if array.is_quantized else "a nested tensor" if array.is_nested else f"a tensor of layout {array.layout}"
            raise TypeError(f"{argument}: {found}; expected a plain, dense tensor")
    elif package == "numpy":
        if hasattr(array, "mask"):
            raise TypeError(f"{argument}: a NumPy masked array; expected a plain array, and the mask as a mask")
        if type(array).__name__ == "matrix" or type(array).__module__.partition(".")[0] != "numpy":
            raise TypeError(f"{argument}: a {type(array).__name__}, which may read as something else than its memory; expected a plain array: numpy.asarray(x)")
    elif not is_array(array):
        raise TypeError(f"{argument}: found {type(array).__name__}; expected an array with DLPack (NumPy, torch, JAX, CuPy)")


def read(array: Any, argument: str, by_bits: bool = False) -> tuple[DType, bool, int, tuple[int, ...], tuple[int, ...], int]:
    """(dtype, is it on a GPU, which one, shape, strides in elements, address) of an array that the compiled part does not know."""
    if not is_array(array):
        raise TypeError(f"{argument}: found {type(array).__name__}; expected an array with DLPack (NumPy, torch, JAX, CuPy)")
    check_plain(array, argument)
    shape = tuple(int(extent) for extent in array.shape)
    cuda, index = _device(array, argument)
    stride = getattr(array, "stride", None)
    if callable(stride):  # torch
        strides = tuple(stride())
    elif getattr(array, "strides", None) is not None:  # NumPy, CuPy: bytes
        size = array.dtype.itemsize
        if any([step % size != 0 for step, extent in zip(array.strides, shape) if extent > 1]):  # a field of records, for instance
            raise ValueError(f"{argument}: strides of {array.strides} bytes; expected multiples of {size}, the bytes of an element: numpy.ascontiguousarray(x)")
        strides = tuple(step // size for step in array.strides)
    else:
        strides = row_major(shape)
    return dtype_of(array, argument, by_bits), cuda, index, shape, strides, _address(array)


def _device(array: Any, argument: str) -> tuple[bool, int]:
    if getattr(array, "is_meta", False):
        raise ValueError(f"{argument}: on device meta, where a tensor has no memory to read; expected cpu or cuda")
    if not hasattr(array, "__dlpack_device__"):
        traced = framework(array) == "jax"
        found = "a value that JAX traces, which has no memory yet" if traced else f"found {type(array).__name__}"
        raise TypeError(f"{argument}: {found}; expected an array" + (" with values, or q of JAX's, too: jnp.asarray(q)" if traced else " with DLPack"))
    kind, index = array.__dlpack_device__()
    if kind in (1, 3):  # CPU, pinned CPU
        return False, 0
    if kind in (2, 13):  # CUDA, CUDA managed
        return True, int(index)
    raise ValueError(f"{argument}: on DLPack device type {int(kind)}; expected CPU or CUDA")


def on_cpu(array: Any) -> bool:
    return not _device(array, "array")[0]


def _address(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if hasattr(array, "__array_interface__"):
        return int(array.__array_interface__["data"][0])
    if hasattr(array, "__cuda_array_interface__"):
        return int(array.__cuda_array_interface__["data"][0])
    if hasattr(array, "unsafe_buffer_pointer"):
        return int(array.unsafe_buffer_pointer())
    raise TypeError(f"cannot find the memory of a {type(array).__name__}")


def maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, like: Any) -> Callable[[], Any]:
    """A function that makes a new array of `like`'s kind, on its device, its contents anything. Strides (in elements) are torch's alone to
    choose; elsewhere they are row-major."""
    name = _NAMES[dtype]
    if framework(like) == "torch":
        import torch

        return functools.partial(torch.empty_strided, shape, strides, dtype=getattr(torch, name), device=like.device)
    if framework(like) == "cupy":
        import cupy

        return functools.partial(cupy.empty, shape, dtype=name)
    import numpy

    if name == "bfloat16":  # NumPy has none of its own
        import ml_dtypes

        return functools.partial(numpy.empty, shape, dtype=ml_dtypes.bfloat16)
    return functools.partial(numpy.empty, shape, dtype=name)


def empty(shape: tuple[int, ...], dtype: DType, like: Any) -> Any:
    """A new contiguous array of `like`'s kind, on its device."""
    return maker(shape, row_major(shape), dtype, like)()


def holds_nothing(q: Any, k: Any, v: Any) -> bool:
    """Whether there is no pair or no result: a size of 0, besides that of heads of q and k. Raises ValueError where the sizes do not fit."""
    if not (0 in q.shape[:-1] or 0 in k.shape[:-1] or 0 in v.shape):
        return False
    for name, x in (("q", q), ("k", k), ("v", v)):
        if dtype_of(x, name) not in _REAL or dtype_of(x) != dtype_of(q):
            raise ValueError(f"{name}: dtype {x.dtype}; expected float64, float32, bfloat16 or float16, the same for all")
    packed, ranks = len(q.shape) == 3, {len(x.shape) for x in (q, k, v)}
    if ranks not in ({3}, {4}):
        raise ValueError(f"q, k, v: ranks {[len(x.shape) for x in (q, k, v)]}; expected [batch, seqlen, heads, dim] or packed [total, heads, dim] of all")
    heads, kv_heads = q.shape[-2], k.shape[-2]
    for name, found, expected, whose in (
        ("k: head_dim", k.shape[-1], q.shape[-1], "q's"),
        ("k: batch", 0 if packed else k.shape[0], 0 if packed else q.shape[0], "q's"),
        ("v: batch, seqlen, heads", tuple(v.shape[:-1]), tuple(k.shape[:-1]), "k's"),
        ("k: heads", kv_heads, heads if kv_heads == 0 or heads % kv_heads != 0 else kv_heads, "a divisor of q's"),
    ):
        if found != expected:
            raise ValueError(f"{name} {found}; expected {expected}, {whose}")
    return True


def stream(like: Any) -> int:
    """The current stream of the framework of an array that lives on a GPU."""
    if framework(like) == "cupy":
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)
    import torch

    return int(torch.cuda.current_stream(like.device).cuda_stream)


def on_host(array: Any) -> Any:
    """The array's values on the CPU."""
    if framework(array) == "torch":
        return array.detach().cpu()
    if framework(array) == "cupy":
        return array.get()
    if framework(array) == "jax":
        import numpy

        return numpy.asarray(array)
    return array

