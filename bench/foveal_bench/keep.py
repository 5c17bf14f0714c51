"""Rows from the reports of programs of foveal's that are not Python:

    foveal check --suite bench/suites/llmc.txt --json report.json && foveal-bench keep checks report.json --made-by "foveal check --suite bench/suites/llmc.txt"
    foveal-bench keep errors report.json     build/release/tests/fuzz/fuzz_errors FIRST_SEED SECONDS report.json
    foveal-bench keep programs report.json   ./dev programs SEED SECONDS report.json
    foveal-bench keep programs-gpu report.json    build/release/tests/cuda/gpu_conformance check --programs N --seed S --out report.json
    foveal-bench keep soak report.json       ./dev soak MINUTES SEED report.json [--device cuda]
    foveal-bench keep first-call-gpu out     FOVEAL_CACHE_DIR=$(mktemp -d) build/release/tests/cuda/first_call "bf16 b4 h16 q4096 d64" > out
    foveal support > table && foveal-bench keep support table                                     what this machine's targets take, and those for GPUs
    qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu build/aarch64/tests/check/support_table > table && foveal-bench keep support table --emulated qemu-aarch64
    build/release/tests/cuda/cuda_architectures > table && foveal-bench keep architectures table
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
from typing import Any, Callable

from . import machine
from .results import NotResults, Rows


def checks(report: list[dict[str, Any]], rows: Rows) -> None:
    """A row for each type and target. Types are those of the lines, targets those whose kernel ran: avx512bf16 leaves all types but bf16 to avx512, which
    counts them twice."""
    groups = collections.defaultdict(list)
    for line in report:
        groups[line["line"].split()[1], line["kernel"].split(".")[1] if line["kernel"] else "refused"].append(line)
    for (dtype, target), found in sorted(groups.items()):
        passed, refused = [line for line in found if line["pass"]], [line for line in found if line["refused"]]
        worst = max((t["max_error"] / t["max_bound"] for line in passed for t in line["tensors"] if t["max_bound"] > 0), default=0.0)
        longest = max(int(word[1:].split(":")[0]) for line in found for word in line["line"].split() if word[0] == "q" and word[1:2].isdigit())
        rows.add("checks", f"{dtype} {target}: {rows.origin['command']}", passed=len(passed), refusals=len(refused), failures=len(found) - len(passed) - len(refused),
                 worst=round(worst, 2), longest=longest)  # fmt: skip


def errors(report: dict[str, Any], rows: Rows) -> None:
    """A row for each type, target and output, and one of all."""
    for line in report.pop("rows"):
        rows.add("errors", " ".join(line.pop(name) for name in ("dtype", "target", "output")), **line)
    rows.add("errors", "all", refusals=report.pop("refused"), **report)


def programs(report: dict[str, Any], rows: Rows) -> None:
    rows.add("programs", "all", counts=report.pop("compared"), **report)


def programs_gpu(report: dict[str, Any], rows: Rows) -> None:
    """A row for each type and kind of kernel, and one for each line that failed. Lines that were not run, or are invalid, are left out."""
    command = report["command"]
    first_seed = int(command[command.index("--seed") + 1]) if "--seed" in command else 0
    groups: collections.defaultdict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for line in report["check"]["results"]:
        status = {"error": "fail"}.get(line["status"], line["status"])
        if status in ("pass", "fail", "refused", "beyond fp32"):
            kind = line["kernel"].split(".")[1] if line.get("kernel") else "no kernel"
            groups[line["line"].split()[1], kind][status] += 1
        if status == "fail":
            rows.add("programs-gpu", line["line"], failure=line["failure"].splitlines()[0])
    for (dtype, kind), counts in sorted(groups.items()):
        rows.add("programs-gpu", f"{dtype} {kind}", first_seed=first_seed, counts=dict(counts))


def soak(report: dict[str, Any], rows: Rows) -> None:
    rows.add("soak", "all", **report)


def first_call_gpu(report: dict[str, Any], rows: Rows) -> None:
    """A first call and the next one of the same process, in their parts."""
    phases = {name.removesuffix("_ms"): value for name, value in report.items() if name.endswith("_ms")}
    known = {name: report[name] for name in ("kernels_on_disk_before", "kernels_shipped", "nvrtc")}
    rows.add("first-call-gpu", report["problem"], phases_ms=phases, **known)


def table(text: str) -> list[dict[str, str]]:
    """The rows of a Markdown table, by the names of its columns."""
    header, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(header, row, strict=True)) for row in rows]


def support(report: str, rows: Rows) -> None:
    """A row for each feature and target."""
    for line in table(report):
        feature = line.pop("forward / backward")
        for target, types in line.items():
            if rows.origin["machine"].startswith("emulated") and not target.startswith("cpu neon"):
                continue  # real machines have the others
            forward, _, backward = types.partition(" / ")
            rows.add("support", feature, contender=target, forward=forward, backward=backward or forward)


def architectures(report: str, rows: Rows) -> None:
    """A row for each architecture and pass; below the table stands which compiler it was."""
    (nvrtc,) = re.findall(r"^NVRTC (\S+)$", report, re.M)
    rows.origin["machine"] = "any"
    for line in table(report):
        shared, most = (int(line[name].removesuffix(" KiB")) for name in ("most shared memory of a CTA", "of"))
        rows.add("architectures", f"{line['pass']} {line['architecture']}", kernels=int(line["kernels"]), registers=int(line["most registers"]), shared_kib=shared,
                 shared_limit_kib=most, nvrtc=nvrtc)  # fmt: skip


REPORTS: dict[str, Callable[[Any, Rows], None]] = {
    "checks": checks, "errors": errors, "programs": programs, "programs-gpu": programs_gpu, "soak": soak, "first-call-gpu": first_call_gpu,
    "support": support, "architectures": architectures}  # fmt: skip
_TABLES = (support, architectures)  # the others read JSON


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", choices=REPORTS)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--made-by", help="the command that wrote the report")
    parser.add_argument("--emulated", metavar="BY", help="the report is not of this machine, but of one that BY emulated")


def main(options: argparse.Namespace) -> None:
    try:
        text = options.report.read_text()
        report = text if REPORTS[options.suite] in _TABLES else json.loads(text)
        of_gpu = options.suite in ("first-call-gpu", "programs-gpu") or (isinstance(report, dict) and "programs" in report and options.suite in ("errors", "soak"))
        origin = machine.describe("cuda" if of_gpu else "cpu")
        if isinstance(report, dict) and "device" in report:
            origin["machine"] = report["device"]  # which need not be here
        if options.made_by:
            origin["command"] = options.made_by
        if options.emulated:
            origin["machine"] = f"emulated by {options.emulated}"
        REPORTS[options.suite](report, Rows(options.output, origin))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotResults(f"{options.report}: no report of {options.suite}: {type(error).__name__}: {error}") from error
