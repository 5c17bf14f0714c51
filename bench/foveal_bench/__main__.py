"""The command line: `foveal-bench run bench/suites/peers-cpu.txt`, `foveal-bench report`."""

from __future__ import annotations

import argparse
import pathlib
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="foveal-bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="time suites, foveal and its rivals interleaved in one process")
    run.add_argument("suites", nargs="+", type=pathlib.Path, help="files of problem lines")
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    run.add_argument("--threads", type=int, default=1, help="CPU threads (1: times are CPU times)")
    run.add_argument("--contenders", help="comma-separated names; default: all that are installed")
    run.add_argument("--budget", type=float, default=1.0, help="seconds of repeats for each case")
    run.add_argument("--longest", type=int, help="leave out cases with more queries than this")
    run.add_argument("--rounds", type=int, default=5, help="at least so many repeats of each contender")
    run.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench/results/latest.jsonl"))

    report = commands.add_parser("report", help="tables, plots and one HTML page from result files")
    report.add_argument("results", nargs="+", type=pathlib.Path)
    report.add_argument("--output", type=pathlib.Path, default=pathlib.Path("docs/report"))

    overhead = commands.add_parser("overhead", help="what a call costs beyond its kernels")
    overhead.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    overhead.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench/results/overhead.jsonl"))

    shares = commands.add_parser("shares", help="peaks of this machine, and the share of them that the CPU kernels reach")
    shares.add_argument(
        "--build", type=pathlib.Path, default=pathlib.Path("build/release"), help="where foveal and foveal_micro were built"
    )
    shares.add_argument("--seconds", type=float, default=1.0, help="of measuring for each kernel")
    shares.add_argument("--output", type=pathlib.Path, default=pathlib.Path("bench/results/shares.jsonl"))

    arguments = parser.parse_args()
    if arguments.command == "run":
        from .run import run as run_suite

        contenders = set(arguments.contenders.split(",")) if arguments.contenders else None
        failures = sum(
            run_suite(
                suite,
                arguments.device,
                arguments.threads,
                arguments.output,
                contenders,
                arguments.budget,
                arguments.rounds,
                arguments.longest,
            )
            for suite in arguments.suites
        )
        return 1 if failures else 0
    if arguments.command == "overhead":
        from .overhead import run as run_overhead

        run_overhead(arguments.device, arguments.output)
        return 0
    if arguments.command == "shares":
        from .shares import run as run_shares

        run_shares(arguments.build, arguments.output, arguments.seconds)
        return 0
    from .report import report as make_report

    make_report(arguments.results, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
