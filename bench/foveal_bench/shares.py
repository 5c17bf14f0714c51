"""The peaks of this machine, what share of them the CPU kernels reach, and what they gain from a second core; from foveal_micro, `foveal bench` and the
Python package.

    foveal-bench shares --build build/release     # in the repository
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import tempfile
import time
from typing import Any, Callable, Iterator

import torch

import foveal

from . import case as cases
from . import machine
from .progress import progress
from .results import Rows
from .timing import interleave

SUITE = "peak-cpu"
TWO_CORES = "two-cores"


def _kernels(build: pathlib.Path, seconds: float) -> Iterator[dict[str, Any]]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [str(build / "cli/foveal"), "bench", "--suite", f"bench/suites/{SUITE}.txt", "--no-verify", "--no-unfused"]
        subprocess.run([*command, "--seconds", str(seconds), "--json", file.name], check=True)
        for row in json.load(open(file.name)):
            yield {
                "suite": SUITE,
                "case": row["problem"],
                "kernel": row["kernel"],
                "ms": round(row["timing"]["median_s"] * 1e3, 4),
                "ms_quartiles": [round(row["timing"][f"quartile_{end}_s"] * 1e3, 4) for end in ("low", "high")],
                "repeats": row["timing"]["repeats"],
                "quiet": row["timing"]["quiet"],
                "gflops": round(row["gflops"], 2),
                "peak_gflops": round(row["peak_gflops"], 2),
            }


def _peaks(build: pathlib.Path) -> Iterator[dict[str, Any]]:
    measured = json.loads(subprocess.run([build / "bench/micro/foveal_micro", "--json"], check=True, capture_output=True).stdout)
    for unit in measured["units"]:
        if unit["available"]:
            yield {
                "suite": "peaks",
                "case": unit["instruction"],
                "gflops": unit["best"],
                "two_threads_gflops": unit["threads_cpu"],
                "two_threads_gain": round(unit["threads_wall"] / unit["best"], 3),
            }


def _copies() -> Iterator[dict[str, Any]]:
    """Memory bandwidth: what a copy reads and writes, of more than any cache holds."""
    source = torch.empty(1 << 28, dtype=torch.uint8)
    target = torch.empty_like(source)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        best = min(_seconds(lambda: target.copy_(source)) for _ in range(10))
        yield {"suite": "memory", "case": f"copy, {threads} threads", "threads": threads, "gbytes": round(2 * source.numel() / best / 1e9, 1)}


def _two_cores(seconds: float) -> Iterator[dict[str, Any]]:
    """Wall time with one thread and with two, by turns: lower quartiles, for a core that a host takes away doubles what two threads need and nothing else,
    and the peaks beside them are the best of their runs."""
    text = pathlib.Path(f"bench/suites/{TWO_CORES}.txt").read_text()
    for case in cases.read_suite(text, TWO_CORES):
        tensors = {name: tensor.transpose(1, 2) for name, tensor in case.tensors("cpu").items()}
        q, k, v, dout = (tensors[name] for name in ("q", "k", "v", "dout"))
        mask = foveal.causal() if case.causal else None

        def planned(threads: int) -> Callable[[], float]:
            options = foveal.Options(threads=threads)
            out, lse = foveal.forward(q, k, v, mask=mask, options=options)
            plan = foveal.plan(q, k, v, mask=mask, backward=case.backward, options=options)
            given = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "workspace": plan.workspace()}
            if case.backward:
                given |= {"dout": dout, **{f"d{name}": torch.empty_like(tensors[name]) for name in "qkv"}}
            return lambda: _seconds(lambda: plan.run(**given)) * 1e3

        timings = interleave({"1": planned(1), "2": planned(2)}, seconds)
        one, two = timings["1"].low_ms, timings["2"].low_ms
        yield {"suite": TWO_CORES, "case": case.name, "ms_one": round(one, 3), "ms_two": round(two, 3), "gain": round(one / two, 3)}


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"), help="where foveal and foveal_micro were built")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring for each kernel")


def main(options: argparse.Namespace) -> None:
    rows = Rows(options.output, machine.describe("cpu", 1))
    parts: tuple[Callable[[], Iterator[dict[str, Any]]], ...] = (lambda: _peaks(options.build), lambda: _two_cores(options.seconds), _copies, lambda: _kernels(options.build, options.seconds))
    for part in progress(parts, unit="part"):
        for found in part():
            rows.add(**found)
