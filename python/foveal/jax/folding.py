"""The examples of a vmap as one batch of a pass, where that is possible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Iterable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from .. import _core
from .._core import Expr, Param
from ..describe import Description, description_of
from ..signatures import LENGTHS
from .foreign import Described, What
from .mesh import sharding_of


@dataclass(frozen=True)
class Folded:
    """A pass of all examples. shapes: of its results with a leading dimension for the example, which lie as `like`."""

    what: What
    given: dict[str, Any]
    params: tuple[Any, ...]
    results: dict[Any, Any]
    shapes: dict[Any, tuple[int, ...]]
    like: dict[Any, Any]

    def split(self, found: dict[Any, Any]) -> list[Any]:
        """Its results, by example."""
        return [_split_again(found[key], shape, self.like[key]) for key, shape in self.shapes.items()]


def folded(
    what: What, size: int, given: dict[str, Any], params: tuple[Any, ...], flags: Sequence[bool], results: dict[Any, Any]
) -> Folded | None:
    """`size` examples of a pass, or None where each needs one of its own. flags: which of given and params have a leading dimension for the example."""
    copied = [flag or i in results for i, flag in enumerate(flags[len(given) :])]
    if set(LENGTHS) & set(given) or not _folds(what.described, copied):
        return None
    given = dict(zip(given, _stacked(size, given.values(), flags, [True] * len(given))))
    params = tuple(_stacked(size, params, flags[len(given) :], copied))
    if not all([_merges(x) for x in (*given.values(), *[x for x, copy in zip(params, copied) if copy])]):
        return None
    fresh, arrays = _of_one_batch(what.described, given["q"].shape[1], params, copied)
    of_one = {
        key: jax.ShapeDtypeStruct(tuple(arrays[key].shape) if isinstance(key, int) else _merged((size, *x.shape)), x.dtype)
        for key, x in results.items()
    }
    return Folded(
        replace(what, described=Described(fresh)), {role: x.reshape(_merged(x.shape)) for role, x in given.items()}, arrays, of_one,
        {key: (size, *x.shape) for key, x in results.items()},
        {key: params[key] if isinstance(key, int) else given.get(key[1:], given["q"]) for key in results},
    )  # fmt: skip


def whole_in_front(x: Any) -> Any:
    """Not split along its first dimension, which a loop runs over."""
    sharding = sharding_of(x)
    if sharding is None or sharding.spec[0] is None:
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec[1:])))


def _folds(described: Description, copied: list[bool]) -> bool:
    """Dropout would see other positions, and there is one sink for all rows of a batch."""
    sink_copied = described.sink is not None and copied[[param.name for param in described.params].index(described.sink.name)]
    return not described.dropout and not sink_copied


def _stacked(size: int, values: Iterable[Any], batched: Iterable[bool], wanted: Iterable[bool]) -> list[Any]:
    """Those that are wanted with a leading dimension of `size`, one element for each example."""
    return [x if flag or not want else jnp.broadcast_to(x, (size, *x.shape)) for x, flag, want in zip(values, batched, wanted)]


def _merges(x: Any) -> bool:
    """Whether the first two dimensions can become one where they lie: rows that are split within each example would move."""
    sharding = sharding_of(x)
    return sharding is None or x.ndim == 1 or sharding.spec[1] is None or sharding.spec[0] is not None


def _merged(shape: Sequence[int]) -> tuple[int, ...]:
    """Examples and rows become rows."""
    return (shape[0] * shape[1], *shape[2:])


def _of_one_batch(described: Description, batch: int, params: tuple[Any, ...], copied: list[bool]) -> tuple[Description, tuple[Any, ...]]:
    """(with the rows of all examples, each of `batch` ones; its parameters)."""
    new_params, arrays, changed = [], [], {}
    exprs = [e for e in (described.score_mod, described.mask) if e is not None]
    for param, array, copy in zip(described.params, params, copied):
        if copy:
            by_row = len(param.shape) > 0 and param.shape[0] == batch and _core.index_symbols(exprs, param.name)[:1] in ([], ["batch"])
            array = array.reshape(_merged(array.shape)) if by_row else array
            param = changed[param.name] = Param(param.name, list(array.shape), param.type)
        new_params.append(param)
        arrays.append(array)

    def fold(expr: Expr | None) -> Expr | None:
        return None if expr is None else _core.fold_batch(expr, batch, changed)

    return description_of(fold(described.score_mod), fold(described.mask), new_params, [], described.sink, described.settings), tuple(arrays)


def _split_again(x: Any, shape: tuple[int, ...], like: Any) -> Any:
    """Its first dimension as two, which lie as those of `like` do."""
    sharding = sharding_of(x)
    if sharding is None or x.shape == shape:
        return x.reshape(shape)
    front = () if sharding_of(like) is None else sharding_of(like).spec[:2]
    return jax.lax.reshape(x, shape, out_sharding=NamedSharding(sharding.mesh, PartitionSpec(*front, *(None,) * (2 - len(front)), *sharding.spec[1:])))
