"""Times suites, foveal and its rivals interleaved in one process; a wrong answer is refused before it is timed. A row for each case and contender.

    foveal-bench run bench/suites/peers-cpu.txt --contenders foveal,torch_sdpa
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import sys
import time
from typing import Any

import torch

from . import golden, machine, rivals
from .case import Case, read_suite
from .progress import progress
from .results import Rows
from .timing import CpuClock, CudaClock, call_ms, interleave


def _peak_memory(job: Any, case: Case, device: str) -> int | None:
    if device != "cuda" or job.milliseconds is not None:  # torch's allocator knows only torch's memory
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    job.backward() if case.backward else job.forward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def run_case(case: Case, device: str, clock: Any, contenders: set[str] | None, budget_s: float, rounds: int) -> dict[str, dict[str, Any]]:
    """By contender."""
    tensors = case.tensors(device)
    gold = golden.compute(case, tensors, device)
    rows: dict[str, dict[str, Any]] = {}
    jobs: dict[str, Any] = {}
    for module in rivals.modules():
        for name in module.names(device):
            if contenders is not None and name not in contenders:
                continue
            reason = module.supports(name, case, device)
            if reason is None:
                try:
                    start = time.perf_counter()
                    job = module.prepare(name, case, tensors, device)
                    reason = golden.check(case, gold, job)
                    first = time.perf_counter() - start
                    rows[name] = {"first_call_s": round(first, 4), "peak_bytes": _peak_memory(job, case, device)}
                    if reason is None:
                        jobs[name] = job
                except Exception as error:  # a rival that fails is a result, not the end of the run
                    reason = machine.reason(error)
            if reason is not None:
                rows.setdefault(name, {})["refused"] = reason

    def measure(job: Any) -> Any:
        if job.milliseconds is not None:
            return lambda: job.milliseconds(case.backward)
        return lambda: clock.measure(job.backward if case.backward else job.forward)

    for name, timing in interleave({name: measure(job) for name, job in jobs.items()}, budget_s, rounds).items():
        rows[name] |= {
            "ms": round(timing.median_ms, 5),
            "call_ms": round(call_ms(jobs[name].backward if case.backward else jobs[name].forward, device), 5),
            "ms_quartiles": [round(timing.low_ms, 5), round(timing.high_ms, 5)],
            "repeats": timing.repeats,
            "gflops": round(case.flops / timing.median_ms / 1e6, 2),
        }
    return rows


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suites", nargs="+", type=pathlib.Path, help="files of problem lines")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1: times are CPU times)")
    parser.add_argument("--contenders", help="names, with commas between (default: all that are installed)")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of repeats for each case")
    parser.add_argument("--longest", type=int, help="leave out cases with more queries than this")
    parser.add_argument("--rounds", type=int, default=5, help="at least so many repeats of each contender")


def main(options: argparse.Namespace) -> int:
    """1 where foveal did not answer a case rightly, 2 for a contender that is not here."""
    import foveal

    torch.set_num_threads(options.threads)
    foveal.set_num_threads(options.threads)
    clock = CudaClock() if options.device == "cuda" else CpuClock(options.threads)
    offered = [name for module in rivals.modules() for name in module.names(options.device)]
    contenders = set(options.contenders.split(",")) if options.contenders else None
    if unknown := sorted((contenders or set()) - set(offered)):
        print(f"foveal-bench run: --contenders {','.join(unknown)}: not on this machine; expected some of {', '.join(offered)}", file=sys.stderr)
        return 2
    cases = [case for suite in options.suites for case in read_suite(suite.read_text(), suite.stem)]
    rows = Rows(options.output, machine.describe(options.device, options.threads))
    failed = False
    for case in progress([case for case in cases if options.longest is None or case.seqlen_q <= options.longest]):
        for contender, found in run_case(case, options.device, clock, contenders, options.budget, options.rounds).items():
            rows.add(case.suite, case.name, contender=contender, **found)
            failed |= contender == "foveal" and "refused" in found
        gc.collect()
    return int(failed)
