"""How torch.compile and torch.export see the passes of a program: as operators.

Tensors first, then `key`, which names the program. seed and offset are the bits of unsigned numbers. Beside a block_table, cu_kv is seqlens_kv.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import argument_errors
from .._core import Program
from ..describe import Rng, program
from ..signatures import Paged

argument_errors.is_compiling = torch.compiler.is_compiling

_runs = [0]  # of the forward operator


def compiled_runs() -> int:
    """How often the forward operator ran: in code that torch.compile made, or under a transform of torch.func."""
    return _runs[0]


# Not as bound methods: where torch.compile leaves a graph within these files, it loses what they are bound to.
run_forward, run_backward = Program.forward, Program.backward


def as_rows(dout: Tensor) -> Tensor:
    """The gradient of a sum is one number with strides of 0, which Hopper's copy engine does not load: a copy costs less than the portable kernels."""
    dout = dout.resolve_neg()
    return dout.contiguous() if dout.is_cuda and dout.stride(-1) != 1 else dout


def signed_seeds(rng: Rng) -> list[int]:
    """seed and offset as operators take them."""
    return [bits if bits < 2**63 else bits - 2**64 for bits in (rng.seed, rng.offset)]


def wide(dtype: torch.dtype) -> torch.dtype:
    """Of lse and of sums, for tensors of this one."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def lse_shape(q: Tensor, heads_first: bool) -> tuple[int, ...]:
    """[batch, heads, seqlen_q]; packed: [heads, tokens]."""
    heads, rows = (q.shape[-3], q.shape[-2]) if heads_first and q.dim() == 4 else (q.shape[-2], q.shape[-3])
    return (*q.shape[:-3], heads, rows)


def _of_kv(cu_kv: Tensor | None, block_table: Tensor | None) -> Any:
    return cu_kv if block_table is None else Paged(block_table, cu_kv)


def _check_level() -> None:
    """Code that torch.compile made before the level was entered has no guard on it."""
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            "foveal: compiled or exported code runs within forward_ad.dual_level(), and would lose tangents; expected the call outside of "
            "torch.compile, or torch.func.jvp()"
        )


@torch.library.custom_op("foveal::forward", mutates_args=())
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, params: list[Tensor], cu_q: Tensor | None, cu_kv: Tensor | None, block_table: Tensor | None,
    max_q: int, max_kv: int, seed: int, offset: int, rng_state: Tensor | None, key: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _runs[0] += 1
    _check_level()
    q, k, v, *params = [t.resolve_neg() for t in (q, k, v, *params)]
    of_kv = _of_kv(cu_kv, block_table)
    return run_forward(program(key), q, k, v, params, True, cu_q, of_kv, max_q, max_kv, seed % 2**64, offset % 2**64, rng_state)


@torch.library.custom_op("foveal::backward", mutates_args=())
def _backward_op(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None, params: list[Tensor], cu_q: Tensor | None,
    cu_kv: Tensor | None, block_table: Tensor | None, max_q: int, max_kv: int, seed: int, offset: int, rng_state: Tensor | None, key: str,
    want: list[bool],
) -> list[Tensor]:  # fmt: skip
    _check_level()
    rng = seed % 2**64, offset % 2**64, rng_state
    q, k, v, *params = [t.resolve_neg() for t in (q, k, v, *params)]
    of_kv = _of_kv(cu_kv, block_table)
    found = run_backward(program(key), q, k, v, out, lse, as_rows(dout), dlse, params, want, cu_q, of_kv, max_q, max_kv, *rng, True)
    return [gradient for gradient in found if gradient is not None]


@forward_op.register_fake
def _(
    q: Any, k: Any, v: Any, params: Any, cu_q: Any, cu_kv: Any, block_table: Any, max_q: Any, max_kv: Any, seed: Any,
    offset: Any, rng_state: Any, key: Any,
) -> Any:  # fmt: skip
    heads_first = program(key).heads_first
    return _new(q, (*q.shape[:-1], v.shape[-1]), heads_first), q.new_empty(lse_shape(q, heads_first), dtype=wide(q.dtype))


@_backward_op.register_fake
def _(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dlse: Any, params: Any, cu_q: Any, cu_kv: Any, block_table: Any,
    max_q: Any, max_kv: Any, seed: Any, offset: Any, rng_state: Any, key: Any, want: Any,
) -> Any:  # fmt: skip
    heads_first = program(key).heads_first
    gradients = [_new(t, t.shape, heads_first) for t in (q, k, v)] + [_new(t, t.shape, False) for t in params]
    return [gradient for gradient, wanted in zip(gradients, want) if wanted]


def _new(like: Tensor, shape: Any, heads_first: bool) -> Tensor:
    """As programs make their results: heads first, in the order in memory of the tensor that they are like, as torch's functions do."""
    if not heads_first:
        return like.new_empty(shape)
    *strides, last = like.stride()
    dims = [0, 1, 2]
    # Where elements repeat, or head_dim does not come last in memory: contiguous.
    if (last == 1 or like.shape[3] <= 1) and all([stride > 0 or extent <= 1 for stride, extent in zip(strides, like.shape)]):
        dims.sort(key=lambda d: strides[d], reverse=True)
    return like.new_empty([shape[d] for d in (*dims, 3)]).permute([*[dims.index(d) for d in range(3)], 3])


def _op_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, params, cu_q, cu_kv, block_table, max_q, max_kv, seed, offset, rng_state, key = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_kv, block_table, rng_state, *params)
    ctx.lengths, ctx.seeds, ctx.key = (max_q, max_kv), (seed, offset), key
    ctx.want = [t.requires_grad for t in (q, k, v, *params)]


def _op_backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, cu_q, cu_kv, block_table, rng_state, *params = ctx.saved_tensors
    dout = torch.zeros_like(out) if dout is None else dout
    run = cu_q, cu_kv, block_table, *ctx.lengths, *ctx.seeds, rng_state
    found = iter(_backward_op(q, k, v, out, lse, dout, dlse, params, *run, ctx.key, ctx.want))
    gradients = [next(found) if wanted else None for wanted in ctx.want]
    return (*gradients[:3], gradients[3:], *(None,) * 9)


forward_op.register_autograd(_op_backward, setup_context=_op_setup)
