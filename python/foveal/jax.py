"""foveal for JAX: attention through XLA's foreign-function interface, under jit, grad and vmap, on CPU and CUDA.

    out = foveal.jax.attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + bias[h, q_idx - kv_idx + n], foveal.causal())
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from . import _core, arrays
from ._core import Expr, Param, Pass, TensorView
from .argument_errors import public
from .describe import SEPARATOR, Description, describe, description_of, read, wanted_gradients
from .jax_arrays import owned
from .jax_derivatives import Forward, is_real, of_backward, of_forward, of_transpose
from .jax_partition import can_split, partitioned, placed
from .jax_trace import JaxTracer
from .signatures import Arguments, Mask, Options, ScoreMod, check_flags, check_names, length_slots, tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TARGET = "foveal_call"
# (text, workspace bytes) of calls that were planned, by what they were planned for, the most recently used last. Compiled programs hold the text
# and may outlive both this and the calls themselves: restored() makes a call again.
_planned: OrderedDict[Any, tuple[str, int]] = OrderedDict()
_MAX_PLANNED = 1024
(_FORWARD_ROLES, _LENGTHS), (_BACKWARD_ROLES, _) = (_core.roles(pass_) for pass_ in (Pass.forward, Pass.backward))
_PAGES = frozenset(_LENGTHS) - {"cu_seqlens_q", "cu_seqlens_kv"}  # of keys and values in pages
_RNG_STATE = "rng_state"


@dataclass(frozen=True)
class _What:
    """The static part of a call, hashable: what jit sees. `described` counts by its text."""

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
        default: Any = getattr(jax.config, "jax_default_device")
        platform = default if isinstance(default, str) else default.platform if default is not None else jax.default_backend()
    return platform in ("gpu", "cuda")


# At once, as programs of another process (jax.export, caches on disk) hold calls, too.
for _platform in ("cpu", "CUDA"):
    jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(), platform=_platform)


def _find(what: _What, pass_: Pass, given: dict[str, Any], params: tuple[Any, ...], results: dict[Any, Any]) -> tuple[str, int]:
    """(text of the planned call, workspace bytes). given: the arguments by role; results: by role, gradients of parameters by position."""
    looks = [[(name, tuple(x.shape), str(x.dtype)) for name, x in items] for items in (given.items(), enumerate(params), results.items())]
    key = (what, pass_, *map(tuple, looks))
    found = _planned.get(key)
    if found is None:
        options = what.options
        how = (pass_.name, what.cuda, what.max_seqlens, (options.backend, options.target, int(options.threads), options.exclude), *looks)
        text = f"{what.described.text}{SEPARATOR}{how!r}"
        found = _planned[key] = (text, _plan(text, what.described))
        while len(_planned) > _MAX_PLANNED:
            _planned.popitem(last=False)
    else:
        _planned.move_to_end(key)
    return found


def restored(text: str) -> None:
    """Plans a call again of which a compiled program holds the text: it was forgotten, or the program comes from a cache of another process."""
    _plan(text, read(text.rsplit(SEPARATOR, 1)[0]))


def _plan(text: str, described: Description) -> int:
    """Plans the call with this text and registers it under it; its workspace bytes."""
    pass_name, cuda, max_seqlens, options, *looks = ast.literal_eval(text.rsplit(SEPARATOR, 1)[1])
    pass_ = getattr(Pass, pass_name)
    given, params, results = ({name: (dtype, shape) for name, shape, dtype in group} for group in looks)
    tensors = {**given, **results}

    def view(look: tuple[str, tuple[int, ...]]) -> TensorView:
        return TensorView(arrays.dtype_named(look[0], by_bits=True), cuda, 0, list(look[1]))

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
    return dict(zip(results, _bind(_One(what, pass_, tuple(given), looks), (*given.values(), *params))))


@dataclass(frozen=True)
class _One:
    """One pass: a function of its operands, which are the tensors of its roles and then the parameters."""

    what: _What
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
        what = self.what if described is self.what.described else replace(self.what, described=_Described(described))
        text, workspace = _find(what, self.pass_, given, params, results)
        shapes = list(results.values())
        if what.cuda:
            shapes.append(jax.ShapeDtypeStruct((workspace + _core.workspace_alignment,), jnp.uint8))
        found = jax.ffi.ffi_call(_TARGET, shapes)(*given.values(), *params, call=text)
        return dict(zip(results, found))

    def __call__(self, *operands: Any) -> list[Any]:
        described = self.what.described

        def whole(given: tuple[Any, ...], params: tuple[Any, ...]) -> list[Any]:
            tensors = dict(zip(self.roles, given))
            return list(self.foreign(described, tensors, params, placed(described, tensors, params, self.results)).values())

        given, params = self.split(operands)
        call = partitioned(whole, self.foreign, described, self.roles, self.results) if can_split(described) else whole
        # Here and not around the primitive: the derivative of a cast to varying is a sum over devices.
        return [_varying_with(x, _axes(operands[0])) for x in call(tuple(given.values()), params)]

    def batched(self, size: int, operands: Any, flags: list[bool]) -> list[Any]:
        """All examples as one batch where that is possible. flags: the operands with a leading dimension of `size`."""
        if size == 0:
            return [jnp.zeros((0, *x.shape), x.dtype) for x in self.results.values()]
        given, params = self.split(operands)
        copied = [flag or i in self.results for i, flag in enumerate(flags[len(given) :])]
        if not set(_LENGTHS) & set(given) and _folds(self.what.described, copied):
            tensors = _stacked(size, given.values(), flags, [True] * len(given))
            arrays = _stacked(size, params, flags[len(given) :], copied)
            if all([_merges(x) for x in (*tensors, *[x for x, copy in zip(arrays, copied) if copy])]):
                return _run_folded(self.what, self.pass_, size, dict(zip(given, tensors)), arrays, copied, self.results)

        def example(own: Any) -> list[Any]:
            left = iter(own)
            return _bind(self, [next(left) if flag else x for x, flag in zip(operands, flags)])

        result: list[Any] = jax.lax.map(example, [_whole_in_front(x) for x, flag in zip(operands, flags) if flag])
        return result

    def derived(self, operands: Any, tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        """The results and their tangents. tangents: None where there is none."""
        found = _bind(self, operands)
        if self.pass_ == Pass.backward:
            return found, of_backward(self.what.described, self.roles, list(self.results), operands, tangents)
        varied = tuple(i for i, t in enumerate(tangents) if t is not None)
        forward = Forward(self.what.described, _Gradients(self.what), self.roles, varied)
        return found, of_forward(forward, operands, found[0], found[1], [tangents[i] for i in varied])


@functools.lru_cache(_MAX_PLANNED)
def _jaxpr(one: _One, looks: tuple[Any, ...], mesh: Any, partitioner: Any) -> Any:
    """The pass for operands of these types, traced under this mesh, for this partitioner. JAX looks into it when a program that holds it is compiled."""
    return jax.make_jaxpr(one)(*looks)


@functools.lru_cache(_MAX_PLANNED)
def _jitted(jaxpr: Any) -> Any:
    return jax.jit(jaxpr_as_fun(jaxpr))


def _bind(one: _One, operands: Any) -> list[Any]:
    mesh = jax.sharding.get_abstract_mesh() if hasattr(jax.sharding, "get_abstract_mesh") else None
    partitioner = getattr(jax.config, "jax_use_shardy_partitioner", None)
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


def _stacked(size: int, values: Iterable[Any], batched: Iterable[bool], wanted: Iterable[bool]) -> tuple[Any, ...]:
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
    merged: Callable[[Any], Any] = lambda shape: (shape[0] * shape[1], *shape[2:])  # noqa: E731 - examples and rows become rows
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
    of = {key: params[key] if isinstance(key, int) else given.get(key[1:], given["q"]) for key in results}  # what lies as the result does
    return [_split_again(found[key], (size, *x.shape), of[key]) for key, x in results.items()]


def _sharding(x: Any) -> Any:
    """As part of x's type, on a mesh with explicit axes; None elsewhere."""
    sharding = getattr(jax.typeof(x), "sharding", None) if hasattr(jax, "typeof") else None
    return None if sharding is None or not any(sharding.spec) else sharding


def _merges(x: Any) -> bool:
    """Whether the first two dimensions can become one where they lie: rows that are split within each example would move."""
    sharding = _sharding(x)
    return sharding is None or x.ndim == 1 or sharding.spec[1] is None or sharding.spec[0] is not None


def _split_again(x: Any, shape: tuple[int, ...], like: Any) -> Any:
    """Its first dimension as two, which lie as those of `like` do."""
    sharding = _sharding(x)
    if sharding is None or x.shape == shape:
        return x.reshape(shape)
    front = () if _sharding(like) is None else _sharding(like).spec[:2]
    return jax.lax.reshape(x, shape, out_sharding=NamedSharding(sharding.mesh, PartitionSpec(*front, *(None,) * (2 - len(front)), *sharding.spec[1:])))


def _whole_in_front(x: Any) -> Any:
    """Not split along its first dimension, which a loop runs over."""
    sharding = _sharding(x)
    if sharding is None or sharding.spec[0] is None:
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec[1:])))


def _forward(what: _What, given: dict[str, Any], params: tuple[Any, ...]) -> tuple[Any, Any]:
    q, v = given["q"], given["v"]
    if q.ndim not in (3, 4) or v.ndim != (4 if _PAGES & set(given) else q.ndim):
        expected = "both [batch, seqlen, heads, dim] or both packed [total, heads, dim]; beside a block_table v [pages, page_size, heads_kv, dim]"
        raise ValueError(f"q: rank {q.ndim}, v: rank {v.ndim}; expected {expected}")
    out, lse = _looks_of_results(q, v)
    found = _run(what, Pass.forward, given, params, {"out": out, "lse": lse})
    return found["out"], found["lse"]


def _looks_of_results(q: Any, v: Any) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    lse = (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])
    return jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype), jax.ShapeDtypeStruct(lse, jnp.float64 if q.dtype == jnp.float64 else jnp.float32)


def _nothing(q: Any, v: Any, sink: Any) -> tuple[Any, Any]:
    """What arrays without elements give: zeros; lse is the sink, -inf without."""
    out, lse = _looks_of_results(q, v)
    at_head = jnp.full(q.shape[-2], -jnp.inf, lse.dtype) if sink is None else sink.astype(lse.dtype)
    return jnp.zeros(out.shape, out.dtype), jnp.broadcast_to(at_head[:, None], lse.shape)


def _given(lengths: tuple[Any, Any], rng_state: Any, **tensors: Any) -> dict[str, Any]:
    """Tensors by role. lengths: how tokens of q and of k and v lie."""
    by_role = {role: _array(x, role) for role, x in zip(_LENGTHS, length_slots(*lengths)) if x is not None}
    return {**tensors, **by_role, **({} if rng_state is None else {_RNG_STATE: rng_state})}


@dataclass(frozen=True)
class _Gradients:
    """dq, dk, dv by name, and the wanted parameters' gradients by position, in float32 or wider."""

    what: _What

    def __call__(self, given: dict[str, Any], params: tuple[Any, ...], wanted: tuple[int, ...]) -> dict[Any, Any]:
        results: dict[Any, Any] = {f"d{role}": jax.ShapeDtypeStruct(given[role].shape, given[role].dtype) for role in ("q", "k", "v")}
        for i in wanted:
            results[i] = jax.ShapeDtypeStruct(params[i].shape, jnp.float64 if params[i].dtype == jnp.float64 else jnp.float32)
        return _run(self.what, Pass.backward, given, params, results)


def _varying_with(x: Any, axes: frozenset[str]) -> Any:
    """Inside shard_map: x, said to differ along these axes of the mesh too."""
    missing = tuple(sorted(axes - _axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _axes(x: Any) -> frozenset[str]:
    """Of the mesh, along which x differs inside shard_map."""
    kind: Any = jax.typeof(x) if hasattr(jax, "typeof") else None
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def _array(value: Any, name: str) -> jax.Array:
    """Of JAX; NumPy's arrays are taken for such."""
    if isinstance(value, np.ndarray):
        arrays.check_plain(value, name)
        return owned(value)
    if not isinstance(value, jax.Array):
        raise TypeError(f"attention: {name}: found {type(value).__module__}.{type(value).__qualname__}; expected a JAX array")
    arrays.check_sizes(value, name)
    return value


def _words(value: Any, name: str) -> list[Any]:
    """The low and the high half of a seed or an offset, an integer that may be traced."""
    if not isinstance(value, jax.Array):
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"attention: {name}: found {type(value).__name__} {value!r}; expected an integer") from None
        if not 0 <= value < 2**64:
            raise ValueError(f"{name}: {value}; expected 0 to 2**64 - 1")
        return [np.uint32(value & 0xFFFFFFFF), np.uint32(value >> 32)]
    if value.ndim != 0 or not jnp.issubdtype(value.dtype, jnp.integer):
        of_key = ": of a key, jax.random.bits(key)" if value.shape == (2,) or jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else ""
        raise ValueError(f"{name}: {value.dtype}{list(value.shape)}; expected one integer{of_key}")
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
    if not isinstance(rng_state, (jax.Array, np.ndarray)):
        raise TypeError(f"attention: rng_state: found {type(rng_state).__name__} {rng_state!r}; expected an array: int64 or uint64 [2], or uint32 [4]")
    rng_state = owned(rng_state)
    if (rng_state.shape, str(rng_state.dtype)) not in (((2,), "int64"), ((2,), "uint64"), ((4,), "uint32")):
        raise ValueError(f"rng_state: {rng_state.dtype}{list(rng_state.shape)}; expected int64 or uint64 [2], or uint32 [4] with low halves first")
    return rng_state


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


def _describe(q: Any, score_mod: ScoreMod, mask: Mask, max_seqlens: tuple[int, int], options: Options, arguments: dict[str, Any]) -> Any:
    """(what to do, the arrays of its parameters, their names)."""
    if not isinstance(options, Options):
        raise TypeError(f"attention: options: found {type(options).__name__} {options!r}; expected foveal.Options(...)")
    scale = arguments.get("scale")
    traced = scale if isinstance(scale, jax.Array) else None
    description = describe(score_mod, mask, tracer=JaxTracer.like(q.dtype), **{**arguments, "scale": scale if traced is None else 1.0})
    if traced is not None:
        description = _scaled(description, traced, arguments)
    params = tuple(map(owned, description.arrays))
    what = _What(_Described(description), _longest(max_seqlens), options, _on_cuda(q))
    return what, params, [param.name for param in description.params]


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
    q, k, v = (_array(x, name) for name, x in (("q", q), ("k", k), ("v", v)))
    what, params, names = _describe(q, score_mod, mask, max_seqlens, options, arguments)
    if arrays.holds_nothing(q, k, v):
        sink = None if what.described.sink is None else params[names.index(what.described.sink.name)]
        out, lse = _nothing(q, v, sink)
        return (out, lse) if return_lse else out
    lengths = tokens("attention", cu_seqlens, block_table, seqlens_kv)
    operands = (_given(lengths, _rng_state(what.described, seed, offset, rng_state), q=q, k=k, v=v), params)
    # Inside shard_map all differ along the same axes, so that the gradient of one that is the same everywhere is summed over the shards.
    axes = frozenset().union(*map(_axes, jax.tree.leaves(operands)))
    out, lse = _forward(what, *jax.tree.map(lambda x: _varying_with(x, axes), operands))
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
    q, k, v, out, lse, dout = (_array(x, name) for name, x in zip(_BACKWARD_ROLES, (q, k, v, out, lse, dout)))
    what, params, names = _describe(q, score_mod, mask, max_seqlens, options, arguments)
    wanted = [i for i, flag in enumerate(wanted_gradients(gradients, names)) if flag]
    if arrays.holds_nothing(q, k, v):
        sink = None if what.described.sink is None else names.index(what.described.sink.name)
        zeros: Callable[[Any], jax.Array] = lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32))  # noqa: E731
        at_head = None if dlse is None or sink is None else dlse.sum([axis for axis in range(dlse.ndim) if axis != dlse.ndim - 2])
        of_params = {names[i]: at_head.astype(zeros(params[i]).dtype) if i == sink and at_head is not None else zeros(params[i]) for i in wanted}
        return jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v), of_params
    state = _rng_state(what.described, seed, offset, rng_state)
    given = _given(tokens("backward", cu_seqlens, block_table, seqlens_kv), state, q=q, k=k, v=v, out=out, lse=lse, dout=dout, **({} if dlse is None else {"dlse": dlse}))
    found = _Gradients(what)(given, params, tuple(wanted))
    return found["dq"], found["dk"], found["dv"], {names[i]: found[i] for i in wanted}


@public("foveal.jax.dot_product_attention")
def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | jax.Array | tuple[int | jax.Array, int | jax.Array] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Drop-in for jax.nn.dot_product_attention: bias and scale may be traced and trained; tiles that masks leave empty are skipped.

    query: [batch, seqlen_q, heads_q, head_dim], or without batch.
    key, value: [batch, seqlen_kv, heads_kv, ...], or without batch.
    bias: added to the scores, of any real or integer dtype; broadcast to [batch, heads_q, seqlen_q, seqlen_kv].
    mask: bool, True = keep; broadcast likewise.
    query_seq_lengths, key_value_seq_lengths: integers [batch]; queries past theirs give zeros.
    local_window_size: keys to the left and to the right of its own position that a query sees; integers or arrays of one, which may be traced.
    implementation: None, "xla" or "cudnn"; has no effect.

    Returns the output; with return_residual also lse without gradient, [batch, seqlen_q, heads_q] in query's dtype. A query that sees no key gives
    zeros, as with cuDNN; XLA's implementation gives the mean of all values.
    """
    for name, flag in (("is_causal", is_causal), ("return_residual", return_residual)):
        if isinstance(flag, jax.core.Tracer):
            raise TypeError(f"dot_product_attention: {name}: found a value that JAX traces; expected True or False: static_argnames={name!r}")
    query, key, value = (_array(x, name) for name, x in (("query", query), ("key", key), ("value", value)))
    if not (implementation is None or implementation in ("xla", "cudnn")):
        raise ValueError(f"dot_product_attention: implementation: found {implementation!r}; expected None, 'xla' or 'cudnn', of which none changes anything")
    ranks = [x.ndim for x in (query, key, value)]
    if ranks[0] not in (3, 4) or len(set(ranks)) != 1:
        raise ValueError(f"dot_product_attention: query, key, value: ranks {ranks}; expected all 4, [batch, seqlen, heads, dim], or all 3")
    batched = [x[None] if x.ndim == 3 else x for x in (query, key, value)]
    batch, seqlen_q, heads, _ = batched[0].shape
    full = (batch, heads, seqlen_q, batched[1].shape[1])
    params: dict[str, Any] = {}
    score_mod, masks = None, []
    if bias is not None:
        bias = owned(bias)
        if not jnp.issubdtype(bias.dtype, jnp.floating):  # integers of any width, and booleans, are numbers to add
            bias = bias.astype(jnp.promote_types(query.dtype, jnp.float32))
        score_mod = "score + " + _read("bias", bias, full, params)
    if mask is not None:
        mask = owned(mask)
        if mask.dtype != jnp.bool_:
            raise ValueError(f"dot_product_attention: mask: dtype {mask.dtype}; expected bool (True = keep); numbers to add are a bias")
        masks.append(_read("mask", mask, full, params))
    if is_causal:
        masks.append("kv_idx <= q_idx")
    if local_window_size is not None:
        masks.append(_window(local_window_size, params))
    for name, lengths, symbol in (("query_seq_lengths", query_seq_lengths, "q_idx"), ("key_value_seq_lengths", key_value_seq_lengths, "kv_idx")):
        if lengths is not None:
            lengths = owned(lengths)
            if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
                raise ValueError(f"dot_product_attention: {name}: {lengths.dtype}{list(lengths.shape)}; expected integers [{batch}]")
            if jnp.issubdtype(lengths.dtype, jnp.unsignedinteger):  # which scores do not read; longer ones leave nothing out
                lengths = jnp.minimum(lengths, min(int(np.iinfo(lengths.dtype).max), 2**31 - 1)).astype(jnp.int32)
            params[name] = lengths
            masks.append(f"{symbol} < {name}[batch]")
    text = " & ".join([f"({part})" for part in masks]) or None
    out, lse = attention(batched[0], batched[1], batched[2], score_mod, text, scale=scale, params=params, return_lse=True)
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


def _window(size: Any, params: dict[str, Any]) -> str:
    """The text of a local_window_size; sides that are arrays, perhaps traced, become parameters."""
    if isinstance(size, (int, np.integer)):
        size = (size, size)
    sides = list(size) if isinstance(size, (tuple, list)) or isinstance(size, (np.ndarray, jax.Array)) and size.ndim == 1 else []
    texts = []
    for name, side in zip(("left", "right"), sides):
        side = owned(side) if isinstance(side, np.ndarray) else side
        if isinstance(side, jax.Array) and side.ndim == 0 and jnp.issubdtype(side.dtype, jnp.integer):
            params[f"window_{name}"] = side.astype(jnp.promote_types(side.dtype, jnp.int32))
            texts.append(f"window_{name}[]")
        elif type(side) is int or isinstance(side, np.integer):
            texts.append(str(int(side)))
    if len(sides) != 2 or len(texts) != 2:
        raise ValueError(f"dot_product_attention: local_window_size: found {size!r}; expected an integer, or a pair of integers (to the left, to the right)")
    return f"kv_idx >= q_idx - {texts[0]} and kv_idx <= q_idx + {texts[1]}"


from .jax_context import context_attention, context_order, context_places, context_positions  # noqa: E402, F401 - they call what is above
