#!/usr/bin/env python3
"""Runs the targets of tests/fuzz and writes how many inputs each took: ./dev fuzz.

    tools/fuzz.py BUILD SECONDS [--targets score,line] [--out FILE]

Inputs that reach something new are kept in BUILD/corpus; those of tests/fuzz/corpus are read too. Fails when a target finds something: the
input lies beside the log in BUILD/findings."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from foveal_bench import machine  # noqa: E402
from foveal_bench.results import Rows  # noqa: E402

LONGEST = 1024  # bytes of an input


def run(build: Path, target: str, seconds: int) -> dict:
    grown, findings = build / "corpus" / target, build / "findings"
    for folder in (grown, findings):
        folder.mkdir(parents=True, exist_ok=True)
    said = subprocess.run(
        [build / "tests" / "fuzz" / f"fuzz_{target}", grown, ROOT / "tests" / "fuzz" / "corpus" / target, f"-max_total_time={seconds}",
         f"-max_len={LONGEST}", "-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1", f"-artifact_prefix={findings}/{target}-"],
        capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    (findings / f"{target}.log").write_text(said.stderr)
    number = {name: int(value) for name, value in re.findall(r"stat::(\w+):\s+(\d+)", said.stderr)}
    summary = re.findall(r"SUMMARY: (.*)", said.stderr)
    return {
        "executions": number.get("number_of_executed_units", 0),
        "seconds": seconds,
        "peak_mb": number.get("peak_rss_mb", 0),
        "inputs_kept": len(list(grown.iterdir())),
        "finding": summary[0] if summary else ("" if said.returncode == 0 else f"exit status {said.returncode}"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("seconds", type=int, help="for each target")
    parser.add_argument("--targets", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    targets = options.targets.split(",") if options.targets else sorted(path.name for path in (ROOT / "tests" / "fuzz" / "corpus").iterdir())
    origin = machine.describe("cpu")
    origin["command"] = f"./dev fuzz {options.seconds}"
    rows = Rows(options.out or options.build / "fuzz.jsonl", origin)
    found = [rows.add("fuzz", target, **run(options.build, target, options.seconds)) for target in targets]
    return 1 if any(row["finding"] for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
