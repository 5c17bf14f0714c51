"""A Description is what the user asked for: the attention, the parameters it reads, and the arrays bound to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping

from . import _core, arrays
from ._core import BackwardStrategy, Determinism, Expr, Param, Pass
from .trace import Tracer

ScoreMod = Callable[..., Any] | Expr | str | None
Mask = Callable[..., Any] | Expr | str | None


@dataclass(frozen=True)
class Options:
    """Where and how to run: "" means the library's own choice."""

    backend: str = ""
    target: str = ""
    threads: int = 0


@dataclass
class Description:
    attention: _core.Attention
    params: list[Param]
    arrays: list[Any]
    text: str  # canonical: equal texts compute the same function of their inputs
    score_mod: Expr | None
    mask: Expr | None


def describe(
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    scale: float | None = None,
    sink: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    deterministic: bool = False,
    strategy: str = "automatic",
    checked: bool = False,
    q_offset: int = 0,
    kv_offset: int = 0,
    params: Mapping[str, Any] | None = None,
    tracer: Tracer | None = None,
) -> Description:
    """Traces `score_mod` and `mask` and gathers the arrays they read.

    params: names for captured arrays, and the arrays that a text expression reads.
    """
    tracer = tracer or Tracer()
    for name, array in (params or {}).items():
        tracer.names[id(array)] = name
        tracer.param(array)
    score_expr = tracer.expression(score_mod, "score_mod")
    mask_expr = tracer.expression(mask, "mask")
    sink_param = None
    if sink is not None:
        tracer.names.setdefault(id(sink), "sink")
        sink_param = tracer.param(sink)
    try:
        chosen = getattr(BackwardStrategy, strategy)
    except AttributeError:
        raise ValueError(f"strategy: found {strategy!r}; expected automatic, fused, split or two_scan") from None
    attention = _core.Attention(
        score_mod=score_expr,
        mask=mask_expr,
        scale=scale,
        sink=sink_param,
        dropout_p=dropout_p,
        seed=seed,
        offset=offset,
        determinism=Determinism.reproducible if deterministic else Determinism.fast,
        strategy=chosen,
        checked=checked,
        q_offset=q_offset,
        kv_offset=kv_offset,
    )
    text = "; ".join(
        [
            f"score_mod={score_expr!r}",
            f"mask={mask_expr!r}",
            f"scale={scale!r} sink={sink_param.name if sink_param else None}",
            f"dropout={dropout_p!r},{seed},{offset} deterministic={deterministic} strategy={strategy} checked={checked}",
            f"offsets={q_offset},{kv_offset}",
            *(f"{p.name}: {p.type}{p.shape}" for p in tracer.params),
        ]
    )
    return Description(attention, tracer.params, tracer.arrays, text, score_expr, mask_expr)


FORWARD_ROLES = ("q", "k", "v", "out", "lse")
BACKWARD_ROLES = ("q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv")
_MAX_CALLS = 4096
_calls: dict[Any, _core.Call] = {}


def find_call(
    description: Description,
    pass_: Pass,
    tensors: Mapping[str, Any],
    dparams: Mapping[int, Any],
    max_seqlens: tuple[int, int] = (0, 0),
    options: Options = Options(),
) -> _core.Call:
    """The planned call for these shapes; planned on first use, then found by its key."""
    specs = {role: arrays.spec(tensor, role) for role, tensor in tensors.items() if tensor is not None}
    bound = [arrays.spec(array, param.name) for param, array in zip(description.params, description.arrays)]
    gradients = {i: arrays.spec(array, f"d{description.params[i].name}") for i, array in dparams.items()}
    key = (description.text, pass_, tuple(specs.items()), tuple(bound), tuple(gradients.items()), max_seqlens, options)
    call = _calls.get(key)
    if call is None:
        call = _core.Call(
            description.attention,
            pass_,
            {role: spec.core() for role, spec in specs.items()},
            [(param, spec.core()) for param, spec in zip(description.params, bound)],
            [(description.params[i], spec.core()) for i, spec in gradients.items()],
            *max_seqlens,
            options.backend,
            options.target,
            options.threads,
        )
        if len(_calls) >= _MAX_CALLS:
            _calls.pop(next(iter(_calls)))
        _calls[key] = call
    return call


def pointers(description: Description, roles: tuple[str, ...], tensors: Mapping[str, Any], dparams: Mapping[int, Any]) -> list[int]:
    """Addresses in the order that Call.run expects."""
    found = [arrays.pointer(tensors[role]) if tensors.get(role) is not None else 0 for role in roles]
    for role in ("cu_seqlens_q", "cu_seqlens_kv"):
        if tensors.get(role) is not None:
            found.append(arrays.pointer(tensors[role]))
    found.extend(arrays.pointer(array) for array in description.arrays)
    found.extend(arrays.pointer(array) for array in dparams.values())
    return found
