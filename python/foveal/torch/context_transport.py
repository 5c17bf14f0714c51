"""What carries messages between the ranks of a context: peer copies, NCCL, or the process group through host memory."""

from __future__ import annotations

import contextlib
import datetime
import gc
import math
import threading
import time
import weakref
from typing import Any, NoReturn

import torch
import torch.distributed as distributed
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from .. import _core

_LATEST = 10.0  # seconds by which ranks that refuse a call expect the others to have reached it
_UNDER_WAY = 2.0  # seconds in which what another rank has sent arrives
_LISTENS_EVERY = 0.2  # seconds


def make_transport(group: Any, rank: int, size: int, time_limit: float, multiprocessors: int, engine: str) -> Any:
    if engine not in ("automatic", "peer", "nccl"):
        raise ValueError(f"context_parallel: engine: '{engine}'; expected automatic, peer or nccl")
    if "nccl" not in distributed.get_backend(group):
        if engine != "automatic":
            raise ValueError(f"context_parallel: engine: '{engine}' with a group of {distributed.get_backend(group)}; expected one of nccl")
        return HostTransport(group, time_limit)
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


class Refusals:
    """Errors of calls by ranks whose messages go from GPU to GPU, so that these do not meet at every call. Ranks tell each other by the group's store,
    in which each listens on a thread of its own while it is in a block of the context: there its call may wait for messages that will not come.
    Calls are numbered: where ranks are in step, theirs have the same numbers."""

    _made: dict[str, int] = {}  # of each group: all ranks make theirs in the same order

    def __init__(self, group: Any, size: int, time_limit: float, departures: Departures, transport: Any):
        number = self._made[group.group_name] = self._made.get(group.group_name, 0) + 1
        self._store = c10d.PrefixStore(f"foveal/refusals/{group.group_name}/{number}", c10d._get_process_group_store(group))
        self._size, self._time_limit, self._departures, self._transport = size, min(time_limit, _LATEST), departures, transport
        self._call, self._goes_on = 0, 0  # the last call of this rank, and the last that it seemed to go on with while another refused it
        self._refused: set[int] = set()
        self._listens, self._ends = threading.Event(), threading.Event()
        listening = threading.Thread(target=_listen, args=(weakref.ref(self), self._listens, self._ends), daemon=True)
        listening.start()
        weakref.finalize(self, _end, listening, self._listens, self._ends)  # also where the process ends

    def begin(self) -> None:
        """A call at which ranks meet."""
        self._call += 1

    def listen(self, listens: bool) -> None:
        (self._listens.set if listens else self._listens.clear)()

    def are_of_all(self, *, begun: bool) -> bool:
        """Does every rank refuse this call, too? Then all go on. Not, where another goes on with it: it may wait for messages of this one. Nor
        unless the others reach it soon. begun: the call is the last one that this rank began."""
        self._call += not begun
        self._refused.add(self._call)
        name, begin = f"{self._call}", time.monotonic()
        refusing: int = self._store.add(name, 1)
        self._store.set("refused", name)
        while refusing < self._size and time.monotonic() - begin < self._time_limit:
            if self._departures.any() or self._store.check([f"{name} goes on"]):
                break
            time.sleep(0.01)
            refusing = self._store.add(name, 0)
        return refusing >= self._size

    def look(self) -> None:
        """What other ranks have told this one, and what to tell them."""
        if failure := self._transport.failure:
            self._store.compare_set("failure", "", failure)
        elif self._store.check(["failure"]):
            self._transport.fail(self._store.get("failure").decode())
        if self._store.check(["refused"]):
            number = int(self._store.get("refused"))
            if number <= self._call and number not in self._refused:
                if number == self._goes_on:  # still: this rank is not just about to refuse it, too
                    self._store.set(f"{number} goes on", "")
                self._goes_on = number


def _listen(refusals: weakref.ref[Refusals], listens: threading.Event, ends: threading.Event) -> None:
    while listens.wait() and not ends.wait(_LISTENS_EVERY):
        known = refusals()
        try:
            if known is not None and listens.is_set():
                known.look()
        except RuntimeError:  # the process that has the store has ended
            return
        del known


def _end(listening: threading.Thread, listens: threading.Event, ends: threading.Event) -> None:
    ends.set()
    listens.set()
    if listening is not threading.current_thread():
        listening.join(1.0)


class Departures:
    """How often each rank has left a block of the context, in the group's store: who has left this one, and not by an error, is at no call that an error
    of another rank could be told at, and is not waited for."""

    _made: dict[str, int] = {}  # of each group: all ranks make theirs in the same order

    def __init__(self, group: Any, rank: int, size: int):
        number = self._made[group.group_name] = self._made.get(group.group_name, 0) + 1
        store = c10d._get_process_group_store(group)  # none of MPI
        self._store = None if store is None else c10d.PrefixStore(f"foveal/departures/{group.group_name}/{number}", store)
        self._rank, self._others, self._count = rank, [f"{other}" for other in range(size) if other != rank], 0

    def leave(self, *, by_error: bool) -> None:
        self._count += 1
        if self._store is not None and not by_error:
            with contextlib.suppress(RuntimeError):  # the process that has the store may have ended
                self._store.set(f"{self._rank}", f"{self._count}")

    def any(self) -> bool:
        """Has another rank left the block that this one is in?"""
        store = self._store
        try:
            return store is not None and any([store.check([other]) and int(store.get(other)) > self._count for other in self._others])
        except RuntimeError:  # with the process that has the store
            return True


class HostTransport:
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
            try:
                self._group = c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", self._store), self._rank, self._size, limit)
            except RuntimeError as error:
                why = f"rank {self._rank} waited {time_limit:g} s for all ranks to make this context"
                raise _core.Error(f"context_parallel: {why}: {_first_line(error)}") from error
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
        works = self._under_way.pop(ticket, None)
        if works is None:  # another thread has closed it
            raise RuntimeError(self._failure)
        for peer, work, _ in works:
            try:
                left = self._time_limit - (time.monotonic() - begin)
                work.wait(datetime.timedelta(milliseconds=max(math.ceil(1000 * left), 1)))  # Gloo cuts off what is below a millisecond
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

    def agree(self, fields: list[tuple[str, str]], refusal: str | None = None) -> None:
        """Collective. Raises on every rank where these differ or one of them refuses."""
        try:
            _core.context_agree(_core.python_transport(self._rank, self._size, self), fields, refusal)
        except Exception as error:
            raise known_to_all(error)

    def refuse(self, why: str, departures: Departures) -> None:
        """Tells the others, who are at the same call, that this rank refuses it. All go on then, unless they are not there soon, or never will be."""
        telling = threading.Thread(target=self._tell, args=(why,), daemon=True)  # its own, as a wait for a message cannot be ended
        if not departures.any():
            telling.start()
        while telling.is_alive() and not departures.any():
            telling.join(0.01)
        if telling.is_alive():
            telling.join(_UNDER_WAY)  # who has left may have met this rank before
        if telling.is_alive() or telling.ident is None:
            self.fail(why)

    def _tell(self, why: str) -> None:
        limit, self._time_limit = self._time_limit, min(self._time_limit, _LATEST)
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


def known_to_all(error: Exception) -> Exception:
    """Every rank has it, or was told of it: see Ranks.refused()."""
    error.of_all_ranks = True  # type: ignore[attr-defined]
    return error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _memory(tensor: Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()
