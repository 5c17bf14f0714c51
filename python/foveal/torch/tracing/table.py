"""Which functions of torch a score or mask may call, by name, and what each means for expressions."""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F

from ... import pure_functions
from ...meanings import Meaning
from . import activations, composed, conversions, elementwise, indexing, normalization, products, reductions, searching, shapes

TABLE: dict[str, Meaning] = {
    **elementwise.TABLE,
    **activations.TABLE,
    **reductions.TABLE,
    **products.TABLE,
    **normalization.TABLE,
    **searching.TABLE,
    **indexing.TABLE,
    **conversions.TABLE,
    **shapes.TABLE,
    **composed.TABLE,
}

READS = ("detach", "gather", "take", "take_along_dim", "index_select")  # of a captured tensor some elements, or none yet

# Of shapes and dtypes, not of values.
ASKED: dict[str, Callable[[Any], Any]] = {
    "is_floating_point": lambda x: x.dtype.is_floating_point,
    "is_complex": lambda x: x.dtype.is_complex,
    "is_signed": lambda x: x.dtype.is_signed,
    **dict.fromkeys(("numel", "nelement"), lambda x: math.prod(x.shape)),
    "element_size": lambda x: x.dtype.itemsize,
}

TAKES_ARRAYS = ("getitem", "new_tensor")  # of other frameworks: of places, and of numbers to copy

# Whose result, where it has the same dtype, may be what they were given, or a view of it.
SHARING = frozenset(
    "to type float double half bfloat16 int long short char bool byte type_as cpu cuda item detach pos positive getitem unsqueeze squeeze "
    "reshape view flatten ravel unflatten expand broadcast_to expand_as reshape_as view_as permute transpose t swapaxes swapdims movedim narrow select "
    "unbind split chunk diagonal atleast_1d atleast_2d moveaxis tensor_split unfold real conj resolve_conj resolve_neg".split()
)


def _torch_functions() -> Iterator[Any]:
    """torch's own for the names of the table, and what makes tensors and looks: they depend on their arguments only."""
    for module in (torch, F, torch.linalg, torch.special):
        for name in TABLE:
            if hasattr(module, name):
                yield getattr(module, name)
    for name in "tensor as_tensor arange zeros ones full empty linspace eye tril triu no_grad enable_grad inference_mode finfo iinfo Size".split():
        yield getattr(torch, name)


pure_functions.trust(_torch_functions())
