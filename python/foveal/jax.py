"""foveal for JAX: attention through XLA's foreign-function interface, under jit, grad and vmap, on CPU and CUDA.

    out = foveal.jax.attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + bias[h, q_idx - kv_idx + n], foveal.causal())
"""

from __future__ import annotations

import ast
import functools
import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _core, arrays
from ._core import Expr, Param, Pass, TensorView
from .describe import Description, Mask, Options, ScoreMod, describe, description_of, read, wanted_gradients
from .jax_partition import can_split, partitioned, placed
from .jax_trace import JaxTracer

_TARGET = "foveal_call"
_registered: set[str] = set()
# (text, workspace bytes) of calls that were planned, by what they were planned for, the most recently used last. Compiled programs hold the text
# and may outlive both this and the calls themselves: restored() makes a call again.
_planned: OrderedDict[Any, tuple[str, int]] = OrderedDict()
_MAX_PLANNED = 1024
_FORWARD_ROLES = ("q", "k", "v", "out", "lse")
_BACKWARD_ROLES = (*_FORWARD_ROLES, "dout", "dlse", "dq", "dk", "dv")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_kv")
_RNG_STATE = "rng_state"


@dataclass(frozen=True)
class _What:
    """The static part of a call, hashable: what jit and custom_vjp see. `described` counts by its text."""

    described: "_Described"
    max_seqlens: tuple[int, int]
    options: Options
    cuda: bool


class _Described(Description):
    """A Description without arrays, equal to another when the texts are."""

    def __init__(self, description: Description):
        super().__init__(**{**vars(description), "arrays": []})

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Described) and self.text == other.text


def _on_cuda(q: Any) -> bool:
    """Where a call will run: where its array is, or, inside jit, where JAX's default device is."""
    if not isinstance(q, jax.core.Tracer):
        platform = next(iter(q.devices())).platform
    else:
        default = jax.config.jax_default_device
        platform = default if isinstance(default, str) else default.platform if default is not None else jax.default_backend()
    return platform in ("gpu", "cuda")


def _register(cuda: bool) -> None:
    platform = "CUDA" if cuda else "cpu"
    if platform not in _registered:
        jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(), platform=platform)
        _registered.add(platform)


def _find(what: _What, pass_: Pass, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> tuple[str, int]:
    """(text of the planned call, workspace bytes). given: the arguments by role; results: by role, gradients of parameters by position."""
    looks = [[(name, tuple(x.shape), str(x.dtype)) for name, x in items] for items in (given.items(), enumerate(params), results.items())]
    key = (what, pass_, *map(tuple, looks))
    found = _planned.get(key)
    if found is None:
        _register(what.cuda)
        options = what.options
        how = (pass_.name, what.cuda, what.max_seqlens, (options.backend, options.target, int(options.threads), options.exclude), *looks)
        text = f"{what.described.text}\n{how!r}"
        found = _planned[key] = (text, _plan(text, what.described))
        while len(_planned) > _MAX_PLANNED:
            _planned.popitem(last=False)
    else:
        _planned.move_to_end(key)
    return found


def restored(text: str) -> None:
    """Plans a call again of which a compiled program holds the text: it was forgotten, or the program comes from a cache of another process."""
    _plan(text, read(text.rsplit("\n", 1)[0]))


def _plan(text: str, described: Description) -> int:
    """Plans the call with this text and registers it under it; its workspace bytes."""
    pass_name, cuda, max_seqlens, options, *looks = ast.literal_eval(text.rsplit("\n", 1)[1])
    pass_ = getattr(Pass, pass_name)
    given, params, results = ({name: (dtype, shape) for name, shape, dtype in group} for group in looks)
    tensors = {**given, **results}

    def view(look: tuple[str, tuple[int, ...]]) -> TensorView:
        return TensorView(arrays.dtype_named(look[0]), cuda, 0, list(look[1]))

    roles = (*(_FORWARD_ROLES if pass_ == Pass.forward else _BACKWARD_ROLES), *_LENGTHS)
    views = [view(tensors[role]) if role in tensors else TensorView() for role in roles]
    views += [view(params[i]) for i in range(len(params))]
    arguments, outputs = list(given), list(results)
    slots = [arguments.index(r) if r in given else ~outputs.index(r) if r in results else _core.xla_absent for r in roles]
    slots += [len(arguments) + i for i in range(len(params))]
    trained = [i in results for i in range(len(params))]
    if pass_ == Pass.backward:
        views += [view(results[i]) if wanted else TensorView() for i, wanted in enumerate(trained)]
        slots += [~outputs.index(i) if wanted else _core.xla_absent for i, wanted in enumerate(trained)]
    call = _core.Call(described.attention, pass_, described.params, views, trained, *max_seqlens, *options)
    workspace = ~len(outputs) if cuda else _core.xla_absent
    rng_state = arguments.index(_RNG_STATE) if _RNG_STATE in given else _core.xla_absent
    _core.xla_register(text, call, slots, workspace, rng_state, cuda)
    return call.workspace_bytes


def _run(what: _What, pass_: Pass, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> dict[Any, Any]:
    """The results, by the keys of `results`, which says how they look."""
    looks = tuple((key, tuple(x.shape), np.dtype(x.dtype)) for key, x in results.items())
    return dict(zip(results, _compiled(what, pass_, tuple(given), looks)(tuple(given.values()), tuple(params))))


@functools.lru_cache(_MAX_PLANNED)
def _compiled(what: _What, pass_: Pass, roles: tuple[str, ...], looks: tuple[Any, ...]) -> Any:
    """A pass as a function of its tensors and parameters, jitted: so that arrays on many devices are partitioned outside of jit, too.

    Under vmap all examples run as one batch where that is possible.
    """
    results: dict[Any, Any] = {key: jax.ShapeDtypeStruct(shape, dtype) for key, shape, dtype in looks}

    def foreign(described: Description, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> dict[Any, Any]:
        same = what if described is what.described else replace(what, described=_Described(described))
        text, workspace = _find(same, pass_, given, params, results)
        shapes = list(results.values())
        if what.cuda:
            shapes.append(jax.ShapeDtypeStruct((workspace + _core.workspace_alignment,), jnp.uint8))
        found = jax.ffi.ffi_call(_TARGET, shapes)(*given.values(), *params, call=text)
        return dict(zip(results, found))

    def whole(given: tuple[Any, ...], params: tuple[Any, ...]) -> list[Any]:
        tensors = dict(zip(roles, given))
        return list(foreign(what.described, tensors, params, placed(what.described, tensors, params, results)).values())

    call = jax.custom_batching.custom_vmap(partitioned(whole, foreign, what.described, roles, results) if can_split(what.described) else whole)

    @call.def_vmap
    def batched(size: int, in_batched: Any, given: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[list[Any], list[bool]]:
        every = [True] * len(results)
        given_flags, params_flags = in_batched
        copied = [flag or i in results for i, flag in enumerate(params_flags)]
        if "cu_seqlens_q" not in roles and _folds(what.described, copied):
            tensors = dict(zip(roles, _stacked(size, given, given_flags, [True] * len(given))))
            return _run_folded(what, pass_, size, tensors, _stacked(size, params, params_flags, copied), copied, results), every
        # One example after the other.
        stacked = _stacked(size, given, given_flags, [True] * len(given)), _stacked(size, params, params_flags, [True] * len(params))
        return jax.lax.map(lambda one: call(*one), stacked), every

    @jax.custom_jvp
    def underived(given: tuple[Any, ...], params: tuple[Any, ...]) -> list[Any]:
        return call(given, params)

    @underived.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            "foveal.jax: a derivative beyond the first, or in forward mode (jax.hessian, jvp, grad of grad): JAX's front end has first derivatives in "
            "reverse mode; foveal.torch has the others"
        )

    return jax.jit(underived, inline=True)


def _stacked(size: int, values: tuple[Any, ...], batched: Any, wanted: list[bool]) -> tuple[Any, ...]:
    """Those that are wanted with a leading dimension of `size`, one element for each example."""
    return tuple(
        x if flag or not want else jnp.broadcast_to(x, (size, *x.shape)) for x, flag, want in zip(values, batched, wanted)
    )


def _folds(described: Description, copied: list[bool]) -> bool:
    """Whether many examples can run as one batch: dropout would see other positions, and there is one sink for all rows of a batch."""
    sink_copied = described.sink is not None and copied[[param.name for param in described.params].index(described.sink.name)]
    return not described.dropout and not sink_copied


def _run_folded(what: _What, pass_: Pass, size: int, given: dict[str, Any], params: tuple[Any, ...], copied: list[bool],
                results: dict[Any, Any]) -> list[Any]:  # fmt: skip
    """`size` examples as one batch. `given` and the copied `params` have a leading dimension for the example; so do the results."""
    described = what.described
    batch = given["q"].shape[1]
    merged = lambda shape: (shape[0] * shape[1], *shape[2:])  # noqa: E731 - examples and rows become rows
    new_params, new_arrays, folded = [], [], {}
    for param, array, copy in zip(described.params, params, copied):
        if copy:
            exprs = [e for e in (described.score_mod, described.mask) if e is not None]
            by_row = len(param.shape) > 0 and param.shape[0] == batch and _core.index_symbols(exprs, param.name)[:1] in ([], ["batch"])
            array = array.reshape(merged(array.shape)) if by_row else array
            param = folded[param.name] = Param(param.name, list(array.shape), param.type)
        new_params.append(param)
        new_arrays.append(array)

    def fold(expr: Expr | None) -> Expr | None:
        return None if expr is None else _core.fold_batch(expr, batch, folded)

    score_mod, mask = fold(described.score_mod), fold(described.mask)
    fresh = description_of(score_mod, mask, new_params, [], described.sink, described.settings)
    shapes = {
        key: jax.ShapeDtypeStruct(tuple(new_arrays[key].shape) if isinstance(key, int) else merged((size, *x.shape)), x.dtype)
        for key, x in results.items()
    }
    tensors = {role: x.reshape(merged(x.shape)) for role, x in given.items()}
    found = _run(_What(_Described(fresh), what.max_seqlens, what.options, what.cuda), pass_, tensors, tuple(new_arrays), shapes)
    return [found[key].reshape((size, *x.shape)) for key, x in results.items()]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(what: _What, q: Any, k: Any, v: Any, cu: Any, rng_state: Any, params: Any) -> Any:
    return _forward(what, q, k, v, cu, rng_state, params)[0]


def _forward(what: _What, q: Any, k: Any, v: Any, cu: Any, rng_state: Any, params: Any) -> Any:
    if q.ndim not in (3, 4) or v.ndim != q.ndim:
        raise ValueError(
            f"q: rank {q.ndim}, v: rank {v.ndim}; expected both [batch, seqlen, heads, dim] or both packed [total, heads, dim]"
        )
    out = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)
    lse_shape = (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])
    lse = jax.ShapeDtypeStruct(lse_shape, jnp.float64 if q.dtype == jnp.float64 else jnp.float32)
    found = _run(what, Pass.forward, _given(cu, rng_state, q=q, k=k, v=v), params, {"out": out, "lse": lse})
    found = {role: _like(x, q) for role, x in found.items()}
    return (found["out"], found["lse"]), (q, k, v, cu, rng_state, params, found["out"], found["lse"])


def _given(cu: Any, rng_state: Any, **tensors: Any) -> dict[str, Any]:
    lengths = {} if cu is None else dict(zip(_LENGTHS, cu))
    return {**tensors, **lengths, **({} if rng_state is None else {_RNG_STATE: rng_state})}


def _gradients(what: _What, q: Any, k: Any, v: Any, cu: Any, rng_state: Any, params: Any, out: Any, lse: Any, dout: Any, dlse: Any, wanted: Any) -> dict[Any, Any]:
    """dq, dk, dv by name, and the wanted parameters' gradients by position, in float32 or wider."""
    given = _given(cu, rng_state, q=q, k=k, v=v, out=out, lse=lse, dout=dout, **({} if dlse is None else {"dlse": dlse}))
    results: dict[Any, Any] = {role: jax.ShapeDtypeStruct(x.shape, x.dtype) for role, x in (("dq", q), ("dk", k), ("dv", v))}
    for i in wanted:
        results[i] = jax.ShapeDtypeStruct(params[i].shape, jnp.float64 if params[i].dtype == jnp.float64 else jnp.float32)
    return _run(what, Pass.backward, given, params, results)


def _backward(what: _What, saved: Any, cotangents: Any) -> Any:
    q, k, v, cu, rng_state, params, out, lse = saved
    wanted = [i for i, p in enumerate(params) if jnp.issubdtype(p.dtype, jnp.floating)]
    found = _gradients(what, q, k, v, cu, rng_state, params, out, lse, *cotangents, wanted)
    dparams = tuple(_like(found[i].astype(p.dtype), p) if i in found else None for i, p in enumerate(params))
    return _like(found["dq"], q), _like(found["dk"], k), _like(found["dv"], v), None, None, dparams


def _varying_with(x: Any, axes: frozenset[str]) -> Any:
    """Inside shard_map: x, said to differ along these axes of the mesh too."""
    missing = tuple(sorted(axes - _axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _axes(x: Any) -> frozenset[str]:
    """Of the mesh, along which x differs inside shard_map."""
    kind = jax.typeof(x) if hasattr(jax, "typeof") else None
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def _like(x: Any, other: Any) -> Any:
    return _varying_with(x, _axes(other))


_attention.defvjp(_forward, _backward)


def _words(value: Any, name: str) -> list[Any]:
    """The low and the high half of a seed or an offset, an integer that may be traced."""
    if not isinstance(value, jax.Array):
        value = int(value)
        if not 0 <= value < 2**64:
            raise ValueError(f"{name}: {value}; expected 0 to 2**64 - 1")
        return [np.uint32(value & 0xFFFFFFFF), np.uint32(value >> 32)]
    if value.ndim != 0 or not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(f"{name}: {value.dtype}{list(value.shape)}; expected one integer")
    high = value >> 32 if value.dtype.itemsize == 8 else 0
    return [value.astype(jnp.uint32), jnp.asarray(high).astype(jnp.uint32)]


def _rng_state(described: Description, seed: Any, offset: Any, rng_state: Any) -> Any:
    """{seed, offset} as one operand, or None where nothing is dropped: a compiled program serves every seed."""
    if not described.dropout:
        return None
    if rng_state is None and seed is None:
        raise ValueError("attention: seed: found None; expected an integer, as dropout_p is not 0: JAX has no generator to draw one from")
    if rng_state is None:
        return jnp.stack([*_words(seed, "seed"), *_words(offset, "offset")])
    rng_state = jnp.asarray(rng_state)
    if (rng_state.shape, str(rng_state.dtype)) not in (((2,), "int64"), ((2,), "uint64"), ((4,), "uint32")):
        raise ValueError(f"rng_state: {rng_state.dtype}{list(rng_state.shape)}; expected int64 or uint64 [2], or uint32 [4] with low halves first")
    return rng_state


def _scaled(description: Description, scale: jax.Array, arguments: dict[str, Any]) -> Description:
    """With a scale that is an array, perhaps traced: a parameter of the score, which may be trained."""
    if scale.ndim != 0 or not jnp.issubdtype(scale.dtype, jnp.floating):
        raise ValueError(f"scale: {scale.dtype}{list(scale.shape)}; expected a number")
    text = "score" if description.score_mod is None else repr(description.score_mod)
    given = {param.name: array for param, array in zip(description.params, description.arrays)}
    return describe(
        re.sub(r"\bscore\b", "(score * scale_[])", text), description.mask, tracer=JaxTracer(),
        **{**arguments, "scale": 1.0, "params": {**given, "scale_": scale}},
    )  # fmt: skip


def _describe(q: Any, score_mod: ScoreMod, mask: Mask, max_seqlens: tuple[int, int], options: Options, arguments: dict[str, Any]) -> Any:
    """(what to do, the arrays of its parameters, their names)."""
    scale = arguments.get("scale")
    traced = isinstance(scale, jax.Array)
    description = describe(score_mod, mask, tracer=JaxTracer(), **{**arguments, "scale": 1.0 if traced else scale})
    if traced:
        description = _scaled(description, scale, arguments)
    params = tuple(jnp.asarray(array) for array in description.arrays)
    what = _What(_Described(description), max_seqlens, options, _on_cuda(q))
    return what, params, [param.name for param in description.params]


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    cu_seqlens: tuple[jax.Array, jax.Array] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    seed: Any = None,
    offset: Any = 0,
    rng_state: jax.Array | None = None,
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Any,
) -> Any:
    """foveal.attention() for JAX arrays: differentiable in q, k, v, the sink and every captured floating array, also through lse.

    Inside score_mod and mask use Python operators, functions of jnp, jax.nn and jax.lax (with JAX's derivatives), and foveal's.
    scale may be an array, traced and trained. seed and offset may be traced, and dropout needs a seed; rng_state: both, int64 [2] or uint32 [4] with low halves first.
    Shapes, the other arguments and errors as in foveal.attention(). Under vmap the examples run as one batch; packed sequences, dropout, and
    sinks that differ between examples run one example after the other. Inside jit the call is planned for JAX's default device.
    """
    what, params, _ = _describe(q, score_mod, mask, max_seqlens, options, arguments)
    operands = (q, k, v, cu_seqlens, _rng_state(what.described, seed, offset, rng_state), params)
    # Inside shard_map all differ along the same axes, so that the gradient of one that is the same everywhere is summed over the shards.
    axes = frozenset().union(*map(_axes, jax.tree.leaves(operands)))
    out, lse = _attention(what, *jax.tree.map(lambda x: _varying_with(x, axes), operands))
    return (out, lse) if return_lse else out


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
    cu_seqlens: tuple[jax.Array, jax.Array] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    seed: Any = 0,
    offset: Any = 0,
    rng_state: jax.Array | None = None,
    options: Options = Options(),
    **arguments: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
    """foveal.backward() for JAX arrays."""
    what, params, names = _describe(q, score_mod, mask, max_seqlens, options, arguments)
    wanted = [i for i, flag in enumerate(wanted_gradients(gradients, names)) if flag]
    state = _rng_state(what.described, seed, offset, rng_state)
    found = _gradients(what, q, k, v, cu_seqlens, state, params, out, lse, dout, dlse, wanted)
    return found["dq"], found["dk"], found["dv"], {names[i]: found[i] for i in wanted}


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: Any = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """jax.nn.dot_product_attention, by foveal: bias and scale may be traced and trained; tiles that masks empty are skipped.

    query: [batch, seqlen_q, heads_q, head_dim]; key, value: [batch, seqlen_kv, heads_kv, ...]; or all without batch. bias (added to the scores) and
    mask (bool, True = keep): broadcast to [batch, heads_q, seqlen_q, seqlen_kv]. query_seq_lengths, key_value_seq_lengths: integers [batch]; queries
    past theirs give zeros. local_window_size: how many keys to the left and to the right of its own position a query sees. implementation:
    accepted and ignored. Returns the output, with return_residual also lse without gradient, [batch, seqlen_q, heads_q] in query's dtype.
    A query that sees no key gives zeros, as by cuDNN; XLA's implementation gives the mean of all values.
    """
    query, key, value = (jnp.asarray(x) for x in (query, key, value))
    ranks = [x.ndim for x in (query, key, value)]
    if ranks[0] not in (3, 4) or len(set(ranks)) != 1:
        raise ValueError(f"dot_product_attention: query, key, value: ranks {ranks}; expected all 4, [batch, seqlen, heads, dim], or all 3")
    batched = [x[None] if x.ndim == 3 else x for x in (query, key, value)]
    batch, seqlen_q, heads, _ = batched[0].shape
    full = (batch, heads, seqlen_q, batched[1].shape[1])
    params: dict[str, Any] = {}
    score_mod, masks = None, []
    if bias is not None:
        score_mod = "score + " + _read("bias", jnp.asarray(bias), full, params)
    if mask is not None:
        mask = jnp.asarray(mask)
        if mask.dtype != jnp.bool_:
            raise ValueError(f"dot_product_attention: mask: dtype {mask.dtype}; expected bool (True = keep); numbers to add are a bias")
        masks.append(_read("mask", mask, full, params))
    if is_causal:
        masks.append("kv_idx <= q_idx")
    if local_window_size is not None:
        left, right = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
        masks.append(f"kv_idx >= q_idx - {int(left)} and kv_idx <= q_idx + {int(right)}")
    for name, lengths, symbol in (("query_seq_lengths", query_seq_lengths, "q_idx"), ("key_value_seq_lengths", key_value_seq_lengths, "kv_idx")):
        if lengths is not None:
            params[name] = lengths = jnp.asarray(lengths)
            if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
                raise ValueError(f"dot_product_attention: {name}: {lengths.dtype}{list(lengths.shape)}; expected integers [{batch}]")
            masks.append(f"{symbol} < {name}[batch]")
    text = " & ".join([f"({part})" for part in masks]) or None
    out, lse = attention(*batched, score_mod, text, scale=scale, params=params, return_lse=True)
    residual = jax.lax.stop_gradient(lse.transpose(0, 2, 1).astype(query.dtype))
    if query.ndim == 3:
        out, residual = out[0], residual[0]
    return (out, residual) if return_residual else out


def _read(name: str, array: Any, full: tuple[int, ...], params: dict[str, Any]) -> str:
    """Binds an array that broadcasts to the scores; the text of its read."""
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.ndim != 4 or any(extent not in (1, whole) for extent, whole in zip(array.shape, full)):
        raise ValueError(f"dot_product_attention: {name}: shape {array.shape}; expected one that broadcasts to {full}")
    params[name] = array
    symbols = ("batch", "head", "q_idx", "kv_idx")
    return f"{name}[{', '.join([symbol if extent > 1 else '0' for extent, symbol in zip(array.shape, symbols)])}]"
