"""A torch BlockMask as a mask of the score language: what its lists say of blocks, and its mask_mod within those that are partial."""

from __future__ import annotations

import weakref
from typing import Any, Callable

import torch
import torch.nn.attention.flex_attention as torch_flex
from torch import Tensor

from .. import _core, logging
from ..describe import describe
from ..trace_key import key_of
from .calls import whole_seqlens
from .errors import CallError
from .tracing import TorchTracer

Mask = Callable[..., Any]

_EVERYTHING = 1 << 30  # the block size by which torch says that there is one block, a partial one
_EMPTY, _PARTIAL, _FULL = range(3)
_MAX_CHECKED = 256  # batch rows times heads for which a mask_mod is compared with the lists


def as_mask(block_mask: torch_flex.BlockMask, query: Tensor, seqlen_kv: int) -> Mask | None:
    """A function of (batch, head, q_idx, kv_idx) for query [batch, heads, seqlen_q, head_dim]; None: everything is kept.

    A listed block that is full is kept whole, one that is partial where mask_mod keeps it, the others are skipped. Where mask_mod alone says the
    same, as for nearly all masks that create_block_mask() makes, it is the mask: then kernels know more of it than of a table.
    """
    mask_mod: Any = block_mask.mask_mod
    if mask_mod is getattr(torch_flex, "_sliced_mask_mod_error", ...):
        raise CallError("flex_attention: block_mask: a slice, whose mask_mod torch takes away; expected one with a mask_mod of its own")
    if mask_mod is torch_flex.noop_mask:
        mask_mod = None
    if tuple(block_mask.BLOCK_SIZE) == (_EVERYTHING, _EVERYTHING):
        every: Callable[..., Any] | None = mask_mod
        return every
    batch, heads, seqlen_q = query.shape[:3]
    seqlen_q, seqlen_kv = whole_seqlens(seqlen_q, seqlen_kv)
    _check(block_mask, batch, heads, seqlen_q, seqlen_kv, query.device)
    known = _known.get(block_mask)
    state = _state(block_mask, batch, heads)
    if known is not None and len(known[0]) == len(state) and all(map(_same, known[0], state)):
        return known[1]
    made = _made(block_mask, mask_mod, batch, heads, TorchTracer.like(query.device, query.dtype))
    _known[block_mask] = ([x.clone() if isinstance(x, Tensor) else x for x in state], made)
    return made


def _check(block_mask: torch_flex.BlockMask, batch: int, heads: int, seqlen_q: int, seqlen_kv: int, device: torch.device) -> None:
    if tuple(block_mask.seq_lengths) != (seqlen_q, seqlen_kv):
        raise CallError(
            f"flex_attention: block_mask: made for seqlen_q x seqlen_kv of {block_mask.seq_lengths[0]} x {block_mask.seq_lengths[1]}; expected "
            f"{seqlen_q} x {seqlen_kv}: make a new one, or crop a larger one with block_mask._adjust({seqlen_q}, {seqlen_kv})"
        )
    given = (1,) * (4 - block_mask.kv_indices.dim()) + tuple(block_mask.kv_indices.shape[:-2])
    if given[0] not in (1, batch) or given[1] not in (1, heads):
        raise CallError(f"flex_attention: block_mask: made for batch {given[0]} and {given[1]} heads; expected 1 or {batch}, and 1 or {heads}")
    if block_mask.kv_indices.device != device:
        raise CallError(f"flex_attention: block_mask: on {block_mask.kv_indices.device}; expected {device}, query's device")
    rows = -(-seqlen_q // block_mask.BLOCK_SIZE[0])
    if block_mask.kv_indices.shape[-2] != rows:
        raise CallError(
            f"flex_attention: block_mask: {block_mask.kv_indices.shape[-2]} rows of blocks; expected {rows} for seqlen_q {seqlen_q} in blocks of "
            f"{block_mask.BLOCK_SIZE[0]}"
        )


# BlockMask -> (what it was like, its mask). Until one of its tensors changes.
_known: weakref.WeakKeyDictionary[Any, tuple[list[Any], Mask | None]] = weakref.WeakKeyDictionary()


def _state(block_mask: torch_flex.BlockMask, batch: int, heads: int) -> list[Any]:
    """Lists on CPUs count by their values. Those on devices, where looking would wait for the device, by identity and version: these do not tell of `.data`."""
    lists = (block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    looks = [t if t is None or t.is_cpu else object() if t.is_inference() else (_Is(t), t._version, t.data_ptr()) for t in lists]
    reads = key_of((block_mask.mask_mod,), TorchTracer.tensors)  # None: it is not known when what mask_mod reads changes
    says = object() if reads is None else reads.parts
    return [*looks, _Is(block_mask.mask_mod), says, tuple(block_mask.BLOCK_SIZE), tuple(block_mask.seq_lengths), batch, heads]


class _Is:
    """Equal to the same object."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and self.value is other.value


def _same(a: Any, b: Any) -> bool:
    both = isinstance(a, Tensor) + isinstance(b, Tensor)
    return bool(a == b) if both == 0 else both == 2 and a.dtype == b.dtype and torch.equal(a, b)


def _made(block_mask: torch_flex.BlockMask, mask_mod: Mask | None, batch: int, heads: int, tracer: type[TorchTracer]) -> Mask | None:
    table = _block_classes(block_mask)
    if mask_mod is not None and _says_the_same(mask_mod, table, block_mask, batch, heads, tracer()):
        return mask_mod
    logging.route.debug("flex_attention: the lists of a BlockMask of %s become a table of %s blocks", tuple(block_mask.shape), tuple(table.shape))
    block_q, block_kv = block_mask.BLOCK_SIZE
    by_batch, by_head = table.shape[0] > 1, table.shape[1] > 1

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        block = table[b if by_batch else 0, h if by_head else 0, q_idx // block_q, kv_idx // block_kv]
        if mask_mod is None:
            return block != _EMPTY
        return (block == _FULL) | ((block == _PARTIAL) & mask_mod(b, h, q_idx, kv_idx))

    return listed


def _is_readable(tensor: Tensor) -> bool:
    """Not while a CUDA graph is captured."""
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _block_classes(block_mask: torch_flex.BlockMask) -> Tensor:
    """int8 [batch or 1, heads or 1, rows, columns]: _EMPTY, _PARTIAL or _FULL."""
    columns = -(-block_mask.seq_lengths[1] // block_mask.BLOCK_SIZE[1])

    def listed(which: str, num_blocks: Any, indices: Any) -> Tensor:
        num_blocks, indices = (t.reshape((1,) * (n - t.dim()) + tuple(t.shape)) for t, n in ((num_blocks, 3), (indices, 4)))
        position = torch.arange(indices.shape[-1], device=indices.device)
        # What lies past the number of blocks is undefined: it goes to a column that is cut off. So does a block past the last key.
        column = torch.where(position < num_blocks[..., None], indices, columns).clamp(max=columns).long()
        if column.numel() > 0 and _is_readable(column) and int(column.min()) < 0:
            raise CallError(f"flex_attention: block_mask: {which} lists block {int(column.min())}; expected 0 to {columns - 1}")
        kept = torch.zeros((*column.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
        return kept.scatter_(-1, column, torch.ones_like(column, dtype=torch.bool))[..., :columns]

    classes = listed("kv_indices", block_mask.kv_num_blocks, block_mask.kv_indices).to(torch.int8)
    if block_mask.full_kv_num_blocks is not None:
        full = listed("full_kv_indices", block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        classes = torch.where(full, _FULL, classes).to(torch.int8)
    return classes


def _says_the_same(mask_mod: Mask, table: Tensor, block_mask: torch_flex.BlockMask, batch: int, heads: int, tracer: TorchTracer) -> bool:
    """Whether mask_mod keeps nothing of the blocks that are not listed, and all of those listed as full. Not known of one that reads data."""
    if not _is_readable(table):
        return False
    description = describe(None, mask_mod, tracer=tracer)
    if tracer.saw_values or description.params or description.mask is None:
        return False
    words = repr(description.mask)
    batches = range(batch if "batch" in words or table.shape[0] > 1 else 1)
    all_heads = range(heads if "head" in words or table.shape[1] > 1 else 1)
    if len(batches) * len(all_heads) > _MAX_CHECKED:
        return False
    seqlen_q, seqlen_kv = block_mask.seq_lengths
    table = table.cpu()
    for b in batches:
        for h in all_heads:
            found = _core.tile_classes(description.mask, [], [], seqlen_q, seqlen_kv, *block_mask.BLOCK_SIZE, b, h)
            of_mask_mod = torch.frombuffer(bytearray(found), dtype=torch.int8).reshape(table.shape[2:])
            listed = table[b if table.shape[0] > 1 else 0, h if table.shape[1] > 1 else 0]
            if not bool(((listed == _PARTIAL) | (listed == of_mask_mod)).all()):
                return False
    return True
