"""What the activations of torch.nn.functional mean, and its dropout, which must not drop anything."""

from __future__ import annotations

from typing import Any, Callable

from ... import _core, formulas
from ...framework_calls import Call
from ...meanings import Meaning, elementwise, in_steps, signature_of, unary


def _activation(fn: Callable[[Any], Any]) -> Meaning:
    return elementwise(lambda input, inplace=False: fn(input))


def _gelu(input: Any, approximate: str = "none") -> Any:
    return formulas.gelu(input) if approximate == "none" else formulas.gelu_tanh(input)


def _softplus(input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    return _core.where(input * beta > threshold, input, formulas.softplus(input * beta) / beta)


def _elu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Any:
    return formulas.elu(input, alpha)


def _hardswish(input: Any, inplace: bool = False) -> Any:
    return _core.where(input <= -3.0, input * 0.0, _core.where(input < 3.0, input * (input / 6.0 + 0.5), input))


def _threshold(input: Any, threshold: Any, value: Any, inplace: bool = False) -> Any:
    return _core.where(input <= threshold, value, input)


def _softshrink(input: Any, lambd: Any = 0.5) -> Any:
    return _core.where(input > lambd, input - lambd, _core.where(input < -lambd, input + lambd, input * 0.0))


@signature_of
def _DROPOUT(input: Any, p: float = 0.5, training: Any = None, inplace: bool = False) -> None: ...  # noqa: N802


def _dropout(call: Call) -> Any:
    given, p, training, _ = call.bind(_DROPOUT).values()
    if p != 0.0 and training in (None, True):
        raise call.refuse("draws random numbers, which would be the same for all pairs; expected training=False, or dropout_p of the call")
    return call.symbol(given)


TABLE: dict[str, Meaning] = {
    "relu": _activation(formulas.relu),
    "relu6": _activation(lambda x: formulas.bounded(x, 0.0, 6.0)),
    "silu": _activation(formulas.silu),
    "mish": _activation(formulas.mish),
    "selu": _activation(formulas.selu),
    "hardsigmoid": _activation(formulas.hard_sigmoid),
    "hardswish": elementwise(_hardswish),
    "logsigmoid": unary(formulas.log_sigmoid),
    "log_sigmoid": unary(formulas.log_sigmoid),
    "tanhshrink": in_steps(formulas.tanhshrink),
    "softsign": in_steps(formulas.softsign),
    "elu": elementwise(_elu),
    "celu": elementwise(lambda input, alpha=1.0, inplace=False: formulas.celu(input, alpha)),
    "leaky_relu": elementwise(lambda input, negative_slope=0.01, inplace=False: formulas.leaky_relu(input, negative_slope)),
    "hardtanh": elementwise(lambda input, min_val=-1.0, max_val=1.0, inplace=False: formulas.bounded(input, min_val, max_val)),
    "threshold": elementwise(_threshold),
    "gelu": elementwise(_gelu),
    "hardshrink": elementwise(lambda input, lambd=0.5: _core.where((input <= lambd) & (input >= -lambd), 0.0, input)),
    "softshrink": elementwise(_softshrink),
    "softplus": elementwise(_softplus),
    "prelu": elementwise(lambda input, weight: formulas.leaky_relu(input, weight), 2),
    "dropout": _dropout,
}
