"""Programmed and trained scores on a GPU by libfoveal.so: B4 S4096, hidden size 1024, bf16, causal, each in turns with the plain pass, as clocks differ from
one minute to the next. ms: each for 30 ms after 100 ms of itself; short_ms: in turns of 30 ms, in which neither changes the clocks much.

    python -m foveal_bench trained --library build/release/libfoveal.so     # in bench/; torch and triton are enough
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, Callable

import torch

from . import capi
from .case import parse
from .progress import progress
from .results import Rows
from .timing import settled_ms

DISTANCE = "q_idx - kv_idx"
BEHIND = f"max({DISTANCE}, 0)"
T5_BUCKET = f"where({BEHIND} < 16, {BEHIND}, min(16 + to_integer(log(to_real(max({BEHIND}, 1)) / 16.0) / 2.0794415 * 16.0), 31))"
WINDOW = f"({capi.CAUSAL}) & ({DISTANCE} <= 1024)"
DOCUMENTS = f"({capi.CAUSAL}) & (doc[q_idx] == doc[kv_idx])"


def programs(heads: int, length: int) -> list[tuple[str, str, str | None, dict[str, tuple[Any, ...]]]]:
    """Name, mask, score_mod, shapes of trained parameters: fp32, or bf16 where their shape ends with that."""
    causal = capi.CAUSAL
    return [
        ("plain", causal, None, {}),
        ("ALiBi", causal, "score + to_real(kv_idx - q_idx) * exp2(-8.0 * to_real(head + 1) / 16.0)", {}),
        ("softcap 30", causal, "tanh(score / 30) * 30", {}),
        ("window 1024", WINDOW, None, {}),
        ("8 documents", DOCUMENTS, None, {}),
        ("relative bias, clamped at 128, trained", causal, f"score + t[head, clamp({DISTANCE}, -128, 128) + 128]", {"t": (heads, 257)}),
        ("relative bias, all distances, trained", causal, f"score + t[head, {DISTANCE} + {length - 1}]", {"t": (heads, 2 * length - 1)}),
        ("relative bias, T5 buckets, trained", causal, f"score + t[{T5_BUCKET}, head]", {"t": (32, heads)}),
        ("bias per head, trained", causal, "score + t[head]", {"t": (heads,)}),
        ("gate per head, trained", causal, "score * t[head]", {"t": (heads,)}),
        ("gate per query, trained", causal, "score * t[head, q_idx]", {"t": (heads, length)}),
        ("bias per key, trained", causal, "score + t[kv_idx]", {"t": (length,)}),
        ("ALiBi slopes, trained", causal, "score + t[head] * to_real(kv_idx - q_idx)", {"t": (heads,)}),
        ("softcap about 30, trained", causal, "tanh(score / (30 * t[0])) * (30 * t[0])", {"t": (1,)}),
        ("softcap about 1, trained", causal, "tanh(score / t[0]) * t[0]", {"t": (1,)}),
        ("two parameters, trained", causal, f"score * t[head] + u[clamp({DISTANCE}, -128, 128) + 128]", {"t": (heads,), "u": (257,)}),
        ("full bias (H, S, S) in bf16, trained", causal, "score + t[head, q_idx, kv_idx]", {"t": (heads, length, length, "bf16")}),
        ("full bias (H, S, S) in fp32, trained", causal, "score + t[head, q_idx, kv_idx]", {"t": (heads, length, length)}),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    capi.arguments(parser)
    parser.add_argument("--head-dims", default="64,128,256")
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=1024, help="heads times head_dim")
    parser.add_argument("--programs", default="", help="those whose names have one of these words, with commas between (default: all)")


def parameters(shapes: dict[str, tuple[Any, ...]], documents: bool, length: int, device: str) -> list[capi.Parameter]:
    made: list[capi.Parameter] = []
    for name, shape in shapes.items():
        shape, dtype = (shape[:-1], torch.bfloat16) if shape[-1] == "bf16" else (shape, torch.float32)
        data = torch.rand(*shape, device=device, dtype=dtype) + 0.5
        made.append((f"{name}: real[{', '.join(map(str, shape))}]", data, torch.empty_like(data)))
    if documents:
        made.append((f"doc: integer[{length}]", (torch.arange(length, device=device) // max(1, length // 8)).int(), None))
    return made


def in_turns(pair: dict[str, Callable[[], None]], turns: int, **options: Any) -> dict[str, float]:
    """To and fro, so that each comes after the same work."""
    times: dict[str, list[float]] = {key: [] for key in pair}
    for turn in range(turns):
        for key, call in list(pair.items())[:: -1 if turn % 2 else 1]:
            times[key].append(settled_ms(call, **options))
    return {key: statistics.median(values) for key, values in times.items()}


def main(options: argparse.Namespace) -> None:
    library, rows = capi.Library(options.library, options.device), Rows(options.output, capi.origin(options.device))
    dims = [int(dim) for dim in options.head_dims.split(",")]
    words = options.programs.split(",")
    chosen = [(dim, program) for dim in dims for program in programs(options.hidden // dim, options.seqlen) if any(word in program[0] for word in words)]
    for dim, (name, mask, score, shapes) in progress(chosen):
        (case,) = parse(f"backward bf16 b4 h{options.hidden // dim} q{options.seqlen} d{dim} causal", "trained")
        passes = capi.Passes(library, case)
        params = parameters(shapes, mask == DOCUMENTS, options.seqlen, library.device)
        plans = passes.both(mask=mask, score=score, params=params)
        for direction, plan, plain in zip(("forward", "backward"), plans, (passes.plan(False), passes.plan(True)), strict=True):
            pair = {"plain_ms": plain.run, "ms": plan.run}
            short = in_turns(pair, 6, device=library.device, repeat_ms=15.0, warmup_ms=15.0)
            rows.add("trained", f"{direction} d{dim} {name}", name=name, head_dim=dim, mask=mask, score_mod=score, contender="foveal", kernel=plan.kernel,
                     **in_turns(pair, 4, device=library.device, repeat_ms=30.0), **{f"short_{key}": value for key, value in short.items()})  # fmt: skip
