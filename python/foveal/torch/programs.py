"""The program of a score and a mask, also where torch.compile traces the call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Expr, Program
from ..describe import Bound, program, trace
from ..signatures import Mask, Options, ScoreMod
from .tracing import TorchTracer

# How a public function names what it calls: in eager code the program itself; where torch.compile traces, its key, a constant.
Found = Program | str


def program_of(found: Found) -> Program:
    return program(found) if isinstance(found, str) else found


def key_of(found: Found) -> str:
    return found if isinstance(found, str) else found.key


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_heads_first(key: str) -> bool:
    return program(key).heads_first


def bound(
    score_mod: ScoreMod, mask: Mask, options: Options, arguments: dict[str, Any], heads_first: bool, like: Tensor | None = None
) -> tuple[Found, list[Tensor]]:
    """For q like this one: the program, and the tensors that are its parameters."""
    if torch.compiler.is_compiling():
        if isinstance(score_mod, _CONSTANT) and isinstance(mask, _CONSTANT) and options == Options():
            given = {**(arguments.get("params") or {}), **({} if arguments.get("sink") is None else {"sink": arguments["sink"]})}
            looks = tuple([(name, tuple([_of_this_call(extent) for extent in t.shape]), t.dtype) for name, t in given.items()])
            rest = tuple([(name, _of_this_call(value)) for name, value in arguments.items() if name not in ("params", "sink")])
            return _constant_key(score_mod, mask, looks, heads_first, rest), list(given.values())
        outside: tuple[str, list[Tensor]] = _key_outside(score_mod, mask, options, arguments, heads_first, like)
        return outside
    found = _trace_like(score_mod, mask, options, arguments, heads_first, like)
    return found.program, found.arrays


# torch.compile takes objects like Expr for constants from 2.13 on (not yet in 2.11); before, they cost a graph break too.
_CONSTANT = (Expr, str, type(None)) if torch.torch_version.TorchVersion(torch.__version__) >= "2.13" else (str, type(None))


def _of_this_call(value: Any) -> Any:
    """A program holds its numbers, and the sizes of what it reads: of one that torch.compile keeps open, this call's, and others compile anew."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value) if isinstance(value, (int, float)) else value


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_key(score_mod: Expr | str | None, mask: Expr | str | None, looks: tuple[Any, ...], heads_first: bool, rest: tuple[Any, ...]) -> str:
    """For torch.compile, which calls this while it traces: all arguments are constants. looks: of the tensors given by name."""
    given = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape, dtype in looks}
    arguments = {**dict(rest), "sink": given.pop("sink", None), "params": given}
    return trace(score_mod, mask, Options(), arguments, TorchTracer, heads_first).program.key


def _trace_like(
    score_mod: ScoreMod, mask: Mask, options: Options, arguments: dict[str, Any], heads_first: bool, like: Tensor | None
) -> Bound:
    tracer = TorchTracer.like(like.device, like.dtype) if isinstance(like, Tensor) else TorchTracer
    return trace(score_mod, mask, options, arguments, tracer, heads_first)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _key_outside(*traced: Any) -> tuple[str, list[Tensor]]:
    """Functions are run on symbols: a graph break."""
    found = _trace_like(*traced)
    return found.program.key, found.arrays
