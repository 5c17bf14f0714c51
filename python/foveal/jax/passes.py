"""The passes of attention as a primitive of JAX: how jit, grad, vmap and its partitioners see them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from .._core import Pass
from ..describe import Description
from . import foreign
from .derivatives import Forward, is_real, of_backward, of_forward, of_transpose
from .folding import folded, whole_in_front
from .foreign import MAX_PLANNED, Described, What
from .mesh import axes_of, varying_with
from .operands import wide
from .partition import can_split, partitioned, placed

_PAGES = {"block_table", "seqlens_kv"}


def forward(what: What, given: dict[str, Any], params: tuple[Any, ...]) -> tuple[Any, Any]:
    """(out, lse). given: the tensors by role."""
    q, v = given["q"], given["v"]
    if q.ndim not in (3, 4) or v.ndim != (4 if _PAGES & set(given) else q.ndim):
        expected = "both [batch, seqlen, heads, dim] or both packed [total, heads, dim]; beside a block_table v [pages, page_size, heads_kv, dim]"
        raise ValueError(f"q: rank {q.ndim}, v: rank {v.ndim}; expected {expected}")
    out, lse = looks_of_results(q, v)
    found = _run(what, Pass.forward, given, params, {"out": out, "lse": lse})
    return found["out"], found["lse"]


def looks_of_results(q: Any, v: Any) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Of out and lse."""
    lse = (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])
    return jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype), jax.ShapeDtypeStruct(lse, wide(q.dtype))


@dataclass(frozen=True)
class Gradients:
    """dq, dk, dv by name, and the wanted parameters' gradients by position, in float32 or wider."""

    what: What

    def __call__(self, given: dict[str, Any], params: tuple[Any, ...], wanted: tuple[int, ...]) -> dict[Any, Any]:
        results: dict[Any, Any] = {f"d{role}": jax.ShapeDtypeStruct(given[role].shape, given[role].dtype) for role in ("q", "k", "v")}
        for i in wanted:
            results[i] = jax.ShapeDtypeStruct(params[i].shape, wide(params[i].dtype))
        return _run(self.what, Pass.backward, given, params, results)


def _run(what: What, pass_: Pass, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> dict[Any, Any]:
    """The results, by the keys of `results`, which says how they look."""
    looks = tuple((key, tuple(x.shape), np.dtype(x.dtype)) for key, x in results.items())
    return dict(zip(results, _bind(_One(what, pass_, tuple(given), looks), (*given.values(), *params))))


@dataclass(frozen=True)
class _One:
    """One pass: a function of its operands, which are the tensors of its roles and then the parameters."""

    what: What
    pass_: Pass
    roles: tuple[str, ...]
    looks: tuple[tuple[Any, tuple[int, ...], Any], ...]  # of the results: key, shape, dtype

    @property
    def results(self) -> dict[Any, Any]:
        return {key: jax.ShapeDtypeStruct(shape, dtype) for key, shape, dtype in self.looks}

    def split(self, operands: Any) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Into tensors by role, and parameters."""
        count = len(self.roles)
        return dict(zip(self.roles, operands)), tuple(operands[count:])

    def foreign(self, described: Description, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> dict[Any, Any]:
        what = self.what if described is self.what.described else replace(self.what, described=Described(described))
        return foreign.call(what, self.pass_, given, params, results)

    def __call__(self, *operands: Any) -> list[Any]:
        described = self.what.described

        def whole(given: tuple[Any, ...], params: tuple[Any, ...]) -> list[Any]:
            tensors = dict(zip(self.roles, given))
            return list(self.foreign(described, tensors, params, placed(described, tensors, params, self.results)).values())

        given, params = self.split(operands)
        call = partitioned(whole, self.foreign, described, self.roles, self.results) if can_split(described) else whole
        # Here and not around the primitive: the derivative of a cast to varying is a sum over devices.
        return [varying_with(x, axes_of(operands[0])) for x in call(tuple(given.values()), params)]

    def batched(self, size: int, operands: Any, flags: list[bool]) -> list[Any]:
        """All examples as one batch where that is possible. flags: the operands with a leading dimension of `size`."""
        if size == 0:
            return [jnp.zeros((0, *x.shape), x.dtype) for x in self.results.values()]
        batch = folded(self.what, size, *self.split(operands), flags, self.results)
        if batch is not None:
            return batch.split(_run(batch.what, self.pass_, batch.given, batch.params, batch.results))

        def example(own: Any) -> list[Any]:
            left = iter(own)
            return _bind(self, [next(left) if flag else x for x, flag in zip(operands, flags)])

        result: list[Any] = jax.lax.map(example, [whole_in_front(x) for x, flag in zip(operands, flags) if flag])
        return result

    def derived(self, operands: Any, tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        """The results and their tangents. tangents: None where there is none."""
        found = _bind(self, operands)
        if self.pass_ == Pass.backward:
            return found, of_backward(self.what.described, self.roles, list(self.results), operands, tangents)
        varied = tuple(i for i, t in enumerate(tangents) if t is not None)
        of_pass = Forward(self.what.described, Gradients(self.what), self.roles, varied)
        return found, of_forward(of_pass, operands, found[0], found[1], [tangents[i] for i in varied])


@functools.lru_cache(MAX_PLANNED)
def _jaxpr(one: _One, looks: tuple[Any, ...], mesh: Any, partitioner: Any) -> Any:
    """The pass for operands of these types, traced under this mesh, for this partitioner. JAX looks into it when a program that holds it is compiled."""
    return jax.make_jaxpr(one)(*looks)


@functools.lru_cache(MAX_PLANNED)
def _jitted(jaxpr: Any) -> Any:
    return jax.jit(jaxpr_as_fun(jaxpr))


def _bind(one: _One, operands: Any) -> list[Any]:
    mesh, partitioner = jax.sharding.get_abstract_mesh(), getattr(jax.config, "jax_use_shardy_partitioner", None)
    result: list[Any] = _pass_p.bind(*operands, one=one, jaxpr=_jaxpr(one, tuple(map(jax.typeof, operands)), mesh, partitioner))
    return result


def _at_once(*operands: Any, one: _One, jaxpr: Any) -> Any:
    """Outside of jit. By a jit of its own, so that arrays on many devices are partitioned, too."""
    try:
        return _jitted(jaxpr)(*operands)
    except (ValueError, RuntimeError):
        names = [*one.roles, *[param.name for param in one.what.described.params]]
        for name, x in zip(names, operands):
            if x.is_deleted():
                raise ValueError(f"attention: {name}: an array that was deleted, as donated ones are; expected one that still has its elements") from None
        fixed = [(name, x.sharding.device_set) for name, x in zip(names, operands) if getattr(x, "committed", False)]
        fixed.sort(key=lambda item: item[0] != "q")
        for name, devices in fixed:
            if devices != fixed[0][1]:
                places = [", ".join(sorted(map(str, x))) for x in (devices, fixed[0][1])]
                raise ValueError(f"{name}: on {places[0]}, others on {places[1]}; expected all on the same devices (jax.device_put)") from None
        raise


def _batch(operands: Any, dims: Any, *, one: _One, jaxpr: Any) -> Any:
    size = next(x.shape[d] for x, d in zip(operands, dims) if d is not None)
    if not isinstance(size, int):
        raise NotImplementedError(f"attention: a vmap of {size} examples; expected a known number, as a call is planned for it: export it for each")
    in_front = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims)]
    found = one.batched(size, in_front, [d is not None for d in dims])
    return found, [0] * len(found)


def _derive(operands: Any, tangents: Any, *, one: _One, jaxpr: Any) -> Any:
    return one.derived(operands, [None if type(t) is ad.Zero or not is_real(x) else t for x, t in zip(operands, tangents)])


def _transpose(cotangents: Any, *operands: Any, one: _One, jaxpr: Any) -> Any:
    return of_transpose(one.what.described, one.roles, list(one.results) if one.pass_ == Pass.backward else None, operands, cotangents)


def _lower(context: Any, *operands: Any, one: _One, jaxpr: Any) -> Any:
    planned = "cuda" if one.what.cuda else "cpu"
    for platform in context.module_context.platforms:
        if platform != planned:
            raise NotImplementedError(
                f"attention: a program for {platform}; found the call planned for {planned}, JAX's default device when it was traced; expected one program"
                f" for cpu or for cuda, traced where jax.default_device is of it"
            )
    return _inline(context, *operands, one=one, jaxpr=jaxpr)


_inline: Callable[..., Any] = mlir.lower_fun(lambda *operands, one, jaxpr: jaxpr_as_fun(jaxpr)(*operands), multiple_results=True)
_pass_p: Any = Primitive("foveal_pass")
_pass_p.multiple_results = True
_pass_p.def_impl(_at_once)
_pass_p.def_abstract_eval(lambda *avals, one, jaxpr: jaxpr.out_avals)
mlir.register_lowering(_pass_p, _lower)
batching.primitive_batchers[_pass_p] = _batch
ad.primitive_jvps[_pass_p] = _derive
ad.primitive_transposes[_pass_p] = _transpose
