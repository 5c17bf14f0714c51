#!/usr/bin/env python3
"""The documentation's `foveal` commands run as they stand; where a page shows output below a `$`, theirs ends with it.

usage: run_commands.py FOVEAL

A command whose device or compiler is not here (exit code 3, or 4 for a driver) is counted apart; anything else but 0 is a failure.
"""
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doc_blocks  # noqa: E402

NEEDS_A_DEVICE = ("foveal tune",)


def commands(text):
    """(command, shown output or None) of a block."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("foveal "):
            yield line, None
        elif line.startswith("$ foveal "):
            shown = lines[i + 1 :]
            end = next((j for j, following in enumerate(shown) if following.startswith("$ ")), len(shown))
            yield line[2:], "\n".join(shown[:end])


def write_inputs(path):
    """The q, k and v that the pages read: zeros, f32 [1, 8, 2, 16]."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 8, 2, 16)}".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        for name in "qkv":
            file.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(4 * 8 * 2 * 16))


def main():
    foveal = pathlib.Path(sys.argv[1]).resolve()
    failed, apart, done = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(pathlib.Path(folder) / "inputs.npz")
        environment = {**os.environ, "PATH": f"{foveal.parent}{os.pathsep}{os.environ['PATH']}"}
        for page in doc_blocks.pages():
            for line, text in doc_blocks.blocks(page, "", "sh"):
                for command, shown in commands(text):
                    ran = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
                    where = f"{page.relative_to(ROOT)}:{line}: {command}"
                    if ran.returncode in (3, 4) and (command.startswith(NEEDS_A_DEVICE) or "NVRTC" in ran.stderr):
                        apart += 1
                    elif ran.returncode != 0:
                        failed.append(f"{where}\nexit code {ran.returncode}\n{ran.stdout}{ran.stderr}")
                    elif shown is not None and not ran.stdout.rstrip().endswith(shown.rstrip()):
                        failed.append(f"{where}\nprinted\n{ran.stdout}\nwhere the page shows\n{shown}")
                    else:
                        done += 1
    print(f"{done} commands run, {apart} need what is not here, {len(failed)} failed")
    print("\n\n".join(failed))
    sys.exit(bool(failed) or done < 4)


if __name__ == "__main__":
    main()
