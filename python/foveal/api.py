"""Attention on arrays of any framework: NumPy and everything with DLPack. torch tensors and JAX arrays get their own front ends."""

from __future__ import annotations

from typing import Any, Mapping

from . import arrays
from ._core import DType, Pass
from .describe import BACKWARD_ROLES, FORWARD_ROLES, Description, Mask, Options, ScoreMod, describe, find_call, pointers


def _framework(array: Any) -> str:
    return type(array).__module__.partition(".")[0].removesuffix("lib")


def _lse_dtype(q: Any) -> DType:
    return DType.f64 if arrays.dtype_of(q, "q") == DType.f64 else DType.f32


def output_shapes(q: Any, v: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of out and lse."""
    shape = tuple(q.shape)
    if len(shape) not in (3, 4) or len(tuple(v.shape)) != len(shape):
        raise ValueError(
            f"q: rank {len(shape)}, v: rank {len(tuple(v.shape))}; expected both [batch, seqlen, heads, dim] or both packed [total, heads, dim]"
        )
    lse = (shape[1], shape[0]) if len(shape) == 3 else (shape[0], shape[2], shape[1])
    return (*shape[:-1], int(v.shape[-1])), lse


def _workspace(call: Any, like: Any) -> tuple[Any, int]:
    """GPU calls take their scratch from the framework that owns the stream; CPU calls from the thread's own pool."""
    if not arrays.spec(like).cuda:
        return None, 0
    scratch = arrays.empty((max(call.workspace_bytes, 1) + 256,), DType.u8, like)
    return scratch, (arrays.pointer(scratch) + 255) // 256 * 256


def _stream(like: Any) -> int:
    if not arrays.spec(like).cuda:
        return 0
    if _framework(like) == "cupy":
        import cupy

        return cupy.cuda.get_current_stream().ptr
    import torch

    return torch.cuda.current_stream(like.device).cuda_stream


def run_forward(
    description: Description,
    q: Any,
    k: Any,
    v: Any,
    *,
    want_lse: bool = True,
    cu_seqlens: tuple[Any, Any] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    options: Options = Options(),
) -> tuple[Any, Any]:
    out_shape, lse_shape = output_shapes(q, v)
    tensors = {"q": q, "k": k, "v": v, "out": arrays.empty(out_shape, None, q)}
    tensors["lse"] = arrays.empty(lse_shape, _lse_dtype(q), q) if want_lse else None
    if cu_seqlens is not None:
        tensors["cu_seqlens_q"], tensors["cu_seqlens_kv"] = cu_seqlens
    call = find_call(description, Pass.forward, tensors, {}, max_seqlens, options)
    scratch, address = _workspace(call, q)
    call.run(pointers(description, FORWARD_ROLES, tensors, {}), address, _stream(q))
    del scratch
    return tensors["out"], tensors["lse"]


def run_backward(
    description: Description,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dout: Any,
    *,
    dlse: Any = None,
    want: tuple[bool, bool, bool] = (True, True, True),
    want_params: tuple[bool, ...] = (),
    cu_seqlens: tuple[Any, Any] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    options: Options = Options(),
) -> tuple[Any, Any, Any, list[Any]]:
    tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout, "dlse": dlse}
    for wanted, role, of in zip(want, ("dq", "dk", "dv"), (q, k, v)):
        tensors[role] = arrays.empty(tuple(of.shape), None, of) if wanted else None
    if cu_seqlens is not None:
        tensors["cu_seqlens_q"], tensors["cu_seqlens_kv"] = cu_seqlens
    dparams = {
        i: arrays.empty(tuple(array.shape), DType.f64 if arrays.dtype_of(array) == DType.f64 else DType.f32, q)
        for i, array in enumerate(description.arrays)
        if i < len(want_params) and want_params[i]
    }
    call = find_call(description, Pass.backward, tensors, dparams, max_seqlens, options)
    scratch, address = _workspace(call, q)
    call.run(pointers(description, BACKWARD_ROLES, tensors, dparams), address, _stream(q))
    del scratch
    return tensors["dq"], tensors["dk"], tensors["dv"], [dparams.get(i) for i in range(len(description.arrays))]


def attention(
    q: Any,
    k: Any,
    v: Any,
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
    params: Mapping[str, Any] | None = None,
    cu_seqlens: tuple[Any, Any] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    return_lse: bool = False,
    options: Options = Options(),
) -> Any:
    """Exact softmax attention.

    q: [batch, seqlen_q, heads_q, head_dim]; k: [batch, seqlen_kv, heads_kv, head_dim]; v: [batch, seqlen_kv, heads_kv, head_dim_v], of one
    dtype (float64, float32, bfloat16, float16), on one device, any strides; heads_q a multiple of heads_kv. Packed sequences: rank 3,
    [total, heads, dim], with cu_seqlens = (for q, for kv), each int32 or int64 [batch + 1], and max_seqlens.

    score_mod: a function of (score, batch, head, q_idx, kv_idx) -> new score, an expression, or text; score is q . k * scale.
    mask: a function of (batch, head, q_idx, kv_idx) -> keep this pair?, an expression, or text.
    Arrays these functions read become parameters; `params` names them. With torch tensors, those that require a gradient get one;
    elsewhere use foveal.backward.
    sink: [heads_q], a logit per query head that joins the softmax's denominator.

    Returns out [batch, seqlen_q, heads_q, head_dim_v], and with return_lse also lse (float32, float64 for float64 inputs;
    [batch, heads_q, seqlen_q], packed [heads_q, total_q]), the natural logarithm of the denominator.
    Raises ValueError for a wrong call, NotImplementedError when no backend can do it.
    """
    arguments = dict(
        scale=scale, sink=sink, dropout_p=dropout_p, seed=seed, offset=offset, deterministic=deterministic, strategy=strategy, params=params
    )
    framework = _framework(q)
    if framework == "torch":
        from . import torch as front

        return front.attention(
            q, k, v, score_mod, mask, cu_seqlens=cu_seqlens, max_seqlens=max_seqlens, return_lse=return_lse, options=options, **arguments
        )
    description = describe(score_mod, mask, **arguments)
    out, lse = run_forward(
        description, q, k, v, want_lse=return_lse, cu_seqlens=cu_seqlens, max_seqlens=max_seqlens, options=options
    )
    return (out, lse) if return_lse else out


def forward(q: Any, k: Any, v: Any, score_mod: ScoreMod = None, mask: Mask = None, **arguments: Any) -> tuple[Any, Any]:
    """(out, lse), without autograd: the arguments of attention(). Pass both to backward()."""
    cu_seqlens, max_seqlens, options, described = _split(arguments)
    return run_forward(describe(score_mod, mask, **described), q, k, v, cu_seqlens=cu_seqlens, max_seqlens=max_seqlens, options=options)


def backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dout: Any,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    dlse: Any = None,
    gradients: tuple[str, ...] = (),
    **arguments: Any,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """(dq, dk, dv, {name: gradient}): the gradients of sum(out * dout) + sum(lse * dlse).

    gradients: names of parameters (keys of `params`, "sink", or p0, p1, ... in the order of their first read) that want one; accumulated
    in float32 or wider. The other arguments are those of attention().
    """
    cu_seqlens, max_seqlens, options, described = _split(arguments)
    description = describe(score_mod, mask, **described)
    names = [param.name for param in description.params]
    for name in gradients:
        if name not in names:
            raise ValueError(f"gradients: no parameter is called {name!r}; expected some of {names}")
    dq, dk, dv, dparams = run_backward(
        description, q, k, v, out, lse, dout, dlse=dlse, want_params=tuple(name in gradients for name in names),
        cu_seqlens=cu_seqlens, max_seqlens=max_seqlens, options=options,
    )  # fmt: skip
    return dq, dk, dv, {name: dparam for name, dparam in zip(names, dparams) if dparam is not None}


def _split(arguments: dict[str, Any]) -> tuple[Any, tuple[int, int], Options, dict[str, Any]]:
    rest = dict(arguments)
    return rest.pop("cu_seqlens", None), rest.pop("max_seqlens", (0, 0)), rest.pop("options", Options()), rest


def explain(q: Any, k: Any, v: Any, score_mod: ScoreMod = None, mask: Mask = None, *, backward: bool = False, **arguments: Any) -> dict[str, Any]:
    """What a call with these arguments would run, and why: backend, kernel, tiles visited and skipped, workspace, FLOPs, refusals.

    Only the shapes, strides and dtypes of q, k, v are used. The key "text" holds the same as a printable report.
    """
    cu_seqlens, max_seqlens, options, described = _split(arguments)
    description = describe(score_mod, mask, **described)
    out_shape, lse_shape = output_shapes(q, v)
    tensors = {"q": q, "k": k, "v": v, "out": arrays.empty(out_shape, None, q), "lse": arrays.empty(lse_shape, _lse_dtype(q), q)}
    if cu_seqlens is not None:
        tensors["cu_seqlens_q"], tensors["cu_seqlens_kv"] = cu_seqlens
    if backward:
        tensors |= {"dout": tensors["out"], "dq": q, "dk": k, "dv": v}
    return find_call(description, Pass.backward if backward else Pass.forward, tensors, {}, max_seqlens, options).explain()
