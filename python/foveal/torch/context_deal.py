"""Which tokens of a sequence each rank of a context has: dealt for the masks of a model, by the predicted time of its passes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
import torch.nn.attention.flex_attention as torch_flex
from torch import Tensor

from .. import _core
from ..signatures import Options
from .block_masks import as_mask
from .programs import bound, program_of


@dataclass(frozen=True)
class Dealt:
    seqlen: int
    lengths: list[int]  # of packed sequences; empty for one sequence
    of_ranks: list[Tensor]  # the tokens of each, int64, in the order of its rows
    layout: _core.ContextLayout | None
    deal: str
    head_groups: int
    unit: int


def deal_tokens(seqlen: Any, ranks: int, masks: Any, heads: tuple[int, int, int], deal: str | None, head_groups: int, unit: int) -> Dealt:
    """The arguments are those of context_parallel()."""
    lengths = _lengths(seqlen)
    whole = sum(lengths) if lengths else _integer(seqlen)
    if not 1 <= whole < 2**31:
        raise ValueError(f"context_parallel: seqlen: {seqlen!r}; expected 1 to 2^31 - 1, or a list of the lengths of packed sequences")
    chosen = masks is not None or bool(lengths)  # by predicted times
    deal = ("automatic" if chosen else "zigzag") if deal is None else deal
    if head_groups < (0 if chosen else 1) or (head_groups > 0 and ranks % head_groups != 0):
        raise ValueError(f"context_parallel: head_groups: {head_groups}; expected a number that divides the {ranks} ranks")
    if chosen:
        uses = _uses(["causal()"] if masks is None else masks, whole)
        layout = _layout(uses, heads, whole, lengths, ranks, deal, head_groups, unit)
        of_ranks = [layout.q_tokens(rank) for rank in range(ranks)]
    elif deal in ("zigzag", "contiguous"):
        layout = None
        of_ranks = [_core.context_tokens(whole, ranks, rank, deal, unit, head_groups) for rank in range(ranks)]
    else:
        raise ValueError(f"context_parallel: deal: '{deal}'; expected contiguous or zigzag, or the masks= that others are chosen by")
    if any(len(tokens) == 0 for tokens in of_ranks):
        expected = "a lower unit" if unit > 1 else "more tokens, or fewer ranks"
        raise ValueError(f"context_parallel: seqlen: {seqlen} in units of {unit} leaves a rank of {ranks} without tokens; expected {expected}")
    with torch.inference_mode(False):  # autograd saves them, wherever this is made
        return Dealt(whole, lengths, [torch.tensor(tokens, dtype=torch.int64) for tokens in of_ranks], layout, deal, head_groups, unit)


def _uses(masks: Any, seqlen: int) -> list[Any]:
    """Of each mask an attention, its parameters and their tensors."""
    if isinstance(masks, str) or not isinstance(masks, Sequence) or len(masks) == 0:
        raise ValueError(f"context_parallel: masks: {masks!r}; expected a list of one or more, each as attention() or flex_attention() takes it")
    uses = []
    for mask in masks:
        if isinstance(mask, torch_flex.BlockMask):
            like = torch.empty((*mask.kv_num_blocks.shape[:2], seqlen, 0), device=mask.kv_num_blocks.device)
            mask = as_mask(mask, like, seqlen)
        found, captured = bound(None, mask, Options(), {}, heads_first=False)
        program = program_of(found)
        uses.append((program.attention, program.params, [p.detach().cpu() for p in captured]))
    return uses


def _layout(
    uses: list[Any], heads: tuple[int, int, int], seqlen: int, lengths: list[int], ranks: int, deal: str, head_groups: int, unit: int
) -> _core.ContextLayout:
    if not isinstance(heads, tuple) or len(heads) != 3 or not all([type(count) is int and count > 0 for count in heads]):
        raise ValueError(f"context_parallel: heads: {heads!r}; expected (query heads, kv heads, head dim), each 1 or more")
    heads_q, heads_kv, head_dim = heads
    if head_groups > 0 and heads_kv % head_groups != 0:
        raise ValueError(f"context_parallel: head_groups: {head_groups} with the {heads_kv} kv heads of heads={heads}; expected a divisor of these")
    sizes = [1, heads_q, heads_kv, seqlen, head_dim, head_dim]
    made = _core.context_layout(uses, _core.DType.bf16, sizes, lengths, ranks, deal, head_groups, unit)
    if any([made.q_tokens(rank) != made.kv_tokens(rank) for rank in range(ranks)]):
        raise NotImplementedError(f"context_parallel: head_groups: the layout has {made.head_groups}, with other rows of k and v than of q; expected 1")
    return made


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
