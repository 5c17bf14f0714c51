"""Result files as rows, and what tables and plots ask of them."""

from __future__ import annotations

import collections
import json
import math
import pathlib
from typing import Any, Iterable

OURS = "foveal"
_NO_RIVALS = (OURS, "unfused", "math")  # the materialised computations are yardsticks
Key = tuple[str, Any, str, str]


def load(paths: Iterable[pathlib.Path]) -> list[dict[str, Any]]:
    """All rows; of the same case, contender, machine and threads the last one counts."""
    latest: dict[Any, dict[str, Any]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            row = {**json.loads(line), "file": path.name}
            latest[row["suite"], row["case"], row.get("contender"), row["machine"], row.get("threads")] = row
    return list(latest.values())


def cases(rows: list[dict[str, Any]]) -> dict[Key, dict[str, dict[str, Any]]]:
    """(machine, threads, suite, case) -> contender -> row, for cases that foveal answered."""
    grouped: dict[Key, dict[str, dict[str, Any]]] = collections.defaultdict(dict)
    for row in rows:
        if "contender" in row:
            grouped[row["machine"], row.get("threads"), row["suite"], row["case"]][row["contender"]] = row
    return {key: group for key, group in grouped.items() if "ms" in group.get(OURS, {})}


def best_rival(group: dict[str, dict[str, Any]]) -> str | None:
    timed = {name: row["ms"] for name, row in group.items() if name not in _NO_RIVALS and "ms" in row}
    return min(timed, key=timed.__getitem__) if timed else None


def ratio(group: dict[str, dict[str, Any]]) -> float:
    """How many times as fast as the best rival."""
    return group[best_rival(group) or OURS]["ms"] / group[OURS]["ms"]


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
