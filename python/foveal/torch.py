"""foveal for torch: attention with autograd, and the two front doors with the signatures people have.

    out = foveal.torch.attention(q, k, v, score_mod, mask)                      # [batch, seqlen, heads, dim]
    out = foveal.torch.flex_attention(query, key, value, score_mod, block_mask) # [batch, heads, seqlen, dim], as torch's
    out = foveal.torch.scaled_dot_product_attention(query, key, value, ...)     # likewise
    with foveal.torch.patch(): model(x)                                         # route a model that calls torch's
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Iterator, Mapping

import torch
from torch import Tensor

from . import _core
from ._core import Pass
from .api import output_shapes
from .describe import BACKWARD_ROLES, Description, Mask, Options, ScoreMod, describe, find_call
from .torch_trace import TorchTracer, signature

_descriptions: dict[str, tuple[Description, Options]] = {}  # canonical text -> what to run; never shrinks: programs are few
_traces: dict[Any, tuple[Description, str, list[Any]]] = {}  # signature of the functions -> their trace
_MAX_TRACES = 1024


def _register(description: Description, options: Options) -> str:
    key = f"{description.text} {options}"
    if key not in _descriptions:
        stripped = Description(description.attention, description.params, [], description.text, description.score_mod, description.mask)
        _descriptions[key] = (stripped, options)
    return key


def _bind(key: str, params: list[Tensor]) -> tuple[Description, Options]:
    description, options = _descriptions[key]
    bound = Description(
        description.attention, description.params, params, description.text, description.score_mod, description.mask
    )
    return bound, options


# The operators. torch.compile and torch.export see these; eager code takes the autograd.Function below, which calls the same bodies.
# Tensors first, then `key`, which names a registered description.


@torch.library.custom_op("foveal::forward", mutates_args=())
def _forward_op(
    q: Tensor, k: Tensor, v: Tensor, params: list[Tensor], cu_q: Tensor | None, cu_kv: Tensor | None, max_q: int, max_kv: int, key: str
) -> tuple[Tensor, Tensor]:
    return _forward(q, k, v, params, cu_q, cu_kv, max_q, max_kv, key)


@torch.library.custom_op("foveal::backward", mutates_args=())
def _backward_op(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None, params: list[Tensor], cu_q: Tensor | None,
    cu_kv: Tensor | None, max_q: int, max_kv: int, key: str, want: list[bool],
) -> list[Tensor]:  # fmt: skip
    return _backward(q, k, v, out, lse, dout, dlse, params, cu_q, cu_kv, max_q, max_kv, key, want)


_plans: dict[Any, tuple[Any, ...]] = {}  # what a forward or backward needs once its shapes have been seen
_MAX_PLANS = 4096


def _remember(found_key: Any, *entry: Any) -> tuple[Any, ...]:
    if len(_plans) >= _MAX_PLANS:
        _plans.pop(next(iter(_plans)))
    _plans[found_key] = entry
    return entry


def _identity(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tensor.dtype, tensor.device, tensor.shape, tensor.stride())


def _scratch(call: Any, device: torch.device) -> tuple[Tensor | None, int, int]:
    """(owner, address, stream): GPU scratch comes from torch's allocator, which orders its reuse on the stream."""
    if device.type != "cuda":
        return None, 0, 0
    memory = torch.empty(call.workspace_bytes + 256, dtype=torch.uint8, device=device)
    return memory, (memory.data_ptr() + 255) // 256 * 256, torch.cuda.current_stream(device).cuda_stream


def _forward(q, k, v, params, cu_q, cu_kv, max_q, max_kv, key):
    found_key = (key, _identity(q), _identity(k), _identity(v), _identity(cu_q), max_q, max_kv, *(_identity(p) for p in params))
    entry = _plans.get(found_key)
    if entry is None:
        description, options = _bind(key, params)
        out_shape, lse_shape = output_shapes(q, v)
        tensors = {"q": q, "k": k, "v": v, "out": q.new_empty(out_shape), "lse": q.new_empty(lse_shape, dtype=_lse_dtype(q))}
        if cu_q is not None:
            tensors |= {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv}
        call = find_call(description, Pass.forward, tensors, {}, (max_q, max_kv), options)
        entry = _remember(found_key, call, out_shape, lse_shape, _lse_dtype(q))
    call, out_shape, lse_shape, lse_dtype = entry
    out, lse = q.new_empty(out_shape), q.new_empty(lse_shape, dtype=lse_dtype)
    packed = () if cu_q is None else (cu_q, cu_kv)
    memory, workspace, stream = _scratch(call, q.device)
    call.run([t.data_ptr() for t in (q, k, v, out, lse, *packed, *params)], workspace, stream)
    del memory
    return out, lse


def _backward(q, k, v, out, lse, dout, dlse, params, cu_q, cu_kv, max_q, max_kv, key, want) -> list[Tensor]:
    """Gradients of the wanted ones among (q, k, v, *params), in order; parameters' in their own dtype."""
    inputs = (q, k, v, out, lse, dout, dlse, cu_q, *params)
    found_key = (key, max_q, max_kv, *want, *(_identity(t) for t in inputs))
    gradients = [torch.empty(t.shape, dtype=t.dtype, device=t.device) if w else None for t, w in zip((q, k, v), want)]
    dparams = {
        i: torch.empty(p.shape, dtype=torch.float64 if p.dtype == torch.float64 else torch.float32, device=p.device)
        for i, p in enumerate(params)
        if want[3 + i]
    }
    entry = _plans.get(found_key)
    if entry is None:
        description, options = _bind(key, params)
        tensors = dict(zip(BACKWARD_ROLES, (q, k, v, out, lse, dout, dlse, *gradients)))
        if cu_q is not None:
            tensors |= {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv}
        entry = _remember(found_key, find_call(description, Pass.backward, tensors, dparams, (max_q, max_kv), options))
    (call,) = entry
    packed = () if cu_q is None else (cu_q, cu_kv)
    memory, workspace, stream = _scratch(call, q.device)
    everything = (q, k, v, out, lse, dout, dlse, *gradients, *packed, *params, *dparams.values())
    call.run([0 if t is None else t.data_ptr() for t in everything], workspace, stream)
    del memory
    return [t for t in (*gradients, *(d.to(params[i].dtype) for i, d in dparams.items())) if t is not None]


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@_forward_op.register_fake
def _(q, k, v, params, cu_q, cu_kv, max_q, max_kv, key):
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(output_shapes(q, v)[1], dtype=_lse_dtype(q))


@_backward_op.register_fake
def _(q, k, v, out, lse, dout, dlse, params, cu_q, cu_kv, max_q, max_kv, key, want):
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t, wanted in zip((q, k, v, *params), want) if wanted]


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
    def forward(ctx, key, max_q, max_kv, cu_q, cu_kv, q, k, v, *params):
        out, lse = _forward(q, k, v, list(params), cu_q, cu_kv, max_q, max_kv, key)
        ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_kv, *params)
        ctx.rest = (max_q, max_kv, key)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, out, lse, cu_q, cu_kv, *params = ctx.saved_tensors
        want = list(ctx.needs_input_grad[5:])
        if dout is None:
            if dlse is None:
                return (None,) * (5 + len(want))
            dout = torch.zeros_like(out)
        found = iter(_backward(q, k, v, out, lse, dout, dlse, params, cu_q, cu_kv, *ctx.rest, want))
        return (None, None, None, None, None, *(next(found) if wanted else None for wanted in want))


def _call(q, k, v, params, cu_seqlens, max_seqlens, key) -> tuple[Tensor, Tensor]:
    cu_q, cu_kv = cu_seqlens if cu_seqlens is not None else (None, None)
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if torch.compiler.is_compiling():
        return _forward_op(q, k, v, params, cu_q, cu_kv, *max_seqlens, key)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in (q, k, v, *params)):
        return _forward(q, k, v, params, cu_q, cu_kv, *max_seqlens, key)
    return _Attention.apply(key, *max_seqlens, cu_q, cu_kv, q, k, v, *params)


class Attention(torch.nn.Module):
    """A score and a mask, traced once: call it on q, k, v as often as you like, also inside torch.compile (no graph break).

    Tensors that the functions capture are kept by reference; learnable ones (torch.nn.Parameter) are registered as parameters of this module.
    Arguments as in foveal.attention().
    """

    def __init__(self, score_mod: ScoreMod = None, mask: Mask = None, *, options: Options = Options(), **arguments: Any):
        super().__init__()
        description = describe(score_mod, mask, tracer=TorchTracer(), **arguments)
        self.key = _register(description, options)
        self.names = [param.name for param in description.params]
        self.captured = list(description.arrays)
        for name, array in zip(self.names, self.captured):
            if isinstance(array, torch.nn.Parameter):
                self.register_parameter(name, array)

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
        out, lse = _call(q, k, v, self.captured, cu_seqlens, max_seqlens, self.key)
        return (out, lse) if return_lse else out


def _trace(score_mod: ScoreMod, mask: Mask, options: Options, arguments: dict[str, Any]) -> tuple[str, list[Tensor]]:
    """The registered key and the captured tensors; traced anew unless nothing that the functions see has changed."""
    parts = (signature(score_mod), signature(mask))
    cacheable = parts[0] is not None and parts[1] is not None and not arguments.get("params") and arguments.get("sink") is None
    found_key = (*parts, options, tuple(arguments.items())) if cacheable else None
    if cacheable:
        hit = _traces.get(found_key)
        if hit is not None:
            tensors = [reference() for reference in hit[2]]
            if all(tensor is not None for tensor in tensors):
                return hit[1], tensors
    description = describe(score_mod, mask, tracer=TorchTracer(), **arguments)
    key = _register(description, options)
    if cacheable and all(_mentions(parts, tensor) for tensor in description.arrays):
        if len(_traces) >= _MAX_TRACES:
            _traces.pop(next(iter(_traces)))
        _traces[found_key] = (description, key, [weakref.ref(tensor) for tensor in description.arrays])
        description.arrays = list(description.arrays)
    return key, description.arrays


def _mentions(parts: Any, tensor: Tensor) -> bool:
    """True when the tensor itself was in the signature; a view made while tracing is new every time and must not be cached."""
    if isinstance(parts, tuple):
        if len(parts) == 4 and parts[0] == "tensor" and parts[1] == id(tensor):
            return True
        return any(_mentions(part, tensor) for part in parts)
    return False


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
    key, params = _trace(score_mod, mask, options, arguments)
    out, lse = _call(q, k, v, params, cu_seqlens, max_seqlens, key)
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
    mask = getattr(block_mask, "mask_mod", block_mask)
    out, lse = attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), score_mod, mask, scale=scale, return_lse=True
    )
    out = out.transpose(1, 2)
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
    score_mod: Any = None
    mask: Any = _core.causal() if is_causal else None
    params: dict[str, Tensor] | None = None
    if attn_mask is not None:
        bias = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
        index = [0 if extent == 1 else symbol for extent, symbol in zip(bias.shape, (_core.batch, _core.head, _core.q_idx, _core.kv_idx))]
        kind = _core.Type.boolean if bias.dtype == torch.bool else _core.Type.real
        read = _core.Param("attn_mask", list(bias.shape), kind).read(index)
        params = {"attn_mask": bias}
        score_mod, mask = (None, read) if bias.dtype == torch.bool else (_core.score + read, None)
    seed = int(torch.randint(0, 2**62, (), dtype=torch.int64)) if dropout_p > 0 else 0
    out = attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), score_mod, mask,
        scale=scale, dropout_p=dropout_p, seed=seed, params=params,
    )  # fmt: skip
    return out.transpose(1, 2)


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
