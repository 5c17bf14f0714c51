"""What the first call of a score costs where no kernel is in the cache: compiling, without a device.

    python bench/first_call.py run --command build/release/cli/foveal [--before OTHER/foveal] --commit HASH --out bench/results/first-call.json
    python bench/first_call.py tables bench/results/first-call.json docs/lab/gpu.md    # between the marks of the page

Each row is a program; each pass of it is compiled by `foveal emit` in a fresh process with an empty cache, in turns with that of the version before where one
is given. Times are seconds of CPU, the least of some turns: those of the clock are shorter where a pass has several kernels, which are compiled beside each
other, and longer where others use the machine. The steps of a call on a device: tests/cuda/first_call.cpp.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import tempfile

from gpu_grid import write, write_between

CAUSAL = 'mask="kv_idx <= q_idx"'
PROGRAMS = [
    ("plain", ""),
    ("softcap 30", 'score="tanh(score / 30) * 30"'),
    ("ALiBi", 'score="score + to_real(kv_idx - q_idx) * exp2(-8.0 * to_real(head + 1) / 16.0)"'),
    ("relative bias, clamped at 128, trained", 'score="score + t[head, clamp(q_idx - kv_idx, -128, 128) + 128]" param="t: real[16, 257] grad"'),
]
HEAD_DIMS = (64, 128, 256)


def cpu_seconds(command, line):
    """Of compiling the kernels of a problem line."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([command, "emit", "--arch", "sm_90a", "--cubin", "-o", os.path.join(folder, "out"), line], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "FOVEAL_CACHE_DIR": os.path.join(folder, "cache"), "OMP_WAIT_POLICY": "passive"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(options):
    commands = {"now": options.command, **({"before": options.before} if options.before else {})}
    result = dict(machine=platform.processor() or platform.machine(), cores=os.cpu_count(), commit=options.commit, turns=options.turns, rows=[])
    for head_dim in HEAD_DIMS:
        for name, program in PROGRAMS:
            row = dict(program=name, head_dim=head_dim)
            for direction in ("forward", "backward"):
                line = f"{direction} bf16 b4 h16 q4096 d{head_dim} {CAUSAL} {program if direction == 'backward' else program.replace(' grad', '')}"
                times = {key: [] for key in commands}
                for _ in range(options.turns):
                    for key, command in commands.items():
                        times[key].append(cpu_seconds(command, line))
                row[direction] = {key: round(min(values), 2) for key, values in times.items()}
            result["rows"].append(row)
            write(options.out, result)


def tables(options):
    with open(options.results) as file:
        result = json.load(file)
    lines = [f"{result['cores']} cores of {result['machine']}, commit `{result['commit']}`, causal, nothing in the cache. Seconds of CPU, least of {result['turns']}"
             " (in brackets: before):", "", "| head dim | program | forward | backward |", "|---|---|---|---|"]
    for row in result["rows"]:
        cells = [f"{row[d]['now']:.2f}" + (f" ({row[d]['before']:.2f})" if "before" in row[d] else "") for d in ("forward", "backward")]
        lines.append(f"| {row['head_dim']} | {row['program']} | {' | '.join(cells)} |")
    write_between(options.page, "first call", lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("run")
    verb.add_argument("--command", required=True)
    verb.add_argument("--before", help="the command of an older version")
    verb.add_argument("--commit", required=True)
    verb.add_argument("--out", required=True)
    verb.add_argument("--turns", type=int, default=3)
    verb.set_defaults(act=run)
    verb = verbs.add_parser("tables")
    verb.add_argument("results")
    verb.add_argument("page")
    verb.set_defaults(act=tables)
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
