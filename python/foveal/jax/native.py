"""attention() and backward() of JAX arrays, in foveal's own signature."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, Callable, Literal, overload

import jax
import jax.numpy as jnp

from .. import arrays
from ..argument_errors import public
from ..describe import Description, checked, describe, wanted_gradients
from ..signatures import BACKWARD_ROLES, Arguments, Mask, Options, ScoreMod, check_flags, check_names, tokens
from . import passes
from .foreign import Described, What
from .mesh import all_varying
from .operands import array, by_role, owned, state_of_dropout
from .tracing import JaxTracer

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: Literal[False] = False,
    **arguments: Unpack[Arguments],
) -> jax.Array: ...
@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: Literal[True],
    **arguments: Unpack[Arguments],
) -> tuple[jax.Array, jax.Array]: ...
@overload
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: bool, **arguments: Unpack[Arguments]
) -> jax.Array | tuple[jax.Array, jax.Array]: ...
@public("foveal.jax.attention")
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    cu_seqlens: Any = None,
    block_table: Any = None,
    seqlens_kv: Any = None,
    max_seqlens: tuple[int, int] = (0, 0),
    seed: Any = None,
    offset: Any = 0,
    rng_state: Any = None,
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Any,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """foveal.attention() for JAX arrays: differentiable in q, k, v, the sink and every captured floating-point array, also through lse.

    score_mod, mask: may use Python operators, functions of jnp, jax.nn and jax.lax (with JAX's derivatives), and foveal's.
    scale: may be an array, traced and trained.
    seed, offset: may be traced. Dropout needs a seed.
    rng_state: seed and offset, int64 [2], or uint32 [4] with low halves first.

    Shapes, the other arguments and errors are as in foveal.attention(). Gradients of paged keys and values are pools, too. Under vmap the examples
    run as one batch; packed and paged sequences, dropout, and sinks that differ between examples run one example after the other. Inside jit the
    call is planned for JAX's default device.
    """
    check_names("attention", arguments, (*Arguments.__annotations__, "return_lse"))
    check_flags("attention", return_lse=return_lse)
    q, k, v = (array(x, name) for name, x in (("q", q), ("k", k), ("v", v)))
    what, params, names = _describe(q, score_mod, mask, max_seqlens, options, arguments)
    if arrays.holds_nothing(q, k, v):
        sink = None if what.described.sink is None else params[names.index(what.described.sink.name)]
        out, lse = _nothing(q, v, sink)
        return (out, lse) if return_lse else out
    lengths = tokens("attention", cu_seqlens, block_table, seqlens_kv)
    operands = (by_role(lengths, state_of_dropout(what.described, seed, offset, rng_state), q=q, k=k, v=v), params)
    out, lse = passes.forward(what, *all_varying(operands))
    return (out, lse) if return_lse else out


@public("foveal.jax.backward")
def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    out: jax.Array,
    lse: jax.Array,
    dout: jax.Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    dlse: jax.Array | None = None,
    gradients: tuple[str, ...] = (),
    cu_seqlens: tuple[jax.Array, jax.Array | None] | None = None,
    block_table: jax.Array | None = None,
    seqlens_kv: jax.Array | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    seed: int | jax.Array | None = 0,
    offset: int | jax.Array = 0,
    rng_state: jax.Array | None = None,
    options: Options = Options(),
    **arguments: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
    """foveal.backward() for JAX arrays."""
    check_names("backward", arguments, (*Arguments.__annotations__, "dlse", "gradients"))
    q, k, v, out, lse, dout = (array(x, name) for name, x in zip(BACKWARD_ROLES, (q, k, v, out, lse, dout)))
    what, params, names = _describe(q, score_mod, mask, max_seqlens, options, arguments)
    wanted = [i for i, flag in enumerate(wanted_gradients(gradients, names)) if flag]
    if arrays.holds_nothing(q, k, v):
        sink = None if what.described.sink is None else names.index(what.described.sink.name)
        zeros: Callable[[Any], jax.Array] = lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32))  # noqa: E731
        at_head = None if dlse is None or sink is None else dlse.sum([axis for axis in range(dlse.ndim) if axis != dlse.ndim - 2])
        of_params = {names[i]: at_head.astype(zeros(params[i]).dtype) if i == sink and at_head is not None else zeros(params[i]) for i in wanted}
        return jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v), of_params
    state = state_of_dropout(what.described, seed, offset, rng_state)
    given = by_role(tokens("backward", cu_seqlens, block_table, seqlens_kv), state, q=q, k=k, v=v, out=out, lse=lse, dout=dout, **({} if dlse is None else {"dlse": dlse}))
    found = passes.Gradients(what)(given, params, tuple(wanted))
    return found["dq"], found["dk"], found["dv"], {names[i]: found[i] for i in wanted}


def _describe(q: Any, score_mod: ScoreMod, mask: Mask, max_seqlens: tuple[int, int], options: Options, arguments: dict[str, Any]) -> Any:
    """(what to do, the arrays of its parameters, their names)."""
    options = checked(options)
    scale = arguments.get("scale")
    traced = scale if isinstance(scale, jax.Array) else None
    description = describe(score_mod, mask, tracer=JaxTracer.like(q.dtype), **{**arguments, "scale": scale if traced is None else 1.0})
    if traced is not None:
        description = _scaled(description, traced, arguments)
    params = tuple(map(owned, description.arrays))
    what = What(Described(description), _longest(max_seqlens), options, _on_cuda(q))
    return what, params, [param.name for param in description.params]


def _scaled(description: Description, scale: jax.Array, arguments: dict[str, Any]) -> Description:
    """With a scale that is an array, perhaps traced: a parameter of the score, which may be trained."""
    if scale.ndim != 0 or not (jnp.issubdtype(scale.dtype, jnp.floating) or jnp.issubdtype(scale.dtype, jnp.integer)):
        raise ValueError(f"scale: {scale.dtype}{list(scale.shape)}; expected a number")
    if not jnp.issubdtype(scale.dtype, jnp.floating):
        scale = scale.astype(jnp.result_type(float))
    text = "score" if description.score_mod is None else repr(description.score_mod)
    given = {param.name: array for param, array in zip(description.params, description.arrays)}
    name = "scale_"
    while name in given:
        name += "_"
    return describe(
        re.sub(r"\bscore\b", f"(score * {name}[])", text), description.mask, tracer=JaxTracer(),
        **{**arguments, "scale": 1.0, "params": {**given, name: scale}},
    )  # fmt: skip


def _longest(max_seqlens: Any) -> tuple[int, int]:
    try:
        longest_q, longest_kv = max_seqlens
        return operator.index(longest_q), operator.index(longest_kv)
    except TypeError:
        words = "a pair of integers (longest of q, longest of kv) that are known when a call is traced"
        raise TypeError(f"attention: max_seqlens: found {max_seqlens!r}; expected {words}") from None


def _on_cuda(q: Any) -> bool:
    """Where a call will run: where its array is, or, inside jit, where JAX's default device is."""
    if not isinstance(q, jax.core.Tracer):
        platform = next(iter(q.devices())).platform
    else:
        default: Any = getattr(jax.config, "jax_default_device")
        platform = default if isinstance(default, str) else default.platform if default is not None else jax.default_backend()
    return platform in ("gpu", "cuda")


def _nothing(q: Any, v: Any, sink: Any) -> tuple[Any, Any]:
    """What arrays without elements give: zeros; lse is the sink, -inf without."""
    out, lse = passes.looks_of_results(q, v)
    at_head = jnp.full(q.shape[-2], -jnp.inf, lse.dtype) if sink is None else sink.astype(lse.dtype)
    return jnp.zeros(out.shape, out.dtype), jnp.broadcast_to(at_head[:, None], lse.shape)
