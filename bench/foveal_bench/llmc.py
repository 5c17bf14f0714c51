"""Trains GPT-2 124M by llm.c's train_gpt2.cu on made-up tokens, with its own attention, by cuDNN, and with examples/llmc/foveal_att.cpp. Three programs are built
from one source: "own" (llm.c's unfused attention), "cudnn" (its cuDNN path; left out without --cudnn-frontend) and "foveal". All start from the same weights
and read the same tokens, each in a process of its own, in turns; ms is the median step after the first ten. Objects that the build folder has already are
used: compile on one machine, run on another.

    foveal-bench llmc --llmc CHECKOUT --foveal PREFIX [--cudnn-frontend FOLDER]     # PREFIX has include/ and lib/
"""

from __future__ import annotations

import argparse
import array
import pathlib
import random
import re
import shutil
import site
import statistics
import subprocess
import sys
from typing import Any

from . import machine
from .progress import progress
from .results import Rows

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = 50257
STEP = re.compile(r"^step +(\d+)/\d+ \| loss ([\d.]+|nan|inf) .*\| ([\d.]+) ms \|", re.MULTILINE)


def write_tokens(path: pathlib.Path, count: int, seed: int) -> None:
    """Tokens that a model can learn something of: 2,000 words by Zipf's law, each followed by its own successor in every second place."""
    draw = random.Random(seed)
    words = [draw.randrange(VOCABULARY) for _ in range(2000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    tokens = array.array("H")
    for index in draw.choices(range(len(words)), weights, k=count // 2):
        tokens.extend((words[index], words[(7 * index + 1) % len(words)]))
    header = array.array("i", [20240520, 1, len(tokens)] + [0] * 253)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def packages() -> list[pathlib.Path]:
    """Folders of NVIDIA's Python packages, whose headers and libraries serve where the toolkit has none."""
    homes = [pathlib.Path(p) for p in [*site.getsitepackages(), site.getusersitepackages(), *sys.path] if p]
    return [part for home in dict.fromkeys(homes) for part in sorted(home.glob("nvidia/*")) if part.is_dir()]


def library(name: str) -> list[str]:
    """What links against NAME: its file in a Python package, or the linker's own search."""
    for part in packages():
        found = sorted((part / "lib").glob(f"lib{name}.so*"))
        if found:
            return ["-Xlinker", str(found[0]), "-Xlinker", f"-rpath={part / 'lib'}"]  # nvcc does not know files named .so.9
    return [f"-l{name}"]


def checkout(llmc: pathlib.Path, build: pathlib.Path) -> pathlib.Path:
    """A copy of llm.c for this CUDA: since version 13 cudaMemAdvise takes a location instead of a device's number."""
    copy = build / "llm.c"
    if not copy.exists():
        (build / "llmc-commit").write_text(machine.said("git", "rev-parse", "--short", "HEAD", cwd=llmc) or "unknown")
        shutil.copytree(llmc, copy, ignore=shutil.ignore_patterns(".git", "dev"))
        header = copy / "llmc/cuda_utils.cuh"
        header.write_text(header.read_text().replace(
            "cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId)",
            "cudaMemAdviseSetPreferredLocation,\n#if CUDART_VERSION >= 13000\n    cudaMemLocation{cudaMemLocationTypeHost, 0}\n#else\n"
            "    cudaCpuDeviceId\n#endif\n    )"))
    return copy


def compile_all(options: argparse.Namespace) -> dict[str, str]:
    """Objects, several at once, and what the compiler said where one fails: the main program without and with cuDNN's functions, and the two files that have those."""
    source = checkout(options.llmc, options.build)
    include = [f"-I{folder}" for folder in [source, source / "llmc", options.foveal / "include", *options.include]]
    include += [f"-I{part / 'include'}" for part in packages() if (part / "include").is_dir()]
    flags = ["-O3", "--use_fast_math", "-std=c++17", f"-arch={options.arch}", "-DENABLE_BF16", "-w", *include]
    work = {
        "own.o": ["-c", source / "train_gpt2.cu"],
        "main.o": ["-DENABLE_CUDNN", "-c", source / "train_gpt2.cu"],
        "foveal.o": ["-DENABLE_CUDNN", "-c", ROOT / "examples/llmc/foveal_att.cpp"],
    }
    if options.cudnn_frontend:
        work["cudnn.o"] = ["-DENABLE_CUDNN", f"-I{options.cudnn_frontend / 'include'}", "-c", source / "llmc/cudnn_att.cpp"]
    commands = {name: ["nvcc", *flags, *map(str, rest), "-o", str(options.build / name)] for name, rest in work.items() if not (options.build / name).exists()}
    running = {name: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for name, command in commands.items()}
    return {name: process.communicate()[0] for name, process in running.items() if process.wait() != 0}


def link(options: argparse.Namespace) -> tuple[dict[str, pathlib.Path], dict[str, str]]:
    """The programs: {attention: path}, and why another is not there."""
    parts = {"own": ["own.o"], "cudnn": ["main.o", "cudnn.o"], "foveal": ["main.o", "foveal.o"]}
    extra = {"own": [], "cudnn": [*library("cudnn"), *library("nvrtc")], "foveal": [f"-L{options.foveal / 'lib'}", "-lfoveal", "-Xlinker", f"-rpath={(options.foveal / 'lib').resolve()}"]}
    made, missing = {}, {}
    for attention, objects in parts.items():
        program = options.build / f"train_{attention}"
        paths = [str(options.build / name) for name in objects]
        command = ["nvcc", f"-arch={options.arch}", *paths, *extra[attention], *library("cublas"), *library("cublasLt"), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            made[attention] = program
        else:
            missing[attention] = " ".join((done.stdout + done.stderr).split())[:300]
    return made, missing


def train(program: pathlib.Path, options: argparse.Namespace, tokens: pathlib.Path) -> dict[str, Any]:
    words = {"-i": tokens, "-j": tokens, "-e": "d12", "-b": options.batch, "-t": options.seqlen, "-x": options.steps, "-s": 0, "-v": 10**6, "-m": 1, "-l": 2e-4, "-u": 20}
    command = [str(program.resolve()), *(str(word) for pair in words.items() for word in pair)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, cwd=options.build)
    except subprocess.TimeoutExpired:
        return {"refused": f"more than {options.timeout:g} s"}
    steps = STEP.findall(done.stdout)
    if done.returncode != 0 or len(steps) != options.steps:
        return {"refused": machine.reason(done.stderr.strip() or done.stdout)}
    ms = statistics.median(float(step[2]) for step in steps[10:])
    return {"ms": ms, "tokens_per_second": round(1e3 * options.batch * options.seqlen / ms), "losses": [float(step[1]) for step in steps]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llmc", type=pathlib.Path, required=True, help="a checkout of llm.c")
    parser.add_argument("--foveal", type=pathlib.Path, required=True, help="where foveal is installed")
    parser.add_argument("--cudnn-frontend", type=pathlib.Path)
    parser.add_argument("--include", type=pathlib.Path, action="append", default=[], help="another folder of headers")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each run")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/llmc"))
    parser.add_argument("--compile-only", action="store_true")


def main(options: argparse.Namespace) -> None:
    if options.steps <= 10:
        sys.exit(f"foveal-bench llmc: --steps={options.steps}: more than 10 are needed, as the first ten are not timed")
    if not (options.llmc / "train_gpt2.cu").exists():
        sys.exit(f"foveal-bench llmc: --llmc={options.llmc} has no train_gpt2.cu: it is a checkout of llm.c")
    if not (options.foveal / "include/foveal/foveal_c.h").exists():
        sys.exit(f"foveal-bench llmc: --foveal={options.foveal} has no include/foveal/foveal_c.h: it is where foveal is installed")
    options.build.mkdir(parents=True, exist_ok=True)
    for name, text in compile_all(options).items():
        sys.exit(f"foveal-bench llmc: {name} does not compile:\n{text}")
    if options.compile_only:
        return
    programs, missing = link(options)
    tokens = options.build.resolve() / "tokens.bin"
    write_tokens(tokens, (options.steps + 2) * options.batch * options.seqlen, seed=1)
    rows = Rows(options.output, machine.describe("cuda", llmc=(options.build / "llmc-commit").read_text()))
    case = f"GPT-2 124M b{options.batch} s{options.seqlen}"
    for attention, why in missing.items():
        rows.add("llmc", case, contender=attention, refused=why)
    for turn, attention in progress([(turn, attention) for turn in range(options.turns) for attention in programs], unit="run"):
        rows.add("llmc", case, contender=attention, turn=turn, **train(programs[attention], options, tokens))
