"""libfoveal.so through foveal_c.h and ctypes: what times kernels where the Python package is not installed."""

from __future__ import annotations

import argparse
import ctypes as C
import math
import pathlib
from typing import Any, Callable, Sequence

import torch

from . import machine
from .case import Case
from .timing import settled_ms

_DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.int32: 5, torch.float64: 10}


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int32), ("device_kind", C.c_int32), ("device_index", C.c_int32), ("rank", C.c_int32),
                ("sizes", C.c_int64 * 6), ("strides", C.c_int64 * 6)]  # fmt: skip


class Attention(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("score_mod", C.c_char_p), ("mask", C.c_char_p), ("sink", C.c_char_p), ("scale", C.c_double),
                ("dropout_p", C.c_double), ("q_offset", C.c_int64),
                ("kv_offset", C.c_int64), ("determinism", C.c_int32), ("backward", C.c_int32), ("checked", C.c_int32), ("accumulate", C.c_int32)]  # fmt: skip


class Param(C.Structure):
    _fields_ = [("declaration", C.c_char_p), ("tensor", C.POINTER(Tensor)), ("gradient", C.POINTER(Tensor))]


class Call(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t), ("pass_", C.c_int32), ("param_count", C.c_int32), ("params", C.POINTER(Param)),
        *((name, C.POINTER(Tensor)) for name in "q k v out lse dout dlse dq dk dv cu_seqlens_q cu_seqlens_kv".split()),
        ("max_seqlen_q", C.c_int64), ("max_seqlen_kv", C.c_int64), ("dropout_seed", C.c_uint64), ("dropout_offset", C.c_uint64),
        *((name, C.POINTER(Tensor)) for name in "dropout_state block_table seqlens_kv".split()),
    ]  # fmt: skip


class Options(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("backend", C.c_char_p), ("target", C.c_char_p), ("threads", C.c_int32), ("reserved", C.c_int32),
                ("exclude", C.c_char_p)]  # fmt: skip


Parameter = tuple[str, torch.Tensor, "torch.Tensor | None"]  # declaration, data, where its gradient goes


class Library:
    def __init__(self, path: pathlib.Path, device: str):
        self.device = device
        self.c = C.CDLL(str(path.resolve()))
        self.c.foveal_plan_workspace_bytes.restype = C.c_size_t
        self.c.foveal_plan_kernel.restype = self.c.foveal_last_error.restype = C.c_char_p

    def check(self, failed: int) -> None:
        if failed:
            raise RuntimeError(self.c.foveal_last_error().decode())


class Plan:
    """One pass over torch tensors [batch, seqlen, heads, dim], or packed [tokens, heads, dim] with lengths: (cumulative, the longest)."""

    def __init__(self, library: Library, backward: bool, mask: str | None = None, score: str | None = None, params: Sequence[Parameter] = (),
                 reproducible: bool = False, lengths: tuple[torch.Tensor, int] | None = None, **tensors: torch.Tensor):  # fmt: skip
        self.library, self.kept = library, []  # type: Library, list[Any]
        rows = (Param * max(1, len(params)))(*[Param(d.encode(), self._view(t), self._view(g)) for d, t, g in params])
        self.call = Call(struct_size=C.sizeof(Call), pass_=int(backward), param_count=len(params), params=rows if params else None,
                         **{name: self._view(t) for name, t in tensors.items()})  # fmt: skip
        if lengths is not None:
            self.call.cu_seqlens_q = self.call.cu_seqlens_kv = self._view(lengths[0])
            self.call.max_seqlen_q = self.call.max_seqlen_kv = lengths[1]
        self.kept.append(rows)
        attention = Attention(C.sizeof(Attention), score and score.encode(), mask and mask.encode(), determinism=int(reproducible))
        options = Options(C.sizeof(Options), library.device.encode())
        self.plan = C.c_void_p()
        library.check(library.c.foveal_plan_create(C.byref(attention), C.byref(self.call), C.byref(options), C.byref(self.plan)))
        memory = torch.empty(library.c.foveal_plan_workspace_bytes(self.plan) + 256, dtype=torch.uint8, device=library.device)
        self.workspace = memory[-memory.data_ptr() % 256 :]
        self.kernel: str = library.c.foveal_plan_kernel(self.plan).decode()

    def __del__(self) -> None:
        if getattr(self, "plan", None):
            self.library.c.foveal_plan_destroy(self.plan)

    def _view(self, t: torch.Tensor | None) -> Any:
        if t is None:
            return None
        view = Tensor(t.data_ptr(), _DTYPES[t.dtype], int(t.is_cuda), 0, t.dim())
        view.sizes[: t.dim()], view.strides[: t.dim()] = t.shape, t.stride()
        self.kept.append((view, t))
        return C.pointer(view)

    def run(self) -> None:
        stream = C.c_void_p(torch.cuda.current_stream().cuda_stream if self.library.device == "cuda" else None)
        self.library.check(self.library.c.foveal_plan_run(self.plan, C.byref(self.call), C.c_void_p(self.workspace.data_ptr()), stream))


CAUSAL = "kv_idx <= q_idx"


class Passes:
    """Tensors of a case, N(0, 1), and plans of both passes over them. The results are NaN until they are computed."""

    def __init__(self, library: Library, case: Case):
        self.library, self.case, self.mask = library, case, CAUSAL if case.causal else None
        given = {name: t.transpose(1, 2) for name, t in case.tensors(library.device).items()}
        self.backward_only = {"dout": given.pop("dout"), **{f"d{name}": torch.full_like(t, math.nan) for name, t in given.items()}}
        self.tensors = {**given, "out": torch.full_like(self.backward_only["dout"], math.nan),
                        "lse": torch.empty(case.batch, case.heads_q, case.seqlen_q, device=library.device)}  # fmt: skip

    def plan(self, backward: bool, **what: Any) -> Plan:
        """A mask in `what` goes before the case's."""
        tensors = {**self.tensors, **(self.backward_only if backward else {})}
        return Plan(self.library, backward, **{"mask": self.mask, **what, **tensors})

    def both(self, **what: Any) -> tuple[Plan, Plan]:
        """Each has run once: backward has the results of forward."""
        params = what.pop("params", ())
        plans = self.plan(False, params=[(declaration, t, None) for declaration, t, _ in params], **what), self.plan(True, params=params, **what)
        for plan in plans:
            plan.run()
        return plans

    def milliseconds(self, plan: Plan, repeat_ms: float = 30.0) -> float:
        return settled_ms(plan.run, self.library.device, repeat_ms)


def compare(what: str, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest difference: its norm over that expected. RuntimeError where it is no rounding: nothing wrong is timed."""
    difference = max(((f.double() - e.double()).norm() / e.double().norm()).item() for f, e in zip(found, expected, strict=True))
    if not difference < 1e-2:
        raise RuntimeError(f"{what}: results differ by {difference}")
    return float(difference)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Callable[[], torch.Tensor]:
    """torch's attention of [batch, heads, seqlen, dim]: cuDNN's on a GPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if q.is_cuda else SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return call


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libfoveal.so; FOVEAL_COMMIT says what it was built from")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only to try a verb")


def origin(device: str) -> dict[str, Any]:
    return machine.describe(device, None, **({"cudnn": torch.backends.cudnn.version()} if device == "cuda" else {}))


def rival(device: str) -> str:
    return "cudnn" if device == "cuda" else "torch_sdpa"
