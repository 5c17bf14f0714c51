#!/usr/bin/env python3
"""Compiles nothing, but lets the compiler of a build folder read each of the folder's sources, with its warnings as they are configured.

usage: check_syntax.py BUILD [--jobs N] [PATH...]

PATH: only sources below these, by default src, cli and examples. Sources that are generated while building are left out.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(entry):
    """What the compiler says, "" when it has nothing to say."""
    words = shlex.split(entry["command"])
    at = words.index("-o")
    del words[at : at + 2]
    done = subprocess.run([word for word in words if word != "-c"] + ["-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True)
    return done.stderr if done.returncode or done.stderr else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("paths", nargs="*", default=["src", "cli", "examples"])
    options = parser.parse_intermixed_args()
    below = [ROOT / path for path in options.paths]
    entries = {entry["file"]: entry for entry in json.loads((options.build / "compile_commands.json").read_text())}
    entries = {file: entry for file, entry in entries.items() if any(pathlib.Path(file).is_relative_to(path) for path in below)}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        said = [text for text in pool.map(read, entries.values()) if text]
    print("\n".join(said), end="")
    print(f"{len(entries)} sources read, {len(said)} with complaints")
    sys.exit(bool(said) or not entries)


if __name__ == "__main__":
    main()
