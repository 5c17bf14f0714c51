"""Context parallelism over a process group of torch.distributed: public functions take local shards and give local shards."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import operator
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import torch
import torch.distributed as distributed
import torch.nn.attention.flex_attention as torch_flex
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core, argument_errors
from .._core import Program
from ..describe import Rng, program
from ..signatures import Options, Paged
from . import context_operators, operators
from .block_masks import as_mask
from .context_operators import agreed_op, forward, forward_op, is_seen_below, record, unshard_op
from .context_transport import HostTransport, Refusals, known_to_all, make_transport

_MAX_PLANS = 64
_LONGEST = 10**9  # seconds, which every clock can count
_DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


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
        self._group = _process_group(group)
        self.rank, self.size = distributed.get_rank(self._group), distributed.get_world_size(self._group)
        if self.rank < 0:
            raise ValueError("context_parallel: group: this process is not in it; expected a group that it belongs to")
        self.lengths = _lengths(seqlen)
        self.seqlen = sum(self.lengths) if self.lengths else _integer(seqlen)
        if not 1 <= self.seqlen < 2**31:
            raise ValueError(f"context_parallel: seqlen: {seqlen!r}; expected 1 to 2^31 - 1, or a list of the lengths of packed sequences")
        if type(seq_dim) is not int:
            raise ValueError(f"context_parallel: seq_dim: {seq_dim!r}; expected an integer")
        whole_numbers = {"head_groups": (head_groups, 0), "unit": (unit, 1), "threads": (threads, 0), "multiprocessors": (multiprocessors, 0)}
        for name, (number, least) in whole_numbers.items():
            if type(number) is not int or number < least:
                raise ValueError(f"context_parallel: {name}: {number!r}; expected an integer, {least} or more")
        if not isinstance(time_limit, (int, float)) or not 0 < time_limit <= _LONGEST:
            raise ValueError(f"context_parallel: time_limit: {time_limit!r}; expected seconds, more than 0 and at most {_LONGEST}")
        if self.lengths and seq_dim != 0:
            raise ValueError(f"context_parallel: seq_dim: {seq_dim}; expected 0 for packed sequences, whose tensors are [tokens, heads, head_dim]")
        self.seq_dim = seq_dim
        chosen = masks is not None or bool(self.lengths)  # by predicted times
        deal = ("automatic" if chosen else "zigzag") if deal is None else deal
        if head_groups < (0 if chosen else 1) or (head_groups > 0 and self.size % head_groups != 0):
            raise ValueError(f"context_parallel: head_groups: {head_groups}; expected a number that divides the {self.size} ranks")
        if not chosen and deal not in ("zigzag", "contiguous"):
            raise ValueError(f"context_parallel: deal: '{deal}'; expected contiguous or zigzag, or the masks= that others are chosen by")
        self.layout = self._layout(["causal()"] if masks is None else masks, heads, deal, head_groups, unit) if chosen else None
        self._options = deal, head_groups, unit, self.layout, threads
        self._plans: dict[Any, _core.ContextAttention] = {}
        self._on_devices: dict[Any, Tensor] = {}
        self._outer: list[tuple[Any, int]] = []  # what operators.context and _thread were when it was entered
        self._thread = 0  # that has entered it
        self._busy = threading.Lock()
        self._checked: dict[str, tuple[Any, ...]] = {}
        of_ranks = [
            _core.context_tokens(self.seqlen, self.size, rank, deal, unit, head_groups) if self.layout is None else self.layout.q_tokens(rank)
            for rank in range(self.size)
        ]
        with torch.inference_mode(False):  # autograd saves them, wherever this is made
            self._of_ranks = [torch.tensor(tokens, dtype=torch.int64) for tokens in of_ranks]
        if any(len(tokens) == 0 for tokens in of_ranks):
            expected = "a lower unit" if unit > 1 else "more tokens, or fewer ranks"
            raise ValueError(f"context_parallel: seqlen: {seqlen} in units of {unit} leaves a rank of {self.size} without tokens; expected {expected}")
        self._transport = make_transport(self._group, self.rank, self.size, time_limit, multiprocessors, engine)
        self._by_host = isinstance(self._transport, HostTransport)
        # One for all plans, which share its memory of GPUs and run one at a time.
        self._carrier = _core.python_transport(self.rank, self.size, self._transport) if self._by_host else self._transport
        dealt = hashlib.sha256(b"".join([tokens.numpy().tobytes() for tokens in self._of_ranks])).hexdigest()[:16]
        fields = {
            "call": "context_parallel", "seqlen": f"{self.lengths or self.seqlen}", "deal": f"{deal}, unit {unit}, head_groups {head_groups}",
            "the tokens of the ranks, by masks and heads": f"tokens of digest {dealt}",
        }  # fmt: skip
        _core.context_agree(self._carrier, list(fields.items()), None)
        self._refusals = None if self._by_host else Refusals(self._group, self.size, time_limit)
        # A cotangent of lse is given on all ranks or on none, where ranks send it to each other; then zeros say nothing wrong.
        self.sends_dlse = self._by_host or (head_groups if self.layout is None else self.layout.head_groups) != 1
        self._tokens_on(torch.device("cpu"))
        self.number = context_operators.register(self)

    def _layout(self, masks: Sequence[Any], heads: tuple[int, int, int], deal: str, head_groups: int, unit: int) -> _core.ContextLayout:
        if isinstance(masks, str) or not isinstance(masks, Sequence) or len(masks) == 0:
            raise ValueError(f"context_parallel: masks: {masks!r}; expected a list of one or more, each as attention() or flex_attention() takes it")
        if not isinstance(heads, tuple) or len(heads) != 3 or not all([type(count) is int and count > 0 for count in heads]):
            raise ValueError(f"context_parallel: heads: {heads!r}; expected (query heads, kv heads, head dim), each 1 or more")
        uses = []
        for mask in masks:
            if isinstance(mask, torch_flex.BlockMask):
                like = torch.empty((*mask.kv_num_blocks.shape[:2], self.seqlen, 0), device=mask.kv_num_blocks.device)
                mask = as_mask(mask, like, self.seqlen)
            bound, captured = operators.bound(None, mask, Options(), {}, heads_first=False)
            found = operators.program_of(bound)
            uses.append((found.attention, found.params, [p.detach().cpu() for p in captured]))
        heads_q, heads_kv, head_dim = heads
        if head_groups > 0 and heads_kv % head_groups != 0:
            raise ValueError(f"context_parallel: head_groups: {head_groups} with the {heads_kv} kv heads of heads={heads}; expected a divisor of these")
        sizes = [1, heads_q, heads_kv, self.seqlen, head_dim, head_dim]
        made = _core.context_layout(uses, _core.DType.bf16, sizes, self.lengths, self.size, deal, head_groups, unit)
        if any([made.q_tokens(rank) != made.kv_tokens(rank) for rank in range(self.size)]):
            raise NotImplementedError(f"context_parallel: head_groups: the layout has {made.head_groups}, with other rows of k and v than of q; expected 1")
        return made

    @property
    def engine(self) -> str:
        """What carries the messages: peer copies, NCCL or torch.distributed."""
        return "torch.distributed" if self._by_host else self._transport.name

    @property
    def positions(self) -> Tensor:
        """The tokens of this rank, in the order of its rows: int64 [rows]."""
        return self._of_ranks[self.rank]

    def __enter__(self) -> ContextParallel:
        """On one thread at a time: calls of every thread are those of the context, as autograd has threads of its own."""
        thread = threading.get_ident()
        if operators.context is not None and operators.context._thread != thread and torch._C._current_graph_task_id() == -1:
            raise RuntimeError("context_parallel: entered while another thread is in one; expected one thread at a time")
        self._outer.append((operators.context, self._thread))
        operators.context, self._thread = self, thread
        argument_errors.on_errors.append(self._refused)
        return self

    def __exit__(self, _kind: Any = None, error: BaseException | None = None, _traceback: Any = None) -> None:
        """An error that leaves it on one rank is told to the others, which may wait for this one."""
        if operators.context is not self:
            raise RuntimeError("context_parallel: left before a context that was entered later; expected the last one first")
        operators.context, self._thread = self._outer.pop()
        argument_errors.on_errors.remove(self._refused)
        if isinstance(error, Exception) and not _is_told(error):
            self._refused(error)
            known_to_all(error)  # to an outer context, too

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time: messages of two would be mixed up."""
        if not self._busy.acquire(blocking=False):
            why = "context_parallel: a call while another one runs on another thread; expected one at a time"
            self._transport.fail(why)  # the ranks are no longer at the same call
            raise known_to_all(RuntimeError(why))
        try:
            yield
        except Exception as error:
            raise known_to_all(error)
        finally:
            self._busy.release()

    def shard(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """A copy of this rank's rows of a whole tensor along dim (seq_dim by default). Differentiable."""
        dim = self._dim("shard", tensor, dim)
        if tensor.shape[dim] != self.seqlen:
            raise ValueError(f"shard: tensor: {tensor.shape[dim]} tokens in dimension {dim}; expected the whole sequence, {self.seqlen}")
        return tensor.index_select(dim, self._tokens_on(tensor.device))

    def unshard(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """The whole tensor from every rank's rows, on every rank. Its gradient is this rank's rows of the gradient that arrives: right where
        all ranks go on to compute the same loss from it."""
        try:
            _refuse_transforms("unshard")
            dim = self._dim("unshard", tensor, dim)
            if tensor.shape[dim] != len(self.positions):
                raise ValueError(f"unshard: tensor: {tensor.shape[dim]} tokens in dimension {dim}; expected this rank's {len(self.positions)}")
        except (TypeError, ValueError, NotImplementedError) as error:
            self._refused(error)
            raise
        result: Tensor = unshard_op(tensor, dim, self.number)
        return result

    def _dim(self, name: str, tensor: Tensor, dim: int | None) -> int:
        """The dimension of tokens, counted from the first."""
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: tensor: {type(tensor).__name__}; expected a torch.Tensor")
        dim = self.seq_dim if dim is None else dim
        if not -tensor.dim() <= dim < tensor.dim():
            raise ValueError(f"{name}: dim: {dim} of a tensor {list(tensor.shape)}; expected a dimension of it (seq_dim= is for those that name none)")
        return dim % tensor.dim()

    def _unshard(self, tensor: Tensor, dim: int) -> Tensor:
        rows_first = tensor.detach().movedim(dim, 0).contiguous()
        padded = rows_first.new_zeros((max(len(tokens) for tokens in self._of_ranks), *rows_first.shape[1:]))
        padded[: rows_first.shape[0]] = rows_first
        whole = rows_first.new_empty((self.seqlen, *rows_first.shape[1:]))
        with self._turn():
            of_ranks = self._all_gather(padded, f"{tensor.dtype} {list(tensor.shape[:dim])} + tokens + {list(tensor.shape[dim + 1 :])}")
        for rank, rows in enumerate(of_ranks):
            tokens = self._tokens(rank, whole.device)
            whole[tokens] = rows[: len(tokens)].to(whole.device)
        return whole.movedim(0, dim).contiguous()

    def whole_seqlens(self, seqlen_q: int, seqlen_kv: int) -> tuple[int, int]:
        mine = len(self.positions)
        if (seqlen_q, seqlen_kv) != (mine, mine):
            raise ValueError(
                f"context_parallel: query and key have {seqlen_q} and {seqlen_kv} tokens; expected this rank's {mine} of {self.seqlen}"
            )
        return self.seqlen, self.seqlen

    def agreed(self, state: Tensor) -> Tensor:
        """Rank 0's, so that all ranks drop the same pairs."""
        result: Tensor = agreed_op(state, self.number)
        return result

    def _agreed(self, state: Tensor) -> Tensor:
        with self._turn():
            return self._of_rank_0(state)

    def _of_rank_0(self, state: Tensor) -> Tensor:
        if self._by_host:
            self._transport.agree([("call", "a seed of dropout")])
            result: Tensor = self._transport.all_gather(state.cpu())[0].to(state.device)
            return result
        carried = state.clone()
        distributed.broadcast(carried, distributed.get_global_rank(self._group, 0), group=self._group)
        return carried

    def _all_gather(self, mine: Tensor, looks: str) -> list[Tensor]:
        if self._by_host:
            self._transport.agree([("call", "unshard"), ("tensor", looks)])
            result: list[Tensor] = self._transport.all_gather(mine.cpu())
            return result
        shards = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(shards, mine, group=self._group)
        return shards

    def _refused(self, error: BaseException) -> None:
        """A public function ends by an error. What all ranks were told of already is no news."""
        if getattr(error, "of_all_ranks", False):
            return
        why = str(error)
        if not why or not isinstance(error, (TypeError, ValueError, RuntimeError)):  # a KeyError says its key alone, an assertion nothing
            why = traceback.format_exception_only(error)[-1].strip()
        if self._refusals is None:
            self._transport.refuse(why)
        elif not self._refusals.are_of_all():
            self._transport.fail(why)

    def _tokens_on(self, device: torch.device) -> Tensor:
        """positions, on this device."""
        return self._tokens(self.rank, device)

    def _tokens(self, rank: int, device: torch.device) -> Tensor:
        known = self._on_devices.get((rank, device))
        if known is None:
            with torch.inference_mode(False):
                known = self._on_devices[(rank, device)] = self._of_ranks[rank].to(device)
        return known

    def attend(self, key: str, params: list[Tensor], q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Any, rng: Rng) -> tuple[Tensor, Tensor]:
        if isinstance(cu_seqlens, Paged) or (cu_seqlens is not None and isinstance(cu_seqlens[1], Paged)):
            raise NotImplementedError("context_parallel: block_table: keys in pages; expected k and v as this rank's rows")
        if self.lengths and (cu_seqlens is None or q.dim() != 3):
            raise ValueError(
                "context_parallel: q: with a batch dimension; expected [tokens, heads, head_dim] and cu_seqlens, as seqlen names packed sequences"
            )
        if not self.lengths and (cu_seqlens is not None or q.dim() != 4):
            raise ValueError("context_parallel: cu_seqlens: packed sequences; expected context_parallel(seqlen=) to be their lengths")
        if q.device.type == "cpu" and not self._by_host:
            raise ValueError("context_parallel: q: in host memory; a group of NCCL carries that of its GPU")
        _refuse_transforms("context_parallel")
        seq = 0 if self.lengths else 2 if operators.is_heads_first(key) else 1
        self.whole_seqlens(q.shape[seq], k.shape[seq])
        try:
            if is_seen_below((q, k, v, *params)):
                seeds = [bits if bits < 2**63 else bits - 2**64 for bits in (rng.seed, rng.offset)]
                seen: tuple[Tensor, Tensor] = forward_op(q, k, v, params, list(cu_seqlens or ()), *seeds, rng.state, key, self.number)
                return seen
            self._check_packed(list(cu_seqlens or ()))
            if torch.is_grad_enabled() and any([t.requires_grad for t in (q, k, v, *params)]):
                return record(self, program(key), rng, q, k, v, *params)
            return forward(self, program(key), rng, q, k, v, params)
        except Exception as error:
            error.of_all_ranks = getattr(error, "of_all_ranks", True)  # type: ignore[attr-defined]
            raise

    def agree_on_nothing(self) -> None:
        """A call whose tensors have no elements sends nothing: unless all ranks have such ones, the others would wait for it."""
        if self._by_host and not torch.compiler.is_compiling():
            with self._turn():
                self._transport.agree([("call", "attention of tensors without elements")])

    def _check_packed(self, cu_seqlens: list[Tensor]) -> None:
        """Once for each version of each tensor: values of a GPU are waited for."""
        for name, given in zip(("q", "kv"), cu_seqlens):
            state = _state(given)
            if state is not None and state == self._checked.get(name):
                continue
            lengths = given.cpu().diff().tolist()
            if lengths != self.lengths:
                error = ValueError(
                    f"context_parallel: cu_seqlens: of {name}, sequences of {_few(lengths)} tokens; expected those of the whole, {_few(self.lengths)}"
                )
                error.of_all_ranks = False  # type: ignore[attr-defined]  # the others do not know
                raise error
            if state is not None:
                self._checked[name] = state

    def explain(self) -> list[str]:
        """The plans made so far."""
        return [plan.explain() for plan in self._plans.values()]

    def plan(
        self, found: Program, heads: tuple[int, int], q: Tensor, v: Tensor, params: Sequence[Tensor], want: Sequence[bool] = ()
    ) -> _core.ContextAttention:
        """want: see context_operators.forward()."""
        batch = 1 if self.lengths else q.shape[0]
        looks = found.key, batch, heads, q.shape[-1], v.shape[-1], q.dtype, q.device, tuple((tuple(p.shape), p.dtype) for p in params)
        # The tensors that the mask reads decide the plan.
        names = set() if found.attention.mask is None else _core.params_of(found.attention.mask)
        states = [_state(p) for param, p in zip(found.params, params) if param.name in names]
        reads = None if None in states else tuple(states)
        known = None if reads is None else self._plans.get((looks, reads))
        if known is None:
            sizes = [batch, *heads, self.seqlen, q.shape[-1], v.shape[-1]]
            dtype = getattr(_core.DType, _DTYPES[q.dtype])
            made = _core.ContextAttention(
                self._carrier, found.attention, dtype, sizes, self.lengths, found.params,
                [p.detach().cpu() for p in params], *self._options,
            )  # fmt: skip
            if any(want):
                made.backward_follows([param for param, wanted in zip(found.params, want[3:]) if wanted], self.sends_dlse)
            if made.q_tokens() != self.positions.tolist():
                raise RuntimeError("context_parallel: the plan holds other tokens than shard() gave")
            self._plans.pop((looks, reads), None)  # of tensors that do not tell: the last plan is kept, with its memory, but not used again
            while len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[(looks, reads)] = known = made
        return known


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


_seen = WeakTensorKeyDictionary()  # tensor -> its number: unlike an id() it is not given to another tensor later
_seen_numbers = itertools.count()


def _state(tensor: Tensor) -> tuple[int, int, int] | None:
    """Equal while it is the same tensor and has not changed; None of an inference tensor, which does not tell."""
    if tensor.is_inference():
        return None
    number = _seen.get(tensor)
    if number is None:
        number = _seen[tensor] = next(_seen_numbers)
    return number, tensor._version, tensor.data_ptr()


def _lengths(seqlen: Any) -> list[int]:
    """Of packed sequences; empty for one sequence."""
    if isinstance(seqlen, Sequence) and not isinstance(seqlen, str):
        lengths = list(seqlen)
        if not lengths or not all([isinstance(length, SupportsIndex) and operator.index(length) >= 0 for length in lengths]):
            raise ValueError(f"context_parallel: seqlen: {seqlen!r}; expected the lengths of packed sequences, each 0 or more")
        return [operator.index(length) for length in lengths]
    return []


def _integer(number: Any) -> int:
    """0 for what is none."""
    try:
        return operator.index(number)
    except TypeError:
        return 0


def _few(lengths: list[int]) -> str:
    return f"{lengths[:8]}" if len(lengths) <= 8 else f"{lengths[:8]} and {len(lengths) - 8} more"
