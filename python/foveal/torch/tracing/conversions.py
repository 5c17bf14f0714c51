"""What conversions of torch mean, copies, and constants with the shape of another tensor."""

from __future__ import annotations

from typing import Any

import torch

from ... import _core
from ...framework_calls import Call
from ...meanings import Meaning, cast, filled, same, stopped


def _new_tensor(call: Call) -> Any:
    data = torch.as_tensor(call.args[1])
    return call.converted([_core.constant(x) for x in data.reshape(-1).tolist()], call.result)


TABLE: dict[str, Meaning] = {
    **dict.fromkeys("to type float double half bfloat16 int long short char bool byte type_as".split(), cast),
    **dict.fromkeys("contiguous cpu cuda item".split(), same),
    "clone": cast,
    "detach": stopped,
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "new_zeros": filled(0),
    "new_ones": filled(1),
    "full_like": filled(None),
    "new_full": filled(None, place=2),
    "new_tensor": _new_tensor,
}
