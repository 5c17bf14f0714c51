"""A program's attention as a composition of torch's operations, exact and with all scores in memory: what higher derivatives are taken of."""

from __future__ import annotations

import math
import warnings
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _core, logging
from ..evaluation import MaterializedWarning
from ..masks import SYMBOLS
from ..signatures import Paged
from .evaluate import Evaluation


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(
    program: _core.Program, q: Tensor, k: Tensor, v: Tensor, params: Sequence[Tensor], run: tuple[Any, ...]
) -> tuple[Tensor, Tensor]:
    """(out, lse) of the program's forward pass, in its layouts; run: as the operators have it. Computes in float64 for float64 tensors, else in float32."""
    logging.route.debug("a derivative beyond the first, or in forward mode, of %s: by torch's operations, with all scores in memory", tuple(q.shape))
    warnings.warn(
        "foveal: a derivative beyond the first, or in forward mode: computed from all seqlen_q x seqlen_kv scores in memory", MaterializedWarning,
        stacklevel=2,
    )  # fmt: skip
    named = dict(zip([param.name for param in program.params], params))
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    real = [t.to(dtype) for t in (q, k, v)]
    of_q, of_kv, _, _, seed, offset, state = run
    if state is not None:
        seed, offset = state[0], state[1]
    if of_q is None and of_kv is None:
        q4, k4, v4 = [t if program.heads_first else t.transpose(1, 2) for t in real]
        out, lse = _attend(program.attention, q4, k4, v4, named, seed, offset, first_batch=0)
        return (out if program.heads_first else out.transpose(1, 2)).to(q.dtype), lse
    results = []
    for b, parts in enumerate(_sequences(real, of_q, of_kv, program.heads_first)):
        q4, k4, v4 = [part.transpose(0, 1)[None] for part in parts]
        results.append(_attend(program.attention, q4, k4, v4, named, seed, offset, first_batch=b))
    outs, lses = [out[0].transpose(0, 1) for out, _ in results], [lse[0] for _, lse in results]
    if of_q is not None:
        return torch.cat(outs).to(q.dtype), torch.cat(lses, dim=1)
    out = torch.stack(outs)
    return (out.transpose(1, 2) if program.heads_first else out).to(q.dtype), torch.stack(lses)


def _sequences(tensors: Sequence[Tensor], of_q: Tensor | None, of_kv: Any, heads_first: bool) -> Iterator[list[Tensor]]:
    """q, k and v of each sequence, [tokens, heads, dim]; of_q, of_kv: how their tokens lie, as the operators have it."""

    def packed(tensor: Tensor, cu: list[int]) -> list[Tensor]:
        return [tensor[begin:end] for begin, end in zip(cu, cu[1:])]

    q, k, v = [t.transpose(1, 2) if heads_first and t.dim() == 4 else t for t in tensors]
    queries = list(q.unbind(0)) if of_q is None else packed(q, of_q.tolist())
    if not isinstance(of_kv, Paged):
        yield from map(list, zip(queries, packed(k, of_kv.tolist()), packed(v, of_kv.tolist())))
        return
    for query, pages, length in zip(queries, of_kv.block_table, of_kv.seqlens_kv.tolist()):
        mine = pages[: -(-length // k.shape[1])].long()
        yield [query, *[pool[mine].flatten(0, 1)[:length] for pool in (k, v)]]


def second_derivatives(
    program: _core.Program, run: tuple[Any, ...], want: Sequence[bool], q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dlse: Tensor | None,
    params: Sequence[Tensor], cotangents: Sequence[Tensor | None],
) -> list[Tensor | None]:  # fmt: skip
    """Of the backward pass, whose inputs are q, k, v, dout, dlse and the parameters: their gradients, None for what has none.

    want: which of q, k, v and the parameters the backward pass gave a gradient of; cotangents: of those, None where there is none.
    """
    inputs: list[Tensor | None] = [q, k, v, dout, dlse, *params]
    varied = [i for i, x in enumerate(inputs) if x is not None and x.is_floating_point()]
    asked = [i for i, (wanted, cotangent) in enumerate(zip(want, cotangents)) if wanted and cotangent is not None]
    if not asked:
        return [None] * len(inputs)

    def gradients(*values: Any) -> Any:
        """Of the attention, those that have a cotangent."""
        filled = list(inputs)
        for i, value in zip(varied, values):
            filled[i] = value
        primals = [*filled[:3], *filled[5:]]

        def forward(*chosen: Tensor) -> tuple[Tensor, Tensor]:
            tensors: list[Any] = list(primals)
            for i, tensor in zip(asked, chosen):
                tensors[i] = tensor
            found: tuple[Tensor, Tensor] = attend(program, tensors[0], tensors[1], tensors[2], tensors[3:], run)
            return found

        pulled: Any = torch.func.vjp(forward, *[primals[i] for i in asked])
        (_, lse), pull = pulled
        return pull((filled[3], torch.zeros_like(lse) if filled[4] is None else filled[4]))

    pulled: Any = torch.func.vjp(gradients, *[inputs[i] for i in varied])
    _, pull = pulled
    primals = [q, k, v, *params]
    found = dict(zip(varied, pull(tuple([ct.to(primals[i].dtype) for i in asked if (ct := cotangents[i]) is not None]))))
    return [found.get(i) for i in range(len(inputs))]


def in_forward_mode(tensors: Sequence[Tensor]) -> bool:
    """Whether tangents may come with the tensors: by torch.func.jvp, or as dual tensors."""
    if torch._C._are_functorch_transforms_active():
        levels = torch._C._functorch.get_interpreter_stack() or []
        if any([level.key() == torch._C._functorch.TransformType.Jvp for level in levels]):
            return True
    return forward_ad._current_level >= 0 and any([forward_ad.unpack_dual(t).tangent is not None for t in tensors])


def _attend(
    attention: _core.Attention, q: Tensor, k: Tensor, v: Tensor, params: dict[str, Tensor], seed: Any, offset: Any, first_batch: int
) -> tuple[Tensor, Tensor]:
    """On [batch, heads, seqlen, dim] of one real type."""
    batch, heads, _, _ = q.shape
    symbols = _symbols(attention, q, k, first_batch)
    scores = _scores(attention, q, k, symbols, params)
    v = v.repeat_interleave(heads // v.shape[1], 1)

    nothing = scores.new_full((*scores.shape[:-1], 1), -math.inf)  # of a sequence without keys
    highest = scores.detach().amax(-1, keepdim=True) if scores.shape[-1] > 0 else nothing
    sink = None
    if attention.sink is not None:
        sink = params[attention.sink.name].to(q.dtype).reshape(1, heads, 1, 1)
        highest = torch.maximum(highest, sink.detach())
    highest = torch.where(highest == -math.inf, 0.0, highest)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - highest)
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    lse = torch.where(empty, -math.inf, torch.log(total) + highest)[..., 0]
    weights = weights / total
    if attention.dropout_p > 0:
        kept = _kept_by_dropout(attention.dropout_p, seed, offset, heads, symbols)
        weights = weights * kept.to(q.dtype) * (1.0 / (1.0 - attention.dropout_p))
    return weights @ v, lse


def row_maxima(program: _core.Program, q: Tensor, k: Tensor, params: Sequence[Tensor]) -> Tensor:
    """[batch, heads, seqlen_q]: the highest score of each row, -inf where it has no key; a few rows at a time. q, k: heads before seqlen."""
    named = dict(zip([param.name for param in program.params], params))
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        symbols = _symbols(program.attention, q, k, first_batch=0)
        parts = []
        for rows, positions in zip(q.to(dtype).split(_ROWS, 2), symbols["q_idx"].split(_ROWS, 2)):
            parts.append(_scores(program.attention, rows, k.to(dtype), {**symbols, "q_idx": positions}, named).amax(-1))
        return torch.cat(parts, 2)


_ROWS = 128  # of scores in memory at a time


def _symbols(attention: _core.Attention, q: Tensor, k: Tensor, first_batch: int) -> dict[str, Any]:
    """Of all pairs, as tensors that broadcast to [batch, heads, seqlen_q, seqlen_kv]."""

    def positions(count: int, first: int, dim: int) -> Tensor:
        return torch.arange(first, first + count, device=q.device).reshape([-1 if d == dim else 1 for d in range(4)])

    return {
        "batch": positions(q.shape[0], first_batch, 0),
        "head": positions(q.shape[1], 0, 1),
        "q_idx": positions(q.shape[2], attention.q_offset, 2),
        "kv_idx": positions(k.shape[2], attention.kv_offset, 3),
        "seqlen_q": q.shape[2],
        "seqlen_kv": k.shape[2],
    }


def _scores(attention: _core.Attention, q: Tensor, k: Tensor, symbols: dict[str, Any], params: dict[str, Tensor]) -> Tensor:
    """[batch, heads, seqlen_q, seqlen_kv]: what softmax takes; -inf where the mask drops the pair."""
    scale = 1.0 / math.sqrt(q.shape[-1]) if attention.scale is None else attention.scale
    raw = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)) * scale
    keep = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=q.device)
    if attention.mask is not None:
        with torch.no_grad():
            keep = Evaluation(repr(attention.mask), symbols, params, q.dtype, q.device).result()
    return _modified(attention, raw, keep.expand(raw.shape), symbols, params)


def _modified(attention: _core.Attention, raw: Tensor, keep: Tensor, symbols: dict[str, Any], params: dict[str, Tensor]) -> Tensor:
    if attention.score_mod is None:
        return raw.masked_fill(~keep, -math.inf)
    pairs = keep.nonzero(as_tuple=True)
    at_pairs = {**symbols, **{name: symbols[name].expand(raw.shape)[pairs] for name in SYMBOLS}, "score": raw[pairs]}
    values = Evaluation(repr(attention.score_mod), at_pairs, params, raw.dtype, raw.device, compact=True).result()
    return torch.full_like(raw, -math.inf).index_put(pairs, values.expand(len(pairs[0])))


def _kept_by_dropout(p: float, seed: Any, offset: Any, heads: int, symbols: dict[str, Any]) -> Tensor:
    """The pairs that foveal's dropout keeps: Philox4x32-10 of their global positions, four keys to a call (src/base/philox.h)."""
    low = 0xFFFFFFFF
    kv, q = symbols["kv_idx"], symbols["q_idx"]
    counter = [kv // 4, q, symbols["batch"] * heads + symbols["head"], torch.zeros_like(kv) + (offset & low)]
    counter = list(torch.broadcast_tensors(*counter))
    key = [seed & low, (seed >> 32 & low) ^ (offset >> 32 & low)]
    for _ in range(10):
        # 32 x 32 bits, modulo 2 ** 64: signed products have the same bits.
        products = [factor * word for factor, word in ((0xD2511F53, counter[0]), (0xCD9E8D57, counter[2]))]
        high = [product >> 32 & low for product in products]
        counter = [high[1] ^ counter[1] ^ key[0], products[1] & low, high[0] ^ counter[3] ^ key[1], products[0] & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    words = torch.stack(counter, -1)
    bits = words.gather(-1, (kv % 4).expand(words.shape[:-1])[..., None])[..., 0]
    return bits >= min(int(p * 4294967296.0), low)
