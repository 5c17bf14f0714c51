"""Logs what foveal does, through Python's logging: loggers foveal.plan, foveal.compile and foveal.route, at level DEBUG.

    FOVEAL_LOG=plan,compile,route python train.py        # to stderr
    foveal.logging.enable("plan")                        # the same from Python

plan: each call that is planned for new shapes: its problem line, kernel, tiles, workspace, which backends refused it and why, and the time that
planning took, which on GPUs includes the compilation of its kernels.
compile: each program made of a new score and mask.
route: what does not run the way its caller may expect: calls that patch() routes or misses, masks that become tensors or tables, derivatives with all
scores in memory.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from . import _core

TOPICS = ("plan", "compile", "route")
plan, compile, route = (logging.getLogger(f"foveal.{topic}") for topic in TOPICS)  # noqa: A001 - the topic's name
_handler = logging.StreamHandler()
_handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))


def enable(*topics: str) -> None:
    """Logs these topics to stderr; all of them if none is named. Raises ValueError for an unknown one."""
    _handler.setStream(sys.stderr)
    for topic in topics or TOPICS:
        if topic not in TOPICS:
            raise ValueError(f"logging.enable: topic {topic!r}; expected some of {', '.join(TOPICS)}")
        logger = logging.getLogger(f"foveal.{topic}")
        logger.setLevel(logging.DEBUG)
        if _handler not in logger.handlers:
            logger.addHandler(_handler)
            logger.propagate = False


def disable() -> None:
    """Undoes enable()."""
    for topic in TOPICS:
        logger = logging.getLogger(f"foveal.{topic}")
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(_handler)
        logger.propagate = True


def _planned(call: _core.Call, seconds: float) -> None:
    if plan.isEnabledFor(logging.DEBUG):
        explanation: dict[str, Any] = call.explain()
        tiles = "/".join([str(explanation[f"tiles_{kind}"]) for kind in ("full", "partial", "empty")])
        refused = "".join([f"; not {candidate}: {reason}" for candidate, reason in explanation["refusals"]])
        plan.debug(
            "%s -> %s, tiles %s, workspace %d bytes, %.1f ms%s", explanation["problem"], explanation["kernel"], tiles, explanation["workspace_bytes"],
            seconds * 1e3, refused,
        )  # fmt: skip


_core.on_plan(_planned)
if named := [topic.strip() for topic in os.environ.get("FOVEAL_LOG", "").split(",") if topic.strip()]:
    try:
        enable(*named)
    except ValueError as error:
        raise ValueError(str(error).replace("logging.enable", "FOVEAL_LOG")) from None
