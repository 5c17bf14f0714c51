#!/usr/bin/env python3
"""Writes the files of this folder with NumPy, ml_dtypes and safetensors themselves: what the readers must understand.

Every array holds 0, 1, 2, ... in C order (booleans: value % 2), so that a test knows what to expect from the shape alone.
"""
import ml_dtypes
import numpy
import safetensors.numpy


def count(shape, dtype):
    values = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape)
    return (values % 2 if dtype == numpy.bool_ else values).astype(dtype)


arrays = {
    "f64": count((2, 3), numpy.float64),
    "f32": count((2, 3, 4), numpy.float32),
    "f16": count((5,), numpy.float16),
    "bf16": count((2, 2), ml_dtypes.bfloat16),
    "i64": count((3,), numpy.int64),
    "i32": count((), numpy.int32),
    "i16": count((1, 1), numpy.int16),
    "i8": count((7,), numpy.int8),
    "u8": count((0, 3), numpy.uint8),
    "boolean": count((4,), numpy.bool_),
}
numpy.savez("stored.npz", **arrays)
numpy.savez_compressed("deflated.npz", **arrays)
safetensors.numpy.save_file(arrays, "all.safetensors", metadata={"made": "by safetensors"})
numpy.save("fortran.npy", numpy.asfortranarray(count((2, 3, 4), numpy.float32)))
numpy.save("big_endian.npy", count((3,), ">f4"))
numpy.save("complex.npy", count((3,), numpy.complex64))
with open("version2.npy", "wb") as file:
    numpy.lib.format.write_array(file, count((3, 2), numpy.float32), version=(2, 0))
