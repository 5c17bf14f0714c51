"""The passes of a context: with autograd in eager mode, and as operators, which torch.compile sees.

Operators take tensors first; seed and offset are the bits of unsigned numbers; context: the number of one.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._core import Program
from ..describe import Rng, program
from . import calls, checkpointing, examples
from .context_ranks import Ranks
from .operators import as_rows, lse_shape, wide

_contexts: weakref.WeakValueDictionary[int, Ranks] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def register(ranks: Ranks) -> int:
    """The number by which operators know them."""
    number = next(_numbers)
    _contexts[number] = ranks
    return number


def _ranks(number: int) -> Ranks:
    found = _contexts.get(number)
    if found is None:
        raise RuntimeError("context_parallel: the context of this compiled code or graph is gone; expected it to live as long as these")
    return found


def _heads(found: Program, q: Tensor, k: Tensor) -> tuple[int, int]:
    heads_q, heads_kv = (lse_shape(x, found.heads_first)[-2] for x in (q, k))
    return heads_q, heads_kv


def forward(
    ranks: Ranks, found: Program, rng: Rng, q: Tensor, k: Tensor, v: Tensor, params: Sequence[Tensor], want: Sequence[bool] = (),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """want: of q, k, v and params, where a backward pass will follow."""
    if (entered := calls.context) is not None:
        checkpointing.rerun_in("context", lambda: entered)
    with ranks.turn():
        plan = ranks.plan(found, _heads(found, q, k), q, v, params, want)
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty(lse_shape(q, found.heads_first), dtype=wide(q.dtype))
        plan.forward([q, k, v, out, lse], found.params, list(params), found.heads_first, *rng)
    return out, lse


def _gradients(
    ranks: Ranks, found: Program, rng: Rng, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor,
    dlse: Tensor | None, params: Sequence[Tensor], want: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Of q, k, v and the parameters; None where none is wanted."""
    gradients = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)]
    trained = [i for i, wanted in enumerate(want[3:]) if wanted]
    sums = [torch.empty(params[i].shape, dtype=wide(params[i].dtype), device=q.device) for i in trained]
    tensors, names = [q, k, v, out, lse, as_rows(dout), dlse, *gradients], found.params
    with ranks.turn():
        plan = ranks.plan(found, _heads(found, q, k), q, v, params)
        plan.backward(tensors, names, list(params), [names[i] for i in trained], sums, found.heads_first, *rng)
    of_params: list[Tensor | None] = [None] * len(params)
    for i, total in zip(trained, sums):
        of_params[i] = total.to(params[i].dtype)
    return [*[g if wanted else None for g, wanted in zip(gradients, want)], *of_params]


def is_seen_below(tensors: Sequence[Tensor]) -> bool:
    """Whether something sees calls below torch's functions, which must be operators then; see calls.call()."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None or calls.is_any_dispatching(tensors)


class _Shards(torch.autograd.Function):
    """The eager path: the operators' bodies without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, found: Program, rng: Rng, q: Tensor, k: Tensor, v: Tensor, *params: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = forward(ranks, found, rng, q, k, v, params, ctx.needs_input_grad[3:])
        ctx.ranks, ctx.found, ctx.rng = ranks, found, rng
        state = () if rng.state is None else (rng.state,)
        # One more tensor than attention saves outside of the context: if a checkpoint runs this again there, it sees that.
        ctx.save_for_backward(q, k, v, out, lse, *params, *state, ranks.tokens_on(q.device))
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        if examples.are_disguised((dout, dlse)):
            return examples.run_disguised(functools.partial(_Shards.backward, ctx), (dout, dlse))
        want = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            error = NotImplementedError("context_parallel: second derivatives (create_graph=True); expected first ones")
            ctx.ranks.refused(error)
            raise error
        q, k, v, out, lse, *rest, _ = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        if dlse is not None:
            dlse = dlse.resolve_neg()
        elif ctx.ranks.sends_dlse:
            dlse = torch.zeros_like(lse)
        rng = ctx.rng if ctx.rng.state is None else ctx.rng._replace(state=rest[-1])
        return (None, None, None, *_gradients(ctx.ranks, ctx.found, rng, q, k, v, out, lse, dout, dlse, rest[: len(want) - 3], want))


record: Callable[..., tuple[Tensor, Tensor]] = super(torch.autograd.Function, _Shards).apply  # as in eager.py


@torch.library.custom_op("foveal::context_forward", mutates_args=())
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, params: list[Tensor], cu_seqlens: list[Tensor], seed: int, offset: int, rng_state: Tensor | None,
    key: str, context: int, want: list[bool],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _ranks(context).check_packed(cu_seqlens)
    q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    return forward(_ranks(context), program(key), Rng(seed % 2**64, offset % 2**64, rng_state), q, k, v, params, want)


@torch.library.custom_op("foveal::context_backward", mutates_args=())
def _backward_op(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, params: list[Tensor], seed: int, offset: int,
    rng_state: Tensor | None, key: str, context: int, want: list[bool],
) -> list[Tensor]:  # fmt: skip
    q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    rng = Rng(seed % 2**64, offset % 2**64, rng_state)
    found = _gradients(_ranks(context), program(key), rng, q, k, v, out, lse, dout, dlse, params, want)
    return [gradient for gradient in found if gradient is not None]


@forward_op.register_fake
def _(
    q: Any, k: Any, v: Any, params: Any, cu_seqlens: Any, seed: Any, offset: Any, rng_state: Any, key: Any, context: Any, want: Any,
) -> Any:  # fmt: skip
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(lse_shape(q, program(key).heads_first), dtype=wide(q.dtype))


@_backward_op.register_fake
def _(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dlse: Any, params: Any, seed: Any, offset: Any, rng_state: Any,
    key: Any, context: Any, want: Any,
) -> Any:  # fmt: skip
    return [t.new_empty(t.shape) for t, wanted in zip((q, k, v, *params), want) if wanted]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, params, cu_seqlens, *run = inputs
    ctx.sequences = len(cu_seqlens)
    seed, offset, rng_state, ctx.key, ctx.number, _ = run
    ctx.seeds, ctx.want = (seed, offset), [t.requires_grad for t in (q, k, v, *params)]
    ctx.save_for_backward(q, k, v, *output, rng_state, *params)


def _backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, rng_state, *params = ctx.saved_tensors
    dout = torch.zeros_like(out) if dout is None else dout
    dlse = torch.zeros_like(lse) if dlse is None else dlse
    found = iter(_backward_op(q, k, v, out, lse, dout, dlse, params, *ctx.seeds, rng_state, ctx.key, ctx.number, ctx.want))
    gradients = [next(found) if wanted else None for wanted in ctx.want]
    return (*gradients[:3], gradients[3:], [None] * ctx.sequences, *(None,) * 6)


forward_op.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("foveal::context_agreed", mutates_args=())
def agreed_op(state: Tensor, context: int) -> Tensor:
    return _ranks(context).of_rank_0(state)


@agreed_op.register_fake
def _(state: Any, context: Any) -> Any:
    return torch.empty_like(state)


@torch.library.custom_op("foveal::context_shard", mutates_args=())
def _shard_op(tensor: Tensor, dim: int, context: int) -> Tensor:
    return _ranks(context).shard(tensor, dim)


@_shard_op.register_fake
def _(tensor: Any, dim: Any, context: Any) -> Any:
    shape = list(tensor.shape)
    shape[dim] = len(_ranks(context).positions)
    return tensor.new_empty(shape)


@torch.library.custom_op("foveal::context_unshard", mutates_args=())
def unshard_op(tensor: Tensor, dim: int, context: int) -> Tensor:
    return _ranks(context).unshard(tensor, dim)


@unshard_op.register_fake
def _(tensor: Any, dim: Any, context: Any) -> Any:
    shape = list(tensor.shape)
    shape[dim] = _ranks(context).dealt.seqlen
    return tensor.new_empty(shape)


def _setup_unshard(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.dim, ctx.number = inputs


def _backward_unshard(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    if is_seen_below((gradient,)):  # by torch.compile, to which the context's own tensor of tokens is a stranger here
        return _shard_op(gradient, ctx.dim, ctx.number), None, None
    return _ranks(ctx.number).shard(gradient, ctx.dim), None, None


unshard_op.register_autograd(_backward_unshard, setup_context=_setup_unshard)
