"""Context parallelism over a process group of torch.distributed: the doors of this package take local shards and give local shards."""

from __future__ import annotations

import datetime
import gc
import itertools
import operator
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex

import torch
import torch.distributed as distributed
import torch.distributed.distributed_c10d as c10d
import torch.nn.attention.flex_attention as torch_flex
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core, doors
from .._core import Program
from ..describe import Options, Rng, program
from ..signatures import Paged
from . import operators
from .block_masks import as_mask

_MAX_PLANS = 64
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

    group: a process group of torch.distributed, or a DeviceMesh of one dimension. With NCCL, tensors are on the GPU that is current when this is
    called, and travel by a communicator of its own, from the libnccl that torch has loaded. With Gloo or MPI they go through host memory, also
    those of a GPU.
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
    ValueError that names the difference. Raises NotImplementedError for paged keys and second derivatives.
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
        self._group = group.get_group() if hasattr(group, "get_group") else group
        self.rank, self.size = distributed.get_rank(self._group), distributed.get_world_size(self._group)
        if self.rank < 0:
            raise ValueError("context_parallel: group: this process is not in it; expected a group that it belongs to")
        self.lengths = _lengths(seqlen)
        self.seqlen = sum(self.lengths) if self.lengths else operator.index(seqlen) if isinstance(seqlen, SupportsIndex) else 0
        if self.seqlen < 1:
            raise ValueError(f"context_parallel: seqlen: {seqlen}; expected 1 or more, or the lengths of packed sequences")
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
        self._outer: list[Any] = []
        self._checked: dict[str, tuple[Any, ...]] = {}
        of_ranks = [
            _core.context_tokens(self.seqlen, self.size, rank, deal, unit, head_groups) if self.layout is None else self.layout.q_tokens(rank)
            for rank in range(self.size)
        ]
        self._of_ranks = [torch.tensor(tokens, dtype=torch.int64) for tokens in of_ranks]
        if any(len(tokens) == 0 for tokens in of_ranks):
            raise ValueError(f"context_parallel: seqlen: {seqlen} in units of {unit} leaves a rank of {self.size} without tokens; lower unit")
        self._transport = _transport(self._group, self.rank, self.size, time_limit, multiprocessors, engine)
        self._by_host = isinstance(self._transport, _Transport)
        self._refusals = None if self._by_host else _Refusals(self._group, self.size, time_limit)
        # A cotangent of lse is given on all ranks or on none, where ranks send it to each other; then zeros say nothing wrong.
        self.sends_dlse = self._by_host or (head_groups if self.layout is None else self.layout.head_groups) != 1
        self._tokens(self.rank, torch.device("cpu"))
        self.number = next(_numbers)
        _contexts[self.number] = self

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
        self._outer.append(operators.context)
        operators.context = self
        doors.on_errors.append(self._refused)
        return self

    def __exit__(self, *_: Any) -> None:
        operators.context = self._outer.pop()
        doors.on_errors.remove(self._refused)

    def shard(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """A copy of this rank's rows of a whole tensor along dim (seq_dim by default). Differentiable."""
        dim = self.seq_dim if dim is None else dim
        if tensor.shape[dim] != self.seqlen:
            raise ValueError(f"shard: tensor: {tensor.shape[dim]} tokens in dimension {dim}; expected the whole sequence, {self.seqlen}")
        return tensor.index_select(dim, self._tokens(self.rank, tensor.device))

    def unshard(self, tensor: Tensor, dim: int | None = None) -> Tensor:
        """The whole tensor from every rank's rows, on every rank. Its gradient is this rank's rows of the gradient that arrives: right where
        all ranks go on to compute the same loss from it."""
        dim = self.seq_dim if dim is None else dim
        if tensor.shape[dim] != len(self.positions):
            raise ValueError(f"unshard: tensor: {tensor.shape[dim]} tokens in dimension {dim}; expected this rank's {len(self.positions)}")
        result: Tensor = _unshard_op(tensor, dim % tensor.dim(), self.number)
        return result

    def _unshard(self, tensor: Tensor, dim: int) -> Tensor:
        rows_first = tensor.detach().movedim(dim, 0).contiguous()
        padded = rows_first.new_zeros((max(len(tokens) for tokens in self._of_ranks), *rows_first.shape[1:]))
        padded[: rows_first.shape[0]] = rows_first
        whole = rows_first.new_empty((self.seqlen, *rows_first.shape[1:]))
        for rank, rows in enumerate(self._all_gather(padded)):
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
        result: Tensor = _agreed_op(state, self.number)
        return result

    def _agreed(self, state: Tensor) -> Tensor:
        if self._by_host:
            self._transport.agree([("call", "a seed of dropout")])
            result: Tensor = self._transport.all_gather(state.cpu())[0].to(state.device)
            return result
        carried = state.clone()
        distributed.broadcast(carried, distributed.get_global_rank(self._group, 0), group=self._group)
        return carried

    def _all_gather(self, mine: Tensor) -> list[Tensor]:
        if self._by_host:
            self._transport.agree([("call", "unshard"), ("tensor", f"{mine.dtype} {list(mine.shape)}")])
            result: list[Tensor] = self._transport.all_gather(mine.cpu())
            return result
        shards = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(shards, mine, group=self._group)
        return shards

    def _refused(self, error: BaseException) -> None:
        """A door ends by an error. What all ranks were told of already is no news."""
        if getattr(error, "of_all_ranks", False):
            return
        if self._refusals is None:
            self._transport.refuse(str(error))
        elif not self._refusals.are_of_all():
            self._transport.fail(str(error))

    def _tokens(self, rank: int, device: torch.device) -> Tensor:
        known = self._on_devices.get((rank, device))
        if known is None:
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
        seq = 0 if self.lengths else 2 if operators.is_heads_first(key) else 1
        self.whole_seqlens(q.shape[seq], k.shape[seq])
        try:
            if _is_seen_below((q, k, v, *params)):
                seeds = [bits if bits < 2**63 else bits - 2**64 for bits in (rng.seed, rng.offset)]
                seen: tuple[Tensor, Tensor] = _forward_op(q, k, v, params, list(cu_seqlens or ()), *seeds, rng.state, key, self.number)
                return seen
            self._check_packed(list(cu_seqlens or ()))
            if torch.is_grad_enabled() and any([t.requires_grad for t in (q, k, v, *params)]):
                return _record(self, program(key), rng, q, k, v, *params)
            return _forward(self, program(key), rng, q, k, v, params)
        except Exception as error:
            error.of_all_ranks = getattr(error, "of_all_ranks", True)  # type: ignore[attr-defined]
            raise

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

    def plan(self, found: Program, heads: tuple[int, int], q: Tensor, v: Tensor, params: Sequence[Tensor]) -> _core.ContextAttention:
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
                self.rank, self.size, self._transport, found.attention, dtype, sizes, self.lengths, found.params,
                [p.detach().cpu() for p in params], *self._options,
            )  # fmt: skip
            if made.q_tokens() != self.positions.tolist():
                raise RuntimeError("context_parallel: the plan holds other tokens than shard() gave")
            self._plans.pop((looks, reads), None)  # of tensors that do not tell: the last plan is kept, with its memory, but not used again
            while len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[(looks, reads)] = known = made
        return known


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


def _few(lengths: list[int]) -> str:
    return f"{lengths[:8]}" if len(lengths) <= 8 else f"{lengths[:8]} and {len(lengths) - 8} more"


def _transport(group: Any, rank: int, size: int, time_limit: float, multiprocessors: int, engine: str) -> Any:
    if engine not in ("automatic", "peer", "nccl"):
        raise ValueError(f"context_parallel: engine: '{engine}'; expected automatic, peer or nccl")
    if "nccl" not in distributed.get_backend(group):
        if engine != "automatic":
            raise ValueError(f"context_parallel: engine: '{engine}' with a group of {distributed.get_backend(group)}; expected one of nccl")
        return _Transport(group, time_limit)
    device = torch.cuda.current_device()
    if engine != "nccl":
        made = _peer_transport(group, rank, size, device, time_limit, must=engine == "peer")
        if made is not None:
            return made
    mine = _core.nccl_id() if rank == 0 else bytes(128)
    return _core.nccl_ranks(_of_rank_0(group, mine, device), rank, size, device, time_limit, multiprocessors)


def _peer_transport(group: Any, rank: int, size: int, device: int, time_limit: float, *, must: bool) -> Any:
    """None where it does not work: all ranks find the same."""
    name = _of_rank_0(group, _core.peer_id().encode().ljust(256, b"\0") if rank == 0 else bytes(256), device).rstrip(b"\0").decode()
    here = torch.tensor([_core.peer_reachable(name)], dtype=torch.int32, device=f"cuda:{device}")
    distributed.all_reduce(here, op=distributed.ReduceOp.MIN, group=group)
    if not here.item():
        if must:
            raise NotImplementedError("context_parallel: engine: 'peer' with ranks on several hosts; expected nccl")
        return None
    try:
        return _core.peer_ranks(name, rank, size, device, time_limit)
    except NotImplementedError:
        if must:
            raise
        return None


def _of_rank_0(group: Any, mine: bytes, device: int) -> bytes:
    common = torch.tensor(list(mine), dtype=torch.uint8, device=f"cuda:{device}")
    distributed.broadcast(common, distributed.get_global_rank(group, 0), group=group)
    return bytes(common.tolist())


class _Refusals:
    """Errors of calls by ranks whose messages go from GPU to GPU, so that these do not meet at every call. They are counted in the group's store."""

    _made: dict[str, int] = {}  # of each group: all ranks make theirs in the same order

    def __init__(self, group: Any, size: int, time_limit: float):
        number = self._made[group.group_name] = self._made.get(group.group_name, 0) + 1
        self._store = c10d.PrefixStore(f"foveal/refusals/{group.group_name}/{number}", c10d._get_process_group_store(group))
        self._size, self._time_limit, self._count = size, min(time_limit, 10.0), 0

    def are_of_all(self) -> bool:
        """Does every rank refuse this call, too? Then all go on. Not, unless the others do soon: they may wait for messages of this one."""
        self._count += 1
        begin = time.monotonic()
        refusing: int = self._store.add(str(self._count), 1)
        while refusing < self._size and time.monotonic() - begin < self._time_limit:
            time.sleep(0.01)
            refusing = self._store.add(str(self._count), 0)
        return refusing >= self._size


class _Transport:
    """Messages by a process group: isend and irecv, in order between two ranks by their tags. Those of Gloo go through a group of its own: a rank
    that cannot go on says why in the store and closes its connections, and with them ends the waits of the others."""

    _made: dict[str, int] = {}  # of each group: all ranks make theirs in the same order

    def __init__(self, group: Any, time_limit: float):
        backend = distributed.get_backend(group)
        if "gloo" not in backend and "mpi" not in backend:
            raise NotImplementedError(f"context_parallel: group: backend {backend}; expected nccl, gloo or mpi")
        self._rank, self._size, self._time_limit = distributed.get_rank(group), distributed.get_world_size(group), time_limit
        self._group, self._store = group, None
        if "gloo" in backend:
            number = self._made[group.group_name] = self._made.get(group.group_name, 0) + 1
            self._store = c10d.PrefixStore(
                f"foveal/{group.group_name}/{number}", c10d._get_process_group_store(group)
            )
            limit = datetime.timedelta(seconds=time_limit)
            self._group = c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", self._store), self._rank, self._size, limit)
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}
        self._under_way: dict[int, list[tuple[int, Any, Tensor]]] = {}
        self._last = 0
        self._failure = ""  # of some rank: there is no more to come

    def start(self, sends: list[Any], receives: list[Any]) -> int:
        if self._failure:
            raise RuntimeError(self._failure)
        self._last += 1
        works = self._under_way[self._last] = []
        try:
            for counts, messages, begin in ((self._received, receives, self._group.recv), (self._sent, sends, self._group.send)):
                for peer, memory in messages:
                    tag = counts[peer] = (counts.get(peer, 0) + 1) % 2**31
                    tensor = torch.frombuffer(memory, dtype=torch.uint8)
                    works.append((peer, begin([tensor], peer, tag), tensor))
        except RuntimeError as error:  # a connection that is closed already
            self._die(f"rank {self._rank} lost its connection to rank {peer}: {_first_line(error)}")
        return self._last

    def wait(self, ticket: int) -> None:
        begin = time.monotonic()
        works = self._under_way.pop(ticket)
        for peer, work, _ in works:
            try:
                work.wait(datetime.timedelta(seconds=max(self._time_limit - (time.monotonic() - begin), 0.001)))
            except RuntimeError as error:
                if time.monotonic() - begin >= self._time_limit:
                    self._die(f"rank {self._rank} waited {self._time_limit:g} s for rank {peer}")
                self._die(f"rank {self._rank} lost its connection to rank {peer}: {_first_line(error)}")

    def all_gather(self, mine: Tensor) -> list[Tensor]:
        """Tensors of host memory, of the same shape and dtype on every rank."""
        mine = mine.contiguous()
        shards = [mine.clone() if rank == self._rank else torch.empty_like(mine) for rank in range(self._size)]
        if mine.numel() > 0:
            others = [rank for rank in range(len(shards)) if rank != self._rank]
            self.wait(self.start([(rank, _memory(mine)) for rank in others], [(rank, _memory(shards[rank])) for rank in others]))
        return shards

    def agree(self, fields: list[tuple[str, str]], refusal: str = "") -> None:
        """Collective. Raises on every rank where these differ or one of them refuses."""
        _core.context_agree(self._rank, self._size, self, fields, refusal)

    def refuse(self, why: str) -> None:
        """Tells the others, who are at the same call, that this rank refuses it. All go on then, unless they are not there soon."""
        limit, self._time_limit = self._time_limit, min(self._time_limit, 10.0)
        try:
            self.agree([], why)
        except Exception:  # what they say does not matter here
            pass
        finally:
            self._time_limit = limit

    def fail(self, why: str) -> None:
        if not self._failure:
            self._close(f"rank {self._rank} failed: {why}")

    def _die(self, why: str) -> NoReturn:
        if not self._failure:
            if self._store is not None and self._store.check(["failure"]):  # who went away has said why
                why = self._store.get("failure").decode()
            self._close(why)
        raise RuntimeError(self._failure)

    def _close(self, failure: str) -> None:
        self._failure = failure
        self._under_way.clear()
        if self._store is not None:
            self._store.compare_set("failure", "", failure)
            self._group = None
            gc.collect()  # connections close with the last object that knows the group


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _memory(tensor: Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()


# The operators, which torch.compile sees. Tensors first; seed and offset are the bits of unsigned numbers; context: the number of one.

_contexts: weakref.WeakValueDictionary[int, ContextParallel] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _context(number: int) -> ContextParallel:
    found = _contexts.get(number)
    if found is None:
        raise RuntimeError("context_parallel: the context of this compiled code or graph is gone; expected it to live as long as these")
    return found


def _rows_of(q: Tensor, heads_first: bool) -> tuple[int, int]:
    """Heads and rows."""
    if q.dim() == 3:
        return q.shape[1], q.shape[0]
    return (q.shape[1], q.shape[2]) if heads_first else (q.shape[2], q.shape[1])


def _lse_shape(q: Tensor, heads_first: bool) -> tuple[int, ...]:
    """Packed: [heads, tokens]."""
    return (*q.shape[:-3], *_rows_of(q, heads_first))


def _forward(context: ContextParallel, found: Program, rng: Rng, q: Tensor, k: Tensor, v: Tensor, params: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    (heads, _), (heads_kv, _) = _rows_of(q, found.heads_first), _rows_of(k, found.heads_first)
    plan = context.plan(found, (heads, heads_kv), q, v, params)
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty(_lse_shape(q, found.heads_first), dtype=_wide(q))
    plan.forward([q, k, v, out, lse], found.params, list(params), found.heads_first, *rng)
    return out, lse


def _gradients(
    context: ContextParallel, found: Program, rng: Rng, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor,
    dlse: Tensor | None, params: Sequence[Tensor], want: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Of q, k, v and the parameters; None where none is wanted."""
    (heads, _), (heads_kv, _) = _rows_of(q, found.heads_first), _rows_of(k, found.heads_first)
    plan = context.plan(found, (heads, heads_kv), q, v, params)
    gradients = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)]
    trained = [i for i, wanted in enumerate(want[3:]) if wanted]
    sums = [torch.empty(params[i].shape, dtype=_wide(params[i]), device=q.device) for i in trained]
    tensors, names = [q, k, v, out, lse, operators.as_rows(dout), dlse, *gradients], found.params
    plan.backward(tensors, names, list(params), [names[i] for i in trained], sums, found.heads_first, *rng)
    of_params: list[Tensor | None] = [None] * len(params)
    for i, total in zip(trained, sums):
        of_params[i] = total.to(params[i].dtype)
    return [*[g if wanted else None for g, wanted in zip(gradients, want)], *of_params]


def _is_seen_below(tensors: Sequence[Tensor]) -> bool:
    """Whether something sees calls below torch's functions, which must be operators then; see operators.call()."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None or operators.is_any_dispatching(tensors)


class _Shards(torch.autograd.Function):
    """The eager path: the operators' bodies without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, context: ContextParallel, found: Program, rng: Rng, q: Tensor, k: Tensor, v: Tensor, *params: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = _forward(context, found, rng, q, k, v, params)
        ctx.context, ctx.found, ctx.rng = context, found, rng
        state = () if rng.state is None else (rng.state,)
        ctx.save_for_backward(q, k, v, out, lse, *params, *state)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        want = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            raise NotImplementedError("context_parallel: second derivatives (create_graph=True); expected first ones")
        q, k, v, out, lse, *rest = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        if dlse is not None:
            dlse = dlse.resolve_neg()
        elif ctx.context.sends_dlse:
            dlse = torch.zeros_like(lse)
        rng = ctx.rng if ctx.rng.state is None else ctx.rng._replace(state=rest[-1])
        return (None, None, None, *_gradients(ctx.context, ctx.found, rng, q, k, v, out, lse, dout, dlse, rest[: len(want) - 3], want))


_record: Callable[..., tuple[Tensor, Tensor]] = super(torch.autograd.Function, _Shards).apply  # as in operators.py


@torch.library.custom_op("foveal::context_forward", mutates_args=())
def _forward_op(
    q: Tensor, k: Tensor, v: Tensor, params: list[Tensor], cu_seqlens: list[Tensor], seed: int, offset: int, rng_state: Tensor | None,
    key: str, context: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _context(context)._check_packed(cu_seqlens)
    q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    return _forward(_context(context), program(key), Rng(seed % 2**64, offset % 2**64, rng_state), q, k, v, params)


@torch.library.custom_op("foveal::context_backward", mutates_args=())
def _backward_op(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, params: list[Tensor], seed: int, offset: int,
    rng_state: Tensor | None, key: str, context: int, want: list[bool],
) -> list[Tensor]:  # fmt: skip
    q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    rng = Rng(seed % 2**64, offset % 2**64, rng_state)
    found = _gradients(_context(context), program(key), rng, q, k, v, out, lse, dout, dlse, params, want)
    return [gradient for gradient in found if gradient is not None]


@_forward_op.register_fake
def _(q: Any, k: Any, v: Any, params: Any, cu_seqlens: Any, seed: Any, offset: Any, rng_state: Any, key: Any, context: Any) -> Any:
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(_lse_shape(q, program(key).heads_first), dtype=_wide(q))


@_backward_op.register_fake
def _(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dlse: Any, params: Any, seed: Any, offset: Any, rng_state: Any,
    key: Any, context: Any, want: Any,
) -> Any:  # fmt: skip
    return [t.new_empty(t.shape) for t, wanted in zip((q, k, v, *params), want) if wanted]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, params, cu_seqlens, *run = inputs
    ctx.sequences = len(cu_seqlens)
    seed, offset, rng_state, ctx.key, ctx.number = run
    ctx.seeds, ctx.want = (seed, offset), [t.requires_grad for t in (q, k, v, *params)]
    ctx.save_for_backward(q, k, v, *output, rng_state, *params)


def _backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, rng_state, *params = ctx.saved_tensors
    dout = torch.zeros_like(out) if dout is None else dout
    dlse = torch.zeros_like(lse) if dlse is None else dlse
    found = iter(_backward_op(q, k, v, out, lse, dout, dlse, params, *ctx.seeds, rng_state, ctx.key, ctx.number, ctx.want))
    gradients = [next(found) if wanted else None for wanted in ctx.want]
    return (*gradients[:3], gradients[3:], [None] * ctx.sequences, *(None,) * 5)


_forward_op.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("foveal::context_agreed", mutates_args=())
def _agreed_op(state: Tensor, context: int) -> Tensor:
    return _context(context)._agreed(state)


@_agreed_op.register_fake
def _(state: Any, context: Any) -> Any:
    return torch.empty_like(state)


@torch.library.custom_op("foveal::context_unshard", mutates_args=())
def _unshard_op(tensor: Tensor, dim: int, context: int) -> Tensor:
    return _context(context)._unshard(tensor, dim)


@_unshard_op.register_fake
def _(tensor: Any, dim: Any, context: Any) -> Any:
    shape = list(tensor.shape)
    shape[dim] = _context(context).seqlen
    return tensor.new_empty(shape)


def _setup_unshard(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.dim, ctx.number = inputs


_unshard_op.register_autograd(
    lambda ctx, gradient: (_context(ctx.number).shard(gradient, ctx.dim), None, None), setup_context=_setup_unshard
)
