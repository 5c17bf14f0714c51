"""Where and how a result was made: every row carries it."""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import Any

_HERE = pathlib.Path(__file__).resolve().parent


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


def said(*command: str, cwd: pathlib.Path | None = None) -> str:
    """What a command writes; nothing where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _commit() -> str:
    """What the library was built from: FOVEAL_COMMIT where that is set, what the package says where it was imported, else this checkout."""
    if named := os.environ.get("FOVEAL_COMMIT"):
        return named
    package = getattr(sys.modules.get("foveal"), "__file__", None)
    with contextlib.suppress(OSError):
        if package and (built := (pathlib.Path(package).parent / "commit").read_text().strip()):
            return built
    revision = said("git", "rev-parse", "--short=12", "HEAD", cwd=_HERE)
    dirty = said("git", "status", "--porcelain", "-uno", cwd=_HERE)
    return revision + ("-dirty" if dirty else "") if revision else "unknown"


def _gpu() -> str:
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").partition("\n")[0] or "unknown"


def command(words: list[str]) -> str:
    """What was called, with absolute paths by their last names: where something lies on a machine is nothing to others."""
    return " ".join(["foveal-bench", *(re.sub(r"(^|(?<==))/\S*/(?=[^/])", "", word) for word in words)])


def describe(device: str, threads: int | None = None, **facts: Any) -> dict[str, Any]:
    """facts: what else a verb knows, such as versions. torch's where it was imported."""
    torch = sys.modules.get("torch")
    return {
        "machine": _gpu() if device == "cuda" else _cpu(),
        "threads": None if device == "cuda" else threads,
        **({"torch": torch.__version__} if torch else {}),
        **facts,
        "commit": _commit(),
        "command": command(sys.argv[1:]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def again(verb: str, *words: str) -> dict[str, Any]:
    """What subprocess needs to run a verb in a process of its own."""
    path = os.pathsep.join([str(_HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"args": [sys.executable, "-m", "foveal_bench", verb, *words], "env": {**os.environ, "PYTHONPATH": path}}


def reason(error: BaseException | str) -> str:
    """Why there is no time, in one line: an error's first, or what a failed process wrote last that names one."""
    if isinstance(error, BaseException):
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]  # Python's own line; what follows it may be advice
    named = [line for line in lines if "rror" in line]
    return (raised or named or lines or ["no output"])[-1][:300]
