"""Interleaved timing: every round runs every contender once, so that they share the machine's moods; medians and spreads per contender."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable

import torch


@dataclass
class Timing:
    median_ms: float
    low_ms: float  # first and third quartile
    high_ms: float
    repeats: int

    @staticmethod
    def of(samples: list[float]) -> "Timing":
        ordered = sorted(samples)
        last = len(ordered) - 1
        return Timing(statistics.median(ordered), ordered[last // 4], ordered[last - last // 4], len(ordered))


class CpuClock:
    """Wall time with several threads, CPU time of the process with one: the latter ignores what else the machine does."""

    def __init__(self, threads: int):
        self._now = time.process_time if threads == 1 else time.perf_counter

    def measure(self, run: Callable[[], Any]) -> float:
        start = self._now()
        run()
        return (self._now() - start) * 1e3


class CudaClock:
    """Device time between events around one call, the L2 cache flushed before; flushed often enough that the host, which enqueues the call
    meanwhile, is not what is timed."""

    FLUSHES = 10  # about 60 us each on an H200: more than a framework's backward takes to enqueue, on a busy host too

    def __init__(self) -> None:
        self._flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def measure(self, run: Callable[[], Any]) -> float:
        for _ in range(self.FLUSHES):
            self._flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop))


def interleave(
    measures: dict[str, Callable[[], float]], budget_s: float, min_rounds: int = 5, max_rounds: int = 60
) -> dict[str, Timing]:
    """measures: by contender, what runs once and gives its milliseconds."""
    for measure in measures.values():
        measure()
    samples: dict[str, list[float]] = {name: [] for name in measures}
    start = time.perf_counter()
    for done in range(max_rounds):
        for name, measure in measures.items():
            samples[name].append(measure())
        if done + 1 >= min_rounds and time.perf_counter() - start > budget_s:
            break
    return {name: Timing.of(values) for name, values in samples.items()}


def call_ms(run: Callable[[], Any], device: str, budget_s: float = 0.05) -> float:
    """Wall time of a call that is waited for, median of a few: kernels and host together, as a caller sees one call alone."""
    samples: list[float] = []
    begin = time.perf_counter()
    while not samples or (len(samples) < 5 and time.perf_counter() - begin < budget_s):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def settled_ms(run: Callable[[], Any], device: str, repeat_ms: float = 60.0, warmup_ms: float = 100.0) -> float:
    """Median of kernel times with the L2 cache flushed between repeats, once `run` has run for a while: a GPU that has rested, or did lighter work, is
    quicker at first than it stays."""
    if device == "cpu":
        return call_ms(run, device, repeat_ms / 1e3)
    from triton.testing import do_bench

    return float(do_bench(run, warmup=warmup_ms, rep=repeat_ms, return_mode="median"))


def host_us(run: Callable[[], Any], device: str, batches: int = 60, calls: int = 20) -> float:
    """Host time of one call, median over batches: CPU time of the process on the CPU, so that other work on the machine does not count;
    wall time on a GPU, whose kernels run meanwhile."""
    now = time.process_time_ns if device == "cpu" else time.perf_counter_ns
    for _ in range(20):
        run()
    samples = []
    for _ in range(batches):
        if device == "cuda":
            torch.cuda.synchronize()  # never wait for room in the queue
        start = now()
        for _ in range(calls):
            run()
        samples.append((now() - start) / calls / 1e3)
    return statistics.median(samples)
