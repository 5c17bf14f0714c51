"""The right answer for part of a case, in fp64: the query heads of kv head 0 in batch row 0. Nothing that disagrees with it is timed."""

from __future__ import annotations

from typing import Any

import torch

from .case import Case
from .scores import program

TOLERANCE = {"f64": 1e-10, "f32": 2e-5, "f16": 5e-3, "bf16": 2e-2}  # rms error relative to the rms of the golden tensor
_ROWS = 1024


def compute(case: Case, tensors: dict[str, Any], device: str) -> dict[str, torch.Tensor]:
    """out and dq [group, seqlen_q, dim], dk and dv [seqlen_kv, dim]."""
    group = case.heads_q // case.heads_kv
    q, dout = (tensors[name][0, :group].double().contiguous() for name in ("q", "dout"))
    k, v = (tensors[name][0, 0].double().contiguous() for name in ("k", "v"))
    score_mod, mask_mod, learned = program(case, device)
    learned = [t.detach() for t in learned]
    kv_idx = torch.arange(case.seqlen_kv, device=device)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    out, dq = torch.empty_like(dout), torch.empty_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for h in range(group):
        head = torch.tensor(h, device=device)
        for begin in range(0, case.seqlen_q, _ROWS):
            rows = slice(begin, min(begin + _ROWS, case.seqlen_q))
            q_idx = torch.arange(rows.start, rows.stop, device=device)[:, None]
            raw = (q[h, rows] @ k.T * case.scale).requires_grad_(case.backward)
            with torch.set_grad_enabled(case.backward):
                scores = raw if score_mod is None else score_mod(raw, zero, head, q_idx, kv_idx)
            keep = None if mask_mod is None else mask_mod(zero, head, q_idx, kv_idx)
            p = torch.softmax(scores.detach() if keep is None else scores.detach().masked_fill(~keep, float("-inf")), -1)
            out[h, rows] = p @ v
            if not case.backward:
                continue
            ds = p * (dout[h, rows] @ v.T - (dout[h, rows] * out[h, rows]).sum(-1, keepdim=True))
            if scores is not raw:
                (ds,) = torch.autograd.grad(scores, raw, ds.to(scores.dtype))
            ds = ds * case.scale
            dq[h, rows] = ds @ k
            dk += ds.T @ q[h, rows]
            dv += p.T @ dout[h, rows]
    return {"out": out, "dq": dq, "dk": dk, "dv": dv}


def check(case: Case, golden: dict[str, torch.Tensor], job: Any) -> str | None:
    """None when the job's answer is right, otherwise what is wrong."""
    group = case.heads_q // case.heads_kv
    found = {"out": job.forward()[0, :group]}
    if case.backward:
        dq, dk, dv = job.backward()[:3]
        found |= {"dq": dq[0, :group], "dk": dk[0, 0], "dv": dv[0, 0]}
    for name, value in found.items():
        gold = golden[name]
        error = (value.double() - gold).pow(2).mean().sqrt() / gold.pow(2).mean().sqrt().clamp_min(1e-30)
        if not error <= TOLERANCE[case.dtype]:  # catches NaN too
            return f"wrong answer: {name} is off by {error:.1e} of its rms; at most {TOLERANCE[case.dtype]:.0e} is accepted"
    return None
