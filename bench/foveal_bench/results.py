"""The one format of results, and what tables and plots ask of them.

A result file is JSONL: a row, one JSON object on a line of its own, for each thing that was measured. A row is whole in itself: FIELDS says what it may
hold, and SUITES what there is; `run` names its suites by their files. Of rows with the same suite, case, contender, turn, machine and threads the last one counts.
"""

from __future__ import annotations

import collections
import json
import math
import os
import pathlib
from typing import Any, Iterable

from .progress import say

FIELDS = {
    "suite": "kind of measurement (above), or the file of problem lines that `run` read",
    "case": "the problem: a short form of its line (docs/problem-lines.md), or words. Begins with the pass where there is one",
    "contender": "who was timed: foveal, a rival, or a version of foveal",
    "turn": "number of the repetition, when contenders alternate",
    "machine": "the GPU, or the CPU with its family, model and vector extensions",
    "threads": "CPU threads; 1: times are CPU times",
    "commit": "of foveal",
    "command": "the command that reproduces the row",
    "date": "when the run began, UTC",
    "commit_date": "day of the commit, in rows from before `date` was written",
    "torch": "version", "cudnn": "version", "nccl": "version", "nvrtc": "version", "transformers": "version", "llmc": "commit of llm.c",
    "cores": "of the machine", "gpus": "how many took part", "multiprocessors": "most that carried transfers", "engine": "what carried messages", "device": "cpu or cuda",
    "refused": "why there is no time: not supported, a wrong answer, or an error",
    "ms": "milliseconds, median; backward includes every launch that it needs. `distributed`: of the slowest rank; `llmc`, `models`: of a training step",
    "ms_quartiles": "first and third quartile of ms", "ms_turns": "ms of individual runs that alternate with other contenders",
    "repeats": "number of measurements of which ms is the median",
    "call_ms": "milliseconds of a synchronous call, host and kernels together", "first_call_s": "seconds of the first call, compiling included",
    "peak_bytes": "peak memory; `run`: beyond the given tensors; `models`: of the process",
    "gflops": "GFLOP/s", "tflops": "TFLOP/s, counting only pairs that exist", "peak_gflops": "of one core, measured in the same run", "gbytes": "GB/s",
    "two_threads_gflops": "GFLOP/s of CPU time with two threads", "two_threads_gain": "rate in wall time with two threads, over that with one",
    "quiet": "whether calibration loops before and after found the core undisturbed",
    "ms_one": "milliseconds with one thread", "ms_two": "with two", "gain": "ms_one / ms_two",
    "kernel": "which kernel the plan chose",
    "difference": "norm of the difference from another contender's results, over their norm; at most 0.01 is accepted",
    "differences": "largest difference from one device's result, over its largest element, by tensor",
    "us": "microseconds of host time of a call", "kernel_us": "part of us: the planned call alone",
    "torch_us": "part of us: torch's autograd around a function that does nothing", "beyond_us": "us - kernel_us - torch_us",
    "name": "of the case, for tables", "neighbour": "name of the round shape that it is compared with", "head_dim": "of q, k and v",
    "mask": "as text", "score_mod": "as text", "lengths": "of packed sequences", "kv_bytes": "of keys and values that are read",
    "plain_ms": "milliseconds of the plain causal pass, alternating with ms", "short_ms": "ms in turns of 30 ms", "short_plain_ms": "plain_ms in turns of 30 ms",
    "cpu_s": "seconds of CPU time, the least of `turns` runs", "turns": "how many runs",
    "latency_ms": "of one call on an idle device, host time included",
    "efficiency": "time on one device / (devices x ms)", "memory_gb": "GB in use on the device", "buffers_gb": "part of memory_gb: allocated since the context was created, outside torch", "seconds": "since the run began, or of the run",
    "losses": "of each step", "tokens_per_second": "at ms",
    "note": "remark for the reader", "first_seed": "of random problems", "problems": "how many", "programs": "how many", "steps": "how many",
    "minutes": "of the run", "checks": "results compared", "refusals": "problems that were refused", "failures": "results outside their bound",
    "passed": "problem lines", "longest": "queries of the longest line", "tensors": "how many",
    "median": "of error / bound", "p999": "999 of 1000 are at most this", "worst": "largest error / bound", "worst_line": "where it is",
    "findings": "how many disagreed", "finding": "what the fuzzer found, or nothing", "failure": "what did not hold", "counts": "comparisons or lines of each kind", "executions": "inputs tried",
    "inputs_kept": "in the corpus", "peak_mb": "MB of memory", "memory_judged": "whether the run was long enough for that",
    "first_mb": "MB in use at first", "least_mb": "at least", "most_mb": "at most", "last_mb": "at the end",
    "device_first_mb": "as first_mb, of memory that the library holds on the device", "device_least_mb": "likewise", "device_most_mb": "likewise", "device_last_mb": "likewise",
    "refused_problems": "by every kernel of the device", "compared": "repeated results", "changed": "repeated results that changed",
    "phases_ms": "milliseconds of each part of a first call, and of a decode call (`decode_one_more_key`: the cache has grown by one key)", "kernels_on_disk_before": "how many",
    "forward": "types that a target takes, all or none", "backward": "likewise",
    "kernels": "`architectures`: how many are launched; `soak`: most that were loaded", "registers": "most of a kernel", "shared_kib": "KiB of shared memory, most of a CTA", "shared_limit_kib": "that a CTA may have",
    "ms_quiet": "median of ms of the runs between undisturbed calibration loops", "ms_tenth": "first decile of the same",
    "kernels_shipped": "how many shipped with the library",
}  # fmt: skip

SUITES = {
    "peaks": "instructions' peak rates (`shares`)", "memory": "bandwidth of a copy (`shares`)", "peak-cpu": "kernels' shares of the peak (`shares`)",
    "two-cores": "gain of a second core (`shares`)",
    "overhead": "host time of a call (`overhead`)",
    "grid": "plain attention compared with cuDNN (`grid`)",
    "race": "plain attention compared with cuDNN and FlashAttention-4 (`race`)",
    "trained": "programmed and trained scores compared with the plain pass (`trained`)",
    "shapes": "odd shapes compared with round ones (`shapes`)", "reproducible": "reproducible gradients (`shapes`)",
    "few-queries": "few queries compared with cuDNN (`shapes`)", "few-queries-scores": "few queries with programs compared with FlexAttention (`shapes`)",
    "first-call": "compiling a score's kernels (`first-call`)", "first-call-gpu": "parts of a first call on a GPU (`keep`, tests/cuda/first_call.cpp)",
    "distributed": "several GPUs compared with one (`distributed`)", "models": "training steps of transformers models (`models`)",
    "llmc": "training steps of llm.c (`llmc`)",
    "checks": "suites against the reference (`keep`, foveal check --json)", "errors": "errors of random problems over their bounds (`keep`, fuzz_errors)",
    "programs": "random programs against an evaluator (`keep`, fuzz_programs)",
    "programs-gpu": "random programs on a GPU (`keep`, gpu_conformance check --programs)", "soak": "random training steps (`keep`, soak)", "fuzz": "libFuzzer (tools/fuzz.py)",
    "support": "what a target takes (`keep`, foveal support)", "architectures": "portable kernels, compiled for each GPU (`keep`, cuda_architectures)",
    "variants": "kernels before and after a change, or several designs of one (docs/lab/gpu-experiments.md)",
}  # fmt: skip

Row = dict[str, Any]


def built(row: Row) -> str:
    """Which foveal a row is about, and when it was measured: "`c2826e2` (2026-11-27)"."""
    if not row.get("commit"):
        return "not recorded"
    commit, dash, rest = row["commit"].partition("-")
    day = str(row.get("date") or row.get("commit_date") or "")[:10]
    return f"`{commit[:7]}{dash}{rest}`" + (f" ({day})" if day else "")


class Rows:
    """Appends rows to a file, each in one write as soon as it is measured: a run that is cut short keeps what it has."""

    def __init__(self, path: pathlib.Path, origin: Row):
        self._path, self.origin = path, origin
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):  # the machine stopped while a row was written
            os.truncate(path, text.rfind(b"\n") + 1)

    def add(self, suite: str, case: str, **found: Any) -> Row:
        row = {"suite": suite, "case": case, **found, **self.origin}
        if unknown := row.keys() - FIELDS.keys():
            raise ValueError(f"a row of {suite}: {', '.join(sorted(unknown))}: not in foveal_bench.results.FIELDS")
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, (json.dumps(row) + "\n").encode())
        finally:
            os.close(file)
        say(_shown(suite, case, found))
        return row


def _shown(suite: str, case: str, found: Row) -> str:
    figures = [f"{name} {value:.4g}" for name, value in found.items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return "  ".join([suite, case, *([found["contender"]] if "contender" in found else []), *figures, *([found["refused"]] if "refused" in found else [])])


class NotResults(ValueError):
    """A file is not what a measurement wrote; the text says where."""


def read(path: pathlib.Path) -> list[Row]:
    """All rows of a file. NotResults names a line that is none."""
    rows = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append({**row, "suite": row["suite"], "case": row["case"]})
        except (ValueError, TypeError, KeyError):
            raise NotResults(f"{path}:{number}: not a row: {line[:80]!r}") from None
    return rows


KEY = ("suite", "case", "contender", "turn", "machine", "gpus", "threads")  # of rows with the same, the last one counts


def load(paths: Iterable[pathlib.Path]) -> list[Row]:
    """The rows that count, in the order in which their cases came first."""
    latest: dict[Any, Row] = {}
    for path in paths:
        for row in read(path):
            latest[tuple(row.get(name) for name in KEY)] = row
    return list(latest.values())


OURS = "foveal"
_NO_RIVALS = (OURS, "unfused", "math")  # the materialised computations are yardsticks
Key = tuple[str, Any, str, str]


def cases(rows: list[Row]) -> dict[Key, dict[str, Row]]:
    """(machine, threads, suite, case) -> contender -> row, of what `run` timed, for cases that foveal answered."""
    grouped: dict[Key, dict[str, Row]] = collections.defaultdict(dict)
    for row in rows:
        if row["suite"] not in SUITES:
            grouped[row["machine"], row.get("threads"), row["suite"], row["case"]][row["contender"]] = row
    return {key: group for key, group in grouped.items() if "ms" in group.get(OURS, {})}


def best_rival(group: dict[str, Row]) -> str | None:
    timed = {name: row["ms"] for name, row in group.items() if name not in _NO_RIVALS and "ms" in row}
    return min(timed, key=timed.__getitem__) if timed else None


def ratio(group: dict[str, Row]) -> float:
    """How many times as fast as the best rival."""
    return float(group[best_rival(group) or OURS]["ms"] / group[OURS]["ms"])


def geomean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
