"""Refusals of what tensors can and symbols cannot. They hold where a function that is traced catches them, too (`try: n = int(i)`,
`except TypeError:`), as it goes on another way than on tensors.
"""

from __future__ import annotations

import sys
import threading
import types
from typing import TypeVar

LIBRARIES = {"foveal", "jax", "numpy"}  # whose own code tells symbols and arrays apart


class Here(threading.local):
    count = 0  # functions, in this thread
    printing = False  # within print()
    refusal: Exception | None = None  # the first one of the function that runs


here = Here()


def package_of(frame: types.FrameType) -> str:
    name: str = frame.f_globals.get("__name__") or ""
    return name.partition(".")[0]


_Refusal = TypeVar("_Refusal", bound=Exception)


def refused(error: _Refusal) -> _Refusal:
    """Notes a refusal of what tensors can, for check(), and gives it back."""
    if here.count and here.refusal is None:
        here.refusal = error
    return error


def asked_by_a_library() -> bool:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and package_of(frame) == "foveal":
        frame = frame.f_back
    return frame is None or package_of(frame) in {"torch", *LIBRARIES}


def refused_here(error: _Refusal) -> _Refusal:
    """The same of what Python asks, which libraries do, too, and then go another way that gives the same."""
    return error if asked_by_a_library() else refused(error)


def check() -> None:
    """When a function has returned: raises what it caught."""
    error, here.refusal = here.refusal, None
    if error is not None:
        raise error


def forget() -> None:
    here.refusal = None
