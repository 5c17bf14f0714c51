"""Derivatives of the passes: reverse mode by the backward pass, all others by JAX's operations (evaluate.py).

The tangents of a forward pass are a primitive of their own. Reverse mode only transposes it, which gives the backward pass; forward mode and
higher derivatives evaluate it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..describe import Description
from .evaluate import attend
from .operands import wide

Gradients = Callable[..., dict[Any, Any]]  # (given by role, parameters, positions of those that want a gradient) -> gradients as in passes.py


def is_real(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


@dataclass(frozen=True)
class Forward:
    """A forward pass whose operands are, in order, those of the roles and the parameters; then out and lse. varied: the operands with tangents."""

    described: Description
    gradients: Gradients
    roles: tuple[str, ...]
    varied: tuple[int, ...]

    def evaluate(self, *operands: Any) -> tuple[Any, Any]:
        return attend(self.described, dict(zip(self.roles, operands)), operands[len(self.roles) :])

    def tangents(self, *values: Any) -> tuple[Any, Any]:
        """values: the operands, out, lse, and the tangents. Of out and lse."""
        operands, tangents = values[: len(values) - len(self.varied) - 2], values[len(values) - len(self.varied) :]

        def of_varied(*chosen: Any) -> tuple[Any, Any]:
            return self.evaluate(*_with(operands, self.varied, chosen))

        result: tuple[Any, Any] = jax.jvp(of_varied, tuple([operands[i] for i in self.varied]), tangents)[1]
        return result

    def cotangents(self, residuals: Sequence[Any], dout: Any, dlse: Any, wanted: Sequence[int]) -> list[Any]:
        """Of the operands `wanted`, by the backward pass. residuals: the operands, out, lse."""
        operands, (out, lse) = residuals[:-2], residuals[-2:]
        first = len(self.roles)
        given = {**dict(zip(self.roles, operands)), "out": out, "lse": lse, "dout": dout, **({} if dlse is None else {"dlse": dlse})}
        found = self.gradients(given, operands[first:], tuple(i - first for i in wanted if i >= first))
        return [found[f"d{self.roles[i]}" if i < first else i - first].astype(operands[i].dtype) for i in wanted]


tangents_p = Primitive("foveal_tangents")
tangents_p.multiple_results = True


@functools.lru_cache(1024)
def _jitted(fn: Callable[..., Any]) -> Any:
    return jax.jit(fn)


@tangents_p.def_impl  # type: ignore[untyped-decorator]
def _(*values: Any, forward: Any, vmapped: Any) -> Any:
    return _jitted(_tangents(forward, vmapped))(*values)


@dataclass(frozen=True)
class _tangents:  # noqa: N801 - a function, hashable by what it does
    forward: Forward
    vmapped: tuple[tuple[int | None, ...], ...]  # of each vmap around it, from the inside out, the axes of the residuals; tangents have axis 0

    def __call__(self, *values: Any) -> list[Any]:
        fn: Callable[..., Any] = self.forward.tangents
        count = len(self.forward.varied)
        for axes in self.vmapped:
            fn = jax.vmap(fn, in_axes=(*axes, *[0] * count))
        return list(fn(*values))


@tangents_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _(*avals: Any, forward: Any, vmapped: Any) -> Any:
    return list(avals[len(avals) - len(forward.varied) - 2 :][:2])  # as out and lse


mlir.register_lowering(tangents_p, mlir.lower_fun(lambda *values, forward, vmapped: _tangents(forward, vmapped)(*values), multiple_results=True))


def _jvp(primals: Any, tangents: Any, *, forward: Any, vmapped: Any) -> Any:
    at = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def fn(*chosen: Any) -> Any:
        return _tangents(forward, vmapped)(*_with(primals, at, chosen))

    return jax.jvp(fn, tuple([primals[i] for i in at]), tuple([tangents[i] for i in at]))


ad.primitive_jvps[tangents_p] = _jvp


def _transpose(cotangents: Any, *values: Any, forward: Any, vmapped: Any) -> Any:
    count = len(forward.varied)
    residuals, linear = values[: len(values) - count], values[len(values) - count :]
    at = [place for place, x in enumerate(linear) if ad.is_undefined_primal(x)]
    dout, dlse = (None if type(ct) is ad.Zero else ct for ct in cotangents)
    dout = jnp.zeros_like(residuals[-2]) if dout is None else dout
    wanted = [forward.varied[place] for place in at]
    fn: Callable[..., Any] = lambda dout, dlse, *residuals: forward.cotangents(residuals, dout, dlse, wanted)  # noqa: E731
    for axes in vmapped:
        fn = jax.vmap(fn, in_axes=(0, None if dlse is None else 0, *axes))
    found = dict(zip(at, fn(dout, dlse, *residuals)))
    return [None] * len(residuals) + [found.get(place) for place in range(count)]


ad.primitive_transposes[tangents_p] = _transpose


def _batched(values: Any, dims: Any, *, forward: Any, vmapped: Any) -> Any:
    count = len(forward.varied)
    first = len(values) - count
    size = next(x.shape[d] for x, d in zip(values, dims) if d is not None)

    def in_front(x: Any, d: Any) -> Any:
        return jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)

    # out and lse say how the results look: with a leading axis, as the tangents have.
    moved = [in_front(x, d) if i >= first - 2 else x for i, (x, d) in enumerate(zip(values, dims))]
    axes = tuple(0 if i >= first - 2 else None if d is None else d for i, d in enumerate(dims[:first]))
    found = tangents_p.bind(*moved, forward=forward, vmapped=(*vmapped, axes))
    return found, [0] * len(found)


batching.primitive_batchers[tangents_p] = _batched


def of_forward(forward: Forward, operands: Sequence[Any], out: Any, lse: Any, tangents: Sequence[Any]) -> list[Any]:
    """Tangents of out and lse, from those of the varied operands."""
    result: list[Any] = tangents_p.bind(*operands, out, lse, *tangents, forward=forward, vmapped=())
    return result


def of_backward(described: Description, roles: Sequence[str], wanted: Sequence[Any], operands: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Tangents of a backward pass's results (their keys are `wanted`), whose operands are those of the roles and then the parameters. None: no
    tangent. out and lse follow from the others, and their tangents with them."""
    passive = [i for i, role in enumerate(roles) if role in ("out", "lse")]
    varied = [i for i, t in enumerate(tangents) if t is not None and i not in passive]

    def gradients(*chosen: Any) -> list[Any]:
        return _gradients(described, roles, wanted, _with(operands, varied, chosen))

    result: list[Any] = jax.jvp(gradients, tuple([operands[i] for i in varied]), tuple([tangents[i] for i in varied]))[1]
    return result


def _with(operands: Sequence[Any], at: Sequence[int], chosen: Sequence[Any]) -> list[Any]:
    values = list(operands)
    for i, x in zip(at, chosen):
        values[i] = x
    return values


def _gradients(described: Description, roles: Sequence[str], wanted: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The results of a backward pass, from all its operands but out and lse."""
    first = len(roles)
    places = [roles.index(key[1:]) if isinstance(key, str) else first + key for key in wanted]
    given = dict(zip(roles, operands))

    def forward(*primals: Any) -> tuple[Any, Any]:
        values = _with(operands, places, primals)
        return attend(described, dict(zip(roles, values)), values[first:])

    (_, lse), pull = jax.vjp(forward, *[operands[i] for i in places])
    found = pull((given["dout"], given.get("dlse", jnp.zeros_like(lse))))
    return [x.astype(wide(operands[i].dtype) if i >= first else x.dtype) for i, x in zip(places, found)]


_LINEAR = ("v", "dout", "dlse")  # in v a forward pass is linear, in the others a backward pass


def of_transpose(
    described: Description, roles: Sequence[str], wanted: Sequence[Any] | None, operands: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Cotangents of the operands that are undefined, from those of the results. wanted: of a backward pass, its results; None: a forward pass."""
    at = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    names = [roles[i] if i < len(roles) else described.params[i - len(roles)].name for i in at]
    linear = _LINEAR[:1] if wanted is None else _LINEAR[1:]
    for name in names:
        if name not in linear:
            raise NotImplementedError(f"attention: {name}: found a jax.linear_transpose of it; expected one of {' or '.join(linear)}, in which alone a pass is linear")

    def results(*chosen: Any) -> list[Any]:
        values = _with(operands, at, chosen)
        if wanted is not None:
            return _gradients(described, roles, wanted, values)
        return [attend(described, dict(zip(roles, values)), values[len(roles) :])[0]]

    # A vjp of a linear function is its transpose wherever it is taken; zeros differ between devices as what they stand for does.
    zeros = [ad.instantiate_zeros(ad.Zero(operands[i].aval)) for i in at]
    found, pull = jax.vjp(results, *zeros)
    given = [jnp.zeros_like(x) if type(ct) is ad.Zero else ct for ct, x in zip(cotangents, found)]
    return list(_with([None] * len(operands), at, pull(given)))
