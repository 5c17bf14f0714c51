"""`foveal-bench run`: times a suite, foveal and its rivals interleaved in one process, and writes one JSON line per case and contender."""

from __future__ import annotations

import gc
import json
import pathlib
import sys
import time
from typing import Any

import torch

from . import golden, machine, rivals
from .case import Case, read_suite
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


def run_case(case: Case, device: str, clock: Any, contenders: set[str] | None, budget_s: float, rounds: int) -> list[dict[str, Any]]:
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
                    reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
                    if name == "foveal":
                        print(f"  foveal failed: {error}", file=sys.stderr)
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
    return [{"suite": case.suite, "case": case.name, "contender": name, **row} for name, row in rows.items()]


def run(
    suite: pathlib.Path,
    device: str,
    threads: int,
    output: pathlib.Path,
    contenders: set[str] | None,
    budget_s: float,
    rounds: int = 5,
    longest: int | None = None,
) -> int:
    """Appends to `output`; returns how many cases foveal did not answer rightly."""
    import foveal

    torch.set_num_threads(threads)
    foveal.set_num_threads(threads)
    clock = CudaClock() if device == "cuda" else CpuClock(threads)
    cases = [case for case in read_suite(suite.read_text(), suite.stem) if longest is None or case.seqlen_q <= longest]
    origin = machine.describe(device, threads)
    failures = 0
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for number, case in enumerate(cases, 1):
            rows = run_case(case, device, clock, contenders, budget_s, rounds)
            for row in rows:
                file.write(json.dumps({**row, **origin}) + "\n")
            file.flush()
            times = "  ".join(
                f"{r['contender']} {r['ms']:.3f} ms ({r['gflops']:.0f})" if "ms" in r else f"{r['contender']} -" for r in rows
            )
            print(f"[{number}/{len(cases)}] {case.name}: {times}", flush=True)
            failures += any(r["contender"] == "foveal" and "refused" in r for r in rows)
            gc.collect()
    return failures
