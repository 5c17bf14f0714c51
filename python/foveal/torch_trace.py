"""Tracing of functions written with torch: FlexAttention's score_mod and mask_mod run unchanged on symbols.

A symbol is a tensor of expressions with torch's shape and dtype. Every call of torch on one is first made on meta tensors: torch itself checks
the arguments and says the shape and dtype of the result. What the call means for expressions stands in the table below; a function or an
argument that is not there is refused. A symbol in a torch call is noticed through __torch_function__; a captured tensor indexed with a symbol
through a TorchFunctionMode, and so are elements of tensors that become Python numbers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
from dataclasses import dataclass, field, replace
from typing import Any, Callable, ClassVar, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from . import _core, arrays, formulas, guards, questions, special, torch_norms, torch_views
from ._core import Expr, Type
from .calls import (
    Call, CallTracer, Meaning, binary, cast, elementwise, filled, flat, in_steps, layout, matmul, over_dims, reduction, rounding, same, shift, signature_of, stopped,
    symbolic, unary,
)  # fmt: skip
from .numbers import Number
from .trace import IN_PLACE, MAX_UNROLL, Capture, Symbols, broadcast, groups

_NARROW = {torch.uint8: (0, 256), torch.uint16: (0, 65536), torch.uint32: (0, 2**32), torch.int8: (128, 256), torch.int16: (32768, 65536)}
_SIXTEEN = (torch.bfloat16, torch.float16)
_OF_NUMBERS = frozenset("mul multiply div divide true_divide truediv floor_divide floordiv lerp".split())
_META = torch.device("meta")
_DTYPES = {Type.boolean: torch.bool, Type.integer: torch.int64, Type.real: torch.float32}


def _without_gradient(x: "Symbol", name: str) -> bool:
    """True, or refused: whether a real has one is not known to tracing."""
    if x._dtype.is_floating_point and torch.is_grad_enabled():
        raise questions.refused_here(
            NotImplementedError(f"torch.Tensor.{name} in a score or mask: not known of a symbol where gradients are recorded; expected shape, dtype and device")
        )
    return True


class Symbol(Symbols):
    """A tensor of expressions."""

    array_type = torch.Tensor
    __array_priority__ = torch.Tensor.__array_priority__
    _shares = False  # its elements with another symbol

    def __stands_for__(self) -> type:
        return torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._shape)

    @property
    def dtype(self) -> torch.dtype:
        result: torch.dtype = self._dtype
        return result

    @property
    def device(self) -> torch.device:
        result: torch.device = self._tracer.device
        return result

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def data(self) -> "Symbol":
        result: "Symbol" = _call(self._tracer, torch.Tensor.detach, (self,), {})
        return result

    @property
    def T(self) -> "Symbol":  # noqa: N802 - torch's name
        result: "Symbol" = torch_views.PROPERTIES["T"](self)
        return result

    @property
    def mT(self) -> "Symbol":  # noqa: N802 - torch's name
        result: "Symbol" = torch_views.PROPERTIES["mT"](self)
        return result

    requires_grad = property(lambda self: not _without_gradient(self, "requires_grad"))
    is_leaf = property(lambda self: _without_gradient(self, "is_leaf"))
    is_cuda = property(lambda self: self.device.type == "cuda")

    def __score__(self) -> Expr:
        expr = super().__score__()
        return _core.stop_gradient(expr) if self._tracer.gradient_stopped() else expr

    def __getitem__(self, index: Any) -> Any:
        return _call(self._tracer, torch.Tensor.__getitem__, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise questions.refused(NotImplementedError("a score or mask writes into a tensor; expected torch.where(condition, a, b)"))

    def _operate(self, fn: Callable[..., Any], *operands: Any) -> Any:
        return _call(self._tracer, fn, operands, {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _call(None, func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        method = getattr(torch.Tensor, name, None)
        if name in _LOOKS_OF_PLAIN:
            return _LOOKS_OF_PLAIN[name](self)
        if method is None or (name.startswith("_") and questions.asked_by_a_library()):
            raise AttributeError(f"{name}: no attribute of a tensor")
        if name.startswith("_") or not callable(method):  # no AttributeError, for which hasattr() and getattr() would have another answer than for a tensor
            raise questions.refused_here(
                NotImplementedError(f"torch.Tensor.{name} in a score or mask: a symbol has none; expected shape, dtype, device and functions of torch")
            )
        return lambda *args, **kwargs: _call(self._tracer, method, (self, *args), kwargs)

    def _written(self, func: Callable[..., Any], other: Any) -> "Symbol":
        """x += y: whatever else is called by x has changed, too."""
        name = func.__name__
        if self._shares:
            raise questions.refused(
                NotImplementedError(f"{name} in a score or mask writes into a tensor that shares its elements with a view or a copy of it; expected x = x + y and the like")
            )
        with torch._C.DisableTorchFunction():
            _look_of_result(name, func, (self, other), {})  # whether torch can
        result = _call(self._tracer, getattr(operator, {"iand": "and_", "ior": "or_"}.get(name, name[1:])), (self, other), {})
        if not torch.can_cast(result.dtype, self._dtype):  # not every torch says so of meta tensors
            raise RuntimeError(f"{name} in a score or mask: result type {result.dtype} can't be cast to the desired output type {self._dtype}")
        self._items = _call(self._tracer, torch.Tensor.to, (result, self._dtype), {})._items
        return self

    def item(self) -> "Symbol":
        result: "Symbol" = _call(self._tracer, torch.Tensor.item, (self,), {})
        return result

    def dim(self) -> int:
        return len(self._shape)

    def numel(self) -> int:
        return len(self._items)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def is_floating_point(self) -> bool:
        result: bool = self._dtype.is_floating_point
        return result


_LOOKS_OF_PLAIN: dict[str, Callable[[Symbol], Any]] = {
    **dict.fromkeys("is_sparse is_sparse_csr is_nested is_quantized is_mkldnn is_meta".split(), lambda x: False),
    "is_cpu": lambda x: x.device.type == "cpu",
    "layout": lambda x: torch.strided,
    "itemsize": lambda x: x.dtype.itemsize,
}

for _name in IN_PLACE:
    setattr(Symbol, _name, lambda self, other, func=getattr(operator, _name): self._written(func, other))


# ---- what calls mean for expressions ----


@signature_of
def _REDUCTION(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> None: ...  # noqa: N802


@signature_of
def _NORM(input: Any, p: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None, *, ord: Any = None) -> None: ...  # noqa: N802


def _reduction(fn: Callable[[Sequence[Any]], Any]) -> Meaning:
    return reduction(fn, _REDUCTION, "dim")


def _reduction_in_steps(fn: Callable[..., Any]) -> Meaning:
    return lambda call: _reduction(functools.partial(fn, step=call.step))(call)


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
def _ISIN(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> None: ...  # noqa: N802


def _isin(call: Call) -> Any:
    elements, among, _, invert = call.bind(_ISIN).values()
    if isinstance(among, (Symbol, Capture, torch.Tensor)):
        among = call.symbol(among)
        among = [Symbol(call.tracer, [item], (), among._dtype) for item in among._items]
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


_on_cpu = layout(lambda first, last, shape: torch.arange(first, last).reshape(shape), lambda found: found.reshape(-1).tolist())


def _layout(call: Call) -> Any:
    """The numbers of elements lie on the CPU; a tensor that is an index may lie elsewhere."""
    return _on_cpu(replace(call, args=(call.args[0], *_cpu(call.args[1:])), kwargs={name: _cpu(value) for name, value in call.kwargs.items()}))


def _cpu(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_cpu(item) for item in value])
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _layout_as(call: Call) -> Any:
    """The other tensor gives its shape."""
    given = [*call.args, *call.kwargs.values()]
    return _layout(replace(call, args=(given[0], torch.empty(tuple(given[1].shape))), kwargs={}))


def _new_tensor(call: Call) -> Any:
    data = torch.as_tensor(call.args[1])
    return call.converted([_core.constant(x) for x in data.reshape(-1).tolist()], call.result)


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


@signature_of
def _LINEAR(input: Any, weight: Any, bias: Any = None) -> None: ...  # noqa: N802


def _linear(call: Call) -> Any:
    arguments = call.bind(_LINEAR)
    x, weight = call.symbol(arguments["input"]), call.symbol(arguments["weight"])
    bias = None if arguments["bias"] is None else call.symbol(arguments["bias"])
    inner = weight._shape[-1]
    columns = [weight._items[at : at + inner] for at in range(0, len(weight._items), inner)]
    added = [0.0] * len(columns) if bias is None else bias._items * (len(columns) // len(bias._items))
    rows = [x._items[at : at + inner] for at in range(0, len(x._items), inner)]
    return call.made([formulas.dot(row, column) + more for row in rows for column, more in zip(columns, added)], call.result)


def _einsum(call: Call) -> Any:
    """torch.einsum of names of dimensions that are letters, each once in an operand."""
    equation, *given = flat(call.args)
    if not isinstance(equation, str) or "." in equation or call.kwargs:
        raise call.refuse(f"found {equation!r}; expected names of dimensions as in 'd,d->', without ...")
    names, _, kept = equation.replace(" ", "").partition("->")
    operands, labels = [call.symbol(x) for x in given], names.split(",")
    if any([len(set(own)) != len(own) for own in labels]):
        raise call.refuse(f"{equation!r} names a dimension twice in one operand; expected diagonal()")
    if "->" not in equation:  # in order, those that are named once
        kept = "".join(sorted([name for name in set(names) - {","} if names.count(name) == 1]))
    sizes: dict[str, int] = {}
    for own, x in zip(labels, operands):
        sizes.update({name: max(size, sizes.get(name, 1)) for name, size in zip(own, x._shape)})
    summed = [name for name in sizes if name not in kept]
    if math.prod(sizes.values()) > MAX_UNROLL:
        raise call.refuse(f"{math.prod(sizes.values())} products at every pair; at most {MAX_UNROLL} are unrolled")
    items = []
    for place in itertools.product(*[range(sizes[name]) for name in kept]):
        terms = []
        for over in itertools.product(*[range(sizes[name]) for name in summed]):
            at = dict(zip((*kept, *summed), (*place, *over)))
            factors = [
                x._items[sum([(at[name] if size != 1 else 0) * step for name, size, step in zip(own, x._shape, arrays.row_major(x._shape))])]
                for own, x in zip(labels, operands)
            ]
            terms.append(functools.reduce(operator.mul, factors))
        items.append(formulas.total(terms))
    return call.made(items, call.result)


@signature_of
def _NORMALIZE(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> None: ...  # noqa: N802


def _normalize(call: Call) -> Any:
    """torch.nn.functional.normalize."""
    given, p, dim, eps = call.bind(_NORMALIZE).values()
    x = call.symbol(given)
    return x / x.norm(p, dim, keepdim=True).clamp_min(eps)


@signature_of
def _SIMILARITY(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> None: ...  # noqa: N802


def _cosine_similarity(call: Call) -> Any:
    a, b, dim, eps = call.bind(_SIMILARITY).values()
    a, b = call.symbol(a), call.symbol(b)
    return ((a / a.norm(2, dim, keepdim=True).clamp_min(eps)) * (b / b.norm(2, dim, keepdim=True).clamp_min(eps))).sum(dim)


@signature_of
def _DROPOUT(input: Any, p: float = 0.5, training: Any = None, inplace: bool = False) -> None: ...  # noqa: N802


def _dropout(call: Call) -> Any:
    given, p, training, _ = call.bind(_DROPOUT).values()
    if p != 0.0 and training in (None, True):
        raise call.refuse("draws random numbers, which would be the same for all pairs; expected training=False, or dropout_p of the call")
    return call.symbol(given)


@signature_of
def _EMBEDDING(  # noqa: N802
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False
) -> None: ...


def _embedding(call: Call) -> Any:
    """torch.nn.functional.embedding; torch.embedding has other arguments."""
    if call.func is not F.embedding:
        raise call.refuse("torch.embedding; expected torch.nn.functional.embedding")
    index, weight, *rest, _ = call.bind(_EMBEDDING).values()
    if rest != [None, None, 2.0, False]:
        raise call.refuse(f"padding_idx, max_norm, norm_type, scale_grad_by_freq: {', '.join(map(repr, rest))}; expected their defaults")
    with call.tracer.counting_from_zero():
        return _captured(call, weight)[index]


@signature_of
def _INDEX_SELECT(input: Any, dim: Any, index: Any) -> None: ...  # noqa: N802


def _index_select(call: Call) -> Any:
    array, dim, index = call.bind(_INDEX_SELECT).values()
    if isinstance(array, Symbol):  # elements that are expressions already: the places are constants
        return _layout(call)
    array, index = _captured(call, array), call.symbol(index)
    places = Symbol(call.tracer, index._items, (len(index._items),), index._dtype)
    with call.tracer.counting_from_zero():
        return array[(*[slice(None)] * (dim % array.ndim), places)]


@signature_of
def _GATHER(input: Any, dim: Any, index: Any, *, sparse_grad: bool = False) -> None: ...  # noqa: N802


@signature_of
def _TAKE(input: Any, index: Any) -> None: ...  # noqa: N802


@signature_of
def _TAKE_ALONG(input: Any, indices: Any, dim: Any = None) -> None: ...  # noqa: N802


def _at(array: Any, place: Sequence[Any]) -> Expr:
    """An element of a captured tensor, or of one of expressions."""
    of = array._tracer
    found = array[tuple([Symbol(of, [at], (), torch.int64) if isinstance(at, Expr) else at for at in place])] if place else array
    item: Expr = (found._read() if isinstance(found, Capture) else found)._items[0]
    return item


def _gather(call: Call) -> Any:
    """torch.gather, and take_along_dim, which broadcasts its operands."""
    given = call.bind(_GATHER if call.name == "gather" else _TAKE_ALONG)
    array, index = given["input"], call.symbol(given["index" if call.name == "gather" else "indices"])
    if given["dim"] is None:
        return _take(replace(call, name="take", args=(array, index), kwargs={}))
    array = array if isinstance(array, Symbol) else _captured(call, array)
    rank = len(array.shape)
    dim = given["dim"] % max(rank, 1)
    shape = tuple(call.result.shape)
    items = []
    with call.tracer.counting_from_zero() if call.name == "gather" else contextlib.nullcontext():
        for place, (item,) in zip(itertools.product(*map(range, shape)), broadcast([(index._items, index._shape)], shape)):
            items.append(_at(array, [item if d == dim else 0 if call.name != "gather" and array.shape[d] == 1 else place[d] for d in range(rank)]))
    return call.moved(items, call.result)


def _take(call: Call) -> Any:
    """Elements of a tensor by their numbers in it."""
    array, index = call.bind(_TAKE).values()
    array, index = array if isinstance(array, Symbol) else _captured(call, array), call.symbol(index)
    shape = tuple(array.shape)
    steps = arrays.row_major(shape)
    items = []
    for item in index._items:
        number = _core.wrapped_index(item, math.prod(shape))
        items.append(_at(array, [number // step % extent if d else number // step for d, (step, extent) in enumerate(zip(steps, shape))]))
    return call.moved(items, call.result)


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


def _chosen(x: Symbol, index: Any) -> Symbol:
    """Elements that are expressions, at a place that symbols choose: each of them where it is the one. Outside, the nearest."""
    given = list(index) if isinstance(index, tuple) else [index]
    at = next(place for place, i in enumerate(given) if symbolic(i))
    which = given[at]._read() if isinstance(given[at], Capture) else given[at]
    if not isinstance(which, Symbol) or which._shape or which._dtype not in _INDEX or any([i is None or i is Ellipsis for i in given[:at]]):
        raise NotImplementedError("torch.getitem in a score or mask: expressions indexed by more than integer symbols; expected an integer for each dimension, symbols or constants")
    dim = at  # what stands before is one dimension each
    if not 0 < x._shape[dim] <= MAX_UNROLL:
        raise NotImplementedError(f"torch.getitem in a score or mask: a symbol chooses one of {x._shape[dim]} expressions; expected 1 to {MAX_UNROLL}")
    place = x._tracer.resolved(which._items[0], x._shape[dim])
    if x._tracer.checked:  # by a read of a tensor that holds its own places
        place = x._tracer.element(torch.arange(x._shape[dim], device=x._tracer.device), [place])
    parts = [x[(*given[:at], n, *given[at + 1 :])] for n in range(x._shape[dim])]
    items = parts[-1]._items
    for n in reversed(range(len(parts) - 1)):
        items = [_core.where(place <= n, mine, other) for mine, other in zip(parts[n]._items, items)]
    return Symbol(x._tracer, items, parts[0]._shape, x._dtype)


def _captured(call: Call, array: Any) -> Capture:
    if not isinstance(array, (Capture, torch.Tensor)):
        raise call.refuse(f"found {type(array).__name__}; expected a captured tensor")
    return array if isinstance(array, Capture) else call.tracer.capture(array)


def _gelu(input: Any, approximate: str = "none") -> Any:
    return formulas.gelu(input) if approximate == "none" else formulas.gelu_tanh(input)


def _softplus(input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    return _core.where(input * beta > threshold, input, formulas.softplus(input * beta) / beta)


def _true_div(input: Any, other: Any) -> Any:
    return _core.to_real(_core.constant(input)) / other


@signature_of
def _DIV(input: Any, other: Any, *, rounding_mode: Any = None) -> None: ...  # noqa: N802


def _div(call: Call) -> Any:
    input, other, mode = call.bind(_DIV).values()
    of_two = replace(call, args=(input, other), kwargs={})
    if mode is None:
        return _divided(_true_div)(of_two)
    if mode == "floor":
        return _floor_divide(of_two)
    if not call.result.dtype.is_floating_point:
        return _divided(formulas.trunc_divide)(of_two)
    step = call.step if isinstance(other, Symbol) else call.single  # 16 bits by a number are divided in float32
    return _divided(lambda input, other: formulas.trunc(step(_true_div(input, other))))(of_two)


def _logit(input: Any, eps: float | None = None, step: formulas.Step = lambda x: x) -> Any:
    return formulas.logit(input if eps is None else formulas.clamped(_core.to_real(input), eps, 1.0 - eps), step)


def _sign(input: Any) -> Any:
    """0 of NaN, too."""
    return _core.where(input > 0, 1, _core.where(input < 0, -1, 0))


def _but_nan(chosen: Callable[[Any, Any], Any], input: Any, other: Any) -> Any:
    """fmax, fmin: of a NaN and a number the number. The first of two that are equal has the derivative."""
    return _core.where(chosen(input, other) | formulas.is_nan(_core.constant(other)), input, other)


@signature_of
def _ROUND(input: Any, *, decimals: int = 0) -> None: ...  # noqa: N802


def _where_of(call: Call) -> Any:
    """torch.where(condition, input, other), input.where(condition, other)."""
    return (_METHOD_WHERE if call.func is torch.Tensor.where else _FUNCTION_WHERE)(call)


_FUNCTION_WHERE = elementwise(lambda condition, input, other: _core.where(condition, input, other), 3)
_METHOD_WHERE = elementwise(lambda input, condition, other: _core.where(condition, input, other), 3)


def _elu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Any:
    return formulas.elu(input, alpha)


def _hardswish(input: Any, inplace: bool = False) -> Any:
    return _core.where(input <= -3.0, input * 0.0, _core.where(input < 3.0, input * (input / 6.0 + 0.5), input))


def _threshold(input: Any, threshold: Any, value: Any, inplace: bool = False) -> Any:
    return _core.where(input <= threshold, value, input)


def _nan_to_num(input: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if posinf is None or neginf is None:
        raise NotImplementedError("nan_to_num in a score or mask: posinf and neginf are left out; expected all of nan, posinf, neginf")
    found = _core.where(formulas.is_nan(input), 0.0 if nan is None else nan, input)
    return _core.where(found == math.inf, posinf, _core.where(found == -math.inf, neginf, found))


def _divided(fn: Callable[[Any, Any], Any]) -> Meaning:
    """An integer by 0 is an error in torch, which meta tensors do not show. A constant of -0.0 is one of 0.0 in the score language."""
    by = binary(fn)

    def meaning(call: Call) -> Any:
        divisor = [*call.args, *call.kwargs.values()][1]
        number = divisor.value if isinstance(divisor, Number) else divisor
        if type(number) is int and number == 0 and not call.result.dtype.is_floating_point:
            raise call.refuse("an integer divided by 0")
        if type(number) is float and number == 0.0 and math.copysign(1.0, number) < 0.0:
            raise call.refuse("-0.0 as a divisor; expected another number, or a captured tensor of -0.0")
        return by(call)

    return meaning


def _quotient(call: Call) -> Any:
    """The operator: of a number and a tensor torch makes the reciprocal times the number."""
    number, x = call.args
    if not isinstance(number, (int, float, Number)):
        return _divided(_true_div)(call)
    reciprocal = call.made([1.0 / _core.to_real(item) for item in call.symbol(x)._items], call.result)
    return binary(operator.mul)(replace(call, args=(reciprocal, number)))


def _floor_divide(call: Call) -> Any:
    """torch computes it of 16 bits in steps, unless the divisor is a number."""
    divisor = [*call.args, *call.kwargs.values()][1]
    in_16_bits = call.result.dtype in _SIXTEEN and isinstance(divisor, Symbol)
    return _divided(functools.partial(formulas.floor_divide_in_steps, step=call.step) if in_16_bits else formulas.floor_divide)(call)


def _power(call: Call) -> Any:
    """The exponent stays a Python number where it is one: integers have no other powers."""

    given = [*call.args, *call.kwargs.values()]
    if isinstance(given[1], int) and not call.result.dtype.is_floating_point:
        x = call.symbol(given[0])
        return call.made([formulas.power(item, given[1]) for item in x._items], call.result)
    if call.result.dtype == torch.bfloat16 and type(given[1]) in (int, float) and given[1] in (3, -2):  # of which torch makes products
        x = call.symbol(given[0])
        squares = [call.step(item * item) for item in x._items]
        return call.made([square * item if given[1] == 3 else 1.0 / square for square, item in zip(squares, x._items)], call.result)
    return elementwise(lambda input, exponent: formulas.power(input, exponent), 2)(call)


def _activation(fn: Callable[[Any], Any]) -> Meaning:
    return elementwise(lambda input, inplace=False: fn(input))


_TABLE: dict[str, Meaning] = {
    # functions of one
    **{name: unary(getattr(_core, name)) for name in "abs exp exp2 log log2 sqrt rsqrt tanh sigmoid sin cos tan erf".split()},
    "absolute": unary(_core.abs),
    "expit": unary(_core.sigmoid),
    "log10": unary(lambda x: _core.log(x) * (1.0 / math.log(10.0))),
    "log1p": unary(formulas.log1p),
    "expm1": unary(formulas.expm1),
    "sinh": unary(formulas.sinh),
    "cosh": unary(formulas.cosh),
    **{name: unary(getattr(special, name.replace("arc", "a"))) for name in "atan arctan asin arcsin acos arccos asinh arcsinh acosh arccosh atanh arctanh".split()},
    "erfc": unary(special.erfc),
    "square": unary(formulas.square),
    "reciprocal": unary(lambda x: 1.0 / x),
    "neg": unary(operator.neg),
    "negative": unary(operator.neg),
    "pos": unary(lambda x: x),
    "positive": unary(lambda x: x),
    "sign": unary(_sign),
    "sgn": unary(_sign),
    "floor": unary(formulas.floor),
    "ceil": unary(formulas.ceil),
    "trunc": unary(formulas.trunc),
    "fix": unary(formulas.trunc),
    "frac": unary(formulas.frac),
    "round": rounding(_ROUND),
    "deg2rad": unary(lambda x: x * (math.pi / 180.0)),
    "rad2deg": unary(lambda x: x * (180.0 / math.pi)),
    "isnan": unary(formulas.is_nan),
    "isinf": unary(formulas.is_infinite),
    "isfinite": unary(formulas.is_finite),
    "nan_to_num": elementwise(_nan_to_num),
    "logit": in_steps(_logit),
    "logical_not": unary(formulas.logical_not),
    "bitwise_not": unary(operator.invert),
    "invert": unary(operator.invert),
    # activations
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
    "softplus": elementwise(_softplus),
    "prelu": elementwise(lambda input, weight: formulas.leaky_relu(input, weight), 2),
    # functions of several
    "add": in_steps(lambda input, other, *, alpha=1, step: input + (other if alpha == 1 else step(other * step(_core.constant(alpha)))), 2),
    "sub": in_steps(lambda input, other, *, alpha=1, step: input - (other if alpha == 1 else step(other * step(_core.constant(alpha)))), 2),
    "subtract": in_steps(lambda input, other, *, alpha=1, step: input - (other if alpha == 1 else step(other * step(_core.constant(alpha)))), 2),
    "rsub": in_steps(lambda input, other, *, alpha=1, step: other - (input if alpha == 1 else step(input * step(_core.constant(alpha)))), 2),
    "mul": binary(operator.mul),
    "multiply": binary(operator.mul),
    "div": _div,
    "divide": _div,
    "true_divide": _divided(_true_div),
    "truediv": _quotient,
    "floor_divide": _floor_divide,
    "floordiv": _floor_divide,
    "remainder": _divided(formulas.remainder),
    "mod": _divided(formulas.remainder),
    "fmod": _divided(formulas.fmod),
    "pow": _power,
    "float_power": binary(_core.pow),
    "maximum": binary(_core.maximum),
    "minimum": binary(_core.minimum),
    "fmax": binary(functools.partial(_but_nan, operator.ge)),
    "fmin": binary(functools.partial(_but_nan, operator.le)),
    "max": _largest_or_smallest(_core.maximum, formulas.largest, operator.gt),
    "min": _largest_or_smallest(_core.minimum, formulas.smallest, operator.lt),
    "clamp": elementwise(lambda input, min=None, max=None: formulas.clamped(input, min, max), 3),
    "clip": elementwise(lambda input, min=None, max=None: formulas.clamped(input, min, max), 3),
    "clamp_min": elementwise(lambda input, min: formulas.clamped(input, min, None), 2),
    "clamp_max": elementwise(lambda input, max: formulas.clamped(input, None, max), 2),
    "where": _where_of,
    "masked_fill": elementwise(lambda input, mask, value: _core.where(mask, value, input), 3),
    "logaddexp": binary(formulas.logaddexp),
    "logaddexp2": binary(formulas.logaddexp2),
    "hypot": binary(formulas.hypot),
    **dict.fromkeys(("atan2", "arctan2"), binary(special.atan2)),
    "xlogy": in_steps(formulas.xlogy, 2),
    "lerp": elementwise(lambda input, end, weight: formulas.lerp(input, end, weight), 3),
    "addcmul": elementwise(lambda input, tensor1, tensor2, *, value=1: input + value * tensor1 * tensor2, 3),
    "addcdiv": elementwise(lambda input, tensor1, tensor2, *, value=1: input + value * (tensor1 / tensor2), 3),
    "isclose": elementwise(lambda input, other, rtol=1e-5, atol=1e-8, equal_nan=False: formulas.is_close(input, other, rtol, atol, equal_nan), 2),
    "eq": binary(operator.eq),
    "ne": binary(operator.ne),
    "not_equal": binary(operator.ne),
    "lt": binary(operator.lt),
    "less": binary(operator.lt),
    "le": binary(operator.le),
    "less_equal": binary(operator.le),
    "gt": binary(operator.gt),
    "greater": binary(operator.gt),
    "ge": binary(operator.ge),
    "greater_equal": binary(operator.ge),
    "logical_and": binary(formulas.logical_and),
    "logical_or": binary(formulas.logical_or),
    "logical_xor": binary(formulas.logical_xor),
    "bitwise_and": binary(operator.and_),
    "bitwise_or": binary(operator.or_),
    "bitwise_xor": binary(operator.xor),
    "and": binary(operator.and_),
    "or": binary(operator.or_),
    "xor": binary(operator.xor),
    "bitwise_left_shift": shift(formulas.shift_left),
    "bitwise_right_shift": shift(formulas.shift_right),
    "lshift": shift(formulas.shift_left),
    "rshift": shift(formulas.shift_right),
    # reductions
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
    "cumprod": _along(formulas.running_products, of_integers=True),
    "softmax": _along(formulas.softmax),
    "log_softmax": _along(formulas.log_softmax),
    "var": _variance(lambda x: x),
    "std": _variance(lambda x: _core.where(x == 0.0, 0.0, _core.sqrt(x))),  # whose derivative at 0 is 0
    "norm": _norm,
    "vector_norm": _norm,
    "dot": matmul,
    "inner": matmul,
    "matmul": matmul,
    "mv": matmul,
    "mm": matmul,
    "linear": _linear,
    "einsum": _einsum,
    "normalize": _normalize,
    "layer_norm": torch_norms.layer_norm,
    "rms_norm": torch_norms.rms_norm,
    "group_norm": torch_norms.group_norm,
    "cosine_similarity": _cosine_similarity,
    "dropout": _dropout,
    # places in vectors
    "isin": _isin,
    "bucketize": _bucket,
    "searchsorted": _bucket,
    # reads
    "embedding": _embedding,
    "index_select": _index_select,
    "gather": _gather,
    "take_along_dim": _gather,
    "take": _take,
    # conversions and constants
    **dict.fromkeys("to type float double half bfloat16 int long short char bool byte type_as".split(), cast),
    **dict.fromkeys("contiguous cpu cuda item".split(), same),
    "clone": cast,
    "detach": stopped,
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "new_zeros": filled(0),
    "new_ones": filled(1),
    "full_like": filled(None),
    "new_full": filled(None),
    "new_tensor": _new_tensor,
    # moving elements
    **dict.fromkeys(
        "getitem unsqueeze squeeze reshape view flatten ravel unflatten expand broadcast_to permute transpose t "
        "swapaxes swapdims movedim narrow select unbind split chunk stack cat concat hstack vstack flip roll repeat tile diagonal "
        "atleast_1d atleast_2d".split(),
        _layout,
    ),
    **dict.fromkeys("expand_as reshape_as view_as".split(), _layout_as),
}


_READS = ("detach", "gather", "take", "take_along_dim", "index_select")  # of a captured tensor some elements, or none yet

# Of shapes and dtypes, not of values.
_ASKED: dict[str, Callable[[Any], Any]] = {
    "is_floating_point": lambda x: x.dtype.is_floating_point,
    "is_complex": lambda x: x.dtype.is_complex,
    "is_signed": lambda x: x.dtype.is_signed,
    "numel": lambda x: math.prod(x.shape),
}

_TAKES_ARRAYS = ("getitem", "new_tensor")  # of other frameworks: of places, and of numbers to copy

# Whose result, where it has the same dtype, may be what they were given, or a view of it.
_SHARING = frozenset(
    "to type float double half bfloat16 int long short char bool byte type_as cpu cuda item detach pos positive getitem unsqueeze squeeze "
    "reshape view flatten ravel unflatten expand broadcast_to expand_as reshape_as view_as permute transpose t swapaxes swapdims movedim narrow select "
    "unbind split chunk diagonal atleast_1d atleast_2d".split()
)


# ---- the call on meta tensors ----

_looks: dict[Any, Any] = {}  # of results, by function and the looks of its arguments
_DEVICE_FREE = ("cpu", "cuda", "item")


def _meta_of(value: Any) -> Any:
    if isinstance(value, Symbol):
        return torch.empty(value._shape, dtype=value._dtype, device=_META)
    if isinstance(value, Expr):
        return torch.empty((), dtype=_DTYPES[value.type], device=_META)
    if isinstance(value, (Capture, torch.Tensor)):
        return torch.empty(tuple(value.shape), dtype=value.dtype, device=_META)
    if isinstance(value, Number):
        return value.stand_in
    if isinstance(value, torch.device):
        return _META
    if isinstance(value, (list, tuple)):
        return type(value)(_meta_of(item) for item in value)
    return value


def _look_of(value: Any) -> Any:
    if isinstance(value, Symbol):
        return (value._shape, value._dtype)
    if isinstance(value, Expr):
        return value.type
    if isinstance(value, Number):
        return ("number", type(value.stand_in))
    if isinstance(value, (Capture, torch.Tensor)):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, (list, tuple)):
        return (type(value), *(_look_of(item) for item in value))
    return (type(value), value)


def _look_of_result(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        key: Any = (func, _look_of(args), tuple((name, _look_of(value)) for name, value in kwargs.items()), torch.get_default_dtype())
        found = _looks.get(key)
    except TypeError:  # slices and the like
        key = found = None
    if found is None:
        if name in _DEVICE_FREE:
            if name == "item" and math.prod(args[0].shape) != 1:
                raise _of_torch(name, RuntimeError(f"a tensor with {math.prod(args[0].shape)} elements cannot be converted to a number"))
            return _meta_of(args[0])
        metas = {name: _META if name == "device" else _meta_of(value) for name, value in kwargs.items()}
        places = [_META if name == "to" and isinstance(value, str) else value for value in _meta_of(args)]
        try:
            with torch.enable_grad():
                found = func(*places, **metas)
        except (TypeError, RuntimeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            raise _of_torch(name, error) from None
        if key is not None:
            if len(_looks) > 4096:
                _looks.clear()
            _looks[key] = found
    return found


_INDEX = (torch.int64, torch.int32)  # torch takes uint8 for a mask, and other integers not at all


def _is_integral(dtype: torch.dtype) -> bool:
    return dtype != torch.bool and not dtype.is_floating_point and not dtype.is_complex


def _check_numbers(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    """Of numbers that integers of the result's dtype do not hold, torch wraps some and refuses others, which shows on tensors with elements."""
    if not _is_integral(dtype):
        return
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if all([low <= value <= high for value in flat((*args, *kwargs.values())) if type(value) in (int, float)]):
        return

    def with_elements(value: Any) -> Any:
        meta = _meta_of(value)
        return torch.ones(meta.shape, dtype=meta.dtype) if isinstance(meta, torch.Tensor) else meta

    try:
        func(*map(with_elements, args), **{key: with_elements(value) for key, value in kwargs.items()})
    except (TypeError, RuntimeError, ValueError, ArithmeticError) as error:
        raise _of_torch(name, error) from None


def _of_torch(name: str, error: Exception) -> Exception:
    """What torch says of tensors, too."""
    if isinstance(error, NotImplementedError) and "register_meta" in str(error):  # nonzero() and what it is part of
        return NotImplementedError(f"torch.{name} in a score or mask: the shape of its result follows from values, which symbols have not; expected a shape that is known")
    found: Any = type(error)(f"torch.{name} in a score or mask: {error}")
    found.of_torch = "meta" not in str(error)
    result: Exception = found
    return result


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", str(func)).strip("_").removeprefix("linalg_").removeprefix("special_")
    return {"rpow": "pow", "rdiv": "div", "rtruediv": "div", "rmul": "mul", "radd": "add", "rfloordiv": "floordiv", "rmod": "mod"}.get(name, name)


_REFLECTED = {"rpow", "rdiv", "rtruediv", "rfloordiv", "rmod", "rmatmul", "rlshift", "rrshift", "rand", "ror", "rxor"}


_NUMPYS_NAMES = {"axis": "dim", "keepdims": "keepdim"}  # of arguments, which torch takes, too


def _check_operands(tracer: "TorchTracer", name: str, values: Sequence[Any]) -> None:
    """Refuses what torch's own words for tensors without data would not explain."""
    for value in flat(values):
        if isinstance(value, torch.dtype):
            tracer.type_of(value)
        elif name not in _TAKES_ARRAYS and not isinstance(value, torch.Tensor) and arrays.is_array(value):
            raise TypeError(f"torch.{name} in a score or mask: found an array of {arrays.framework(value)} beside tensors; expected {tracer.can_see}")


def _check_transforms(tracer: "TorchTracer", name: str) -> None:
    if torch._C._are_functorch_transforms_active() and _transforms() > tracer.transforms:
        raise NotImplementedError(f"torch.{name} in a score or mask, within a transform of torch.func (vmap, grad, jvp, ...) of its own; expected the operations themselves")


def _transforms() -> int:
    """How many of torch.func's are active."""
    return len(torch._C._functorch.get_interpreter_stack() or [])


def _call(tracer: "TorchTracer | None", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return _called(tracer, func, args, kwargs)
    except Exception as error:
        raise error if isinstance(error, IndexError) or getattr(error, "of_torch", False) else questions.refused(error)


def _called(tracer: "TorchTracer | None", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raw = getattr(func, "__name__", str(func))
    if raw.startswith("__r") and raw.strip("_") in _REFLECTED and len(args) == 2:  # Tensor's own: other op self
        func, args = getattr(operator, {"rand": "and_", "ror": "or_", "rdiv": "truediv"}.get(raw.strip("_"), raw.strip("_")[1:])), args[::-1]
    name = _name_of(func)
    if tracer is None:
        found: Any = next((value._tracer for value in flat((*args, *kwargs.values())) if isinstance(value, (Symbol, Capture))), None)
        tracer = found
        if tracer is None:
            raise TypeError(f"torch.{name}: an expression met a tensor outside of tracing")
    if raw.endswith("_") and not raw.endswith("__") and raw not in ("and_", "or_"):
        instead = f"torch.{name}" if name in _TABLE else "a new tensor: torch.where, torch.stack and the like"
        raise NotImplementedError(f"torch.{func.__name__} in a score or mask writes into its operand; expected {instead}")
    if name in _ASKED and len(args) == 1 and not kwargs:
        return _ASKED[name](args[0])
    meaning = _TABLE.get(name)
    if meaning is None:
        raise NotImplementedError(
            f"{getattr(func, '__name__', func)} is not part of the score language; use the functions of foveal (where, clamp, exp, tanh, ...)"
        )
    if name == "view" and any([isinstance(value, torch.dtype) for value in (*args, *kwargs.values())]):
        raise NotImplementedError("torch.view in a score or mask: a dtype, by which bits are read as another type; expected sizes, or x.to(dtype)")
    args = tuple(Symbol(tracer, [value], (), _DTYPES[value.type]) if isinstance(value, Expr) else arrays.plain_number(value) for value in args)
    kwargs = {key: arrays.plain_number(value) for key, value in kwargs.items()}  # torch takes NumPy's for Python's
    _check_transforms(tracer, name)
    _check_operands(tracer, name, (*args, *kwargs.values()))
    if name == "type":
        given = args[1] if len(args) > 1 else kwargs.get("dtype")
        if given is None:
            return torch.empty(0, dtype=args[0].dtype).type()
        args, kwargs = (args[0], given if isinstance(given, torch.dtype) else torch.empty(0).type(given).dtype), {}  # also "torch.DoubleTensor"
    with torch._C.DisableTorchFunction():  # what follows is ours
        if name == "getitem" and isinstance(args[0], Symbol) and symbolic(args[1]):
            return _chosen(args[0], args[1])
        look = _look_of_result(name, func, args, kwargs)
        if isinstance(look, bool):  # x == None
            return look
        if isinstance(look, torch.Tensor):
            _check_numbers(name, func, args, kwargs, look.dtype)
        if args and isinstance(args[0], Capture):
            found = args[0]._detached() if name == "detach" else None
            if name in torch_views.NAMES and not symbolic((*args[1:], *kwargs.values())):
                found = torch_views.view(args[0], func, args[1:], kwargs)
            if found is not None:
                return found
        kwargs = {_NUMPYS_NAMES.get(key, key): value for key, value in kwargs.items()}
        result = meaning(Call(tracer, name, func, args, kwargs, look))
    if name in _SHARING:
        _note_sharing([value for value in flat((*args, result)) if isinstance(value, Symbol)])
    return result


def _note_sharing(symbols: list[Symbol]) -> None:
    if len({value._dtype for value in symbols}) == 1:
        for value in symbols:
            value._shares = True


# ---- tracing ----

# What a tensor says of itself that a key holds, too (guards): its shape and dtype.
_LOOKS = {"shape", "dtype", "ndim", "layout"}
_LOOK_METHODS = {"size", "dim", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "__len__", "element_size", "dtype", "type"}


def _is_basic(index: Any) -> bool:
    """Integers and forward slices: what makes a view."""
    whole: Callable[[Any], bool] = lambda i: i is None or i is Ellipsis or type(i) is int or isinstance(i, slice)  # noqa: E731
    return all(map(whole, index)) if isinstance(index, tuple) else whole(index)


_RANDOM = frozenset(
    "rand randn randint randperm normal bernoulli poisson multinomial rand_like randn_like randint_like rrelu gumbel_softmax uniform_ normal_ random_ "
    "bernoulli_ exponential_ geometric_ cauchy_ log_normal_".split()
)


class _Mode(TorchFunctionMode):
    """Reads of captured tensors, torch functions that mix tensors and symbols, and elements that become Python values."""

    def __init__(self, tracer: "TorchTracer"):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _RANDOM:
            raise questions.refused(
                NotImplementedError(f"torch.{name} in a score or mask draws random numbers, which would be the same for all pairs; expected a captured tensor of them, or dropout_p")
            )
        if name == "__getitem__" and isinstance(args[0], torch.Tensor) and symbolic(args[1]):
            try:
                _check_transforms(self.tracer, "getitem")
                return self.tracer.capture(args[0])[args[1]]
            except (TypeError, ValueError, NotImplementedError) as error:
                raise questions.refused(error)
        if symbolic(args) or any(symbolic(value) for value in kwargs.values()):
            return _call(self.tracer, func, args, kwargs)
        result = func(*args, **kwargs)
        if name == "__getitem__" and not self.tracer.gradient_stopped() and _is_basic(args[1]):
            self.tracer.views[id(result)] = (result, self.tracer.capture(args[0])[args[1]])
        if not self.tracer.saw_values:
            self._note_values(func, name, [value for value in flat((*args, *kwargs.values())) if isinstance(value, torch.Tensor)], result)
        return result

    def _note_values(self, func: Any, name: str, given: list[torch.Tensor], result: Any) -> None:
        """Elements that became Python values, be it as the shape of what was computed of them: nonzero(), x[x > 0]."""
        computed = self.tracer.computed
        if isinstance(result, torch.Tensor):
            if given:
                computed[id(result)] = result
            return
        of_computed = any([id(value) in computed for value in given])
        if all(isinstance(value, torch.Tensor) for value in flat([result])):
            self.tracer.saw_values = of_computed
            computed.update((id(value), value) for value in flat([result]))
            return
        # A property's getter is called __get__, its owner tells which.
        look = name in _LOOK_METHODS or (name == "__get__" and getattr(getattr(func, "__self__", None), "__name__", "") in _LOOKS)
        self.tracer.saw_values = of_computed or (bool(given) and not look)


@dataclass
class TorchTracer(CallTracer):
    device: ClassVar[torch.device] = torch.device("cpu")  # of q
    score_dtype: ClassVar[torch.dtype] = torch.float32
    views: dict[int, tuple[torch.Tensor, Capture]] = field(default_factory=dict)  # made while tracing, as reads of what they are views of
    computed: dict[int, torch.Tensor] = field(default_factory=dict)  # made of others while tracing: their shapes may follow from elements
    with_gradients: bool = field(default_factory=torch.is_grad_enabled)  # without them, nothing is there to stop
    transforms: int = field(default_factory=_transforms)

    library = "torch"
    cannot_see = "no tensor of torch"
    can_see = "a tensor: torch.as_tensor(x), outside of the function"
    rebind = False
    tensors = torch.Tensor

    @staticmethod
    @functools.cache
    def like(device: torch.device, dtype: torch.dtype) -> "type[TorchTracer]":
        """For q on this device, of this dtype."""
        score_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        return type("TorchTracer", (TorchTracer,), {"device": device, "score_dtype": score_dtype})

    @classmethod
    def setting(cls) -> Any:
        """What a function sees without reading it."""
        modes = _function_modes() if torch._C._len_torch_function_stack() > 0 else ()
        return torch.is_grad_enabled(), torch.get_default_dtype(), modes

    @classmethod
    def scalar(cls, value: float | int) -> Any:
        if cls.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None  # a replay would read what it was
        return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device=cls.device)

    @staticmethod
    def kind(array: Any) -> type:
        return torch.Tensor  # also of a Parameter

    @staticmethod
    def size(shape: tuple[int, ...]) -> Any:
        return lambda dim=None: torch.Size(shape) if dim is None else shape[dim]

    def capture(self, tensor: torch.Tensor) -> Capture:
        if tensor.is_nested:
            arrays.check_plain(tensor, "a captured array")
        known = self.views.get(id(tensor))
        return Capture(self, tensor) if known is None else known[1]

    def attribute(self, capture: Capture, name: str) -> Any:
        if name in torch_views.PROPERTIES:
            return torch_views.PROPERTIES[name](capture)
        if name in torch_views.NAMES or name in _READS:
            return lambda *args, **kwargs: _call(self, getattr(torch.Tensor, name), (capture, *args), kwargs)
        return super().attribute(capture, name)

    def gradient_stopped(self) -> bool:
        return self.with_gradients and not torch.is_grad_enabled()

    def symbol(self, items: Sequence[Expr], shape: tuple[int, ...], dtype: torch.dtype) -> Symbol:
        return Symbol(self, items, shape, dtype)

    def dtype_of(self, expr: Expr) -> torch.dtype:
        return _DTYPES[expr.type]

    def dtype_of_scores(self) -> Any:
        return self.score_dtype

    def narrow(self, dtype: torch.dtype) -> tuple[int, int] | None:
        return _NARROW.get(dtype)

    def dtype_of_operands(self, call: Call, given: Sequence[Any]) -> torch.dtype:
        dtype: torch.dtype = call.result.dtype
        if dtype == torch.bool and len(given) == 2:  # a comparison
            return torch.result_type(*[_meta_of(value) for value in given])
        return dtype

    def operand(self, call: Call, value: Any, dtype: torch.dtype) -> Any:
        """Beside tensors with dimensions, products and quotients of 16 bits take a number, or a tensor that is one, as it is."""
        is_one = isinstance(value, (int, float, Number)) or (isinstance(value, torch.Tensor) and value.ndim == 0)
        taken = call.name in ("mul", "multiply") or not (call.args and value is call.args[0])
        as_it_is = is_one and taken and dtype in _SIXTEEN and call.name in _OF_NUMBERS and (len(call.result.shape) > 0 or call.name == "lerp")
        return super().operand(call, value, torch.float32 if as_it_is else dtype)

    def held(self, number: int, dtype: torch.dtype) -> int:
        if not _is_integral(dtype):
            return number
        info = torch.iinfo(dtype)
        result: int = (number - info.min) % 2**info.bits + info.min
        return result

    def index(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            raise NotImplementedError("index of a captured tensor: found a boolean tensor; expected integers")
        if isinstance(value, (torch.Tensor, Symbol, Capture)) and _is_integral(value.dtype) and value.dtype not in _INDEX:
            raise NotImplementedError(f"index of a captured tensor: found {value.dtype}, which torch takes for a mask or not at all; expected int64 or int32: .long()")
        if isinstance(value, torch.Tensor) and value.ndim == 0:
            value = self.capture(value)._read()
        return super().index(value)

    def arguments(self, kind: str) -> tuple[Any, ...]:
        score, *places = (Symbol(self, [expr], (), _DTYPES[expr.type]) for expr in super().arguments("score_mod"))
        score._dtype = self.score_dtype
        return tuple(places) if kind == "mask" else (score, *places)

    def run(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if _Mode in _function_modes():
            raise NotImplementedError("a score or mask calls foveal.torch itself, with a function of its own; expected what it gives, computed before")
        for mode in _function_modes():
            if mode.__module__.partition(".")[0] != "torch":
                raise NotImplementedError(f"a score or mask within {mode.__name__}, a TorchFunctionMode, which does not see the operators of symbols; expected a call outside of it")
        _tracing.append(self)
        try:
            with _Mode(self), _own_rules_refused():
                result = fn(*arguments)
            questions.check_refusals()
        except Exception as error:
            if isinstance(error, TypeError) and "incompatible function arguments" in str(error) and "Symbol(" in str(error):
                raise NotImplementedError(
                    f"a score or mask hands a symbol to {str(error).partition('(')[0]}(), which takes tensors alone (a transform of torch.func, a checkpoint, ...); "
                    "expected torch's functions and operators"
                ) from error
            if type(error).__module__.startswith("torch._dynamo"):
                raise NotImplementedError("a score or mask calls what torch.compile() made, which does not know symbols; expected the function that it was made of") from error
            raise
        finally:
            _tracing.pop()
        if isinstance(result, torch.Tensor):
            result = self.capture(result)._read()
        return result


def _function_modes() -> tuple[type, ...]:
    return tuple([type(mode) for mode in torch.overrides._get_current_function_mode_stack()])


@contextlib.contextmanager
def _own_rules_refused() -> Iterator[None]:
    """A torch.autograd.Function brings a derivative of its own, which an expression cannot hold: said, not dropped."""
    Function = torch.autograd.Function
    apply = Function.__dict__["apply"]
    utils = torch._functorch.utils  # Function.apply calls it on its arguments, also an apply that was taken from its class before
    unwrap = utils.unwrap_dead_wrappers

    def refuse(name: str, values: Any) -> None:
        if any(symbolic(value) for value in values):
            raise NotImplementedError(
                f"{name}: a torch.autograd.Function inside a score or mask; its backward would be ignored: write its forward in place"
            )

    def guarded(cls: type, *args: Any, **kwargs: Any) -> Any:
        refuse(cls.__name__, (*args, *kwargs.values()))
        return apply.__func__(cls, *args, **kwargs)

    def guarded_unwrap(args: tuple[Any, ...]) -> tuple[Any, ...]:
        refuse("apply", args)
        return unwrap(args)

    Function.apply = classmethod(guarded)  # type: ignore[method-assign, assignment]
    utils.unwrap_dead_wrappers = guarded_unwrap
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]
        utils.unwrap_dead_wrappers = unwrap


def _torch_functions() -> Iterator[Any]:
    """torch's own for the names of the table, and what makes tensors and looks: they depend on their arguments only."""
    for module in (torch, F, torch.linalg, torch.special):
        for name in _TABLE:
            if hasattr(module, name):
                yield getattr(module, name)
    for name in "tensor as_tensor arange zeros ones full empty linspace eye tril triu no_grad enable_grad inference_mode finfo iinfo Size".split():
        yield getattr(torch, name)


guards.trust(_torch_functions())

_tracing: list[TorchTracer] = []


def _attribute(expr: Expr, name: str) -> Any:
    """Results of foveal's own functions are tensors to a function that is traced, too."""
    if not _tracing or name.startswith("_"):
        raise AttributeError(f"{name}: no attribute of a score expression")
    return getattr(Symbol(_tracing[-1], [expr], (), _DTYPES[expr.type]), name)


Expr.__getattr__ = _attribute  # type: ignore[attr-defined]
_TORCH_FUNCTION = classmethod(lambda cls, func, types, args=(), kwargs=None: _call(None, func, args, kwargs or {}))
for _kind in (Expr, Capture, Number):
    setattr(_kind, "__torch_function__", _TORCH_FUNCTION)
