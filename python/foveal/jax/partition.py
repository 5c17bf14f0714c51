"""How XLA's partitioner splits a pass over devices: along the batch and the heads, in any number of mesh axes, as the query is split.

Every device runs the same pass on its shard. Where scores or masks read `batch` and `head`, these are shifted by the shard's first ones, which is a
parameter that differs between devices; parameters that are indexed with `batch` or `head` alone are split too, others are whole everywhere and
their gradients summed. Sequences and the dimensions of heads are gathered: foveal.torch.context_parallel splits sequences. Dropout draws by the
global batch and head, so that a pass with dropout is gathered as a whole. Pools of pages are whole along their pages, which any sequence may name, and
their gradients summed over the shards of the batch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule, custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import _core
from .._core import Expr, Param
from ..describe import Description, description_of

BATCH, HEADS, KV_HEADS, OTHER = "b", "h", "n", ""
_LIKE_Q, _LIKE_KV, _LIKE_LSE = ("q", "out", "dout", "dq"), ("k", "v", "dk", "dv"), ("lse", "dlse")
_BY_SEQUENCE = ("block_table", "seqlens_kv")


@dataclass(frozen=True)
class Sizes:
    """Of a pass whose tensors are whole."""

    batch: int  # 0: packed sequences, which are not split
    heads: int
    heads_kv: int
    paged: bool

    @staticmethod
    def of(shapes: Mapping[str, Sequence[int]]) -> "Sizes":
        """shapes: by role."""
        q, k = shapes["q"], shapes["k"]
        return Sizes(0 if len(q) == 3 else q[0], q[-2], k[-2], "block_table" in shapes)


@dataclass(frozen=True)
class Split:
    """The axes of the mesh along which a pass is split, and how many shards these make."""

    batch_axes: tuple[str, ...] = ()
    head_axes: tuple[str, ...] = ()
    batch_shards: int = 1
    head_shards: int = 1


def can_split(described: Description) -> bool:
    return not described.dropout and (described.sink is None or _read_by(described, described.sink) in ([], ["head"]))


def _read_by(described: Description, param: Param) -> list[str]:
    """The symbol that alone indexes each of its dimensions, if there is one; [] for a parameter that no expression reads."""
    return _core.index_symbols([e for e in (described.score_mod, described.mask) if e is not None], param.name)


def dims(role: Any, rank: int, described: Description, sizes: Sizes) -> tuple[str, ...]:
    """What each dimension of an array is. role: its name, or the position of a parameter."""
    if isinstance(role, str):
        packed = sizes.batch == 0
        if role in _LIKE_LSE:
            return (HEADS, OTHER) if packed else (BATCH, HEADS, OTHER)
        if role in _LIKE_Q or role in _LIKE_KV:
            heads = HEADS if role in _LIKE_Q or sizes.heads == sizes.heads_kv else KV_HEADS
            if sizes.paged and role in _LIKE_KV:
                return (OTHER, OTHER, heads, OTHER)
            return (OTHER, heads, OTHER) if packed else (BATCH, OTHER, heads, OTHER)
        return (OTHER if packed or role not in _BY_SEQUENCE else BATCH, *(OTHER,) * (rank - 1))
    param = described.params[role]
    if described.sink is not None and param.name == described.sink.name:
        return (HEADS,)
    known = {("batch", sizes.batch): BATCH, ("head", sizes.heads): HEADS}
    return tuple(known.get(found, OTHER) for found in zip(_read_by(described, param) or [""] * rank, param.shape))


# ---- shards ----


def _axes_of(sharding: Any, shape: Sequence[int], mesh: Mesh) -> list[tuple[str, ...]]:
    """For each dimension, the axes of the mesh that split it; none where the shards are not equal, or split otherwise than along whole axes."""
    found: list[tuple[str, ...]] = []
    slices = sharding.devices_indices_map(tuple(shape))
    for d, extent in enumerate(shape):
        starts = np.array([slices[device][d].indices(extent)[0] for device in mesh.devices.flat]).reshape(mesh.devices.shape)
        varied = [axis for axis in range(starts.ndim) if (starts != np.take(starts, [0], axis)).any()]
        count = math.prod(mesh.devices.shape[axis] for axis in varied)
        names: tuple[str, ...] = ()
        if varied and extent % count == 0:
            for order in {tuple(varied), tuple(reversed(varied))}:
                expected = np.zeros(starts.shape, np.int64)
                for axis in order:
                    place = np.arange(starts.shape[axis]).reshape([-1 if a == axis else 1 for a in range(starts.ndim)])
                    expected = expected * starts.shape[axis] + place
                if (starts == expected * (extent // count)).all():
                    names = tuple(mesh.axis_names[axis] for axis in order)
        found.append(names)
    return found


def _split(mesh: Mesh, q: Any, sizes: Sizes) -> Split:
    """As the query is split, where that leaves whole groups of query heads together or one kv head to a device."""
    if mesh.empty or q.sharding is None:
        return Split()
    axes = _axes_of(q.sharding, q.shape, mesh)
    count: Callable[[Any], int] = lambda names: math.prod(mesh.shape[name] for name in names)  # noqa: E731
    batch_axes, head_axes = () if sizes.batch == 0 else axes[0], axes[-2]
    heads, group = sizes.heads // count(head_axes), sizes.heads // sizes.heads_kv
    if heads % group != 0 and group % heads != 0:
        head_axes = ()
    return Split(batch_axes, head_axes, count(batch_axes), count(head_axes))


def _spec(array_dims: Sequence[str], split: Split, sizes: Sizes) -> PartitionSpec:
    whole_groups = sizes.heads_kv % split.head_shards == 0
    axes = {BATCH: split.batch_axes, HEADS: split.head_axes, KV_HEADS: split.head_axes if whole_groups else ()}
    return PartitionSpec(*[axes.get(dim) or None for dim in array_dims])


@functools.lru_cache(1024)
def _description(described: Description, split: Split, sizes: Sizes) -> tuple[Description, tuple[str, ...]]:
    """Of a shard, and the origins ("batch", "head") that it has as further parameters."""
    taken = {param.name for param in described.params}
    wanted = {"batch": split.batch_shards, "head": split.head_shards}
    origins = {}
    for symbol, shards in wanted.items():
        if shards > 1:
            name = f"{symbol}_origin_"
            while name in taken:
                name += "_"
            origins[symbol] = Param(name, [], _core.Type.integer)
    params, shards_of = [], {}
    for i, param in enumerate(described.params):
        count = {BATCH: split.batch_shards, HEADS: split.head_shards}
        shape = [extent // count.get(dim, 1) for extent, dim in zip(param.shape, dims(i, len(param.shape), described, sizes))]
        if shape != param.shape:
            param = shards_of[param.name] = Param(param.name, shape, param.type)
        params.append(param)

    def of_shard(expr: Expr | None) -> Expr | None:
        return None if expr is None else _core.of_shard(expr, origins, shards_of)

    score_mod, mask = of_shard(described.score_mod), of_shard(described.mask)
    read = set().union(*[_core.params_of(e) for e in (score_mod, mask) if e is not None])
    used = tuple(symbol for symbol, param in origins.items() if param.name in read)
    sink = None if described.sink is None else shards_of.get(described.sink.name, described.sink)
    params += [origins[symbol] for symbol in used]
    return description_of(score_mod, mask, params, [], sink, described.settings), used


def _on_shard(
    run: Callable[..., dict[Any, Any]], described: Description, split: Split, sizes: Sizes, roles: Sequence[str], results: dict[Any, Any],
    given: tuple[Any, ...], params: tuple[Any, ...],
) -> list[Any]:  # fmt: skip
    """What one device does. run(description, tensors by role, parameters, results as they look) -> results."""
    fresh, used = _description(described, split, sizes)
    tensors, heads = dict(zip(roles, given)), sizes.heads // split.head_shards
    first = {"batch": jnp.int32(0), "head": jnp.int32(0)}
    for symbol, axes, count in (("batch", split.batch_axes, sizes.batch // split.batch_shards), ("head", split.head_axes, heads)):
        if axes:
            first[symbol] = (jax.lax.axis_index(axes) * count).astype(jnp.int32)
    one_kv_head = sizes.heads_kv % split.head_shards != 0
    kv_head = first["head"] // (sizes.heads // sizes.heads_kv)
    if one_kv_head:
        for role in set(tensors) & set(_LIKE_KV):
            tensors[role] = jax.lax.dynamic_slice_in_dim(tensors[role], kv_head, 1, axis=-2)
    shapes = {}
    for key, x in results.items():
        shares = {BATCH: split.batch_shards, HEADS: split.head_shards, KV_HEADS: sizes.heads_kv if one_kv_head else split.head_shards}
        shape = tuple(extent // shares.get(dim, 1) for extent, dim in zip(x.shape, dims(key, len(x.shape), described, sizes)))
        shapes[key] = jax.ShapeDtypeStruct(shape, x.dtype)
    found = run(fresh, tensors, (*params, *[first[symbol] for symbol in used]), shapes)
    for key in results:
        own = dims(key, len(results[key].shape), described, sizes)
        if isinstance(key, int):
            summed = (() if BATCH in own else split.batch_axes) + (() if HEADS in own else split.head_axes)
            found[key] = jax.lax.psum(found[key], summed) if summed else found[key]
        elif key in _LIKE_KV:
            summed = (split.batch_axes if sizes.paged else ()) + (split.head_axes if one_kv_head else ())
            part = found[key].astype(jnp.promote_types(found[key].dtype, jnp.float32))
            if one_kv_head:
                *front, _, dim = part.shape
                part = jax.lax.dynamic_update_slice_in_dim(jnp.zeros((*front, sizes.heads_kv, dim), part.dtype), part, kv_head, axis=-2)
            found[key] = jax.lax.psum(part, summed).astype(found[key].dtype) if summed else found[key]
    return [found[key] for key in results]


def placed(described: Description, given: dict[str, Any], params: Sequence[Any], results: dict[Any, Any]) -> dict[Any, Any]:
    """How the results look where shardings are part of types (meshes with explicit axes): gradients as what they are of, others split as q is."""
    q = jax.typeof(given["q"]).sharding
    if q.mesh.empty:
        return results
    primals: dict[Any, Any] = {**{f"d{role}": given[role] for role in ("q", "k", "v")}, **dict(enumerate(params))}
    sizes, axes = Sizes.of({role: x.shape for role, x in given.items()}), {BATCH: q.spec[0], HEADS: q.spec[-2]}
    found = {}
    for key, x in results.items():
        own = dims(key, len(x.shape), described, sizes)
        spec = jax.typeof(primals[key]).sharding.spec if key in primals else PartitionSpec(*map(axes.get, own))
        found[key] = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(q.mesh, spec))
    return found


# ---- the rule ----


def _rule(mesh: Mesh, roles: Sequence[Any], ranks: Sequence[int], outputs: int, described: Description, sizes: Sizes) -> SdyShardingRule:
    """For Shardy: what is split alike. roles: of the arguments, then of the results, of which there are `outputs`."""
    names: dict[str, Any] = {BATCH: "b", HEADS: "h", KV_HEADS: "n"}
    factors = {}
    # An axis with more devices than there are kv heads would split these along a part of itself.
    if sizes.heads > sizes.heads_kv > 1 and all(sizes.heads_kv % size == 0 for size in mesh.shape.values()):
        names[HEADS], factors = CompoundFactor("n", "g"), {"g": sizes.heads // sizes.heads_kv}
    mappings, alone = [], []
    for at, (role, rank) in enumerate(zip(roles, ranks)):
        mapping = []
        for d, dim in enumerate(dims(role, rank, described, sizes)):
            factor = names.get(dim)
            if factor is None:
                factor = f"x{at}d{d}"
                alone.append(factor)
            mapping.append(factor)
        mappings.append(ArrayMapping(*mapping))
    first = len(mappings) - outputs
    return SdyShardingRule(tuple(mappings[:first]), tuple(mappings[first:]), need_replication_factors=tuple(alone), **factors)  # type: ignore[arg-type]


def partitioned(
    call: Callable[..., list[Any]], run: Callable[..., dict[Any, Any]], described: Description, roles: Sequence[str], results: dict[Any, Any]
) -> Callable[..., list[Any]]:
    """call(given, params), which XLA's partitioners may split. roles: of `given`."""
    whole = custom_partitioning(call)

    def shardings(mesh: Mesh, given: Any, params: Any) -> tuple[Any, Split, Sizes, Callable[[Any, Any], NamedSharding]]:
        tensors = dict(zip(roles, given))
        sizes = Sizes.of({role: x.shape for role, x in tensors.items()})
        split = _split(mesh, tensors["q"], sizes)
        if mesh.empty:  # no names to split by
            mesh = Mesh(np.array(list(tensors["q"].sharding.device_set)), ("devices",))
        of = lambda role, x: NamedSharding(mesh, _spec(dims(role, len(x.shape), described, sizes), split, sizes))  # noqa: E731
        return mesh, split, sizes, of

    def partition(mesh: Mesh, arguments: Any, result_shapes: Any) -> Any:
        given, params = arguments
        mesh, split, sizes, of = shardings(mesh, given, params)

        def mine(given: Any, params: Any) -> Any:
            # What is traced here is past all splitting: under explicit mesh axes JAX 0.12 would constrain its values, which XLA refuses by now.
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                return _on_shard(run, described, split, sizes, roles, results, given, params)

        in_shardings = (tuple(map(of, roles, given)), tuple(of(i, x) for i, x in enumerate(params)))
        return mesh, mine, [of(key, x) for key, x in results.items()], in_shardings

    def infer(mesh: Mesh, arguments: Any, result_shapes: Any) -> Any:
        *_, of = shardings(mesh, *arguments)
        return [of(key, x) for key, x in results.items()]

    def rule(mesh: Mesh, operand_types: Any, result_types: Any) -> SdyShardingRule:
        shapes = [tuple(kind.shape) for kind in (*operand_types, *result_types)]
        sizes = Sizes.of(dict(zip(roles, shapes)))
        params = range(len(operand_types) - len(roles))
        return _rule(mesh, [*roles, *params, *results], [len(shape) for shape in shapes], len(results), described, sizes)

    whole.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule, decode_shardings=False)
    return whole
