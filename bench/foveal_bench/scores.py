"""The scores and masks that suites name, as FlexAttention functions: every contender that is programmable gets the same function."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .case import Case

Program = tuple[Callable[..., Any] | None, Callable[..., Any] | None, list[torch.Tensor]]  # score_mod, mask_mod, learnable tensors


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def _learn(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(1)
    return (0.1 * torch.randn(shape, generator=generator, device=device)).to(dtype).requires_grad_()


def alibi(case: Case, device: str) -> Program:
    slopes = torch.exp2(-8.0 * (torch.arange(case.heads_q, device=device) + 1) / case.heads_q)
    return lambda s, b, h, q, k: s + (k - q) * slopes[h], None, []


def softcap(case: Case, device: str) -> Program:
    return lambda s, b, h, q, k: 30.0 * torch.tanh(s / 30.0), None, []


def window1024(case: Case, device: str) -> Program:
    return None, lambda b, h, q, k: (q >= k) & (q - k <= 1024), []


def document8(case: Case, device: str) -> Program:
    ids = (torch.arange(case.seqlen_kv, device=device) // (case.seqlen_kv // 8)).to(torch.int32)
    return None, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k), []


def relative_fixed(case: Case, device: str) -> Program:
    table = _learn((2 * case.seqlen_kv,), device).detach()
    offset = case.seqlen_kv
    return lambda s, b, h, q, k: s + table[q - k + offset], None, []


def relative_table(case: Case, device: str) -> Program:
    table = _learn((case.heads_q, 2 * case.seqlen_kv), device)
    offset = case.seqlen_kv
    return lambda s, b, h, q, k: s + table[h, q - k + offset], None, [table]


def head_bias(case: Case, device: str) -> Program:
    bias = _learn((case.heads_q,), device)
    return lambda s, b, h, q, k: s + bias[h], None, [bias]


def head_gate(case: Case, device: str) -> Program:
    gate = _learn((case.heads_q,), device)
    return lambda s, b, h, q, k: s * torch.sigmoid(gate[h]), None, [gate]


def gather_q(case: Case, device: str) -> Program:
    table = _learn((case.seqlen_q,), device)
    return lambda s, b, h, q, k: s * (1.0 + table[q]), None, [table]


def full_bias(case: Case, device: str) -> Program:
    bias = _learn((case.heads_q, case.seqlen_q, case.seqlen_kv), device, torch.bfloat16 if case.dtype == "bf16" else torch.float32)
    return lambda s, b, h, q, k: s + bias[h, q, k], None, [bias]


def two_params(case: Case, device: str) -> Program:
    gate, bias = _learn((case.heads_q,), device), _learn((case.seqlen_kv,), device)
    return lambda s, b, h, q, k: s * torch.sigmoid(gate[h]) + bias[k], None, [gate, bias]


def t5_buckets(case: Case, device: str) -> Program:
    table = _learn((32, case.heads_q), device)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        n = torch.clamp(q - k, min=0)
        large = 16 + (torch.log(torch.clamp(n, min=1).float() / 16) / 2.0794415 * 16).to(torch.int32)
        return s + table[torch.where(n < 16, n, torch.clamp(large, max=31)), h]

    return score, None, [table]


def trained_slopes(case: Case, device: str) -> Program:
    slopes = _learn((case.heads_q,), device)
    return lambda s, b, h, q, k: s + slopes[h] * (k - q), None, [slopes]


def trained_softcap(case: Case, device: str) -> Program:
    cap = torch.tensor(30.0, device=device, requires_grad=True)
    return lambda s, b, h, q, k: cap * torch.tanh(s / cap), None, [cap]


PROGRAMS: dict[str, Callable[[Case, str], Program]] = {
    fn.__name__: fn
    for fn in (alibi, softcap, window1024, document8, relative_fixed, relative_table, head_bias, head_gate, gather_q, full_bias, two_params,
               t5_buckets, trained_slopes, trained_softcap)
}  # fmt: skip


def program(case: Case, device: str) -> Program:
    """score_mod, mask_mod (causality included) and the learnable tensors of a case."""
    score_mod, mask_mod, learned = PROGRAMS[case.score](case, device) if case.score else (None, None, [])
    if case.causal and mask_mod is None:
        mask_mod = _causal
    return score_mod, mask_mod, learned
