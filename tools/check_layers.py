#!/usr/bin/env python3
"""Checks that every include follows the layers: each folder of src/ includes only what stands below it.

    base <- score <- mask <- problem <- plan <- { reference | cpu | cuda } <- api <- { check | dist } <- { cli, bench, python }

Prints one line for each include that does not, and exits with 1 if there is any.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = [{"base"}, {"score"}, {"mask"}, {"problem"}, {"plan"}, {"reference", "cpu", "cuda"}, {"api"}, {"check", "dist"}]
RANK = {folder: rank for rank, layer in enumerate(LAYERS) for folder in layer}
SUFFIXES = {".h", ".inl", ".cpp", ".c", ".cuh", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
STANDARD_HEADER = re.compile(r"^[a-z0-9_]+$")
# Public headers promise to need nothing but the standard library; the C header includes the C one.
PUBLIC_C_HEADERS = {"stddef.h", "stdint.h", "stdbool.h"}


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if found := INCLUDE.match(line):
            yield number, found[1] == '"', found[2]


def sources(folder):
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES) if (ROOT / folder).is_dir() else []


def refusal(path, quoted, name):
    """Why this file may not include that name, or None."""
    place = path.relative_to(ROOT).parts
    top = name.split("/")[0]
    if place[0] == "include":
        if quoted or top == "foveal":
            return None if top == "foveal" else "a public header includes only foveal/ and the standard library"
        return None if STANDARD_HEADER.match(name) or name in PUBLIC_C_HEADERS else "a public header includes only the standard library"
    if place[:3] == ("src", "cuda", "device"):
        written_for_each_kernel = name in ("config.cuh", "emit.cuh")
        inside = quoted and (written_for_each_kernel or (path.parent / name).exists() or (ROOT / "src/cuda/device" / name).exists())
        return None if inside else "device code includes only device code"
    if place[0] == "examples":
        return "an example sees only the public headers" if top in RANK else None
    if place[0] != "src" or not quoted or top not in RANK:
        return None
    if not (ROOT / "src" / name).exists():
        return None  # a file beside it, in a folder that happens to have a layer's name
    mine = place[1]
    if mine not in RANK:
        return f"src/{mine} has no place in the layers"
    if top != mine and RANK[top] >= RANK[mine]:
        return f"{mine} stands {'beside' if RANK[top] == RANK[mine] else 'below'} {top}"
    return None


def main():
    wrong = 0
    files = [path for folder in ("include", "src", "examples") for path in sources(folder)]
    for path in files:
        for number, quoted, name in includes(path):
            if reason := refusal(path, quoted, name):
                print(f"{path.relative_to(ROOT)}:{number}: includes {name}: {reason}")
                wrong += 1
    print(f"{len(files)} files, {wrong} includes against the layers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
