"""`python -m foveal`: what this machine has, what is cached, and a self-test of half a minute that a bug report can quote.

usage: python -m foveal [--no-test] [--seconds N]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import platform
import sys
import time

import foveal

from . import _core

# One line for each thing that can go wrong on a machine and nowhere else; small, for the reference visits every pair.
LINES = (
    "forward f32 b2 h4:2 q70 d64",
    'backward f32 b2 h4:2 q70 d64 mask="causal()"',
    'backward f64 b1 h2 q40 d32 mask="window(8)" score="8.0 * tanh(0.125 * score)"',
    'backward bf16 b1 h4:2 q130 d64 mask="causal()"',
    'backward f16 b1 h4:2 q130 d128 mask="causal() & window(64)"',
    'backward bf16 b1 h4 q130:200 d64:128 score="score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]" param="rel: real[4, 17] normal(0.3) grad"',
    'backward f32 b1 h4 q100 d40 score="score * t[head]" param="t: real[4] uniform(0.5, 1.5) grad" sink=s param="s: real[4] grad" dlse',
    'backward f16 h6:2 d64 lengths=17,128:64,5 mask="causal()" dropout=0.1',
    'backward bf16 layout=packed_qkv b2 h2 q96 d64 mask="(ids[q_idx] == ids[kv_idx])" param="ids: integer[96] segments(3)"',
    'forward bf16 b1 h32:8 q1:1000 d128 mask="causal_bottom_right()"',
)


def commit() -> str:
    """Of the sources that the package was made of."""
    try:
        found = (pathlib.Path(__file__).parent / "commit").read_text().strip()
    except OSError:
        found = ""
    return f"commit {found}" if found else "commit not recorded"


FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2")


def cpu_name() -> str:
    """The name, the numbers that tell cores apart, and those instruction sets that matter here."""
    said: dict[str, str] = {}
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            said.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    numbers = [f"{name.removeprefix('cpu ').removeprefix('CPU ')} {said[name]}"
               for name in ("cpu family", "model", "stepping", "CPU implementer", "CPU variant", "CPU part", "CPU revision") if name in said]
    has = (said.get("flags") or said.get("Features", "")).split()
    features = [name for name in FEATURES if name in has]
    name = said.get("model name") or platform.processor() or platform.machine() or "unknown"
    return " ".join([name, *numbers, *([f"({' '.join(features)})"] if features else [])])


def cache() -> str:
    """The kernels on disk: how many and how large."""
    if not (found := _core.cache_folder()):
        return "off (FOVEAL_CACHE_DIR is empty)" if "FOVEAL_CACHE_DIR" in os.environ else "none (no absolute path in XDG_CACHE_HOME or HOME)"
    folder = pathlib.Path(found)
    if os.path.lexists(folder) and (why := _core.cache_unusable()):  # which would make one
        return f"not used, {why}: {folder}"
    sizes = [path.stat().st_size for path in folder.glob("*.kernel")]
    return f"{folder}: {len(sizes)} kernels, {sum(sizes) / 2**20:.1f} MiB"


def shipped() -> str:
    """The kernels that came with the library."""
    folder, count, compiler, unusable = _core.shipped_kernels()
    if not unusable:
        return f"{folder}: {count}, compiled by NVRTC {compiler}"
    return f"not used, {unusable}: {folder}" if folder else f"{unusable}: kernels are compiled when they are first needed, and kept"


def versions() -> str:
    found = []
    for package in ("numpy", "torch", "jax", "transformers", "nvidia-cuda-nvrtc"):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(found) or "none of numpy, torch, jax, transformers"


def lines_here() -> list[tuple[str, str]]:
    """(target, problem line) for each target that runs here."""
    targets = [(backend, target) for backend, target, available, _ in foveal.targets() if available and backend != "reference"]
    return [
        (f"{backend} {target}", f"{line} device={'cuda' if backend == 'cuda' else 'cpu'} backend={backend} target={target}")
        for line in LINES
        for backend, target in targets
    ]


def self_test(seconds: float) -> bool:
    """Runs the lines on every target, judges them against the fp64 reference, and says what was found; false when something is wrong."""
    counts: dict[str, list[int]] = {}
    failures, left, start = [], 0, time.monotonic()
    for target, line in lines_here():
        if time.monotonic() - start > seconds:
            left += 1
            continue
        passed, refused, failed = counts.setdefault(target, [0, 0, 0])
        try:
            report = foveal.check(line)
        except Exception as error:  # what a bug report is about
            failures.append(f"{line}\n    {type(error).__name__}: {error}")
            failed += 1
        else:
            if report.refused:
                refused += 1
            elif report:
                passed += 1
            else:
                failures.append(str(report))
                failed += 1
        counts[target] = [passed, refused, failed]
    for target, (passed, refused, failed) in counts.items():
        print(f"  {target:<16} {passed} passed" + (f", {refused} refused" if refused else "") + (f", {failed} FAILED" if failed else ""))
    print(f"  {time.monotonic() - start:.1f} s" + (f"; {left} lines left out after {seconds:g} s" if left else ""))
    for failure in failures:
        print(f"FAILED {failure}")
    return not failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m foveal", description="what this machine has, what is cached, and a self-test")
    parser.add_argument("--no-test", action="store_true", help="leave the self-test out")
    parser.add_argument("--seconds", type=float, default=30.0, help="start no line of the self-test after this time")
    options = parser.parse_args()
    print(f"foveal {foveal.__version__}, {commit()}, Python {platform.python_version()}, {platform.platform()}")
    print(f"CPU      {cpu_name()}, {foveal.num_threads()} threads")
    print(f"packages {versions()}")
    print(f"cache    {cache()}")
    print(f"kernels  {shipped()}")
    print("targets")
    for backend, target, available, detail in foveal.targets():
        print(f"  {backend + ' ' + target:<16} {'yes' if available else 'no '}  {detail}")
    if options.no_test:
        return 0
    print("self-test, against the fp64 reference")
    return 0 if self_test(options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
