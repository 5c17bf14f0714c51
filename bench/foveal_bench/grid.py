"""Plain attention on a GPU by libfoveal.so, beside cuDNN (torch SDPA) in the same process. Results are compared before they are timed. What is timed runs
for 100 ms before: a GPU that has rested, or did lighter work, is quicker at first than it stays.

    python -m foveal_bench grid --library build/release/libfoveal.so     # in bench/; torch and triton are enough
"""

from __future__ import annotations

import argparse
import pathlib

import torch

from . import capi
from .case import Case, read_suite
from .progress import progress
from .results import Rows
from .timing import settled_ms


def arguments(parser: argparse.ArgumentParser) -> None:
    capi.arguments(parser)
    suite = pathlib.Path(__file__).resolve().parents[1] / "suites/fa-gpu.txt"
    parser.add_argument("--suite", type=pathlib.Path, default=suite, help="problem lines of plain attention (default: 16k tokens, hidden size 2048, bf16)")


def measure(library: capi.Library, case: Case, rows: Rows) -> None:
    """One pass of a case; cuDNN's backward is that of a graph that its forward made."""
    passes = capi.Passes(library, case)
    if case.backward:
        plan = passes.both()[1]
    else:
        plan = passes.plan(False)
        plan.run()
    q, k, v = (passes.tensors[name].transpose(1, 2).detach().requires_grad_() for name in "qkv")
    theirs = capi.sdpa(q, k, v, case.causal)
    if case.backward:
        out, dout = theirs(), passes.backward_only["dout"].transpose(1, 2)

        def call() -> list[torch.Tensor]:
            return list(torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))

        expected, found = call(), [passes.backward_only[f"d{name}"] for name in "qkv"]
    else:
        call = theirs  # type: ignore[assignment]
        expected, found = [theirs()], [passes.tensors["out"]]
    difference = capi.compare(case.name, found, [e.transpose(1, 2) for e in expected])
    rows.add("grid", case.name, contender="foveal", ms=settled_ms(plan.run, library.device), kernel=plan.kernel, difference=difference)
    rows.add("grid", case.name, contender=capi.rival(library.device), ms=settled_ms(call, library.device))


def main(options: argparse.Namespace) -> None:
    library, rows = capi.Library(options.library, options.device), Rows(options.output, capi.origin(options.device))
    for case in progress(read_suite(options.suite.read_text(), "grid")):
        measure(library, case, rows)
