#!/usr/bin/env python3
"""Condenses reports of gpu_conformance into files to keep: summarize.py COMMIT report.json ... (written beside this script)."""
import json
import pathlib
import sys


def condensed(report, commit):
    kept = {"device": report["device"], "nvrtc": report["nvrtc"].split()[0], "commit": commit}
    # Folders of the machine that ran it are no part of the command.
    kept["command"] = " ".join(["gpu_conformance"] + [pathlib.Path(word).name if "/" in word else word for word in report["command"]])
    if "check" in report:
        kept["counts"] = report["check"]["counts"]
        kept["lines"] = []
        for result in report["check"]["results"]:
            ratios = [tensor["row_ratio"] for tensor in result.get("tensors", {}).values()]
            row = {"status": result["status"], "kernel": result.get("kernel", ""), "line": result["line"]}
            if ratios:
                row["worst_row_over_bound"] = round(max(ratios), 3)
            if result["status"] in ("fail", "error"):
                row["failure"] = result["failure"]
            kept["lines"].append(row)
    if "repeat" in report:
        kept["repeat"] = report["repeat"]["results"]
    if "time" in report:
        kept["times"] = [{"ms": round(t["ms"], 4), "kernel": t["kernel"], "line": t["line"]} for t in report["time"]["results"] if "ms" in t]
    return kept


def main():
    commit, paths = sys.argv[1], sys.argv[2:]
    for path in map(pathlib.Path, paths):
        report = condensed(json.loads(path.read_text()), commit)
        lines = [f'  "{key}": {json.dumps(value)}' for key, value in report.items() if key not in ("lines", "repeat", "times")]
        for key in ("lines", "repeat", "times"):
            if key in report:
                lines.append(f'  "{key}": [\n' + ",\n".join("    " + json.dumps(row) for row in report[key]) + "\n  ]")
        (pathlib.Path(__file__).parent / path.name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
