"""Functions of a score or mask that symbols cannot follow, by what JAX itself makes of them: a jaxpr, whose primitives become expressions.

JAX traces the function as it does any other, so that all it knows may stand there: indexing of every kind, arrays in attributes, `jit`, `vmap` and
`grad` inside, `cond`, `switch`, loops of a known length. What depends on no symbol is computed by JAX; a primitive on symbols has its meaning in
the table of table.py or below. Where a function has a derivative of its own, which an expression cannot hold, that is JAX's only if the function's
meaning has the same one; other functions are refused.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import pathlib
import sys
import types
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from ... import _core, formulas
from ..._core import Expr
from ...captures import Along, At, Capture, of_part
from ...closures import filled
from ...framework_calls import Call
from ...meanings import Meaning, binary, over_dims, unary
from ...symbols import Symbols
from ..operands import owned
from .table import round_half_away, sinc_at_zero, xlogx

MAX_STEPS = 64  # of a loop that is unrolled
MAX_CHOICES = 64  # expressions that an index chooses from
MAX_UPDATES = MAX_CHOICES**2  # of the elements of an array, each of which may be any
_OWN = str(pathlib.Path(jax.__file__).parent)

# Primitives by the names of the table of table.py.
_NAMES = {
    **{name: name for name in "abs add and ceil cos cosh eq erf exp exp2 expm1 floor ge gt le log log1p logistic lt mul ne neg or".split()},
    **{name: name for name in "acos acosh asin asinh atan atan2 atanh cbrt erfc".split()},
    **{name: name for name in "pow rsqrt sign sin sinh sqrt square stop_gradient sub tan tanh xor".split()},
    **{"max": "lax.max", "min": "lax.min", "div": "lax.div", "rem": "lax.rem", "clamp": "lax.clamp", "not": "bitwise_not", "is_finite": "isfinite"},
    **{"shift_left": "lshift", "shift_right_arithmetic": "rshift", "convert_element_type": "astype", "add_any": "add"},
    **dict.fromkeys("copy copy_p name".split(), "copy"),
    **dict.fromkeys("broadcast_in_dim concatenate expand_dims pad reshape rev slice split squeeze stack tile transpose unstack".split(), "layout"),
}
_REDUCTIONS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "reduce_sum": formulas.total, "reduce_prod": formulas.product, "reduce_max": formulas.largest, "reduce_min": formulas.smallest,
    "reduce_and": formulas.all_of, "reduce_or": formulas.any_of,
}  # fmt: skip
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr"}


class OwnRule(NotImplementedError):
    """A derivative of the user's own."""


def traced(tracer: Any, table: dict[str, Meaning], fn: Callable[..., Any], arguments: Sequence[Symbols]) -> Any:
    """The result of fn, of symbols; an error of JAX's or NotImplementedError where it has none."""
    # A function of its own for each trace: JAX keeps what it made of one by its identity, and would give that again after what it reads has changed.
    closed = jax.make_jaxpr(lambda *symbols: fn(*symbols))(*[jax.ShapeDtypeStruct(x._shape, x._dtype) for x in arguments])
    if closed.effects:
        raise NotImplementedError("a score or mask with effects; expected a function of its arguments alone")
    results = _Reader(tracer, table).jaxpr(closed.jaxpr, closed.consts, arguments)
    if len(results) != 1:
        raise TypeError(f"the function returned {len(results)} values; expected one number for each pair")
    return results[0]


class _Reader:
    def __init__(self, tracer: Any, table: dict[str, Meaning]):
        self.tracer, self.table = tracer, table
        self.origins: dict[int, tuple[str, Any, Any, Any]] = {}  # of symbols: the primitive, its two operands, the symbols themselves

    def jaxpr(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(owned, consts), *arguments)))

        def value(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self.equation(equation, [value(atom) for atom in equation.invars])))
        return [value(atom) for atom in jaxpr.outvars]

    def closed(self, closed: Any, values: Sequence[Any]) -> list[Any]:
        return self.jaxpr(getattr(closed, "jaxpr", closed), getattr(closed, "consts", ()), values)

    def equation(self, equation: Any, values: list[Any]) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params
        if not any(map(_depends, values)):
            return _computed(equation, values)
        if name == "select_n" and (known := _known_case(values)) is not None:
            return [known]
        if name in _CALLS:
            return self.closed(params[_CALLS[name]], values)
        given, values = values, [value if at == 1 and name.startswith("scatter") else self.constants(value) for at, value in enumerate(values)]
        if name.startswith("custom_vjp_call"):
            raise OwnRule("a jax.custom_vjp inside a score or mask; its backward would be ignored: write its forward in place")
        if name == "custom_jvp_call":
            return self.own_rule(params, equation, values)
        if name == "cond":
            return self.cond(params["branches"], values[0], values[1:], [var.aval for var in equation.outvars])
        if name == "scan":
            return self.scan(params, values, [var.aval for var in equation.outvars])
        many = equation.primitive.multiple_results
        look = [var.aval for var in equation.outvars] if many else equation.outvars[0].aval
        call = Call(self.tracer, name, lambda *given: equation.primitive.bind(*given, **params), tuple(values), {}, look)
        found = self.wrapped_index(values) if name == "select_n" else None
        if found is None:
            found = self.primitive(call, params)
        if not many:
            self.origins[id(found)] = name, given[0], given[-1], found
        return found if many else [found]

    def wrapped_index(self, values: list[Any]) -> Any:
        """select_n(x < 0, x, x + size), what JAX makes of each index; None for others."""
        which, x, moved = (*values[:3], None)[:3]
        below, plus = (self.origins.get(id(value), ("", None, None, None)) for value in (which, moved))
        if (below[0], plus[0]) != ("lt", "add") or not (below[1] is plus[1] is x) or not isinstance(x, Symbols) or len(values) != 3:
            return None
        if any([_depends(number) or isinstance(number, jax.Array) for number in (below[2], plus[2])]) or int(below[2]) != 0:
            return None
        return self.tracer.symbol([_core.wrapped_index(item, int(plus[2])) for item in x._items], x._shape, x._dtype)

    def constants(self, value: Any) -> Any:
        """Numbers of the program, such as the 0 of x[0, j]; arrays that it captured stay arrays."""
        if not isinstance(value, np.ndarray) or value.size > MAX_CHOICES:
            return value
        items = [_core.constant(x) if x == x else formulas.nan() for x in value.reshape(-1).tolist()]
        return self.tracer.symbol(items, value.shape, value.dtype)

    def primitive(self, call: Call, params: dict[str, Any]) -> Any:
        name = call.name
        if name in _NAMES:
            return _layout(call, params) if _NAMES[name] == "layout" else self.table[_NAMES[name]](call)
        if name in _REDUCTIONS and not (name in ("reduce_and", "reduce_or") and call.result.dtype != bool):
            return over_dims(call, _REDUCTIONS[name], call.args[0], params["axes"])
        if name == "integer_pow":
            return self.table["integer_pow"](Call(call.tracer, name, call.func, (*call.args, params["y"]), {}, call.result))
        if name == "round":
            return (self.table["rint"] if int(params["rounding_method"]) == 1 else unary(round_half_away))(call)
        if name in ("lt_to", "le_to"):
            reals = any([jnp.issubdtype(value.dtype, jnp.floating) for value in call.args])
            return _ORDERED[name](call) if reals else self.table[name[:2]](call)
        meaning = _MEANINGS.get(name)
        if meaning is None:
            raise call.refuse("not part of the score language")
        return meaning(call, params)

    def own_rule(self, params: dict[str, Any], equation: Any, values: list[Any]) -> Sequence[Any]:
        """A function with a rule for its derivative: one of JAX's whose meaning has the same."""
        source = params["call_jaxpr"].jaxpr.debug_info
        name = source.func_name
        if not _is_jax_own(source, params["jvp_jaxpr_fun"]):
            raise OwnRule(f"{name}: a jax.custom_jvp inside a score or mask; its rule would be ignored: write it in place")
        if name in _FOLLOWED:
            return self.closed(params["call_jaxpr"], values)
        call = Call(self.tracer, name.lstrip("_"), jax.custom_jvp, tuple(values), {}, equation.outvars[0].aval)
        if name == "_sinc_maclaurin" and not jaxpr_as_fun(params["call_jaxpr"])(*[jnp.zeros(x.shape, x.dtype) for x in params["call_jaxpr"].in_avals])[0].all():
            raise call.refuse("a derivative of jnp.sinc; expected jnp.sinc itself")
        meaning = self.table.get(name, _WITH_RULES.get(name))
        if meaning is None:
            raise call.refuse("not part of the score language")
        return [meaning(call)]

    def cond(self, branches: Sequence[Any], which: Any, values: Sequence[Any], looks: Sequence[Any]) -> list[Any]:
        if not _depends(which):
            which = self.tracer.capture(owned(which))
        if isinstance(which, Capture):
            which = which._read()
        origin = self.origins.get(id(which), ("", None, None, None))
        if origin[0] == "convert_element_type" and origin[1].dtype == bool:
            which = origin[1]._read() if isinstance(origin[1], Capture) else origin[1]
        results = [self.closed(branch, values) for branch in branches]
        return [self.chosen(which, list(cases), look) for cases, look in zip(zip(*results), looks)]

    def chosen(self, which: Symbols, cases: list[Any], look: Any) -> Any:
        flag = Symbols(self.tracer, which._items * math.prod(look.shape), tuple(look.shape), which._dtype)
        return _select(Call(self.tracer, "select_n", jax.lax.select_n, (flag, *cases), {}, look), {})

    def scan(self, params: dict[str, Any], values: list[Any], looks: Sequence[Any]) -> list[Any]:
        consts, carried = _scan_counts(params)
        length = params["length"]
        if length > MAX_STEPS:
            raise NotImplementedError(f"a loop of {length} steps in a score or mask; at most {MAX_STEPS} are unrolled")
        fixed, carry, over = values[:consts], values[consts : consts + carried], values[consts + carried :]
        steps: dict[int, list[Any]] = {}
        for at in reversed(range(length)) if params["reverse"] else range(length):
            found = self.closed(params["jaxpr"], [*fixed, *carry, *[self.part(x, at) for x in over]])
            carry, steps[at] = found[:carried], found[carried:]
        stacked = []
        for of_step, look in zip(zip(*[steps[at] for at in range(length)]), looks[carried:]):
            if not any(map(_depends, of_step)):
                stacked.append(jnp.stack(of_step))
                continue
            call = Call(self.tracer, "scan", jnp.stack, of_step, {}, look)
            stacked.append(call.made([item for x in of_step for item in call.symbol(x)._items], look))
        return [*carry, *stacked]

    def part(self, value: Any, at: int) -> Any:
        if isinstance(value, Capture):
            value = value._read()
        if not isinstance(value, Symbols):
            return value[at]
        inner = math.prod(value._shape[1:])
        return self.tracer.symbol(value._items[at * inner : (at + 1) * inner], value._shape[1:], value._dtype)


def _is_jax_own(source: Any, rule: Any) -> bool:
    """Whether JAX made the function and its rule; not the user, of one of JAX's functions. source: what JAX knows of where the function was written."""
    name, _, place = (source.func_src_info or "").partition(" at ")
    path = pathlib.PurePath(place.rpartition(":")[0]).with_suffix("")
    if not path.is_relative_to(_OWN) or _OWN not in (rule.debug_info.func_src_info or ""):
        return False
    module = sys.modules.get(".".join(("jax", *path.relative_to(_OWN).parts)))
    made = getattr(module, name, None)
    while made is not None and not isinstance(made, jax.custom_jvp):
        made = getattr(made, "__wrapped__", None)
    return made is not None and made.jvp is not None and _is_made_of(rule, made.jvp)


def _is_made_of(rule: Any, function: Any) -> bool:
    """Whether JAX wrapped this function into the rule. A user's defjvps() has the name and the place of one of JAX's: where JAX wrote what it makes of them."""
    if isinstance(rule, types.FunctionType) and rule is not function:
        return any(_is_made_of(cell.cell_contents, function) for cell in rule.__closure__ or () if filled(cell))
    return rule is function or hasattr(rule, "f") and _is_made_of(rule.f, function)


def _scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "ft_in" in params:  # JAX 0.12: trees of constants, carry and what is scanned
        consts, carried, _ = [len(list(tree)) for tree in params["ft_in"].unpack()]
        return consts, carried
    return params["num_consts"], params["num_carry"]


def _depends(value: Any) -> bool:
    return isinstance(value, (Symbols, Capture))


def _computed(equation: Any, values: list[Any]) -> Sequence[Any]:
    """By JAX; arrays of NumPy where it came of nothing but numbers that stand in the program."""
    params = equation.primitive.get_bind_params(equation.params)
    if any([isinstance(value, jax.Array) for value in values]):
        found = equation.primitive.bind(*values, **params)
    else:
        with jax.ensure_compile_time_eval():
            found = jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else np.asarray(x), equation.primitive.bind(*values, **params))
    return found if equation.primitive.multiple_results else [found]


def _known_case(values: Sequence[Any]) -> Any:
    """Of a select_n whose case the program itself decides: jnp.var is NaN where there are too few elements. None: symbols decide, or each element has a
    case of its own."""
    which, *cases = values
    if not isinstance(which, np.ndarray) or which.size == 0 or (which != which.flat[0]).any():
        return None
    return cases[int(which.flat[0])]


def _select(call: Call, params: dict[str, Any]) -> Any:
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
    if not _depends(operand):
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


def _running(fn: Callable[[Any, Any], Any]) -> Callable[[Call, dict[str, Any]], Any]:
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
    change = _UPDATES[call.name]
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
    return call.made([formulas.dot(a, b) for rows, columns in both for a in rows for b in columns], call.result)


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


# Reals in the order of jnp.sort, by which jnp.searchsorted, digitize and interp look: NaN is the last. JAX has made -0 a 0.
_ORDERED = {
    "lt_to": binary(lambda a, b: (a < b) | (formulas.is_nan(b) & ~formulas.is_nan(a))),
    "le_to": binary(lambda a, b: (a <= b) | formulas.is_nan(b)),
}
# Functions of JAX that have a rule for their derivative: what they compute has the same one; and others by their meaning.
_FOLLOWED = ("_erfcx", "_softmax")
_WITH_RULES = {"_sinc_maclaurin": unary(sinc_at_zero), "_xlogx": unary(xlogx)}
_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("scatter", "dynamic_update_slice"), lambda item, update: update),
    "scatter-add": operator.add, "scatter-sub": operator.sub, "scatter-mul": operator.mul, "scatter-max": _core.maximum, "scatter-min": _core.minimum,
}  # fmt: skip
_MEANINGS = {
    **dict.fromkeys(_UPDATES, _scatter), "dynamic_update_slice": _dynamic_update_slice,
    "select_n": _select, "dynamic_slice": _dynamic_slice, "gather": _gather, "dot_general": _dot_general,
    "cumsum": _running(operator.add), "cumprod": _running(operator.mul), "cummax": _running(_core.maximum), "cummin": _running(_core.minimum),
    "cumlogsumexp": _running(formulas.logaddexp),
    "argmax": _place_of_extreme, "argmin": _place_of_extreme, "reduce_precision": _reduce_precision,
}  # fmt: skip
