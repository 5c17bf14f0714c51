"""What torch.isin, bucketize and searchsorted mean: where values lie among others."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any, Callable

import torch

from ... import _core, formulas
from ...captures import Capture
from ...framework_calls import Call
from ...meanings import Meaning, binary, signature_of
from ...symbols import Symbols


@signature_of
def _ISIN(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> None: ...  # noqa: N802


def _isin(call: Call) -> Any:
    elements, among, _, invert = call.bind(_ISIN).values()
    if isinstance(among, (Symbols, Capture, torch.Tensor)):
        among = call.symbol(among)
        among = [call.tracer.symbol([item], (), among._dtype) for item in among._items]
    else:
        among = [among]
    equal = [binary(operator.eq)(replace(call, name="eq", args=(elements, one), kwargs={})) for one in among]
    found = [formulas.any_of(items) for items in zip(*[x._items for x in equal])] or [_core.constant(False)] * math.prod(call.result.shape)
    return call.made([~item for item in found] if invert else found, call.result)


@signature_of
def _BUCKETIZE(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> None: ...  # noqa: N802


@signature_of
def _SEARCHSORTED(  # noqa: N802
    sorted_sequence: Any, input: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> None: ...


def _bucket(call: Call) -> Any:
    """torch.bucketize and searchsorted: how many of the boundaries lie before a value; of NaN all."""
    arguments = call.bind(_BUCKETIZE if call.name == "bucketize" else _SEARCHSORTED)
    x, boundaries = call.symbol(arguments["input"]), call.symbol(arguments["boundaries" if call.name == "bucketize" else "sorted_sequence"])
    if len(boundaries._shape) != 1 or x._dtype != boundaries._dtype or arguments.get("sorter") is not None:
        raise call.refuse(f"boundaries of {boundaries._dtype} and shape {list(boundaries._shape)} for values of {x._dtype}; expected a vector of their dtype, without a sorter")
    right = arguments["right"] or arguments.get("side") == "right"
    before: Callable[[Any, Any], Any] = (lambda bound, item: ~(item < bound)) if right else (lambda bound, item: ~(item <= bound))
    return call.made([formulas.total([_core.constant(0), *[_core.to_integer(before(bound, item)) for bound in boundaries._items]]) for item in x._items], call.result)


TABLE: dict[str, Meaning] = {
    "isin": _isin,
    "bucketize": _bucket,
    "searchsorted": _bucket,
}
