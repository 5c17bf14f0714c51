"""foveal for torch: attention with autograd, and the two front doors with the signatures people have.

    out = foveal.torch.attention(q, k, v, score_mod, mask)                      # [batch, seqlen, heads, dim]
    out = foveal.torch.flex_attention(query, key, value, score_mod, block_mask) # [batch, heads, seqlen, dim], as torch's
    out = foveal.torch.scaled_dot_product_attention(query, key, value, ...)     # likewise
    with foveal.torch.patch(): model(x)                                         # route a model that calls torch's
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Mapping

import torch
from torch import Tensor

from . import _core
from ._core import Expr
from .describe import Mask, Options, ScoreMod, bind, describe, program, trace
from .torch_trace import TorchTracer

# The operators. torch.compile and torch.export see these; eager code takes the autograd.Function below, which calls the same program.
# Tensors first, then `key`, which names the program.


@torch.library.custom_op("foveal::forward", mutates_args=())
def _forward_op(
    q: Tensor, k: Tensor, v: Tensor, params: list[Tensor], cu_q: Tensor | None, cu_kv: Tensor | None, max_q: int, max_kv: int, key: str
) -> tuple[Tensor, Tensor]:
    return program(key).forward(q, k, v, params, True, cu_q, cu_kv, max_q, max_kv)


@torch.library.custom_op("foveal::backward", mutates_args=())
def _backward_op(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None, params: list[Tensor], cu_q: Tensor | None,
    cu_kv: Tensor | None, max_q: int, max_kv: int, key: str, want: list[bool],
) -> list[Tensor]:  # fmt: skip
    found = program(key).backward(q, k, v, out, lse, dout, dlse, params, want, cu_q, cu_kv, max_q, max_kv, True)
    return [gradient for gradient in found if gradient is not None]


@_forward_op.register_fake
def _(q, k, v, params, cu_q, cu_kv, max_q, max_kv, key):
    heads_first = program(key).heads_first
    if q.dim() == 3:
        lse = q.shape[1], q.shape[0]
    else:
        lse = (q.shape[0], *(q.shape[1:3] if heads_first else (q.shape[2], q.shape[1])))
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _new(q, (*q.shape[:-1], v.shape[-1]), heads_first), q.new_empty(lse, dtype=dtype)


@_backward_op.register_fake
def _(q, k, v, out, lse, dout, dlse, params, cu_q, cu_kv, max_q, max_kv, key, want):
    heads_first = program(key).heads_first
    gradients = [_new(t, t.shape, heads_first) for t in (q, k, v)] + [_new(t, t.shape, False) for t in params]
    return [gradient for gradient, wanted in zip(gradients, want) if wanted]


def _new(like: Tensor, shape: Any, heads_first: bool) -> Tensor:
    """As programs make their results: in memory seqlen always comes before heads."""
    if not heads_first:
        return like.new_empty(shape)
    return like.new_empty((shape[0], shape[2], shape[1], shape[3])).transpose(1, 2)


def _op_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, params, cu_q, cu_kv, max_q, max_kv, key = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_kv, *params)
    ctx.rest = (max_q, max_kv, key)
    ctx.want = [t.requires_grad for t in (q, k, v, *params)]


def _op_backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, cu_q, cu_kv, *params = ctx.saved_tensors
    dout = torch.zeros_like(out) if dout is None else dout
    found = iter(_backward_op(q, k, v, out, lse, dout, dlse, params, cu_q, cu_kv, *ctx.rest, ctx.want))
    gradients = [next(found) if wanted else None for wanted in ctx.want]
    return (*gradients[:3], gradients[3:], None, None, None, None, None)


_forward_op.register_autograd(_op_backward, setup_context=_op_setup)


class _Attention(torch.autograd.Function):
    """The eager path: the operators' bodies without the dispatcher."""

    @staticmethod
    def forward(ctx, program, lengths, q, k, v, *params):
        out, lse = program.forward(q, k, v, params, True, *lengths)
        ctx.save_for_backward(q, k, v, out, lse, *params)
        ctx.program, ctx.lengths = program, lengths
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        if torch.is_grad_enabled():  # create_graph=True
            return _once_differentiable(ctx, dout, dlse)
        return _backward(ctx, dout, dlse)


def _backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, *params = ctx.saved_tensors
    want = ctx.needs_input_grad[2:]
    if dout is None:
        if dlse is None:
            return (None,) * (2 + len(want))
        dout = torch.zeros_like(out)
    return (None, None, *ctx.program.backward(q, k, v, out, lse, dout, dlse, params, want, *ctx.lengths, True))


_once_differentiable = torch.autograd.function.once_differentiable(_backward)
_record = super(torch.autograd.Function, _Attention).apply  # without the wrapper that looks for functorch, which _call has done


def _call(key: str, params: list[Tensor], q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Any, max_seqlens: Any) -> tuple[Tensor, Tensor]:
    kind = "cpu" if q.is_cpu else q.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    lengths = (*(cu_seqlens or (None, None)), *max_seqlens)
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _forward_op(q, k, v, params, *lengths, key)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or any([p.requires_grad for p in params])):
        return _record(program(key), lengths, q, k, v, *params)
    return program(key).forward(q, k, v, params, True, *lengths)


@torch.compiler.assume_constant_result
def _constant_key(score_mod: Expr | str | None, mask: Expr | str | None, looks: tuple[Any, ...], heads_first: bool, rest: tuple[Any, ...]) -> str:
    """For torch.compile, which calls this while it traces: all arguments are constants. looks: of the tensors given by name."""
    given = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape, dtype in looks}
    arguments = {**dict(rest), "sink": given.pop("sink", None), "params": given}
    return trace(score_mod, mask, Options(), arguments, TorchTracer, heads_first).key


_trace_outside = torch.compiler.disable(trace)  # functions are run on symbols: a graph break
# torch.compile takes objects like Expr for constants from 2.13 on (not yet in 2.11); before, they cost a graph break too.
_CONSTANT = (Expr, str, type(None)) if torch.__version__ >= (2, 13) else (str, type(None))


def _bound(score_mod: ScoreMod, mask: Mask, options: Options, arguments: dict[str, Any], heads_first: bool) -> tuple[str, list[Tensor]]:
    """The program's key, and the tensors that are its parameters."""
    find = trace
    if torch.compiler.is_compiling():
        if isinstance(score_mod, _CONSTANT) and isinstance(mask, _CONSTANT) and options == Options():
            given = {**(arguments.get("params") or {}), **({} if arguments.get("sink") is None else {"sink": arguments["sink"]})}
            looks = tuple([(name, tuple(t.shape), t.dtype) for name, t in given.items()])
            rest = tuple([(name, value) for name, value in arguments.items() if name not in ("params", "sink")])
            return _constant_key(score_mod, mask, looks, heads_first, rest), list(given.values())
        find = _trace_outside
    bound = find(score_mod, mask, options, arguments, TorchTracer, heads_first)
    return bound.key, bound.arrays


class Attention(torch.nn.Module):
    """A score and a mask, traced once: call it on q, k, v as often as you like, also inside torch.compile (no graph break).

    Tensors that the functions capture become parameters (torch.nn.Parameter) or buffers (the others, not in the state dict) of this module,
    under their names in `params`, or p0, p1, ... in the order of their first read. Arguments as in foveal.attention().
    """

    def __init__(self, score_mod: ScoreMod = None, mask: Mask = None, *, options: Options = Options(), **arguments: Any):
        super().__init__()
        bound = bind(describe(score_mod, mask, tracer=TorchTracer(), **arguments), options)
        self.key = bound.key
        self.names = bound.names
        for name, array in zip(bound.names, bound.arrays):
            if isinstance(array, torch.nn.Parameter):
                self.register_parameter(name, array)
            else:
                self.register_buffer(name, array, persistent=False)

    def extra_repr(self) -> str:
        return self.key

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens: tuple[Tensor, Tensor] | None = None,
        max_seqlens: tuple[int, int] = (0, 0),
        return_lse: bool = False,
    ) -> Any:
        """(out, lse) or out: q [batch, seqlen_q, heads_q, head_dim] and so on, as foveal.attention()."""
        captured = [getattr(self, name) for name in self.names]
        out, lse = _call(self.key, captured, q, k, v, cu_seqlens, max_seqlens)
        return (out, lse) if return_lse else out


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    cu_seqlens: tuple[Tensor, Tensor] | None = None,
    max_seqlens: tuple[int, int] = (0, 0),
    return_lse: bool = False,
    options: Options = Options(),
    **arguments: Any,
) -> Any:
    """foveal.attention() with autograd: gradients reach q, k, v, the sink and every captured tensor that requires one, and flow through lse.

    q: [batch, seqlen_q, heads_q, head_dim] and so on, see foveal.attention(). Under autocast q, k, v are cast to its dtype.
    """
    key, captured = _bound(score_mod, mask, options, arguments, heads_first=False)
    out, lse = _call(key, captured, q, k, v, cu_seqlens, max_seqlens)
    return (out, lse) if return_lse else out


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, by foveal: unchanged score_mod and mask_mod functions, learnable captures included.

    query: [batch, heads_q, seqlen_q, head_dim]; key: [batch, heads_kv, seqlen_kv, head_dim]; value: [batch, heads_kv, seqlen_kv, head_dim_v].
    block_mask: a BlockMask (only its mask_mod is used), a mask_mod function, or None. Key and value of batch 1 are broadcast.
    kernel_options: accepted and ignored. Returns [batch, heads_q, seqlen_q, head_dim_v], and lse [batch, heads_q, seqlen_q] with return_lse.
    """
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"key: {key.shape[1]} heads, query: {query.shape[1]}; expected equal, or enable_gqa=True")
    if key.shape[0] == 1 and query.shape[0] > 1:
        key, value = key.expand(query.shape[0], -1, -1, -1), value.expand(query.shape[0], -1, -1, -1)
    program_key, captured = _bound(score_mod, getattr(block_mask, "mask_mod", block_mask), Options(), {"scale": scale}, heads_first=True)
    out, lse = _call(program_key, captured, query, key, value, None, (0, 0))
    return (out, lse) if return_lse else out


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, by foveal; a float attn_mask that requires a gradient gets one.

    query: [batch, heads_q, seqlen_q, head_dim]; attn_mask: bool (True = keep) or float (added), broadcastable to
    [batch, heads_q, seqlen_q, seqlen_kv]. dropout draws its seed from torch's generator.
    """
    if query.dim() == 3:
        tensors = (t.unsqueeze(0) for t in (query, key, value))
        mask4 = attn_mask
        return scaled_dot_product_attention(*tensors, mask4, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    if query.dim() != 4:
        raise ValueError(f"query: rank {query.dim()}; expected 3 or 4: [batch, heads, seqlen, head_dim]")
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask: must be None when is_causal is set")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"key: {key.shape[1]} heads, query: {query.shape[1]}; expected equal, or enable_gqa=True")
    seed = int(torch.randint(0, 2**62, (), dtype=torch.int64, device="cpu")) if dropout_p > 0 else 0
    score_mod, mask, params = None, "kv_idx <= q_idx" if is_causal else None, {}
    if attn_mask is not None:
        bias = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
        index = [symbol if extent > 1 else "0" for extent, symbol in zip(bias.shape, ("batch", "head", "q_idx", "kv_idx"))]
        read = f"attn_mask[{', '.join(index)}]"
        params = {"attn_mask": bias}
        score_mod, mask = (None, read) if bias.dtype == torch.bool else (f"score + {read}", None)
    arguments = {"scale": scale, "dropout_p": dropout_p, "seed": seed, "params": params}
    program_key, captured = _bound(score_mod, mask, Options(), arguments, heads_first=True)
    return _call(program_key, captured, query, key, value, None, (0, 0))[0]


@contextlib.contextmanager
def patch() -> Iterator[None]:
    """Within this context torch.nn.functional.scaled_dot_product_attention and flex_attention are foveal's."""
    import torch.nn.attention.flex_attention as flex_module

    functional = torch.nn.functional
    saved = functional.scaled_dot_product_attention, flex_module.flex_attention
    functional.scaled_dot_product_attention, flex_module.flex_attention = scaled_dot_product_attention, flex_attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, flex_module.flex_attention = saved
