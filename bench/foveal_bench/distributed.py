"""Context parallelism on several GPUs of one host: one process for each, NCCL between them, beside one of them alone and torch's own context_parallel on the
same tensors. Times are medians of the slowest rank: ms of a call among others in a row, as the layers of a model are, latency_ms of one that begins on a
device at rest, with the time of the host. One GPU and all take turns, for clocks follow the heat; efficiency is the median, over the turns, of the ms of one over
GPUs times the ms of all. No case begins after --seconds.

    foveal-bench distributed --gpus 2 [--cases causal,window] [--most-tokens 131072]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any, Callable

from . import machine
from .progress import progress
from .results import Rows

# torch: its context_parallel runs the case, too. gpus: the least number of them that it is for. Not alone: too long for one GPU.
CASES: list[dict[str, Any]] = [
    {"name": "causal", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "torch": True},
    {"name": "causal", "tokens": 131072, "heads": (16, 16), "mask": "causal()", "torch": True},
    {"name": "causal", "tokens": 8192, "heads": (16, 16), "mask": "causal()", "torch": True},
    {"name": "causal", "tokens": 32768, "heads": (32, 8), "mask": "causal()"},
    {"name": "window", "tokens": 131072, "heads": (16, 16), "mask": "causal() & window(4096)", "deal": "contiguous"},
    {"name": "table", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "score": "score + rel[head, clamp(q_idx - kv_idx, 0, 1023)]"},
    {"name": "softcap", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "score": "30 * tanh(score / 30)"},
    {"name": "alibi", "tokens": 32768, "heads": (16, 16), "mask": "causal()", "score": "score - 0.01 * (head + 1) * to_real(q_idx - kv_idx)"},
    {"name": "causal", "tokens": 8192, "heads": (32, 8), "mask": "causal()"},
    {"name": "documents", "tokens": 65536, "heads": (16, 16), "mask": "causal()",
     "lengths": [9363, 606, 7250, 1795, 5206, 3441, 11876, 285, 2117, 4402, 6031, 899, 3650, 5188, 2609, 818]},
    {"name": "causal", "tokens": 131072, "heads": (32, 8), "mask": "causal()"},
    {"name": "window", "tokens": 262144, "heads": (16, 16), "mask": "causal() & window(4096)", "deal": "contiguous", "gpus": 4},
    {"name": "causal", "tokens": 524288, "heads": (16, 16), "mask": "causal()", "torch": True, "gpus": 4},
    {"name": "causal", "tokens": 1048576, "heads": (32, 8), "mask": "causal()", "alone": False},
]
HEAD_DIM = 128


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: processes with Gloo between them, only to try the verb")
    parser.add_argument("--cases", default="", help="names, with commas between")
    parser.add_argument("--tokens", type=int, help="of each case, instead of its own")
    parser.add_argument("--most-tokens", type=int, default=131072, help="of a case; longer ones are left out")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--multiprocessors", type=int, default=16, help="that carry NCCL's transfers at most")
    parser.add_argument("--engine", default="automatic", help="automatic, peer or nccl")
    parser.add_argument("--head-groups", type=int, default=1, help="shares of the heads; rows are divided among the ranks that have the same share")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)


class Bench:
    """One rank."""

    def __init__(self, options: argparse.Namespace):
        import torch
        import torch.distributed as distributed

        self.torch, self.distributed, self.options = torch, distributed, options
        self.cuda = options.device == "cuda"
        self.device = torch.device("cuda", options.rank) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(options.rank)
        distributed.init_process_group("nccl" if self.cuda else "gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=options.gpus,
                                       timeout=timedelta(seconds=90), device_id=self.device if self.cuda else None)  # fmt: skip
        self.group = distributed.group.WORLD

    def once(self, run: Callable[[], Any], calls: int = 1, scope: Any = None) -> float:
        """Milliseconds of the slowest rank for a call of so many in a row."""
        torch = self.torch
        self.distributed.barrier()
        if self.cuda:
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            with scope or contextlib.nullcontext():
                for _ in range(calls):
                    run()
            end.record()
            torch.cuda.synchronize()
            ms = begin.elapsed_time(end)
        else:
            start = time.perf_counter()
            with scope or contextlib.nullcontext():
                for _ in range(calls):
                    run()
            ms = 1e3 * (time.perf_counter() - start)
        return self.slowest(ms) / calls

    def slowest(self, value: float) -> float:
        found = self.torch.tensor([value], device=self.device)
        self.distributed.all_reduce(found, op=self.distributed.ReduceOp.MAX)
        return float(found.item())

    def times(self, runs: dict[str, Callable[[], Any]], scopes: dict[str, Any], budget_ms: float = 1800.0) -> dict[str, dict[str, Any]]:
        """ms and latency_ms of each in its scope, and the ms of its turns; of calls that take seconds one is enough."""

        def once(name: str, calls: int = 1) -> float:
            return self.once(runs[name], calls, scopes.get(name))

        for name in runs:
            once(name)
        first = {name: once(name) for name in runs}
        if max(first.values()) > 1000:
            return {name: {"ms": ms, "latency_ms": ms, "turns": [ms]} for name, ms in first.items()}
        calls = {name: max(4, min(32, math.ceil(40 / ms))) for name, ms in first.items()}
        count = int(min(25, max(5, budget_ms / sum(calls[name] * first[name] for name in runs))))
        turns = [{name: once(name, calls[name]) for name in runs} for _ in range(count)]
        rest = [{name: once(name) for name in runs} for _ in range(count)]

        def found(name: str) -> dict[str, Any]:
            of_turns = [turn[name] for turn in turns]
            return {"ms": statistics.median(of_turns), "latency_ms": statistics.median(turn[name] for turn in rest), "turns": of_turns}

        return {name: found(name) for name in runs}

    def beside_torch(self) -> int:
        """Bytes in use on the device that torch has not."""
        if not self.cuda:
            return 0
        free, total = self.torch.cuda.mem_get_info()
        return total - free - self.torch.cuda.memory_reserved()

    def tensors(self, case: dict[str, Any]) -> list[Any]:
        torch = self.torch
        generator = torch.Generator(device=self.device).manual_seed(7)  # the same on every rank
        heads_q, heads_kv = case["heads"]
        batch = () if "lengths" in case else (1,)
        shapes = [(*batch, case["tokens"], heads, HEAD_DIM) for heads in (heads_q, heads_kv, heads_kv, heads_q)]
        return [torch.randn(shape, generator=generator, device=self.device, dtype=torch.bfloat16) for shape in shapes]

    def foveal(self, case: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
        """(pass, contender): what was found."""
        torch = self.torch
        import foveal.torch as door

        q, k, v, dout = self.tensors(case)
        params = {}
        if case["name"] == "table":
            generator = torch.Generator(device=self.device).manual_seed(9)
            params = {"rel": torch.randn(case["heads"][0], 1024, generator=generator, device=self.device, requires_grad=True)}

        lengths = case.get("lengths")
        packed: dict[str, Any] = {}
        if lengths:
            begins = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=self.device)
            packed = {"cu_seqlens": (begins, begins), "max_seqlens": (max(lengths), max(lengths))}

        def attend(q: Any, k: Any, v: Any) -> Any:
            return door.attention(q, k, v, case.get("score"), case["mask"], params=params, **packed)

        last: dict[str, Any] = {}

        def both(leaves: list[Any], dout: Any) -> None:
            for t in (*leaves, *params.values()):
                t.grad = None
            last["out"] = attend(*leaves)
            last["out"].backward(dout)

        def forward(leaves: list[Any]) -> None:
            with torch.no_grad():
                attend(*leaves)

        def results(leaves: list[Any]) -> dict[str, Any]:
            out = last.pop("out").detach()
            return dict(zip(("out", "dq", "dk", "dv", *params), (out, *(t.grad for t in (*leaves, *params.values()))), strict=True))

        def leaves_of(tensors: list[Any]) -> list[Any]:
            return [t.detach().requires_grad_() for t in tensors]

        deal = case.get("deal", None if lengths else "zigzag")
        limits = {"time_limit": 60, "multiprocessors": self.options.multiprocessors, "engine": self.options.engine, "head_groups": self.options.head_groups}
        context = door.context_parallel(self.group, lengths or case["tokens"], seq_dim=0 if lengths else 1, deal=deal, **limits)

        dout_mine, mine = context.shard(dout), leaves_of([context.shard(t) for t in (q, k, v)])
        runs: dict[str, dict[str, Callable[[], None]]] = {"forward": {"foveal": lambda: forward(mine)}, "both": {"foveal": lambda: both(mine, dout_mine)}}
        wanted = None
        if case.get("alone", True):
            whole = leaves_of([q, k, v])
            both(whole, dout)
            wanted = results(whole)
            runs["forward"] |= {"one device": lambda: forward(whole)}
            runs["both"] |= {"one device": lambda: both(whole, dout)}
        else:
            del q, k, v, dout
        before = self.beside_torch()
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for direction, run in runs.items():
            times = self.times(run, {"foveal": context})
            turns = {name: times[name].pop("turns") for name in times}
            if wanted:
                ratios = [one / self.options.gpus / all for one, all in zip(turns["one device"], turns["foveal"], strict=True)]
                times["foveal"]["efficiency"] = round(statistics.median(ratios), 4)
            rows |= {(direction, name): found for name, found in times.items()}
        if wanted:
            with context:
                both(mine, dout_mine)
            found, scale = results(mine), {name: float(whole.float().abs().max()) for name, whole in wanted.items()}
            of = {name: whole if name in params else context.shard(whole) for name, whole in wanted.items()}
            rows["both", "foveal"]["differences"] = {
                name: round(float((of[name].float() - found[name].float()).abs().max()) / scale[name], 6) for name in wanted}  # fmt: skip
        if self.cuda:
            rows["both", "foveal"]["engine"] = rows["forward", "foveal"]["engine"] = context.engine
            rows["both", "foveal"]["memory_gb"] = round((torch.cuda.get_device_properties(0).total_memory - torch.cuda.mem_get_info()[0]) / 1e9, 2)
            rows["both", "foveal"]["buffers_gb"] = round((self.beside_torch() - before) / 1e9, 3)
        return rows

    def torchs(self, case: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
        torch = self.torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel

        mesh = init_device_mesh("cuda", (self.options.gpus,))
        q, k, v, dout = (t.transpose(1, 2).contiguous() for t in self.tensors(case))

        def attend() -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def both() -> None:
            q.grad = k.grad = v.grad = None
            attend().backward(dout)

        buffers = [q, k, v, dout]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
                with torch.no_grad():
                    forward = self.times({"torch": attend}, {})["torch"]
                for t in (q, k, v):
                    t.requires_grad_()
                found = {("forward", "torch"): forward, ("both", "torch"): self.times({"torch": both}, {})["torch"]}
                for row in found.values():
                    del row["turns"]
                return found

    def measure(self, case: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
        rows = self.foveal(case)
        if case.get("torch") and self.cuda and not self.options.no_torch:
            try:
                rows |= self.torchs(case)
            except Exception as error:  # a rival that fails is no failure of the measurement
                rows |= {(direction, "torch"): {"refused": machine.reason(error)} for direction in ("forward", "both")}
        return rows


def work(options: argparse.Namespace) -> None:
    bench = Bench(options)
    torch, begin = bench.torch, time.monotonic()
    first = options.rank == 0  # which writes
    facts = {"gpus": options.gpus, "multiprocessors": options.multiprocessors, "nccl": ".".join(map(str, torch.cuda.nccl.version()))} if bench.cuda else {}
    rows = Rows(options.output, machine.describe(options.device, **facts)) if first else None
    chosen = options.cases.split(",") if options.cases else []
    cases = [{**case, "tokens": options.tokens or case["tokens"]} for case in CASES if not chosen or case["name"] in chosen]
    cases = [case for case in cases if case["tokens"] <= options.most_tokens and case.get("gpus", 1) <= options.gpus]
    for case in progress(cases) if first else cases:
        if bench.slowest(time.monotonic() - begin) > options.seconds:
            break
        for (direction, contender), found in bench.measure(case).items():
            if rows:
                heads = ":".join(map(str, dict.fromkeys(case["heads"])))
                rows.add("distributed", f"{direction} bf16 b1 h{heads} q{case['tokens']} d{HEAD_DIM} {case['name']}", name=case["name"], contender=contender, **found,
                         seconds=round(time.monotonic() - begin, 1))  # fmt: skip
        if bench.cuda:
            torch.cuda.empty_cache()
    bench.distributed.destroy_process_group()


def main(options: argparse.Namespace) -> int:
    if options.rank >= 0:
        work(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen(**machine.again(*sys.argv[1:], "--store", os.path.join(folder, "store"), "--rank", str(rank))) for rank in range(options.gpus)]
        return max(abs(rank.wait()) for rank in ranks)
