"""What Python asks of symbols without calling them, while a function is traced: whose instances they are, and their hashes. (hasattr() and getattr()
with a default ask a symbol's own __getattr__, which refuses what tensors have and symbols have not.)

A symbol is no tensor, and its hash is none of its values': `isinstance(x, torch.Tensor)` would take another branch than the function does on
tensors, `head in {0, 1}` would be false of every head. The first is answered as of what a symbol stands for, the second is refused.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import threading
from typing import Any, Iterator

from . import _core

_isinstance = builtins.isinstance
_LIBRARIES = {"foveal", "jax", "numpy"}  # whose own code tells symbols and arrays apart
_lock = threading.Lock()
_tracing = 0  # functions, in all threads
_here = threading.local()  # .count of them in this thread


def _is_instance(value: Any, kinds: Any) -> bool:
    if _isinstance(value, kinds):
        return True
    stands_for = getattr(type(value), "__stands_for__", None)
    if stands_for is None or sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        return False
    return issubclass(stands_for(value), kinds)


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


_hash_of = _core.Expr.__hash__


def _hash(self: _core.Expr) -> int:
    return no_hash(self) if getattr(_here, "count", 0) else _hash_of(self)


setattr(_core.Expr, "__hash__", _hash)
