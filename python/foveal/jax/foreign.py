"""The foreign function of XLA that runs a pass. A compiled program contains the text of its call, by which the extension finds the plan."""

from __future__ import annotations

import ast
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import _core, arrays
from .._core import Pass, TensorView
from ..describe import SEPARATOR, Description, read
from ..signatures import BACKWARD_ROLES, FORWARD_ROLES, LENGTHS, Options
from .operands import RNG_STATE

MAX_PLANNED = 1024
_TARGET = "foveal_call"
# (text, workspace bytes) of calls that were planned, by what they were planned for, the most recently used last. Compiled programs hold the text
# and may outlive both this and the calls themselves: restored() makes a call again.
planned: OrderedDict[Any, tuple[str, int]] = OrderedDict()

# At once, as programs of another process (jax.export, caches on disk) hold calls, too.
for _platform in ("cpu", "CUDA"):
    jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(), platform=_platform)


class Described(Description):
    """A Description without arrays, equal to another when the texts are."""

    def __init__(self, description: Description):
        super().__init__(**{**vars(description), "arrays": []})

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and self.text == other.text


@dataclass(frozen=True)
class What:
    """The static part of a call, hashable: what jit sees. `described` counts by its text."""

    described: Described
    max_seqlens: tuple[int, int]
    options: Options
    cuda: bool


def call(what: What, pass_: Pass, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> dict[Any, Any]:
    """given: the arguments by role; results: how they look, by role, those of parameters by position. Returns these."""
    text, workspace = _find(what, pass_, given, params, results)
    shapes = list(results.values())
    if what.cuda:
        shapes.append(jax.ShapeDtypeStruct((workspace + _core.workspace_alignment,), jnp.uint8))
    found = jax.ffi.ffi_call(_TARGET, shapes)(*given.values(), *params, call=text)
    return dict(zip(results, found))


def _find(what: What, pass_: Pass, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> tuple[str, int]:
    """(text of the planned call, workspace bytes)."""
    looks = [[(name, tuple(x.shape), str(x.dtype)) for name, x in items] for items in (given.items(), enumerate(params), results.items())]
    key = (what, pass_, *map(tuple, looks))
    found = planned.get(key)
    if found is None:
        how = (pass_.name, what.cuda, what.max_seqlens, tuple(what.options), *looks)
        text = f"{what.described.text}{SEPARATOR}{how!r}"
        found = planned[key] = (text, _plan(text, what.described))
        while len(planned) > MAX_PLANNED:
            planned.popitem(last=False)
    else:
        planned.move_to_end(key)
    return found


def restored(text: str) -> None:
    """Plans a call again of which a compiled program holds the text: it was forgotten, or the program comes from a cache of another process."""
    _plan(text, read(text.rsplit(SEPARATOR, 1)[0]))


def _plan(text: str, described: Description) -> int:
    """Plans the call with this text and registers it under it; its workspace bytes."""
    pass_name, cuda, max_seqlens, options, *looks = ast.literal_eval(text.rsplit(SEPARATOR, 1)[1])
    pass_ = getattr(Pass, pass_name)
    given, params, results = ({name: (dtype, shape) for name, shape, dtype in group} for group in looks)
    tensors = {**given, **results}

    def view(look: tuple[str, tuple[int, ...]]) -> TensorView:
        return TensorView(arrays.dtype_named(look[0], by_bits=True), cuda, 0, list(look[1]))

    roles = (*(FORWARD_ROLES if pass_ == Pass.forward else BACKWARD_ROLES), *LENGTHS)
    views = [view(tensors[role]) if role in tensors else TensorView() for role in roles]
    views += [view(params[i]) for i in range(len(params))]
    arguments, outputs = list(given), list(results)
    slots = [arguments.index(r) if r in given else ~outputs.index(r) if r in results else _core.xla_absent for r in roles]
    slots += [len(arguments) + i for i in range(len(params))]
    trained = [i in results for i in range(len(params))]
    if pass_ == Pass.backward:
        views += [view(results[i]) if wanted else TensorView() for i, wanted in enumerate(trained)]
        slots += [~outputs.index(i) if wanted else _core.xla_absent for i, wanted in enumerate(trained)]
    made = _core.Call(described.attention, pass_, described.params, views, trained, *max_seqlens, *options)
    workspace = ~len(outputs) if cuda else _core.xla_absent
    rng_state = arguments.index(RNG_STATE) if RNG_STATE in given else _core.xla_absent
    _core.xla_register(text, made, slots, workspace, rng_state, cuda)
    return made.workspace_bytes
