"""How the tokens of a sequence are dealt to the devices of a mesh axis, which are its ranks."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_EACH = {"contiguous": 1, "zigzag": 2}  # stretches of tokens that a rank holds

Tokens = np.ndarray[Any, np.dtype[np.int64]]


def context_order(seqlen: int, ranks: int, deal: str = "zigzag", pad: bool = False) -> Tokens:
    """The tokens in the order of the shards, int64 [seqlen]: x[:, order], split evenly along the axis, gives each device its rows;
    x[:, context_places()] undoes it.

    deal: "zigzag", where device r of n holds the stretches r and 2n - 1 - r of 2n, which is even for causal masks; or "contiguous".
    pad: accept every length. The shards are then those of the next multiple. The places after the last token repeat that token, and
    context_attention() needs `seqlen` to leave them out.

    Raises ValueError for other lengths without pad."""
    seqlen, ranks = (index("context_order", argument, value) for argument, value in (("seqlen", seqlen), ("ranks", ranks)))
    dealt = Deal("context_order", deal, ranks)
    stretches = ranks * dealt.each
    if ranks < 1 or seqlen < 1 or (seqlen % stretches != 0 and not pad):
        raise ValueError(
            f"context_order: seqlen: {seqlen} for {ranks} ranks; expected a multiple of {dealt.each} x ranks for deal {deal!r}, or pad=True and"
            " context_attention(seqlen=)"
        )
    rows = -(-seqlen // stretches)
    tokens = np.arange(rows * stretches, dtype=np.int64).reshape(-1, rows)
    return np.minimum(tokens[dealt.order()].reshape(-1), seqlen - 1)


def context_places(seqlen: int, ranks: int, deal: str = "zigzag") -> Tokens:
    """Where context_order(pad=True) puts each token, int64 [seqlen]: x[:, context_places(...)] puts results of the devices back in token order."""
    seqlen, ranks = (index("context_places", argument, value) for argument, value in (("seqlen", seqlen), ("ranks", ranks)))
    stretches = ranks * Deal("context_places", deal, ranks).each
    if ranks < 1 or seqlen < 1:
        raise ValueError(f"context_places: seqlen: {seqlen} for {ranks} ranks; expected both to be 1 or more")
    return np.argsort(context_order(-(-seqlen // stretches) * stretches, ranks, deal))[:seqlen]


def context_positions(rows: int, axis_name: str, deal: str = "zigzag") -> jax.Array:
    """Inside shard_map: the tokens of this device's rows, int32 [rows]."""
    dealt = Deal.along("context_positions", deal, axis_name)
    rows = dealt.rows(rows)
    own = dealt.held(jax.lax.axis_index(axis_name))
    return jnp.concatenate([stretch * rows + jnp.arange(rows, dtype=jnp.int32) for stretch in own])


@dataclass(frozen=True)
class Deal:
    """Equal stretches of tokens, dealt to ranks. function: the public one, which errors name."""

    function: str
    name: str
    ranks: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in _EACH:
            raise ValueError(f"{self.function}: deal: {self.name!r}; expected {' or '.join(map(repr, _EACH))}")

    @classmethod
    def along(cls, function: str, name: str, axis_name: str) -> Deal:
        """Inside shard_map: to the devices of this axis."""
        try:
            ranks = int(jax.lax.axis_size(axis_name))
        except NameError:
            raise ValueError(f"{function}: axis_name: {axis_name!r} is no axis here; expected one of the mesh of a shard_map around the call") from None
        return cls(function, name, ranks)

    @property
    def each(self) -> int:
        """Stretches of a rank."""
        return _EACH[self.name]

    def held(self, rank: Any) -> list[Any]:
        """The stretches of a rank, which may be traced."""
        return [rank, 2 * self.ranks - 1 - rank][: self.each]

    def order(self) -> list[int]:
        """The stretches of all ranks."""
        return [stretch for rank in range(self.ranks) for stretch in self.held(rank)]

    def rows(self, rows: int) -> int:
        """Of a stretch, where a rank has this many."""
        if rows % self.each != 0:
            raise ValueError(f"{self.function}: {rows} rows of a device; expected an even number for deal {self.name!r}")
        return rows // self.each


def index(name: str, argument: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        traced = ", which JAX traces" if isinstance(value, jax.core.Tracer) else ""
        raise TypeError(f"{name}: {argument}: found {type(value).__name__} {value!r}{traced}; expected an integer") from None
