"""What the first call of a score costs where no kernel is in the cache: compiling, without a device. Each pass of a program is compiled by `foveal emit` in a
fresh process with an empty cache, in turns with the command of an older version where one is given (contender "before"). Seconds of CPU: those of the clock are
shorter where a pass has several kernels, which are compiled beside each other, and longer where others use the machine. The parts of a call on a device:
tests/cuda/first_call.cpp.

    foveal-bench first-call --command build/release/cli/foveal [--before OTHER/foveal]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile

from . import machine
from .progress import progress
from .results import Rows

CAUSAL = 'mask="kv_idx <= q_idx"'
PROGRAMS = {
    "plain": "",
    "softcap 30": 'score="tanh(score / 30) * 30"',
    "ALiBi": 'score="score + to_real(kv_idx - q_idx) * exp2(-8.0 * to_real(head + 1) / 16.0)"',
    "relative bias, clamped at 128, trained": 'score="score + t[head, clamp(q_idx - kv_idx, -128, 128) + 128]" param="t: real[16, 257] grad"',
}
HEAD_DIMS = (64, 128, 256)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--command", required=True, help="the foveal command")
    parser.add_argument("--before", help="that of an older version")
    parser.add_argument("--turns", type=int, default=3)


def cpu_seconds(command: str, line: str) -> float:
    """Of compiling the kernels of a problem line."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([command, "emit", "--arch", "sm_90a", "--cubin", "-o", os.path.join(folder, "out"), line], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "FOVEAL_CACHE_DIR": os.path.join(folder, "cache"), "OMP_WAIT_POLICY": "passive"})  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(options: argparse.Namespace) -> None:
    commands = {"foveal": options.command, **({"before": options.before} if options.before else {})}
    rows = Rows(options.output, machine.describe("cpu", cores=os.cpu_count(), turns=options.turns))
    for head_dim, name, direction in progress([(d, name, direction) for d in HEAD_DIMS for name in PROGRAMS for direction in ("forward", "backward")]):
        program = PROGRAMS[name] if direction == "backward" else PROGRAMS[name].replace(" grad", "")
        line = f"{direction} bf16 b4 h16 q4096 d{head_dim} {CAUSAL} {program}"
        times: dict[str, list[float]] = {contender: [] for contender in commands}
        for _ in range(options.turns):
            for contender, command in commands.items():
                times[contender].append(cpu_seconds(command, line))
        for contender, values in times.items():
            rows.add("first-call", f"{direction} d{head_dim} {name}", name=name, head_dim=head_dim, contender=contender, cpu_s=round(min(values), 2))
