#!/usr/bin/env python3
"""Runs problem lines under compute-sanitizer and writes what it found; needs a device.

    python tests/cuda/sanitize.py --conformance build/tests/cuda/gpu_conformance --lines tests/cuda/lines/sanitized.txt --commit HASH \\
        --out tests/cuda/results/sanitizer.json

Hazards of racecheck are counted by kernel, kind, and whether the reading lane is the one that arrives at the barrier for its warp
(results/README.md says why that matters).
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess


def output_of(tool, options):
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "20000"] + (["--racecheck-report", "all"] if tool == "racecheck" else [])
    return subprocess.run(command + [options.conformance, "check", options.lines, "--threads", "1"], capture_output=True, text=True).stdout


def hazards_of(text):
    """(kernel, kind, reader arrives) -> count"""
    counts = collections.Counter()
    for block in re.split(r"(?========== Error: Potential)", text)[1:]:
        kind = re.search(r"Potential (\w+) hazard", block)
        reader = re.search(r"Read Thread \((\d+),0,0\) at (\w+)", block)
        if kind and reader:
            counts[reader.group(2), kind.group(1), int(reader.group(1)) % 32 == 0] += 1
    return [{"kernel": kernel, "kind": kind, "reader_arrives": arrives, "displayed": count} for (kernel, kind, arrives), count in sorted(counts.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("conformance", "lines", "commit", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--tools", default="memcheck,synccheck,racecheck")
    parser.add_argument("--note", help="what is special about this build")
    options = parser.parse_args()
    lines = [line for line in pathlib.Path(options.lines).read_text().splitlines() if line and line[0] != "#"]
    device = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True).stdout.splitlines()[0]
    result = {"device": device, "commit": options.commit, "lines": lines, "tools": {}}
    if options.note:
        result["note"] = options.note
    for tool in options.tools.split(","):
        text = output_of(tool, options)
        passed = re.search(r"^pass: (\d+)", text, re.M)
        summary = re.search(r"========= (?:ERROR|RACECHECK) SUMMARY: (.*)", text)
        row = {"lines_passed": int(passed.group(1)) if passed else 0, "summary": summary.group(1) if summary else text[-500:]}
        if tool == "racecheck":
            row["hazards"] = hazards_of(text)
        result["tools"][tool] = row
        print(tool, json.dumps(row)[:600], flush=True)
    pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
