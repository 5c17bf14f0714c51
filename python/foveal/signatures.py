"""The types of foveal's public signatures, the roles of their tensors, and what is said of a keyword that is none of theirs."""

from __future__ import annotations

import difflib
from typing import Any, Callable, Collection, Mapping, NamedTuple, Protocol, TypedDict, TypeVar

from . import _core
from ._core import Expr, Pass

(FORWARD_ROLES, LENGTHS), (BACKWARD_ROLES, _) = (_core.roles(pass_) for pass_ in (Pass.forward, Pass.backward))


class Array(Protocol):
    """A NumPy array, torch tensor, JAX array, or anything else with DLPack."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> object: ...


A = TypeVar("A", bound=Array)
ScoreMod = Callable[..., object] | Expr | str | None
Mask = Callable[..., object] | Expr | str | None


class Options(NamedTuple):
    """Where and how to run a call. An empty string lets the library choose.

    backend: "cpu", "cuda" or "reference".
    target: of the backend, such as "avx512" or "sm90"; foveal.targets() lists them.
    threads: CPU threads; 0 for the default.
    exclude: backends that must not be chosen, separated by commas, such as "reference".
    """

    backend: str = ""
    target: str = ""
    threads: int = 0
    exclude: str = ""


class Settings(TypedDict, total=False):
    """What a call computes, besides the score and the mask: see foveal.attention()."""

    scale: float | Array | None  # an array: JAX
    sink: Array | None
    dropout_p: float
    deterministic: bool
    strategy: str
    checked: bool
    q_offset: int
    kv_offset: int
    params: Mapping[str, Array] | None


class Running(TypedDict, total=False):
    """What differs between the runs of a call: see foveal.attention()."""

    cu_seqlens: tuple[Array, Array | None] | None
    block_table: Array | None
    seqlens_kv: Array | None
    max_seqlens: tuple[int, int]
    seed: int | Array | None
    offset: int | Array
    rng_state: Array | None


class Arguments(Settings, Running, total=False):
    """The named arguments of foveal.attention(), without return_lse."""

    options: Options


_INSTEAD = {
    "is_causal": "mask=foveal.causal()",
    "causal": "mask=foveal.causal()",
    "attn_mask": "mask",
    "block_mask": "mask",
    "bias": "score_mod, for instance lambda s, b, h, i, j: s + bias[b, h, i, j]",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "dropout": "dropout_p",
    "window_size": "mask=foveal.window(w)",
    "softcap": "score_mod=foveal.softcap(cap)",
    "page_table": "block_table",
    "cache_seqlens": "seqlens_kv",
    "seqused_k": "seqlens_kv",
    "enable_gqa": "fewer heads in k and v, which is all that it takes",
    "dtype": "q, k and v of that dtype",
}


def pair(function: str, cu_seqlens: Any) -> Any:
    """The two arrays of cu_seqlens, (None, None) without."""
    if cu_seqlens is None:
        return None, None
    if not isinstance(cu_seqlens, (tuple, list)) or len(cu_seqlens) != 2:
        raise TypeError(f"{function}: cu_seqlens: found {type(cu_seqlens).__name__}; expected a pair of arrays, those of q and of k and v")
    return tuple(cu_seqlens)


class Paged(NamedTuple):
    """How keys and values lie in pages; stands where the cu_seqlens of packed ones do."""

    block_table: Any
    seqlens_kv: Any


def tokens(function: str, cu_seqlens: Any = None, block_table: Any = None, seqlens_kv: Any = None) -> tuple[Any, Any]:
    """How the tokens of q lie, and those of k and v: cu_seqlens of packed ones, a Paged, or None for a batch of equal lengths."""
    of_q, of_kv = pair(function, cu_seqlens)
    if block_table is None and seqlens_kv is None:
        return of_q, of_kv
    if of_kv is not None:
        raise ValueError(f"{function}: cu_seqlens: for kv: given beside a block_table; expected (cu_seqlens of q, None), and seqlens_kv")
    return of_q, Paged(block_table, seqlens_kv)


def length_slots(of_q: Any, of_kv: Any) -> tuple[Any, ...]:
    """cu_seqlens of q and of kv, then those of a Paged."""
    return (of_q, None, *of_kv) if isinstance(of_kv, Paged) else (of_q, of_kv, *[None] * len(Paged._fields))


def check_flags(function: str, **flags: Any) -> None:
    """For arguments that are True or False; a call costs more than asking whether it is needed."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{function}: {name}: found {type(flag).__name__} {flag!r}; expected True or False")


def check_seeds(function: str, seed: Any, offset: Any, rng_state: Any) -> None:
    if rng_state is not None and (seed is not None or offset):
        raise ValueError(f"{function}: rng_state: found beside a seed or an offset; expected it alone, as it holds both")


def check_names(function: str, arguments: Collection[str], accepted: Collection[str]) -> None:
    """Raises TypeError for a keyword argument that the function does not have."""
    for name in arguments:
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, 1)
            hint = _INSTEAD.get(name) or (near[0] if near else ", ".join(accepted))
            raise TypeError(f"{function}: {name}: no argument of this function; expected {hint}")
