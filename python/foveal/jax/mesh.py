"""What the type of an array says of the mesh of devices that it lies on."""

from __future__ import annotations

from typing import Any

import jax


def sharding_of(x: Any) -> Any:
    """On a mesh with explicit axes, where x is split; None elsewhere."""
    sharding = jax.typeof(x).sharding
    return sharding if any(sharding.spec) else None


def whole(x: jax.Array) -> jax.Array:
    """On a mesh with explicit axes: x split along none, so that it can be read anywhere."""
    sharding = sharding_of(x)
    return x if sharding is None else jax.sharding.reshard(x, jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*[None] * x.ndim)))


def axes_of(x: Any) -> frozenset[str]:
    """Of the mesh, along which x differs inside shard_map."""
    kind: Any = jax.typeof(x)
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(kind.vma)


def varying_with(x: Any, axes: frozenset[str]) -> Any:
    """Inside shard_map: x, said to differ along these axes of the mesh too."""
    missing = tuple(sorted(axes - axes_of(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def all_varying(tree: Any) -> Any:
    """Inside shard_map: these arrays, said to differ along the same axes, so that the gradient of one that is the same everywhere is summed over shards."""
    axes = frozenset().union(*map(axes_of, jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: varying_with(x, axes), tree)
