"""Plain attention on a GPU by libfoveal.so, cuDNN (torch SDPA) and FlashAttention-4 (flash_attn.cute), in turns in one process on the same tensors. Results are
compared before they are timed; a time is the median of four turns.

    python -m foveal_bench race --library build/release/libfoveal.so     # in bench/; with torch, triton and flash-attn-4
"""

from __future__ import annotations

import argparse
import importlib
import statistics
from typing import Any, Callable

import torch

from . import capi
from .case import Case, read_suite
from .grid import arguments as arguments
from .progress import progress
from .results import Rows
from .timing import settled_ms

TURNS = 4

Call = Callable[[], Any]


def passes_of(library: capi.Library, case: Case, peer: Any) -> dict[str, dict[str, tuple[Call, Callable[[], list[torch.Tensor]]]]]:
    """By pass and contender: what is timed, and its results as [batch, seqlen, heads, dim]."""
    passes = capi.Passes(library, case)
    forward, backward = passes.both()
    q, k, v, out = (passes.tensors[name] for name in ("q", "k", "v", "out"))
    dout, gradients = passes.backward_only["dout"], [passes.backward_only[f"d{name}"] for name in "qkv"]

    leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    of_torch = capi.sdpa(leaves[0], leaves[1], leaves[2], case.causal)
    result = of_torch()

    def torch_backward() -> list[torch.Tensor]:
        return list(torch.autograd.grad(result, leaves, dout.transpose(1, 2), retain_graph=True))

    def peer_forward() -> Any:
        return peer._flash_attn_fwd(q, k, v, causal=case.causal, return_lse=True)[:2]

    peer_out, peer_lse = peer_forward()

    def peer_backward() -> Any:
        return peer._flash_attn_bwd(q, k, v, peer_out, dout, peer_lse, causal=case.causal)[:3]

    rival = capi.rival(library.device)
    return {
        "forward": {
            "foveal": (forward.run, lambda: [out]),
            rival: (of_torch, lambda: [result.transpose(1, 2)]),
            "fa4": (peer_forward, lambda: [peer_out]),
        },
        "backward": {
            "foveal": (backward.run, lambda: gradients),
            rival: (torch_backward, lambda: [x.transpose(1, 2) for x in torch_backward()]),
            "fa4": (peer_backward, lambda: list(peer_backward())),
        },
    }


def measure(library: capi.Library, case: Case, peer: Any, rows: Rows) -> None:
    """Both passes of a case, by every contender."""
    for direction, calls in passes_of(library, case, peer).items():
        name = f"{direction} {case.name.partition(' ')[2]}"
        expected = calls["foveal"][1]()
        differences = {who: capi.compare(f"{name} {who}", results(), expected) for who, (_, results) in calls.items()}
        times: dict[str, list[float]] = {who: [] for who in calls}
        for turn in range(TURNS):
            for who in list(calls)[:: -1 if turn % 2 else 1]:
                times[who].append(settled_ms(calls[who][0], library.device, 25.0))
        for who, turns in times.items():
            rows.add("race", name, contender=who, ms=statistics.median(turns), ms_turns=turns, difference=differences[who])


def main(options: argparse.Namespace) -> None:
    peer = importlib.import_module("flash_attn.cute.interface")
    library, rows = capi.Library(options.library, options.device), Rows(options.output, capi.origin(options.device))
    for case in progress([case for case in read_suite(options.suite.read_text(), "race") if case.backward]):
        measure(library, case, peer, rows)
