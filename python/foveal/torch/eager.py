"""The passes of a program with autograd: what eager code and transforms of torch.func take, the operators' bodies without the dispatcher."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch import Tensor

from ..signatures import Paged, length_slots
from . import composite, examples
from .operators import as_rows, run_backward, run_forward


class _Attention(torch.autograd.Function):
    """run: cu_seqlens of q and kv, max_seqlens of both, seed, offset and state of dropout."""

    @staticmethod
    def forward(program: Any, run: Any, q: Any, k: Any, v: Any, *params: Any) -> Any:
        return run_forward(program, q, k, v, params, True, *(*run, True))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.program, ctx.run, q, k, v, *params = inputs
        ctx.save_for_backward(q, k, v, *output, *params, *_tensors_of(ctx.run))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        if examples.are_disguised((dout, dlse)):
            return examples.run_disguised(functools.partial(_Attention.backward, ctx), (dout, dlse))
        q, k, v, out, lse, *rest = ctx.saved_tensors
        want = ctx.needs_input_grad[2:]
        params, run = rest[: len(want) - 3], _with_tensors(ctx.run, rest[len(want) - 3 :])
        if dout is None:
            if dlse is None:
                return (None,) * (2 + len(want))
            dout = torch.zeros_like(out)
        dout, dlse = as_rows(dout), None if dlse is None else dlse.resolve_neg()
        if torch.is_grad_enabled():  # create_graph=True: the gradients' own derivatives may be asked for
            given = ctx.program, run, want, out.detach(), lse.detach(), q, k, v, dout, dlse
            found = iter(_Gradients.apply(*given, *params))  # type: ignore[no-untyped-call]
            return (None, None, *[next(found) if wanted else None for wanted in want])
        return (None, None, *run_backward(ctx.program, q, k, v, out, lse, dout, dlse, params, want, *(*run, True)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, program: Any, run: Any, *tensors: Any) -> Any:
        return examples.run(_Attention, program, run, in_dims[1], (), info.batch_size, in_dims[2:], tensors, first_param=3)


class _Gradients(torch.autograd.Function):
    """The backward pass as a function of its own: the wanted gradients."""

    @staticmethod
    def forward(program: Any, run: Any, want: Any, out: Any, lse: Any, q: Any, k: Any, v: Any, dout: Any, dlse: Any, *params: Any) -> Any:
        found = run_backward(program, q, k, v, out, lse, dout, dlse, params, want, *(*run, True))
        return tuple([gradient for gradient in found if gradient is not None])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.program, ctx.run, ctx.want, _, _, *tensors = inputs
        ctx.save_for_backward(*tensors, *_tensors_of(ctx.run))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        if examples.are_disguised(cotangents):
            return examples.run_disguised(functools.partial(_Gradients.backward, ctx), cotangents)
        q, k, v, dout, dlse, *rest = ctx.saved_tensors
        params, run = rest[: len(ctx.want) - 3], _with_tensors(ctx.run, rest[len(ctx.want) - 3 :])
        given = iter(cotangents)
        every = [next(given) if wanted else None for wanted in ctx.want]
        found = composite.second_derivatives(ctx.program, run, ctx.want, q, k, v, dout, dlse, params, every)
        return (None, None, None, None, None, *found)

    @staticmethod
    def vmap(info: Any, in_dims: Any, program: Any, run: Any, want: Any, *tensors: Any) -> Any:
        summed = any(want[3:])  # each example has a gradient of its own
        return examples.run(_Gradients, program, run, in_dims[1], (want,), info.batch_size, in_dims[3:], tensors, first_param=7, alone=summed)


record: Callable[..., tuple[Tensor, Tensor]] = super(torch.autograd.Function, _Attention).apply  # without the wrapper that looks for functorch
record_for_transforms: Callable[..., tuple[Tensor, Tensor]] = _Attention.apply


def _tensors_of(run: Any) -> list[Tensor]:
    """Of the arguments of a run: saved for the backward pass as q is, so that torch notices when they were changed meanwhile."""
    of_q, of_kv, _, _, _, _, state = run
    if of_q is None and of_kv is None and state is None:
        return []
    return [t for t in (*length_slots(of_q, of_kv), state) if t is not None]


def _with_tensors(run: Any, saved: list[Tensor]) -> Any:
    """The run with its tensors as they were saved."""
    if not saved:
        return run
    of_q, of_kv, *numbers, state = run
    found = iter(saved)
    cu_q, cu_kv, block_table, seqlens_kv, state = [None if t is None else next(found) for t in (*length_slots(of_q, of_kv), state)]
    return (cu_q, Paged(block_table, seqlens_kv) if isinstance(of_kv, Paged) else cu_kv, *numbers, state)
