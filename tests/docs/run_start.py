#!/usr/bin/env python3
"""What README.md tells a newcomer to do in Python, as it is written there: the environment and pip, then the program; and docs/benchmarks.md's command.

usage: run_start.py PACKAGES SCRATCH

PACKAGES: a virtual environment (of the same Python) whose torch is seen from the fresh one, so that pip finds it installed and fetches no second copy.
foveal itself is built and installed anew. Prints how long a newcomer with torch waits.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doc_blocks  # noqa: E402

README, BENCHMARKS = ROOT / "README.md", ROOT / "docs/benchmarks.md"
SUITE = 'both f32 b1 h2 q64 d32 mask="causal()"\nbackward bf16 b1 h2 q64 d32\n'


def command(page, start):
    """The page's one command that begins so, without the remark behind it."""
    (found,) = [line for _, text in doc_blocks.blocks(page, "") for line in text.splitlines() if line.startswith(start)]
    return found.partition("  #")[0].strip()


def shell(words, folder=ROOT):
    print("+", words, flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(["bash", "-c", f"set -e; {words}"], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    packages, scratch = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    (library,) = packages.glob("lib/python3*/site-packages")
    venv = scratch / "venv"
    make, activate, install = command(README, "python3 -m venv").replace(".venv", str(venv)).split(" && ")

    begin = time.monotonic()
    shell(make)
    (own,) = venv.glob("lib/python3*/site-packages")
    if own.parent.name != library.parent.name:
        sys.exit(f"{packages} is of {library.parent.name}; expected {own.parent.name}")
    (own / "others.pth").write_text(f"{library}\n")  # after the environment's own packages
    shell(f"{activate}; {install}")
    (_, program), = doc_blocks.blocks(README, "python")
    (scratch / "program.py").write_text(program)
    shown = shell(f"{activate}; python program.py", scratch)
    seconds = time.monotonic() - begin
    (expected,) = re.findall(r"print\(.*#\s*(.*)", program)
    if shown.strip() != expected:
        sys.exit(f"README's program printed {shown!r}; expected {expected}")
    where = shell(f"{activate}; python -c 'import foveal; print(foveal.__file__)'", scratch).strip()
    if not where.startswith(str(own)):
        sys.exit(f"imported {where}; expected the package that was just installed")
    lines = [line for line in program.splitlines() if line.strip()]
    print(f"README: {seconds:.0f} s from no environment to a gradient in {len(lines)} lines (the promise: 8 lines, 180 s)", flush=True)
    if len(lines) > 8:
        sys.exit(f"README's program has {len(lines)} lines; expected 8 at most")

    shell(f"{activate}; {command(BENCHMARKS, 'pip install').split(' && ')[1]}")
    (scratch / "tiny.txt").write_text(SUITE)
    for verb in ("run tiny.txt --contenders foveal,torch_sdpa --budget 0.05 --output rows.jsonl", "overhead --output rows.jsonl", "report rows.jsonl --output report"):
        shell(f"{activate}; foveal-bench {verb}", scratch)
    if "tiny" not in (scratch / "report/results.md").read_text():
        sys.exit("foveal-bench report: no table of the suite")


if __name__ == "__main__":
    main()
