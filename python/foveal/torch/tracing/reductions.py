"""What functions of torch mean that reduce dimensions, or run along one: sums, norms, extremes and their places, softmax."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import Any, Callable, Sequence

import torch

from ... import _core, formulas
from ...captures import Capture
from ...framework_calls import Call
from ...meanings import Meaning, binary, over_dims, reduction, signature_of
from ...symbols import Symbols, groups


@signature_of
def _REDUCTION(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> None: ...  # noqa: N802


def _reduction(fn: Callable[[Sequence[Any]], Any]) -> Meaning:
    return reduction(fn, _REDUCTION, "dim")


def _reduction_in_steps(fn: Callable[..., Any]) -> Meaning:
    return lambda call: _reduction(functools.partial(fn, step=call.step))(call)


@signature_of
def _NORM(input: Any, p: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None, *, ord: Any = None) -> None: ...  # noqa: N802


def _norm(call: Call) -> Any:
    """torch.norm, torch.linalg.vector_norm, and torch.linalg.norm where it is a vector's."""
    arguments = call.bind(_NORM)
    given, dim = arguments["ord"] if arguments["p"] is None else arguments["p"], arguments["dim"]
    one = isinstance(dim, int) or (len(arguments["input"].shape) if dim is None else len(dim)) <= 1
    if call.func is torch.linalg.norm and given is not None and not one:
        raise call.refuse(f"ord={given!r} of a matrix; expected a vector norm: one dim")
    p = {"fro": 2, None: 2}.get(given, given)
    return over_dims(call, lambda items: formulas.norm(items, p, at_zero=True), arguments["input"], dim)


_VARIANCE = [
    signature_of(lambda input, unbiased: None),
    signature_of(lambda input, dim=None, unbiased=True, keepdim=False: None),
    signature_of(lambda input, dim=None, *, correction=1, keepdim=False: None),
]


def _variance(of_variance: Callable[[Any], Any]) -> Meaning:
    """torch.var and std."""

    def meaning(call: Call) -> Any:
        flag = len(call.args) == 2 and isinstance(call.args[1], bool) or "unbiased" in call.kwargs and len(call.args) + len(call.kwargs) == 2
        arguments = call.bind(_VARIANCE[0 if flag else 2 if "correction" in call.kwargs else 1])
        correction = arguments["correction"] if "correction" in arguments else int(arguments["unbiased"])
        correction = 1 if correction is None else correction
        if not arguments["input"].dtype.is_floating_point:
            raise call.refuse(f"of {arguments['input'].dtype}; expected reals, which torch's own function takes alone")
        return over_dims(call, lambda items: of_variance(formulas.variance(items, correction)), arguments["input"], arguments.get("dim"))

    return meaning


@signature_of
def _PLACE(input: Any, dim: Any = None, keepdim: bool = False) -> None: ...  # noqa: N802


def _place_of(is_better: Callable[[Any, Any], Any]) -> Meaning:
    """torch.argmax and argmin."""
    place = reduction(lambda items: formulas.first_extreme(is_better, items)[1], _PLACE, "dim")

    def meaning(call: Call) -> Any:
        if call.symbol(call.bind(_PLACE)["input"])._dtype == torch.bool:
            raise call.refuse("booleans, which torch refuses too; expected integers or reals")
        return place(call)

    return meaning


def _largest_or_smallest(pairwise: Callable[[Any, Any], Any], of_many: Callable[[Sequence[Any]], Any], is_better: Callable[[Any, Any], Any]) -> Meaning:
    """torch.max and min: of one tensor, along one dimension of it with the places, or of two tensors."""
    two, one = binary(pairwise), _reduction(of_many)

    def meaning(call: Call) -> Any:
        second = call.args[1] if len(call.args) > 1 else call.kwargs.get("other")
        if isinstance(second, (torch.Tensor, Symbols, Capture)):
            return two(call)
        if isinstance(call.result, torch.Tensor):
            return one(call)
        arguments = call.bind(_PLACE)
        parts = [
            over_dims(replace(call, result=look), lambda items: formulas.first_extreme(is_better, items)[which], arguments["input"], arguments["dim"])
            for which, look in enumerate(call.result)
        ]
        return type(call.result)(parts)

    return meaning


@signature_of
def _ALONG(input: Any, dim: Any = None, _stacklevel: Any = 3, dtype: Any = None) -> None: ...  # noqa: N802


def _along(fn: Callable[[Sequence[Any]], list[Any]], of_integers: bool = False) -> Meaning:
    """fn(items) gives as many, for the items along one dimension."""

    def meaning(call: Call) -> Any:
        arguments = call.bind(_ALONG)
        if not isinstance(arguments["dim"], int) or not (of_integers or call.result.dtype.is_floating_point):
            raise call.refuse(f"dim={arguments['dim']!r} of {call.result.dtype}; expected one dimension{'' if of_integers else ' of reals'}")
        x = call.symbol(arguments["input"])
        rank = max(len(x._shape), 1)
        if not -rank <= arguments["dim"] < rank:
            raise call.refuse(f"dim={arguments['dim']} of {rank} dimensions")
        x = call.tracer.finished(x._items, x._shape, call.result.dtype)
        found: dict[int, Any] = {}
        for places in groups(range(len(x._items)), x._shape or (1,), [arguments["dim"] % max(len(x._shape), 1)]):
            found.update(zip(places, fn([x._items[place] for place in places])))
        return call.made([found[place] for place in range(len(found))], call.result)

    return meaning


TABLE: dict[str, Meaning] = {
    "sum": _reduction(formulas.total),
    "mean": _reduction(formulas.mean),
    "prod": _reduction_in_steps(formulas.product),
    "argmax": _place_of(operator.gt),
    "argmin": _place_of(operator.lt),
    "amax": _reduction(formulas.largest),
    "amin": _reduction(formulas.smallest),
    "any": _reduction(formulas.any_of),
    "all": _reduction(formulas.all_of),
    "logsumexp": _reduction_in_steps(formulas.logsumexp),
    "count_nonzero": _reduction(lambda items: formulas.total([_core.to_boolean(x) for x in items])),
    "cumsum": _along(formulas.running_totals, of_integers=True),
    "cumprod": lambda call: _along(functools.partial(formulas.running_products, times=call.times), of_integers=True)(call),
    "softmax": _along(formulas.softmax),
    "log_softmax": _along(formulas.log_softmax),
    "var": _variance(lambda x: x),
    "std": _variance(lambda x: _core.where(x == 0.0, 0.0, _core.sqrt(x))),  # whose derivative at 0 is 0
    "norm": _norm,
    "vector_norm": _norm,
    "max": _largest_or_smallest(_core.maximum, formulas.largest, operator.gt),
    "min": _largest_or_smallest(_core.minimum, formulas.smallest, operator.lt),
}
