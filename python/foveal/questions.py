"""What Python asks of symbols without calling them, while a function is traced: whose instances they are, their classes and their hashes. (hasattr()
and getattr() with a default ask a symbol's own __getattr__, which refuses what tensors have and symbols have not.)

A symbol is no tensor, and its hash is none of its values': `isinstance(x, torch.Tensor)` would take another branch than the function does on
tensors, `head in {0, 1}` would be false of every head. The first is answered as of what a symbol stands for, as are `x.__class__` and
`case torch.Tensor():`; the second is refused. `type(x)` asks nobody: trace.py refuses it where a function's bytecode shows it.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import sys
import threading
import types
from typing import Any, Callable, Iterator

from . import _core

_isinstance = builtins.isinstance
_LIBRARIES = {"foveal", "jax", "numpy"}  # whose own code tells symbols and arrays apart
_lock = threading.Lock()
_tracing = 0  # functions, in all threads
_here = threading.local()  # .count of them in this thread


def _asked_by_library(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES


def _is_instance(value: Any, kinds: Any) -> bool:
    if _isinstance(value, kinds):
        return True
    stands_for = getattr(type(value), "__stands_for__", None)
    if stands_for is None or _asked_by_library(sys._getframe(1)):
        return False
    return issubclass(stands_for(value), kinds)


# ---- x.__class__, case torch.Tensor(): ----

_OF_A_CLASS = {dis.opmap[name] for name in ("LOAD_ATTR", "MATCH_CLASS") if name in dis.opmap}


def _instruction(frame: types.FrameType) -> int:
    """That the frame is at; some versions of Python stand on the caches behind it."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and code[at] == 0:
        at -= 2
    return code[at]


def _knows_isinstance(frame: types.FrameType) -> bool:
    """By a name that it had before tracing, under which the builtin itself is called."""
    reads = frame.f_globals
    return any([reads.get(name) is _isinstance for name in frame.f_code.co_names]) or any([value is _isinstance for value in frame.f_locals.values()])


def class_property(stands_for: Callable[[Any], type]) -> Any:
    """A __class__ that answers the functions that are traced, by what a symbol stands for. Functions of C, which ask on behalf of a call, get its
    type: torch's would take it for a tensor of theirs otherwise, and read its memory as one."""

    def class_of(self: Any) -> type:
        frame = sys._getframe(1)
        if not getattr(_here, "count", 0) or _asked_by_library(frame):
            return type(self)
        if _instruction(frame) in _OF_A_CLASS:
            return stands_for(self)
        if _knows_isinstance(frame):
            raise TypeError("the builtin isinstance() by a name of your own in a score or mask, which does not know what symbols stand for; expected isinstance() itself")
        return type(self)

    return property(class_of)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """While a function runs on symbols."""
    global _tracing
    with _lock:
        _tracing += 1
        setattr(builtins, "isinstance", _is_instance)
    _here.count = getattr(_here, "count", 0) + 1
    try:
        yield
    finally:
        _here.count -= 1
        with _lock:
            _tracing -= 1
            if _tracing == 0:
                setattr(builtins, "isinstance", _isinstance)


def no_hash(value: Any) -> int:
    raise TypeError(
        "a score expression has no value while it is traced, so that it is no key of a dict, a set or a cache: write foveal.where(x == 0, a, b), "
        "or index an array with it"
    )


def no_copy(value: Any, *_: Any) -> Any:
    raise TypeError("a score expression has no value while it is traced, so that it is neither copied nor pickled: x + 0 is a new one")


_hash_of = _core.Expr.__hash__


def _hash(self: _core.Expr) -> int:
    return no_hash(self) if getattr(_here, "count", 0) else _hash_of(self)


setattr(_core.Expr, "__hash__", _hash)
