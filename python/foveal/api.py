"""Attention on arrays of any framework: NumPy and everything with DLPack. torch tensors and JAX arrays get their own front ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Literal, Mapping, overload

from . import _core, arrays
from .argument_errors import public
from .describe import Rng, trace, wanted_gradients
from .signatures import BACKWARD_ROLES, A, Arguments, Mask, Options, ScoreMod, check_flags, check_names, check_seeds, tokens
from .trace import Tracer

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def attention(
    q: A, k: A, v: A, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: Literal[False] = False, **arguments: Unpack[Arguments]
) -> A: ...
@overload
def attention(
    q: A, k: A, v: A, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: Literal[True], **arguments: Unpack[Arguments]
) -> tuple[A, A]: ...
@overload
def attention(
    q: A, k: A, v: A, score_mod: ScoreMod = None, mask: Mask = None, *, return_lse: bool, **arguments: Unpack[Arguments]
) -> A | tuple[A, A]: ...
@public("foveal.attention")
def attention(
    q: Any,
    k: Any,
    v: Any,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    return_lse: bool = False,
    **arguments: Any,
) -> Any:
    """Exact softmax attention.

    q: [batch, seqlen_q, heads_q, head_dim], dtype float64, float32, bfloat16 or float16, any strides.
    k: [batch, seqlen_kv, heads_kv, head_dim], of q's dtype and device; heads_q is a multiple of heads_kv.
    v: [batch, seqlen_kv, heads_kv, head_dim_v], likewise.
    score_mod: a function (score, batch, head, q_idx, kv_idx) -> new score, an expression, or text; score is q . k * scale.
    mask: a function (batch, head, q_idx, kv_idx) -> whether the pair is kept, an expression, or text.
    return_lse: return lse too.

    Arrays that score_mod and mask read become parameters. torch tensors and JAX arrays get gradients; for other arrays use foveal.backward().

    scale: factor of q . k, by default 1 / sqrt(head_dim).
    sink: [heads_q], a logit per query head that joins the softmax's denominator.
    params: {name: array}, names for captured arrays, and the arrays that text reads.
    q_offset, kv_offset: added to q_idx and kv_idx, for tensors that are parts of longer ones.
    deterministic: the same bits on every run, on GPUs too.
    strategy: of the backward pass, "automatic", "fused", "split" or "two_scan".
    checked: fail if an index leaves a captured array at a pair that is kept; otherwise the nearest element is read. On GPUs it also fails for
    pages that do not exist and for seqlens_kv beyond the block table; otherwise zeros are read, and the nearest length is taken.
    options: foveal.Options, where to run.

    Packed sequences:

    q, k, v: rank 3, [total, heads, dim].
    cu_seqlens: (for q, for kv), cumulative lengths, each int32 or int64 [batch + 1].
    max_seqlens: (for q, for kv), the longest sequences.

    Paged keys and values:

    k, v: pools [pages, page_size, heads_kv, dim] of any strides, page_size a multiple of 16. Sequences may share pages; gradients of k and v are
    pools, too.
    block_table: int32 [batch, pages of the longest sequence]; entry i is the page that holds the keys from i * page_size on.
    seqlens_kv: int32 or int64 [batch], the number of keys of each sequence, which is the value of the symbol seqlen_kv.
    q: [batch, seqlen_q, heads_q, head_dim], or packed with cu_seqlens = (for q, None).

    Dropout:

    dropout_p: the probability of dropping a pair. Which pairs are dropped depends on seed, offset and global position only, on every device.
    seed, offset: not part of what is compiled and planned.
    rng_state: int64 [2] on q's device, {seed, offset}, used in their place and read when the kernels run: a captured CUDA graph drops other
    pairs on each replay once other numbers are in it.

    With neither, the seed is drawn from torch's generator of q's device, for other arrays from NumPy's; JAX has no such generator and needs a seed.
    forward() and backward() use seed and offset as given, 0 by default.

    Returns out [batch, seqlen_q, heads_q, head_dim_v], and with return_lse also lse, the natural logarithm of the denominator: float32 (float64
    for float64 inputs), [batch, heads_q, seqlen_q], packed [heads_q, total_q].
    Raises ValueError for a wrong call, TypeError for what is no array or no score, NotImplementedError when no backend can serve the call.
    """
    check_names("attention", arguments, (*ACCEPTED, "return_lse"))
    check_flags("attention", return_lse=return_lse)
    front = _front(q)
    if front is not None:
        return front.attention(q, k, v, score_mod, mask, return_lse=return_lse, **arguments)
    check_plain(BACKWARD_ROLES, (q, k, v))
    cu_seqlens, max_seqlens, _, options, described = split(arguments)
    seed, offset, rng_state = (arguments.get(name) for name in ("seed", "offset", "rng_state"))
    bound = trace(score_mod, mask, options, described)
    if arrays.holds_nothing(q, k, v):
        return _nothing(q, v, described.get("sink")) if return_lse else _nothing(q, v, None)[0]
    if described.get("dropout_p", 0.0) > 0.0 and seed is None and rng_state is None:
        import numpy

        seed = int(numpy.random.randint(0, 2**62, dtype=numpy.int64))
    found = bound.program.forward(
        q, k, v, bound.arrays, return_lse, cu_seqlens[0], cu_seqlens[1], max_seqlens[0], max_seqlens[1], seed or 0, offset or 0, rng_state
    )
    return tuple(found) if return_lse else found[0]


ACCEPTED = tuple(Arguments.__annotations__)


def check_plain(names: Iterable[str], tensors: Iterable[Any]) -> None:
    """Of what is read as memory: NumPy's masked arrays and torch's views that negate hold something else there."""
    for name, tensor in zip(names, tensors):
        if tensor is not None and type(tensor).__module__ != "numpy":  # ndarray's own
            arrays.check_plain(tensor, name)


def _zeros(like: Any, wide: bool = False) -> Any:
    """wide: of float32 or wider."""
    dtype = arrays.dtype_of(like)
    found = arrays.empty(tuple(like.shape), _core.DType.f32 if wide and dtype != _core.DType.f64 else dtype, like)
    found[...] = 0
    return found


def like_lse(q: Any) -> Any:
    """An array for the statistics of q's rows."""
    shape = tuple(q.shape)
    lse = (shape[1], shape[0]) if len(shape) == 3 else (shape[0], shape[2], shape[1])
    dtype = _core.DType.f64 if arrays.dtype_of(q) == _core.DType.f64 else _core.DType.f32
    return arrays.empty(lse, dtype, q)


def _nothing(q: Any, v: Any, sink: Any) -> tuple[Any, Any]:
    """What arrays without elements give: zeros; lse is the sink, -inf without."""
    out, lse = arrays.empty((*q.shape[:-1], v.shape[-1]), arrays.dtype_of(q), q), like_lse(q)
    out[...] = 0
    lse[...] = float("-inf") if sink is None else sink[:, None]
    return out, lse


def _front(q: Any) -> Any:
    """The module with gradients for q's framework, if there is one."""
    framework = arrays.framework(q)
    if framework == "torch":
        from . import torch

        return torch
    if framework == "jax":
        from . import jax

        return jax
    return None


def split(arguments: Mapping[str, Any]) -> tuple[tuple[Any, Any], tuple[int, int], Rng, Options, dict[str, Any]]:
    """What belongs to a run: how tokens lie, max_seqlens, seed and offset; the options; the arguments of describe()."""
    rest = dict(arguments)
    check_seeds("attention", rest.get("seed"), rest.get("offset"), rest.get("rng_state"))
    rng = Rng(rest.pop("seed", None) or 0, rest.pop("offset", 0), rest.pop("rng_state", None))
    lengths = tokens("attention", *(rest.pop(name, None) for name in ("cu_seqlens", "block_table", "seqlens_kv")))
    longest_q, longest_kv = rest.pop("max_seqlens", (0, 0))
    return lengths, (longest_q, longest_kv), rng, rest.pop("options", Options()), rest


@public("foveal.forward")
def forward(q: A, k: A, v: A, score_mod: ScoreMod = None, mask: Mask = None, **arguments: Unpack[Arguments]) -> tuple[A, A]:
    """(out, lse), without autograd: the arguments and shapes of attention(). Pass both to backward()."""
    check_names("forward", arguments, ACCEPTED)
    if arrays.framework(q) == "jax":
        from . import jax as front

        call: Any = front.attention  # of jax.Array, as q is
        out, lse = call(q, k, v, score_mod, mask, return_lse=True, **arguments)
        return out, lse
    cu_seqlens, max_seqlens, rng, options, described = split(arguments)
    bound = trace(score_mod, mask, options, described, tracer_of(q))
    check_plain((*BACKWARD_ROLES[:3], *bound.names), (q, k, v, *bound.arrays))
    if arrays.holds_nothing(q, k, v):
        return _nothing(q, v, described.get("sink"))
    out, lse = bound.program.forward(q, k, v, bound.arrays, True, *cu_seqlens, *max_seqlens, *rng)
    return out, lse


@public("foveal.backward")
def backward(
    q: A,
    k: A,
    v: A,
    out: A,
    lse: A,
    dout: A,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    dlse: A | None = None,
    gradients: tuple[str, ...] = (),
    **arguments: Unpack[Arguments],
) -> tuple[A, A, A, dict[str, A]]:
    """(dq, dk, dv, {name: gradient}): the gradients of sum(out * dout) + sum(lse * dlse).

    out, lse: what forward() returned.
    dout: like out.
    dlse: like lse, or None.
    gradients: names of the parameters to differentiate (keys of `params`, "sink", or p0, p1, ... in the order of their first read). Their
    gradients are accumulated in float32 or wider.

    The other arguments are those of attention(). Raises ValueError for a name that is no parameter's.
    """
    check_names("backward", arguments, (*ACCEPTED, "dlse", "gradients"))
    if arrays.framework(q) == "jax":
        from . import jax as front

        call: Any = front.backward  # of jax.Array, as q is
        dq, dk, dv, others = call(q, k, v, out, lse, dout, score_mod, mask, dlse=dlse, gradients=gradients, **arguments)
        return dq, dk, dv, others
    cu_seqlens, max_seqlens, rng, options, described = split(arguments)
    bound = trace(score_mod, mask, options, described, tracer_of(q))
    check_plain((*BACKWARD_ROLES[:7], *bound.names), (q, k, v, out, lse, dout, dlse, *bound.arrays))
    wanted = (True, True, True, *wanted_gradients(gradients, bound.names))
    if arrays.holds_nothing(q, k, v):
        at_lse: Any = dlse
        of_params = {name: _zeros(array, wide=True) for name, array, asked in zip(bound.names, bound.arrays, wanted[3:]) if asked}
        for name, array in zip(bound.names, bound.arrays):
            if name in of_params and array is described.get("sink") and at_lse is not None:
                of_params[name][...] = at_lse.sum(tuple([axis for axis in range(len(at_lse.shape)) if axis != len(at_lse.shape) - 2]))
        return _zeros(q), _zeros(k), _zeros(v), of_params
    dq, dk, dv, *dparams = bound.program.backward(q, k, v, out, lse, dout, dlse, bound.arrays, wanted, *cu_seqlens, *max_seqlens, *rng)
    return dq, dk, dv, {name: dparam for name, dparam in zip(bound.names, dparams) if dparam is not None}


def tracer_of(q: Any) -> Any:
    """What traces functions that are written for arrays like q."""
    if arrays.framework(q) == "torch":
        from .torch.tracing import TorchTracer

        return TorchTracer
    return Tracer
