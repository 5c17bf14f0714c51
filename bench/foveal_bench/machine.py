"""Where and how a result was made: every result line carries it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from typing import Any

import torch


def _cpu() -> str:
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                name, _, value = line.partition(":")
                fields.setdefault(name.strip(), value.strip())
    except OSError:
        return platform.processor() or "unknown"
    wanted = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in fields.get("flags", "").split()]
    return f"{fields.get('model name', 'unknown')} family {fields.get('cpu family')} model {fields.get('model')} ({' '.join(wanted)})"


def _commit() -> str:
    """What the library was built from: FOVEAL_COMMIT where it is not this checkout."""
    if named := os.environ.get("FOVEAL_COMMIT"):
        return named
    try:
        revision = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout.strip()
        return revision + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe(device: str, threads: int) -> dict[str, Any]:
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else _cpu(),
        "threads": None if device == "cuda" else threads,
        "torch": torch.__version__,
        "commit": _commit(),
        "command": " ".join(["foveal-bench", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
