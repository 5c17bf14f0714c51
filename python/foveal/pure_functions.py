"""Functions that depend on nothing but their arguments: a trace that calls them stays right."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from typing import Any, Iterable

PURE: set[Any] = set()


def trust(functions: Iterable[Any]) -> None:
    """These functions, methods and types depend on nothing but their arguments."""
    PURE.update(functions)


_BUILTINS = (
    "abs all any bool bytes complex dict divmod enumerate filter float frozenset int isinstance len list map max min pow print range "
    "reversed round set slice sorted str sum tuple zip"
)  # fmt: skip
trust(getattr(builtins, name) for name in _BUILTINS.split())
trust(value for value in vars(builtins).values() if isinstance(value, type) and issubclass(value, BaseException))
# Of operator, not what writes and not what reads an attribute by its name.
_LEFT_OUT = {"attrgetter", "methodcaller", "setitem", "delitem"}
_LEFT_OUT |= {f"i{name}" for name in "add and concat floordiv lshift matmul mod mul or pow rshift sub truediv xor".split()}
for _module in (math, operator):
    trust(value for name, value in vars(_module).items() if not name.startswith("_") and name not in _LEFT_OUT and callable(value))
trust((functools.partial, functools.reduce))
