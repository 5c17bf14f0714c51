"""What JAX's primitives mean for expressions, by name."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ... import _core, formulas
from ..._core import Expr
from ...captures import Along, At, Capture, of_part
from ...framework_calls import Call
from ...meanings import binary, over_dims, unary
from ...symbols import Symbols
from ..operands import owned
from .table import TABLE, round_half_away

MAX_CHOICES = 64  # expressions that an index chooses from
MAX_UPDATES = MAX_CHOICES**2  # of the elements of an array, each of which may be any

Primitive = Callable[[Call, dict[str, Any]], Any]  # a meaning, of the call and the primitive's parameters


def meaning_of(call: Call, params: dict[str, Any]) -> Any:
    found = _MEANINGS.get(call.name)
    if found is None:
        raise call.refuse("not part of the score language")
    return found(call, params)


def depends(value: Any) -> bool:
    """On the pair."""
    return isinstance(value, (Symbols, Capture))


def select(call: Call, params: dict[str, Any]) -> Any:
    which, *cases = [call.symbol(value) for value in call.args]
    count = math.prod(call.result.shape)
    flags = which._items if len(which._items) == count else which._items * count
    if which._dtype == bool and len(cases) != 2:
        raise call.refuse(f"{len(cases)} cases for a boolean")
    items = []
    for flag, row in zip(flags, zip(*[case._items for case in cases])):
        chosen = row[-1]
        for at in reversed(range(len(row) - 1)):
            chosen = _core.where(~flag if which._dtype == bool else flag <= at, row[at], chosen)
        items.append(chosen)
    return call.made(items, call.result)


def _layout(call: Call, params: dict[str, Any]) -> Any:
    """Primitives that only move elements: JAX's own, on the numbers of the elements."""
    first = call.args[0]
    if call.name == "squeeze" and isinstance(first, Capture):
        kept = tuple([axis for axis in first._order if axis is not None])
        if len(kept) == len(call.result.shape):  # what is squeezed is what was indexed, or as good as that
            return Capture(call.tracer, first._array, first._axes, kept)
    if call.name == "transpose" and isinstance(first, Capture):
        return Capture(call.tracer, first._array, first._axes, tuple([first._order[d] for d in params["permutation"]]))
    items: list[Any] = []
    numbers = []
    for value in call.args:
        symbol = call.symbol(value)
        numbers.append(np.arange(len(items), len(items) + len(symbol._items), dtype=np.int32).reshape(symbol._shape))
        items += symbol._items
    with jax.ensure_compile_time_eval():
        found = call.func(*numbers)

    def pick(part: Any, look: Any) -> Any:
        return call.made([items[i] for i in np.asarray(part).reshape(-1).tolist()], look)

    return [pick(part, look) for part, look in zip(found, call.result)] if isinstance(call.result, list) else pick(found, call.result)


def _dynamic_slice(call: Call, params: dict[str, Any]) -> Any:
    operand, *starts = call.args
    first = [call.symbol(start)._items[0] for start in starts]
    sizes = params["slice_sizes"]
    if not isinstance(operand, Symbols) and all([size in (1, extent) for size, extent in zip(sizes, operand.shape)]):
        return _rows(operand if isinstance(operand, Capture) else call.tracer.capture(owned(operand)), first, sizes)
    first = [formulas.clamped(start, 0, extent - size) for start, extent, size in zip(first, operand.shape, sizes)]
    element = _elements(call, operand)
    return call.made([element(list(map(operator.add, first, place))) for place in itertools.product(*map(range, sizes))], call.result)


def _rows(capture: Capture, first: list[Any], sizes: Sequence[int]) -> Capture:
    """Of each dimension one element or all: nothing is read yet."""
    axes = list(capture._axes)
    order: list[int | None] = []
    for start, size, extent, axis in zip(first, sizes, capture.shape, capture._order):
        if size == extent or axis is None:
            order.append(axis)
            continue
        along = axes[axis]
        # A read takes the nearest element, as JAX's slices do; what is left of a dimension has ends of its own.
        whole = along == Along(0, 1, capture._array.shape[axis])
        axes[axis] = At(start if whole else of_part(start, along))
        order.append(None)
    return Capture(capture._tracer, capture._array, tuple(axes), tuple(order))


def _elements(call: Call, operand: Any) -> Callable[[list[Any]], Any]:
    """Reads an element of an array, or chooses one of expressions."""
    if not depends(operand):
        array = owned(operand)
        return lambda index: call.tracer.element(array, [_core.constant(i) for i in index])
    symbol = call.symbol(operand)
    if len(symbol._items) > MAX_CHOICES:
        raise call.refuse(f"a symbol as an index of {len(symbol._items)} expressions; at most {MAX_CHOICES}: index the array first")

    def chosen(index: list[Any]) -> Any:
        """The nearest one, where an index is outside, as of an array."""
        index = [formulas.clamped(_core.constant(at), 0, extent - 1) for at, extent in zip(index, symbol._shape)]
        step, place = 1, _core.constant(0)
        for at, extent in zip(reversed(index), reversed(symbol._shape)):
            place, step = place + step * at, step * extent
        found = symbol._items[-1]
        for at in reversed(range(len(symbol._items) - 1)):
            found = _core.where(place == at, symbol._items[at], found)
        return found

    return chosen


def _of_table(name: str) -> Primitive:
    return lambda call, params: TABLE[name](call)


def _reduced(fn: Callable[[Sequence[Any]], Any]) -> Primitive:
    return lambda call, params: over_dims(call, fn, call.args[0], params["axes"])


def _product_of_all(call: Call, params: dict[str, Any]) -> Any:
    return over_dims(call, functools.partial(formulas.product, step=call.factor), call.args[0], params["axes"])


def _truth_of_all(fn: Callable[[Sequence[Any]], Any]) -> Primitive:
    def meaning(call: Call, params: dict[str, Any]) -> Any:
        if call.result.dtype != bool:
            raise call.refuse("bits of integers; expected booleans")
        return over_dims(call, fn, call.args[0], params["axes"])

    return meaning


def _integer_pow(call: Call, params: dict[str, Any]) -> Any:
    return TABLE["integer_pow"](Call(call.tracer, call.name, call.func, (*call.args, params["y"]), {}, call.result))


def _polynomial(call: Call, params: dict[str, Any]) -> Any:
    """Of the first operand, by its coefficients from the constant on (JAX 0.12)."""
    x, *coefficients = [call.symbol(value)._items for value in call.args]
    items = []
    for at in range(math.prod(call.result.shape)):
        here, *lower = [of[at % len(of)] for of in (x, *reversed(coefficients))]
        items.append(functools.reduce(lambda sum_so_far, next_one: call.times(sum_so_far, here) + next_one, lower))
    return call.made(items, call.result)


def _round(call: Call, params: dict[str, Any]) -> Any:
    return (TABLE["rint"] if int(params["rounding_method"]) == 1 else unary(round_half_away))(call)


def _in_order(of_integers: str, of_reals: Callable[[Any, Any], Any]) -> Primitive:
    """The order of jnp.sort, by which jnp.searchsorted, digitize and interp look: NaN is the last. JAX has made -0 a 0."""

    def meaning(call: Call, params: dict[str, Any]) -> Any:
        reals = any([jnp.issubdtype(value.dtype, jnp.floating) for value in call.args])
        return (binary(of_reals) if reals else TABLE[of_integers])(call)

    return meaning


def _running(fn: Callable[[Any, Any], Any]) -> Primitive:
    """Each element with all before it along an axis."""

    def meaning(call: Call, params: dict[str, Any]) -> Any:
        x = call.symbol(call.args[0])
        lines = np.moveaxis(np.arange(len(x._items)).reshape(x._shape), params["axis"], -1).reshape(-1, x._shape[params["axis"]])
        items = list(x._items)
        for line in lines.tolist():
            line = line[::-1] if params["reverse"] else line
            for before, at in zip(line, line[1:]):
                items[at] = fn(items[before], items[at])
        return call.made(items, call.result)

    return meaning


def _gather(call: Call, params: dict[str, Any]) -> Any:
    """JAX's gather of an array: https://openxla.org/stablehlo/spec#gather."""
    operand, indices = call.args
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    starts = call.symbol(indices)
    element = _elements(call, operand)
    mode = str(params["mode"]).rpartition(".")[2]
    rank = len(call.result.shape)
    batch_dims = [d for d in range(rank) if d not in numbers.offset_dims]
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    offset_of = dict(zip([d for d in range(len(operand.shape)) if d not in gone], numbers.offset_dims))
    steps = np.arange(len(starts._items)).reshape(starts._shape)
    items = []
    for place in itertools.product(*map(range, call.result.shape)):
        at_batch = tuple([place[d] for d in batch_dims])
        vector = [starts._items[i] for i in steps[at_batch].reshape(-1).tolist()]
        first: list[Any] = [0] * len(operand.shape)
        for d, start in zip(numbers.start_index_map, vector):
            first[d] = start
        for d, of_indices in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims):
            first[d] = at_batch[of_indices]
        last = [extent - size for extent, size in zip(operand.shape, sizes)]
        kept = [_core.constant(start >= 0) & (start <= limit) for start, limit in zip(first, last) if isinstance(start, Expr)]
        free = [not isinstance(start, Expr) or limit == extent - 1 for start, limit, extent in zip(first, last, operand.shape)]
        # A read takes the nearest element by itself.
        inside = [start if is_free else formulas.clamped(start, 0, limit) for start, limit, is_free in zip(first, last, free)]
        read = element([start + (place[offset_of[d]] if d in offset_of else 0) for d, start in enumerate(inside)])
        items.append(_filled(read, kept, params["fill_value"], call.result.dtype) if mode == "FILL_OR_DROP" and kept else read)
    return call.made(items, call.result)


def _filled(read: Any, kept: list[Any], fill: Any, dtype: Any) -> Any:
    """What a gather gives where an index is outside: NaN of reals, the least (or the greatest unsigned) integer, True."""
    inside = kept[0]
    for other in kept[1:]:
        inside = inside & other
    if jnp.issubdtype(dtype, jnp.floating) and (fill is None or math.isnan(fill)):
        return read * _core.sqrt(_core.where(inside, 1.0, -1.0))  # there is no constant NaN
    if fill is None:
        fill = True if dtype == bool else np.iinfo(dtype).max if np.issubdtype(dtype, np.unsignedinteger) else np.iinfo(dtype).min
    return _core.where(inside, read, _core.constant(np.asarray(fill).item()))


def _dynamic_update_slice(call: Call, params: dict[str, Any]) -> Any:
    operand, update, *starts = [call.symbol(value) for value in call.args]
    first = [formulas.clamped(start._items[0], 0, extent - size) for start, extent, size in zip(starts, operand._shape, update._shape)]
    places = itertools.product(*map(range, update._shape))
    return _updated(call, operand, [([start + at for start, at in zip(first, place)], [], item) for place, item in zip(places, update._items)])


def _scatter(call: Call, params: dict[str, Any]) -> Any:
    """JAX's scatter: https://openxla.org/stablehlo/spec#scatter. A window that is not all inside is left out whole, as XLA's compilers do."""
    if call.name == "scatter" and params["update_jaxpr"] is not None:
        raise call.refuse("a function of elements, as of x.at[i].apply(f); expected x.at[i].set(f(x[i]))")
    operand, indices, updates = call.symbol(call.args[0]), call.args[1], call.symbol(call.args[2])
    if operand._dtype == bool and call.name != "scatter":
        raise call.refuse("booleans; expected numbers")
    numbers, shape = params["dimension_numbers"], tuple(updates._shape)
    if isinstance(indices, jax.Array) and not isinstance(indices, jax.core.Tracer):  # then it is known which elements change
        call.tracer.saw_values = True
        indices = np.asarray(indices)
    starts = np.array(indices.ravel().tolist() if isinstance(indices, np.ndarray) else call.symbol(indices)._items, object).reshape(tuple(indices.shape))
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    offset_of = dict(zip([d for d in range(len(operand._shape)) if d not in gone], numbers.update_window_dims))
    batch_dims = [d for d in range(len(shape)) if d not in numbers.update_window_dims]
    clips = str(params["mode"]).rpartition(".")[2] == "CLIP"
    found = []
    for place, item in zip(itertools.product(*map(range, shape)), updates._items):
        at_batch = tuple([place[d] for d in batch_dims])
        index: list[Any] = [place[offset_of[d]] if d in offset_of else 0 for d in range(len(operand._shape))]
        for d, of_indices in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims):
            index[d] = at_batch[of_indices]
        inside: list[Any] = []
        for d, start in zip(numbers.scatter_dims_to_operand_dims, starts[at_batch]):
            last = operand._shape[d] - (shape[offset_of[d]] if d in offset_of else 1)
            if clips:
                start = formulas.clamped(start, 0, last) if isinstance(start, Expr) else min(max(start, 0), last)
            inside += [] if clips else [start >= 0, start <= last]
            index[d] = start + index[d]
        found.append((index, inside, item))
    return _updated(call, operand, found)


def _updated(call: Call, operand: Symbols, updates: Sequence[tuple[list[Any], list[Any], Expr]]) -> Any:
    """The elements of operand, changed one after the other by updates: of an index, numbers or expressions, where the conditions beside it hold."""
    if len(operand._items) * len(updates) > MAX_UPDATES:
        raise call.refuse(f"{len(updates)} updates of {len(operand._items)} elements; at most {MAX_UPDATES} pairs of the two are unrolled")
    change = call.times if call.name == "scatter-mul" else _UPDATES[call.name]
    items = []
    for place, item in zip(itertools.product(*map(range, operand._shape)), operand._items):
        of_item = []
        for index, inside, update in updates:
            conditions = [at == own for at, own in zip(index, place)] + inside
            if not any([condition is False for condition in conditions]):
                of_item.append((functools.reduce(operator.and_, [c for c in conditions if c is not True], True), update))
        if change in (_core.maximum, _core.minimum) and len(of_item) > 1:  # those that are equal share a derivative
            if any([condition is not True for condition, _ in of_item]):
                raise call.refuse("several updates that symbols place; expected one")
            items.append(formulas.extreme(change, [item, *[update for _, update in of_item]]))
            continue
        for condition, update in of_item:
            changed = change(item, update)
            item = changed if condition is True else _core.where(condition, changed, item)
        items.append(item)
    return call.made(items, call.result)


def _dot_general(call: Call, params: dict[str, Any]) -> Any:
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = map(call.symbol, call.args)

    def vectors(x: Symbols, batch: Sequence[int], summed: Sequence[int]) -> Any:
        """The items in [batch, vectors, elements of each]."""
        kept = [d for d in range(len(x._shape)) if d not in (*batch, *summed)]
        numbers = np.arange(len(x._items)).reshape(x._shape).transpose(*batch, *kept, *summed)
        found = numbers.reshape(math.prod(x._shape[d] for d in batch), -1, math.prod(x._shape[d] for d in summed))
        return [[[x._items[i] for i in row] for row in rows] for rows in found.tolist()]

    both = zip(vectors(left, left_batch, left_sum), vectors(right, right_batch, right_sum))
    return call.made([formulas.dot(a, b, call.factor) for rows, columns in both for a in rows for b in columns], call.result)


def _place_of_extreme(call: Call, params: dict[str, Any]) -> Any:
    is_better = operator.gt if call.name == "argmax" else operator.lt

    def place(items: Sequence[Any]) -> Any:
        return formulas.first_extreme(is_better, [item if formulas.is_real(item) else _core.to_integer(item) for item in items])[1]

    return over_dims(call, place, call.args[0], params["axes"])


def _reduce_precision(call: Call, params: dict[str, Any]) -> Any:
    rounded = {(8, 7): _core.to_bfloat16, (5, 10): _core.to_float16, (8, 23): _core.to_float32}.get((params["exponent_bits"], params["mantissa_bits"]))
    if rounded is None:
        raise call.refuse(f"{params['exponent_bits']} and {params['mantissa_bits']} bits; expected those of bfloat16, float16 or float32")
    return call.made([rounded(item) for item in call.symbol(call.args[0])._items], call.result)


_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("scatter", "dynamic_update_slice"), lambda item, update: update),
    "scatter-add": operator.add, "scatter-sub": operator.sub, "scatter-mul": operator.mul, "scatter-max": _core.maximum, "scatter-min": _core.minimum,
}  # fmt: skip
_MEANINGS: dict[str, Primitive] = {
    **{name: _of_table(name) for name in "abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil copy cos cosh eq erf erfc exp exp2 expm1".split()},
    **{name: _of_table(name) for name in "floor ge gt le log log1p logistic lt mul ne neg or pow rsqrt sign sin sinh sqrt square".split()},
    **{name: _of_table(name) for name in "stop_gradient sub tan tanh xor".split()},
    **{name: _of_table(f"lax.{name}") for name in "max min div rem clamp".split()},
    "not": _of_table("bitwise_not"),
    "is_finite": _of_table("isfinite"), "convert_element_type": _of_table("astype"), "add_any": _of_table("add"),
    "shift_left": _of_table("lshift"), "shift_right_arithmetic": _of_table("rshift"), "copy_p": _of_table("copy"), "name": _of_table("copy"),
    "lt_to": _in_order("lt", lambda a, b: (a < b) | (formulas.is_nan(b) & ~formulas.is_nan(a))),
    "le_to": _in_order("le", lambda a, b: (a <= b) | formulas.is_nan(b)),
    **dict.fromkeys("broadcast_in_dim concatenate expand_dims pad reshape rev slice split squeeze stack tile transpose unstack".split(), _layout),
    "reduce_sum": _reduced(formulas.total), "reduce_max": _reduced(formulas.largest), "reduce_min": _reduced(formulas.smallest),
    "reduce_prod": _product_of_all, "reduce_and": _truth_of_all(formulas.all_of), "reduce_or": _truth_of_all(formulas.any_of),
    "cumsum": _running(operator.add), "cumprod": lambda call, params: _running(call.times)(call, params),
    "cummax": _running(_core.maximum), "cummin": _running(_core.minimum), "cumlogsumexp": _running(formulas.logaddexp),
    **dict.fromkeys(_UPDATES, _scatter), "dynamic_update_slice": _dynamic_update_slice,
    "select_n": select, "dynamic_slice": _dynamic_slice, "gather": _gather, "dot_general": _dot_general, "integer_pow": _integer_pow, "round": _round,
    "polynomial": _polynomial, "one_minus_square": lambda call, params: unary(lambda x: (1 + x) * (1 - x))(call),
    "argmax": _place_of_extreme, "argmin": _place_of_extreme, "reduce_precision": _reduce_precision,
}  # fmt: skip
