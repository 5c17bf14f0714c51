"""The C interface through ctypes, as a benchmark beside PyTorch would call it: layout of the structs, one forward pass, an error."""
import ctypes as c
import math
import sys


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("device_kind", c.c_int32), ("device_index", c.c_int32), ("rank", c.c_int32),
                ("sizes", c.c_int64 * 6), ("strides", c.c_int64 * 6)]


class Attention(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("score_mod", c.c_char_p), ("mask", c.c_char_p), ("sink", c.c_char_p), ("scale", c.c_double),
                ("dropout_p", c.c_double), ("q_offset", c.c_int64),
                ("kv_offset", c.c_int64), ("determinism", c.c_int32), ("backward", c.c_int32), ("checked", c.c_int32), ("accumulate", c.c_int32)]


class Call(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("pass_", c.c_int32), ("param_count", c.c_int32), ("params", c.c_void_p)] + [
        (name, c.POINTER(Tensor)) for name in ("q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv", "cu_seqlens_q", "cu_seqlens_kv")
    ] + [("max_seqlen_q", c.c_int64), ("max_seqlen_kv", c.c_int64), ("dropout_seed", c.c_uint64), ("dropout_offset", c.c_uint64)] + [
        (name, c.POINTER(Tensor)) for name in ("dropout_state", "block_table", "seqlens_kv")
    ]


def tensor(values, sizes):
    strides = [math.prod(sizes[d + 1:]) for d in range(len(sizes))]
    view = Tensor(data=c.addressof(values), dtype=1, rank=len(sizes))
    view.sizes[:len(sizes)], view.strides[:len(sizes)] = sizes, strides
    return view


def main():
    lib = c.CDLL(sys.argv[1])
    lib.foveal_last_error.restype = c.c_char_p
    seqlen, dim = 3, 2
    make = lambda f: (c.c_float * (seqlen * dim))(*[f(i) for i in range(seqlen * dim)])
    q, k, v, out = make(math.sin), make(math.cos), make(lambda i: i / 4), make(lambda i: 0)
    views = [tensor(x, [1, seqlen, 1, dim]) for x in (q, k, v, out)]
    attention = Attention(struct_size=c.sizeof(Attention), mask=b"causal()", scale=0.5)
    call = Call(struct_size=c.sizeof(Call), q=c.pointer(views[0]), k=c.pointer(views[1]), v=c.pointer(views[2]), out=c.pointer(views[3]))
    assert lib.foveal_run(c.byref(attention), c.byref(call), None, None) == 0, lib.foveal_last_error()
    for i in range(seqlen):
        weights = [math.exp(0.5 * sum(q[i * dim + d] * k[j * dim + d] for d in range(dim))) for j in range(i + 1)]
        for d in range(dim):
            expected = sum(w * v[j * dim + d] for j, w in enumerate(weights)) / sum(weights)
            assert abs(out[i * dim + d] - expected) < 1e-5, (i, d, out[i * dim + d], expected)
    attention.mask = b"kv_idx <"
    assert lib.foveal_run(c.byref(attention), c.byref(call), None, None) == 1
    assert b"^" in lib.foveal_last_error()
    print("ctypes: all checks hold")


main()
