#!/usr/bin/env python3
"""Runs the targets of tests/fuzz and reports the number of inputs of each: ./dev fuzz.

    tools/fuzz.py BUILD SECONDS [--runs N] [--jobs N] [--targets score,line] [--out FILE]

Each target runs for SECONDS; with --runs until it has executed N inputs, all targets together within SECONDS. --jobs: concurrent processes; with --runs
the inputs of a target are divided among them, and they share their corpus. Inputs with new coverage are kept in BUILD/corpus; tests/fuzz/corpus is read
too. Fails if a target finds something: the input is beside the logs in BUILD/findings. Progress is in BUILD/fuzz-progress.json; SIGTERM ends the run
with the results so far."""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from foveal_bench import machine  # noqa: E402
from foveal_bench.results import Rows  # noqa: E402

LONGEST = 1024  # bytes of an input
EXPRESSIONS = ("line", "score")  # with a dictionary
# With --runs one part in ten of these takes inputs as long as that, the others short ones: a second sees five times as many expressions, and a case of the
# C interface takes no more bytes.
SELDOM_LONG, SHORT = (*EXPRESSIONS, "c_api"), 200
PARTS = 20  # of the inputs of a target, with --runs; as many as there are processes where these are more
ATTEMPTS = 20  # at a part, each but the last ended by a finding
SLOWEST = ["c_api", "line", "score"]  # the first of each round, so that no core waits for them at the end
# Allocation stacks are slow; leaks and use after return are covered by other tests. Allocations may fail, which is reported as an error.
# What was freed stays poisoned for 16 MB: several inputs' worth, and within a cache.
# Allocations of more than 2 GB fail: where a machine has hundreds of them, what AddressSanitizer notes about one alone takes gigabytes.
SANITIZERS = {"ASAN_OPTIONS": "quarantine_size_mb=16:max_allocation_size_mb=2000:malloc_context_size=0:detect_stack_use_after_return=0:detect_leaks=0:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


class Fuzzing:
    def __init__(self, build: Path, deadline: float):
        self.build, self.deadline = build, deadline
        self.stopped = threading.Event()
        self._children: set[subprocess.Popen] = set()
        self._parts: dict[str, list[dict]] = collections.defaultdict(list)
        self._lock = threading.Lock()
        (build / "findings").mkdir(parents=True, exist_ok=True)

    def part(self, target: str, part: int, runs: int | None, seconds: float) -> None:
        """So many inputs: a finding ends a process, and with `runs` the next one takes what is left."""
        for attempt in range(ATTEMPTS if runs else 1):
            done = self.process(target, f"{part}.{attempt}", runs, seconds)
            if not runs or done >= runs:
                return
            runs -= done

    def process(self, target: str, part: str, runs: int | None, seconds: float) -> int:
        """One process; its figures are added to those of its target. How many inputs it took."""
        seconds = min(seconds, self.deadline - time.monotonic())
        if self.stopped.is_set() or seconds < 1:
            return 0
        grown, findings = self.build / "corpus" / target, self.build / "findings"
        grown.mkdir(parents=True, exist_ok=True)
        log = findings / f"{target}-{part}.log"
        # Without entropic scheduling, whose bookkeeping is several times slower than these targets.
        longest = SHORT if target in SELDOM_LONG and runs and int(part.partition(".")[0]) % 10 else LONGEST
        command = [self.build / "tests" / "fuzz" / f"fuzz_{target}", grown, ROOT / "tests" / "fuzz" / "corpus" / target, f"-max_total_time={int(seconds)}",
                   f"-runs={runs or -1}", f"-max_len={longest}", "-timeout=20", "-rss_limit_mb=3000", "-malloc_limit_mb=-1", "-entropic=0", "-detect_leaks=0", "-reload=20",
                   "-print_funcs=0", "-print_final_stats=1", f"-artifact_prefix={findings}/{target}-"]  # fmt: skip
        if target in EXPRESSIONS:
            command.append(f"-dict={ROOT / 'tests' / 'fuzz' / 'expressions.dict'}")
        begin = time.monotonic()
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **SANITIZERS}) as child:
            with self._lock:
                self._children.add(child)
            status = child.wait()
            with self._lock:
                self._children.discard(child)
        said = log.read_text(errors="replace")
        number = {name: int(value) for name, value in re.findall(r"stat::(\w+):\s+(\d+)", said)}
        begun = [int(count) for count in re.findall(r"^#(\d+)\t", said, re.MULTILINE)]
        summary = re.findall(r"SUMMARY: (.*)", said)
        ended = status in (0, 72) or self.stopped.is_set()  # 72: interrupted
        done = number.get("number_of_executed_units", max(begun, default=0))
        with self._lock:
            self._parts[target].append({
                "executions": done, "seconds": round(time.monotonic() - begin),
                "peak_mb": number.get("peak_rss_mb", 0), "finding": summary[0] if summary else ("" if ended else f"exit status {status}"),
            })  # fmt: skip
            progress = {name: self.row(name) for name in self._parts}
            (self.build / "fuzz-progress.json").write_text(json.dumps(progress, indent=1) + "\n")
        return done

    def row(self, target: str) -> dict:
        parts = self._parts[target]
        findings = [part["finding"] for part in parts if part["finding"]]
        return {
            "executions": sum(part["executions"] for part in parts), "seconds": sum(part["seconds"] for part in parts),
            "peak_mb": max((part["peak_mb"] for part in parts), default=0), "inputs_kept": len(list((self.build / "corpus" / target).glob("*"))),
            "finding": "; ".join(dict.fromkeys(findings)),
        }  # fmt: skip

    def stop(self, *_: object) -> None:
        self.stopped.set()
        for child in list(self._children):
            child.send_signal(signal.SIGINT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("seconds", type=int, help="for each target; with --runs for all")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--targets", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    targets = options.targets.split(",") if options.targets else sorted(path.name for path in (ROOT / "tests" / "fuzz" / "corpus").iterdir())
    targets.sort(key=lambda target: SLOWEST.index(target) if target in SLOWEST else len(SLOWEST))
    limit = options.seconds if options.runs else options.seconds * len(targets) + 60
    fuzzing = Fuzzing(options.build.resolve(), time.monotonic() + limit)
    signal.signal(signal.SIGTERM, fuzzing.stop)
    parts = max(PARTS, options.jobs) if options.runs else 1
    runs = -(-options.runs // parts) if options.runs else None
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(fuzzing.part, target, part, runs, options.seconds) for part in range(parts) for target in targets]:
            future.result()
    origin = machine.describe("cpu")
    origin["command"] = f"./dev fuzz {options.seconds}" + (f" --runs {options.runs} --jobs {options.jobs}" if options.runs else "")
    rows = Rows(options.out or options.build / "fuzz.jsonl", origin)
    found = [rows.add("fuzz", target, **fuzzing.row(target)) for target in targets]
    return 1 if any(row["finding"] for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
