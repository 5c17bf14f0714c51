"""foveal for JAX: attention through XLA's foreign-function interface, under jit, grad and vmap, on CPU and CUDA.

    out = foveal.jax.attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + bias[h, q_idx - kv_idx + n], foveal.causal())
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _core, arrays
from ._core import Pass
from .arrays import ArraySpec
from .describe import BACKWARD_ROLES, FORWARD_ROLES, Description, Mask, Options, ScoreMod, describe
from .trace import Tracer

_TARGET = "foveal_call"
_registered: set[str] = set()
_ids: dict[Any, tuple[int, int]] = {}


def _platform() -> str:
    platform = "CUDA" if jax.default_backend() in ("gpu", "cuda") else "cpu"
    if platform not in _registered:
        jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(), platform=platform)
        _registered.add(platform)
    return platform


def _spec(value: Any, cuda: bool) -> ArraySpec:
    shape = tuple(value.shape)
    return ArraySpec(arrays.dtype_of(value), cuda, 0, shape, arrays.row_major(shape))


def _find(description: Description, pass_: Pass, roles: tuple[str, ...], given: dict[str, Any], results: dict[str, Any], wanted: tuple[int, ...],
          max_seqlens: tuple[int, int], options: Options) -> tuple[int, int]:  # fmt: skip
    """(id of the registered call, workspace bytes). given: arguments by role, in the order they are passed, then the parameters;
    results: by role, then the wanted parameters' gradients."""
    cuda = _platform() == "CUDA"
    specs = {role: _spec(value, cuda) for role, value in {**given, **results}.items() if not isinstance(role, int)}
    params = [_spec(array, cuda) for array in description.arrays]
    dparams = [(i, _spec(results[i], cuda)) for i in wanted]
    key = (description.text, pass_, tuple(specs.items()), tuple(params), tuple(dparams), max_seqlens, options)
    if key not in _ids:
        call = _core.Call(
            description.attention,
            pass_,
            {role: spec.core() for role, spec in specs.items()},
            [(param, spec.core()) for param, spec in zip(description.params, params)],
            [(description.params[i], spec.core()) for i, spec in dparams],
            *max_seqlens,
            options.backend,
            options.target,
            options.threads,
        )
        arguments, outputs = list(given), list(results)
        slots = []
        packed = ("cu_seqlens_q", "cu_seqlens_kv") if "cu_seqlens_q" in given else ()
        for role in (*roles, *packed):
            slots.append(arguments.index(role) if role in given else ~outputs.index(role) if role in results else _core.xla_absent)
        slots.extend(len(arguments) + i for i in range(len(params)))
        slots.extend(~outputs.index(i) for i in wanted)
        workspace = ~len(outputs) if cuda else _core.xla_absent
        _ids[key] = (_core.xla_register(call, slots, workspace, cuda), call.workspace_bytes)
    return _ids[key]


def _invoke(description: Description, pass_: Pass, roles: tuple[str, ...], given: dict[str, Any], results: dict[Any, Any], wanted: tuple[int, ...],
            max_seqlens: tuple[int, int], options: Options) -> list[Any]:  # fmt: skip
    identity, workspace = _find(description, pass_, roles, given, results, wanted, max_seqlens, options)
    shapes = list(results.values())
    if _platform() == "CUDA":
        shapes.append(jax.ShapeDtypeStruct((max(workspace, 256),), jnp.uint8))
    call = jax.ffi.ffi_call(_TARGET, shapes, vmap_method="sequential")
    return list(call(*given.values(), *description.arrays, call=np.int64(identity)))[: len(results)]


def _bind(description: Description, params: Any) -> Description:
    return Description(description.attention, description.params, list(params), description.text, description.score_mod, description.mask)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(description: Description, max_seqlens: tuple[int, int], options: Options, q: Any, k: Any, v: Any, cu: Any, params: Any) -> Any:
    return _forward(description, max_seqlens, options, q, k, v, cu, params)[0]


def _forward(description, max_seqlens, options, q, k, v, cu, params):
    out = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)
    lse_shape = (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])
    lse = jax.ShapeDtypeStruct(lse_shape, jnp.float64 if q.dtype == jnp.float64 else jnp.float32)
    given = {"q": q, "k": k, "v": v, **({"cu_seqlens_q": cu[0], "cu_seqlens_kv": cu[1]} if cu is not None else {})}
    result = _invoke(_bind(description, params), Pass.forward, FORWARD_ROLES, given, {"out": out, "lse": lse}, (), max_seqlens, options)
    return tuple(result), (q, k, v, cu, params, *result)


def _backward(description, max_seqlens, options, saved, cotangents):
    q, k, v, cu, params, out, lse = saved
    dout, dlse = cotangents
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout, "dlse": dlse}
    if cu is not None:
        given |= {"cu_seqlens_q": cu[0], "cu_seqlens_kv": cu[1]}
    results: dict[Any, Any] = {role: jax.ShapeDtypeStruct(x.shape, x.dtype) for role, x in (("dq", q), ("dk", k), ("dv", v))}
    wanted = tuple(i for i, p in enumerate(params) if jnp.issubdtype(p.dtype, jnp.floating))
    for i in wanted:
        results[i] = jax.ShapeDtypeStruct(params[i].shape, jnp.float64 if params[i].dtype == jnp.float64 else jnp.float32)
    found = _invoke(_bind(description, params), Pass.backward, BACKWARD_ROLES, given, results, wanted, max_seqlens, options)
    gradients = dict(zip(results, found))
    dparams = tuple(
        gradients[i].astype(p.dtype) if i in wanted else np.zeros(p.shape, jax.dtypes.float0) for i, p in enumerate(params)
    )
    dcu = None if cu is None else tuple(np.zeros(c.shape, jax.dtypes.float0) for c in cu)
    return gradients["dq"], gradients["dk"], gradients["dv"], dcu, dparams


_attention.defvjp(_forward, _backward)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    cu_seqlens: tuple[jax.Array, jax.Array] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Any,
) -> Any:
    """foveal.attention() for JAX arrays: differentiable in q, k, v, the sink and every captured floating array, also through lse.

    Inside score_mod and mask use Python operators and foveal's functions (foveal.where, foveal.exp, ...), not jnp's.
    Shapes and the other arguments as in foveal.attention().
    """
    description = describe(score_mod, mask, tracer=Tracer(), **arguments)
    params = tuple(jnp.asarray(array) for array in description.arrays)
    out, lse = _attention(_Static(_bind(description, ())), max_seqlens, options, q, k, v, cu_seqlens, params)
    return (out, lse) if return_lse else out


class _Static(Description):
    """A Description without arrays, equal when its text is: what jit and custom_vjp hash."""

    def __init__(self, description: Description):
        super().__init__(**vars(description))

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.text == other.text
