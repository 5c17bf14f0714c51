"""The ranks of a context: the tokens that each has, their messages, one call at a time, and the plans of calls."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _core
from .._core import Program
from .context_deal import Dealt
from .context_transport import Departures, HostTransport, Refusals, known_to_all, make_transport

_MAX_PLANS = 64
_DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class Ranks:
    """group: a process group, to all of whose ranks the same tokens are `dealt`."""

    def __init__(self, group: Any, dealt: Dealt, threads: int, time_limit: float, multiprocessors: int, engine: str):
        self.group, self.dealt = group, dealt
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self.transport = make_transport(group, self.rank, self.size, time_limit, multiprocessors, engine)
        self.by_host = isinstance(self.transport, HostTransport)
        # One for all plans, which share its memory of GPUs and run one at a time.
        self._carrier = _core.python_transport(self.rank, self.size, self.transport) if self.by_host else self.transport
        digest = hashlib.sha256(b"".join([tokens.numpy().tobytes() for tokens in dealt.of_ranks])).hexdigest()[:16]
        fields = {
            "call": "context_parallel", "seqlen": f"{dealt.lengths or dealt.seqlen}",
            "deal": f"{dealt.deal}, unit {dealt.unit}, head_groups {dealt.head_groups}",
            "the tokens of the ranks, by masks and heads": f"tokens of digest {digest}",
        }  # fmt: skip
        _core.context_agree(self._carrier, list(fields.items()), None)
        self._departures = Departures(group, self.rank, self.size)
        self._refusals = None if self.by_host else Refusals(group, self.size, time_limit, self._departures, self.transport)
        # A cotangent of lse is given on all ranks or on none, where ranks send it to each other; then zeros say nothing wrong.
        self.sends_dlse = self.by_host or (dealt.head_groups if dealt.layout is None else dealt.layout.head_groups) != 1
        self._options = dealt.deal, dealt.head_groups, dealt.unit, dealt.layout, threads
        self.plans: dict[Any, _core.ContextAttention] = {}
        self._on_devices: dict[Any, Tensor] = {}
        self._busy = threading.Lock()
        self._checked: dict[str, tuple[Any, ...]] = {}
        self.tokens_on(torch.device("cpu"))

    @property
    def positions(self) -> Tensor:
        """The tokens of this rank, in the order of its rows: int64 [rows]."""
        return self.dealt.of_ranks[self.rank]

    def tokens_on(self, device: torch.device) -> Tensor:
        """positions, on this device."""
        return self._on("positions", device)

    def _on(self, what: str, device: torch.device) -> Tensor:
        known = self._on_devices.get((what, device))
        if known is None:
            with torch.inference_mode(False):
                tokens = self.positions if what == "positions" else torch.cat(self.dealt.of_ranks).argsort()
                known = self._on_devices[(what, device)] = tokens.to(device)
        return known

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One call at a time: messages of two would be mixed up."""
        if not self._busy.acquire(blocking=False):
            why = "context_parallel: a call while another one runs on another thread; expected one at a time"
            self.transport.fail(why)  # the ranks are no longer at the same call
            raise known_to_all(RuntimeError(why))
        try:
            if self._refusals is not None:
                self._refusals.begin()
            yield
        except Exception as error:
            self.refused(error, begun=True)  # unless it is one of the call at which ranks meet
            raise
        finally:
            self._busy.release()

    def refused(self, error: Exception, *, begun: bool = False) -> None:
        """A call ends by an error, begun: within turn(). What all ranks were told of already is no news."""
        if getattr(error, "of_all_ranks", False):
            return
        why = str(error).partition("\n")[0]
        if not why or not isinstance(error, (TypeError, ValueError, RuntimeError)):  # a KeyError says its key alone, an assertion nothing
            why = traceback.format_exception_only(error)[-1].strip()
        if self._refusals is None:
            self.transport.refuse(why, self._departures)
        elif not self._refusals.are_of_all(begun=begun):
            self.transport.fail(why)
        known_to_all(error)

    def enter(self) -> None:
        """A block begins."""
        if self._refusals is not None:
            self._refusals.listen(True)

    def leave(self, *, by_error: bool, outermost: bool) -> None:
        """The end of a block: ranks that find this one gone do not wait for it."""
        self._departures.leave(by_error=by_error)
        if self._refusals is not None:
            self._refusals.listen(not outermost)

    def shard(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's rows of a whole tensor."""
        return tensor.index_select(dim, self.tokens_on(tensor.device))

    def unshard(self, tensor: Tensor, dim: int) -> Tensor:
        """The whole tensor from every rank's rows."""
        with self.turn():
            rows_first = tensor.detach().movedim(dim, 0).contiguous()
            padded = rows_first.new_zeros((max(len(tokens) for tokens in self.dealt.of_ranks), *rows_first.shape[1:]))
            padded[: rows_first.shape[0]] = rows_first
            of_ranks = self._all_gather(padded, f"{tensor.dtype} {list(tensor.shape[:dim])} + tokens + {list(tensor.shape[dim + 1 :])}")
        rows = torch.cat([rows[: len(tokens)] for rows, tokens in zip(of_ranks, self.dealt.of_ranks)])
        return rows.to(tensor.device).index_select(0, self._on("places", tensor.device)).movedim(0, dim).contiguous()

    def _all_gather(self, mine: Tensor, looks: str) -> list[Tensor]:
        if self.by_host:
            self.transport.agree([("call", "unshard"), ("tensor", looks)])
            result: list[Tensor] = self.transport.all_gather(mine.cpu())
            return result
        shards = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(shards, mine, group=self.group)
        return shards

    def of_rank_0(self, state: Tensor) -> Tensor:
        """The seed of dropout."""
        with self.turn():
            if self.by_host:
                self.transport.agree([("call", "a seed of dropout")])
                result: Tensor = self.transport.all_gather(state.cpu())[0].to(state.device)
                return result
            carried = state.clone()
            distributed.broadcast(carried, distributed.get_global_rank(self.group, 0), group=self.group)
            return carried

    def check_packed(self, cu_seqlens: Sequence[Tensor]) -> None:
        """Once for each version of each tensor: values of a GPU are waited for."""
        with self.turn():
            for name, given in zip(("q", "kv"), cu_seqlens):
                state = _state(given)
                if state is not None and state == self._checked.get(name):
                    continue
                lengths = given.cpu().diff().tolist()
                if lengths != self.dealt.lengths:
                    expected = f"expected those of the whole, {_few(self.dealt.lengths)}"
                    raise ValueError(f"context_parallel: cu_seqlens: of {name}, sequences of {_few(lengths)} tokens; {expected}")
                if state is not None:
                    self._checked[name] = state

    def plan(
        self, found: Program, heads: tuple[int, int], q: Tensor, v: Tensor, params: Sequence[Tensor], want: Sequence[bool] = ()
    ) -> _core.ContextAttention:
        """want: of q, k, v and params, where a backward pass will follow."""
        batch = 1 if self.dealt.lengths else q.shape[0]
        looks = found.key, batch, heads, q.shape[-1], v.shape[-1], q.dtype, q.device, tuple((tuple(p.shape), p.dtype) for p in params)
        # The tensors that the mask reads decide the plan.
        names = set() if found.attention.mask is None else _core.params_of(found.attention.mask)
        states = [_state(p) for param, p in zip(found.params, params) if param.name in names]
        reads = None if None in states else tuple(states)
        known = None if reads is None else self.plans.get((looks, reads))
        if known is None:
            sizes = [batch, *heads, self.dealt.seqlen, q.shape[-1], v.shape[-1]]
            if q.dtype not in _DTYPES:
                raise ValueError(f"context_parallel: q: dtype {q.dtype}; expected torch.float64, float32, bfloat16 or float16")
            dtype = getattr(_core.DType, _DTYPES[q.dtype])
            arrays = [p.detach().cpu() for p in params]
            made = _core.ContextAttention(self._carrier, found, dtype, sizes, self.dealt.lengths, arrays, *self._options)
            if any(want):
                made.backward_follows([param for param, wanted in zip(found.params, want[3:]) if wanted], self.sends_dlse)
            if made.q_tokens() != self.positions.tolist():
                raise RuntimeError("context_parallel: the plan holds other tokens than shard() gave")
            self.plans.pop((looks, reads), None)  # of tensors that do not tell: the last plan is kept, with its memory, but not used again
            while len(self.plans) >= _MAX_PLANS:
                self.plans.pop(next(iter(self.plans)))
            self.plans[(looks, reads)] = known = made
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


def _few(lengths: list[int]) -> str:
    return f"{lengths[:8]}" if len(lengths) <= 8 else f"{lengths[:8]} and {len(lengths) - 8} more"
