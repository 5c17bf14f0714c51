#!/usr/bin/env python3
"""Condenses reports of `foveal check --json` into a table to keep: one row for each suite, type and target.

    python bench/condense_checks.py --commit HASH --report "foveal check --suite ..." suite.json [--report "..." more.json] > bench/results/check-MACHINE.md
"""
import argparse
import collections
import json
import pathlib
import platform


def machine():
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line)
    found = {name.strip(): value.strip() for name, value in fields.items()}
    return f"{found.get('model name', platform.processor())} family {found.get('cpu family')} model {found.get('model')}"


def table(rows):
    """Types are those of the lines, targets those whose kernel ran: avx512bf16 leaves all types but bf16 to avx512, which counts them twice."""
    groups = collections.defaultdict(list)
    for row in rows:
        words = row["line"].split()
        groups[words[1], row["kernel"].split(".")[1] if row["kernel"] else "refused"].append(row)
    lines = ["| type | target | passed | refused | failed | worst error over its bound | most queries |", "|---|---|---|---|---|---|---|"]
    for (dtype, target), found in sorted(groups.items()):
        passed, refused = [row for row in found if row["pass"]], [row for row in found if row["refused"]]
        worst = max((t["max_error"] / t["max_bound"] for row in passed for t in row["tensors"] if t["max_bound"] > 0), default=0)
        longest = max(int(word[1:].split(":")[0]) for row in found for word in row["line"].split() if word[0] == "q" and word[1:2].isdigit())
        lines.append(f"| {dtype} | {target} | {len(passed)} | {len(refused)} | {len(found) - len(passed) - len(refused)} | {worst:.2f} | {longest} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--report", nargs=2, action="append", required=True, metavar=("COMMAND", "FILE"), help="how it was made, and where it is")
    options = parser.parse_args()
    print(f"# Suites against the reference\n\n{machine()}, commit {options.commit}.")
    for command, path in options.report:
        print(f"\n`{command}`\n")
        print("\n".join(table(json.loads(pathlib.Path(path).read_text()))))


main()
