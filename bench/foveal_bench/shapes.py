"""On a GPU by libfoveal.so: shapes that are not round, each with a round neighbour; what reproducible gradients cost; few queries beside cuDNN, and with scores
and masks by programs beside FlexAttention. Speed counts the operations of pairs that exist (half of them where causal).

    python -m foveal_bench shapes --library build/release/libfoveal.so     # in bench/; torch and triton are enough
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, Callable

import torch

from . import capi
from .case import Case, parse
from .progress import progress
from .results import Rows
from .timing import settled_ms

SHAPES = {  # name: line, the round shape beside it
    "S 384": ("both bf16 b43 h16 q384 d128", None),
    "S 328": ("both bf16 b50 h16 q328 d128", "S 384"),
    "S 4096": ("both bf16 b4 h16 q4096 d128", None),
    "S 4096 causal": ("both bf16 b4 h16 q4096 d128 causal", None),
    "S 4072": ("both bf16 b4 h16 q4072 d128", "S 4096"),
    "S 2376": ("both bf16 b7 h16 q2376 d128", "S 2048"),
    "S 2376 causal": ("both bf16 b7 h16 q2376 d128 causal", "S 2048 causal"),
    "S 2048": ("both bf16 b8 h16 q2048 d128", None),
    "S 2048 causal": ("both bf16 b8 h16 q2048 d128 causal", None),
    "D 64": ("both bf16 b4 h32 q4096 d64", None),
    "D 72": ("both bf16 b4 h32 q4096 d72", "D 64"),
    "D 80": ("both bf16 b4 h32 q4096 d80", "D 64"),
    "D 64 causal": ("both bf16 b4 h32 q4096 d64 causal", None),
    "D 72 causal": ("both bf16 b4 h32 q4096 d72 causal", "D 64 causal"),
    "D 80 causal": ("both bf16 b4 h32 q4096 d80 causal", "D 64 causal"),
    "D 192": ("both bf16 b4 h16 q4096 d192", None),
    "D 192:128": ("both bf16 b4 h16 q4096 d192:128", "D 192"),
    "D 192 causal": ("both bf16 b4 h16 q4096 d192 causal", None),
    "D 192:128 causal": ("both bf16 b4 h16 q4096 d192:128 causal", "D 192 causal"),
    "heads 32:32": ("both bf16 b2 h32 q4096 d128 causal", None),
    "heads 32:8": ("both bf16 b2 h32:8 q4096 d128 causal", "heads 32:32"),
    "heads 64:64": ("both bf16 b1 h64 q4096 d128 causal", None),
    "heads 64:8": ("both bf16 b1 h64:8 q4096 d128 causal", "heads 64:64"),
    **{f"SQ {n}": (f"forward bf16 b64 h32:8 q{n}:4096 d128", None if n == 8 else "SQ 8") for n in (1, 2, 3, 5, 7, 8)},  # a decode step has no backward
}
REPRODUCIBLE = [f"backward bf16 b{16384 // length} h{2048 // dim} q{length} d{dim}{causal}"
                for dim in (64, 128, 256) for causal in ("", " causal") for length in (1024, 4096, 16384)]  # fmt: skip
FEW_QUERIES = [f"forward bf16 {sizes}" for sizes in (
    "b64 h32:8 q1:4096 d128", "b64 h32:8 q2:4096 d128", "b64 h32:8 q8:4096 d128", "b64 h32 q1:2048 d128", "b64 h28:4 q1:4096 d128",
    "b64 h32:8 q1:4096 d64", "b64 h8:1 q1:8192 d256", "b8 h32:8 q1:8192 d128", "b1 h64:8 q1:4096 d128", "b1 h32:8 q1:32768 d128",
    "b1 h32 q1:16384 d128", "b4 h32:8 q4:16384 d128", "b1 h8:1 q1:131072 d128")]  # fmt: skip
FEW_QUERIES_SCORES = [f"forward bf16 {sizes} score={program}" for sizes in ("b64 h32:8 q1:4096 d128", "b16 h16:8 q1:8192 d256", "b1 h32:8 q1:32768 d128")
                      for program in ("softcap", "slopes", "lengths", "softcap_and_lengths")]  # fmt: skip


def shape(library: capi.Library, rows: Rows, item: tuple[str, tuple[str, str | None]]) -> None:
    name, (line, neighbour) = item
    for case in parse(line, "shapes"):
        passes = capi.Passes(library, case)
        plan = passes.both()[1] if case.backward else passes.plan(False)
        plan.run()
        ms = passes.milliseconds(plan)
        rows.add("shapes", case.name, name=name, neighbour=neighbour, contender="foveal", ms=ms, tflops=case.flops / ms * 1e-9, kernel=plan.kernel)


def packed(library: capi.Library, rows: Rows, problem: tuple[int, int, bool]) -> None:
    """Sequences of random lengths up to the longest, one after the other."""
    count, most, causal = problem
    lengths = torch.randint(1, most, (count,), generator=torch.Generator().manual_seed(64))
    total, longest = int(lengths.sum()), int(lengths.max())
    cumulative = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to(library.device)
    (case,) = parse(f"backward bf16 b1 h16 q{total} d128{' causal' if causal else ''}", "shapes")
    passes = capi.Passes(library, case)
    for tensors in (passes.tensors, passes.backward_only):
        tensors.update({name: t[0] for name, t in tensors.items()})
    name = f"{count} random lengths{' causal' if causal else ''}"
    products = 2.0 * 16 * int((lengths * lengths).sum()) * 256 / (2 if causal else 1)
    for direction, factor, plan in zip(("forward", "backward"), (1.0, 2.5), passes.both(lengths=(cumulative, longest)), strict=True):
        ms = passes.milliseconds(plan)
        rows.add("shapes", f"{direction} bf16 h16 d128 {name}", name=name, neighbour=f"S 2048{' causal' if causal else ''}", contender="foveal", ms=ms,
                 tflops=factor * products / ms * 1e-9, kernel=plan.kernel, lengths=lengths.tolist())  # fmt: skip


def reproducible(library: capi.Library, rows: Rows, line: str) -> None:
    (case,) = parse(line, "reproducible")
    passes = capi.Passes(library, case)
    passes.plan(False).run()
    for contender in ("fast", "reproducible"):
        plan = passes.plan(True, reproducible=contender == "reproducible")
        rows.add("reproducible", case.name, contender=contender, ms=passes.milliseconds(plan), kernel=plan.kernel)


def beside(rows: Rows, suite: str, passes: capi.Passes, plan: capi.Plan, rival: str, theirs: Callable[[], torch.Tensor], keys: int) -> None:
    """Medians in turns, once results agree. theirs: [batch, head, query, dim]; keys: of all sequences."""
    case, device = passes.case, passes.library.device
    plan.run()
    difference = capi.compare(case.name, [passes.tensors["out"]], [theirs().transpose(1, 2)])
    turns = [(settled_ms(plan.run, device, 30), settled_ms(theirs, device, 30)) for _ in range(3)]
    ours_ms, theirs_ms = (statistics.median(times) for times in zip(*turns, strict=True))
    rows.add(suite, case.name, contender="foveal", ms=ours_ms, kernel=plan.kernel, difference=difference, kv_bytes=2 * 2 * case.heads_kv * keys * case.head_dim)
    rows.add(suite, case.name, contender=rival, ms=theirs_ms)


def few_queries(library: capi.Library, rows: Rows, line: str) -> None:
    (case,) = parse(line, "few-queries")
    passes = capi.Passes(library, case)
    q, k, v = (passes.tensors[name].transpose(1, 2) for name in "qkv")
    theirs = capi.sdpa(q, k, v, causal=False)
    beside(rows, "few-queries", passes, passes.plan(False), capi.rival(library.device), theirs, case.batch * case.seqlen_kv)


def program(case: Case, device: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The case's score for foveal and for FlexAttention, and how many keys are read. lengths: how many keys each sequence has, a quarter to all of them."""
    from torch.nn.attention.flex_attention import create_block_mask

    slopes = 2.0 ** (-8 * torch.arange(1, case.heads_q + 1, device=device, dtype=torch.float32) / case.heads_q)
    keys = torch.randint(case.seqlen_kv // 4, case.seqlen_kv, (case.batch,), generator=torch.Generator().manual_seed(1), dtype=torch.int32).to(device)
    ahead = case.seqlen_kv - case.seqlen_q
    ours: dict[str, Any] = {"params": []}
    flex: dict[str, Any] = {"enable_gqa": case.heads_q != case.heads_kv}
    if "softcap" in case.score:
        ours["score"], flex["score_mod"] = "tanh(score / 30) * 30", lambda s, b, h, q, k: torch.tanh(s / 30) * 30
    if case.score == "slopes":
        ours["score"], flex["score_mod"] = f"score + slope[head] * (kv_idx - q_idx - {ahead})", lambda s, b, h, q, k: s + slopes[h] * (k - q - ahead)
        ours["params"].append((f"slope: real[{case.heads_q}]", slopes, None))
    if "lengths" in case.score:
        ours["mask"] = "kv_idx < length[batch]"
        ours["params"].append((f"length: integer[{case.batch}]", keys, None))
        flex["block_mask"] = create_block_mask(lambda b, h, q, k: k < keys[b], case.batch, None, case.seqlen_q, case.seqlen_kv, device=device)
    return ours, flex, int(keys.sum()) if "lengths" in case.score else case.batch * case.seqlen_kv


def few_queries_scores(library: capi.Library, rows: Rows, line: str) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    (case,) = parse(line, "few-queries-scores")
    passes = capi.Passes(library, case)
    ours, flex, keys = program(case, library.device)
    q, k, v = (passes.tensors[name].transpose(1, 2) for name in "qkv")
    compiled = torch.compile(flex_attention, dynamic=False)
    beside(rows, "few-queries-scores", passes, passes.plan(False, **ours), "flex", lambda: compiled(q, k, v, **flex), keys)


SUITES: dict[str, tuple[Callable[[capi.Library, Rows, Any], None], list[Any]]] = {
    "shapes": (shape, list(SHAPES.items())),
    "packed": (packed, [(64, 4096, False), (64, 4096, True)]),
    "reproducible": (reproducible, REPRODUCIBLE),
    "few-queries": (few_queries, FEW_QUERIES),
    "few-queries-scores": (few_queries_scores, FEW_QUERIES_SCORES),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    capi.arguments(parser)
    parser.add_argument("--suites", default=",".join(SUITES), help="which of them, with commas between (default: all)")


def main(options: argparse.Namespace) -> None:
    library, rows = capi.Library(options.library, options.device), Rows(options.output, capi.origin(options.device))
    for measure, problem in progress([(SUITES[name][0], problem) for name in options.suites.split(",") for problem in SUITES[name][1]]):
        measure(library, rows, problem)
