"""Context parallelism over a process group of torch.distributed: public functions take local shards and give local shards."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.autograd import forward_ad

from .. import argument_errors
from ..describe import Rng, program
from ..signatures import Paged
from . import calls, context_operators, sharded
from .context_deal import deal_tokens
from .context_operators import agreed_op, forward, forward_op, is_seen_below, record, unshard_op
from .context_ranks import Ranks
from .operators import signed_seeds
from .programs import is_heads_first

_LONGEST = 10**9  # seconds, which every clock can count


def context_parallel(
    group: Any,
    seqlen: int | Sequence[int],
    *,
    seq_dim: int = 1,
    masks: Sequence[Any] | None = None,
    heads: tuple[int, int, int] = (16, 16, 128),
    deal: str | None = None,
    head_groups: int = 1,
    unit: int = 128,
    threads: int = 0,
    time_limit: float = 600.0,
    multiprocessors: int = 16,
    engine: str = "automatic",
) -> ContextParallel:
    """A context in which foveal.torch.attention, flex_attention and scaled_dot_product_attention work on shards of a sequence.

        with foveal.torch.context_parallel(group, seqlen=4096, seq_dim=1) as context:
            tokens, labels, positions = context.shard(tokens), context.shard(labels), context.shard(torch.arange(4096), dim=0)
            loss = model(tokens, positions, labels)

    group: a process group of torch.distributed (None: the default one), or a DeviceMesh of one dimension. With NCCL, tensors are on the GPU that is
    current when this is called, and travel by a communicator of its own, from the libnccl that torch has loaded. With Gloo or MPI they go through
    host memory, also those of a GPU.
    seqlen: length of the whole sequence, of which q, k and v are shards (self attention). For packed sequences a list of their lengths: then q, k
    and v are [tokens, heads, head_dim], calls give the cu_seqlens of the whole, and seq_dim is 0.
    seq_dim: the dimension of tokens for shard() and unshard().
    masks: the masks of the model's layers, as attention() takes them (None: everything is kept). Tokens are dealt by the predicted time of all of
    them together, for heads = (query heads, kv heads, head dim). A mask that several layers have may be repeated. Calls may use other masks: their
    results are as exact, but the work is less evenly distributed.
    heads: see masks.
    deal: "automatic", "contiguous", "zigzag" or "pieces". Without masks: zigzag (even for causal masks) or contiguous (for windows), which look at no
    mask; for packed sequences automatic for causal ones.
    head_groups: number of shares into which heads are divided; 0 with masks: chosen.
    unit: chunks are multiples of this many tokens.
    threads: of each rank on CPUs, 0 for all.
    time_limit: seconds that a wait for other ranks may take.
    engine: for NCCL groups, "peer" (copies by the copy engines of GPUs of one host that can access each other's memory), "nccl", or "automatic", which
    is peer where it works.
    multiprocessors: most multiprocessors of the GPU that carry NCCL transfers.

    Scores and masks see global positions and read whole tensors, the same on every rank. Gradients of tensors that they captured are those of the
    whole on every rank: do not sum them over the group again.

    All ranks of the group make the same calls in the same order. Where they disagree on shapes, scores, masks or parameters, all of them raise a
    ValueError that names the difference. Raises NotImplementedError for paged keys, second derivatives and torch.func.
    """
    return ContextParallel(group, seqlen, seq_dim, masks, heads, deal, head_groups, unit, threads, time_limit, multiprocessors, engine)


class ContextParallel:
    """See context_parallel()."""

    def __init__(
        self,
        group: Any,
        seqlen: int | Sequence[int],
        seq_dim: int,
        masks: Sequence[Any] | None,
        heads: tuple[int, int, int],
        deal: str | None,
        head_groups: int,
        unit: int,
        threads: int,
        time_limit: float,
        multiprocessors: int,
        engine: str,
    ):
        process_group = _process_group(group)
        self.rank, self.size = distributed.get_rank(process_group), distributed.get_world_size(process_group)
        if self.rank < 0:
            raise ValueError("context_parallel: group: this process is not in it; expected a group that it belongs to")
        if type(seq_dim) is not int:
            raise ValueError(f"context_parallel: seq_dim: {seq_dim!r}; expected an integer")
        whole_numbers = {"head_groups": (head_groups, 0), "unit": (unit, 1), "threads": (threads, 0), "multiprocessors": (multiprocessors, 0)}
        for name, (number, least) in whole_numbers.items():
            if type(number) is not int or number < least:
                raise ValueError(f"context_parallel: {name}: {number!r}; expected an integer, {least} or more")
        if not isinstance(time_limit, (int, float)) or not 0 < time_limit <= _LONGEST:
            raise ValueError(f"context_parallel: time_limit: {time_limit!r}; expected seconds, more than 0 and at most {_LONGEST}")
        dealt = deal_tokens(seqlen, self.size, masks, heads, deal, head_groups, unit)
        self.seqlen, self.lengths, self.layout = dealt.seqlen, dealt.lengths, dealt.layout
        if self.lengths and seq_dim != 0:
            raise ValueError(f"context_parallel: seq_dim: {seq_dim}; expected 0 for packed sequences, whose tensors are [tokens, heads, head_dim]")
        self.seq_dim = seq_dim
        self._ranks = Ranks(process_group, dealt, threads, time_limit, multiprocessors, engine)
        self._number = context_operators.register(self._ranks)
        self._outer: list[tuple[Any, int]] = []  # what calls.context and _thread were when it was entered
        self._thread = 0  # that has entered it

    @property
    def engine(self) -> str:
        """What carries the messages: peer copies, NCCL or torch.distributed."""
        return "torch.distributed" if self._ranks.by_host else self._ranks.transport.name

    @property
    def positions(self) -> Tensor:
        """The tokens of this rank, in the order of its rows: int64 [rows]."""
        return self._ranks.positions

    def __enter__(self) -> ContextParallel:
        """On one thread at a time: calls of every thread are those of the context, as autograd has threads of its own."""
        thread = threading.get_ident()
        if calls.context is not None and calls.context._thread != thread and torch._C._current_graph_task_id() == -1:
            raise RuntimeError("context_parallel: entered while another thread is in one; expected one thread at a time")
        self._outer.append((calls.context, self._thread))
        calls.context, self._thread = self, thread
        self._ranks.enter()
        argument_errors.on_errors.append(self.refused)
        return self

    def __exit__(self, _kind: Any = None, error: BaseException | None = None, _traceback: Any = None) -> None:
        """An error that leaves it on one rank is told to the others, which may wait for this one."""
        if calls.context is not self:
            raise RuntimeError("context_parallel: left before a context that was entered later; expected the last one first")
        calls.context, self._thread = self._outer.pop()
        argument_errors.on_errors.remove(self.refused)
        if isinstance(error, Exception) and not _is_told(error):
            self.refused(error)
        self._ranks.leave(by_error=error is not None, outermost=not self._outer)

    def shard(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """A copy of this rank's rows of a whole tensor along dim (seq_dim by default). Differentiable."""
        dim = self._dim("shard", tensor, dim)
        if tensor.shape[dim] != self.seqlen:
            raise ValueError(f"shard: tensor: {tensor.shape[dim]} tokens in dimension {dim}; expected the whole sequence, {self.seqlen}")
        return self._ranks.shard(tensor, dim)

    def unshard(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """The whole tensor from every rank's rows, on every rank. Its gradient is this rank's rows of the gradient that arrives: right where
        all ranks go on to compute the same loss from it."""
        try:
            _refuse_transforms("unshard")
            dim = self._dim("unshard", tensor, dim)
            if tensor.is_meta:
                raise ValueError("unshard: tensor: on device meta, where a tensor has no memory to read; expected cpu or cuda")
            if tensor.shape[dim] != len(self.positions):
                raise ValueError(f"unshard: tensor: {tensor.shape[dim]} tokens in dimension {dim}; expected this rank's {len(self.positions)}")
        except (TypeError, ValueError, NotImplementedError) as error:
            self.refused(error)
            raise
        result: Tensor = unshard_op(tensor, dim, self._number)
        return result

    def _dim(self, name: str, tensor: Tensor, dim: int | None) -> int:
        """The dimension of tokens, counted from the first."""
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: tensor: {type(tensor).__name__}; expected a torch.Tensor")
        if sharded.is_sharded((tensor,)):
            raise TypeError(f"{name}: tensor: a DTensor; expected a plain tensor, such as its to_local()")
        dim = self.seq_dim if dim is None else dim
        if not -tensor.dim() <= dim < tensor.dim():
            raise ValueError(f"{name}: dim: {dim} of a tensor {list(tensor.shape)}; expected a dimension of it (seq_dim= is for those that name none)")
        return dim % tensor.dim()

    def whole_seqlens(self, seqlen_q: int, seqlen_kv: int) -> tuple[int, int]:
        mine = len(self.positions)
        if (seqlen_q, seqlen_kv) != (mine, mine):
            raise ValueError(
                f"context_parallel: query and key have {seqlen_q} and {seqlen_kv} tokens; expected this rank's {mine} of {self.seqlen}"
            )
        return self.seqlen, self.seqlen

    def agreed(self, state: Tensor) -> Tensor:
        """Rank 0's, so that all ranks drop the same pairs."""
        result: Tensor = agreed_op(state, self._number)
        return result

    def attend(self, key: str, params: list[Tensor], q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Any, rng: Rng) -> tuple[Tensor, Tensor]:
        if isinstance(cu_seqlens, Paged) or (cu_seqlens is not None and isinstance(cu_seqlens[1], Paged)):
            raise NotImplementedError("context_parallel: block_table: keys in pages; expected k and v as this rank's rows")
        if self.lengths and (cu_seqlens is None or q.dim() != 3):
            raise ValueError(
                "context_parallel: q: with a batch dimension; expected [tokens, heads, head_dim] and cu_seqlens, as seqlen names packed sequences"
            )
        if not self.lengths and (cu_seqlens is not None or q.dim() != 4):
            raise ValueError("context_parallel: cu_seqlens: packed sequences; expected context_parallel(seqlen=) to be their lengths")
        if q.device.type == "cpu" and not self._ranks.by_host:
            raise ValueError("context_parallel: q: in host memory; a group of NCCL carries that of its GPU")
        _refuse_transforms("context_parallel")
        seq = 0 if self.lengths else 2 if is_heads_first(key) else 1
        self.whole_seqlens(q.shape[seq], k.shape[seq])
        if is_seen_below((q, k, v, *params)):
            want = [torch.is_grad_enabled() and t.requires_grad for t in (q, k, v, *params)]
            lengths = list(cu_seqlens or ())
            seen: tuple[Tensor, Tensor] = forward_op(q, k, v, params, lengths, *signed_seeds(rng), rng.state, key, self._number, want)
            return seen
        self._ranks.check_packed(list(cu_seqlens or ()))
        if torch.is_grad_enabled() and any([t.requires_grad for t in (q, k, v, *params)]):
            return record(self._ranks, program(key), rng, q, k, v, *params)
        return forward(self._ranks, program(key), rng, q, k, v, params)

    def refused(self, error: Exception) -> None:
        self._ranks.refused(error)

    def agree_on_nothing(self) -> None:
        """A call whose tensors have no elements sends nothing: unless all ranks have such ones, the others would wait for it."""
        if self._ranks.by_host and not torch.compiler.is_compiling():
            with self._ranks.turn():
                self._ranks.transport.agree([("call", "attention of tensors without elements")])

    def explain(self) -> list[str]:
        """The plans made so far."""
        return [plan.explain() for plan in self._ranks.plans.values()]


def _is_told(error: BaseException | None) -> bool:
    """Whether it, or what it came from, is one that a call has told the other ranks of."""
    while error is not None:
        if getattr(error, "of_all_ranks", False) or hasattr(error, "public_function"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _refuse_transforms(what: str) -> None:
    if not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0):
        raise NotImplementedError(f"{what}: torch.func (grad, vmap, jvp) and forward mode; expected autograd's backward passes")


def _process_group(group: Any) -> Any:
    if not hasattr(group, "get_group"):
        return distributed.group.WORLD if group is None else group
    if group.ndim != 1:
        names = group.mesh_dim_names
        raise ValueError(
            f"context_parallel: group: a DeviceMesh of {group.ndim} dimensions{f' {names}' if names else ''}; expected one of them, such as "
            f"mesh[{names[-1] if names else 'name'!r}]"
        )
    return group.get_group()
