#!/usr/bin/env python3
"""Checks that objects compiled with wide instructions export no weak symbols.

usage: check_weak_symbols.py BUILD_DIR

An inline function that is compiled once with AVX-512 and once without leaves two weak copies, and the linker keeps either one for
everybody: a machine without AVX-512 then dies in std::vector. So the files with wide flags may define no weak function or object.
Which those are is read from compile_commands.json.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDE = re.compile(r"^-m(avx|fma|f16c|amx|bmi)|^-march=")
# Harmless weak symbols that the compiler generates itself.
HARMLESS = re.compile(r"^DW\.ref\.__gxx_personality_v0$")


def wide_objects(build):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = entry.get("arguments") or shlex.split(entry["command"])
        ours = pathlib.Path(entry["file"]).is_relative_to(ROOT / "src")  # not tests and benchmarks, which run where they can
        if ours and any(WIDE.match(word) for word in words):
            yield pathlib.Path(entry["directory"]) / words[words.index("-o") + 1]


def weak_symbols(path):
    listing = subprocess.run(["nm", "--defined-only", "-C", "-P", str(path)], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        found = re.match(r"(.*) ([VvWwu])(?: [0-9a-f]+)*\s*$", line)
        if found and not HARMLESS.match(found[1]):
            yield found[1]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1])
    objects = sorted(set(wide_objects(build)))
    missing = [path for path in objects if not path.exists()]
    if missing:
        sys.exit(f"not built yet: {missing[0]}")
    wrong = 0
    for path in objects:
        for symbol in weak_symbols(path):
            print(f"{path.name}: weak symbol {symbol}")
            wrong += 1
    print(f"{len(objects)} objects with wide instructions, {wrong} weak symbols")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
