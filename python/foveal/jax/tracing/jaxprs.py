"""Functions of a score or mask that symbols cannot follow, by what JAX itself makes of them: a jaxpr, whose primitives become expressions.

JAX traces the function as it does any other, so that all it knows may stand there: indexing of every kind, arrays in attributes, `jit`, `vmap` and
`grad` inside, `cond`, `switch`, loops of a known length. What depends on no symbol is computed by JAX; a primitive on symbols has its
meaning in primitives.py. Where a function has a derivative of its own, which an expression cannot hold, that is JAX's only if the function's
meaning has the same one; other functions are refused.
"""

from __future__ import annotations

import math
import pathlib
import sys
import types
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from ... import _core, formulas
from ...captures import Capture
from ...closures import filled
from ...framework_calls import Call
from ...meanings import unary
from ...symbols import Symbols
from ..operands import owned
from .primitives import MAX_CHOICES, depends, meaning_of, select
from .table import TABLE, sinc_at_zero, xlogx

MAX_STEPS = 64  # of a loop that is unrolled
# Functions of JAX that have a rule for their derivative: what they compute has the same one; and others by their meaning.
_FOLLOWED = ("_erfcx", "_softmax")
_WITH_RULES = {"_sinc_maclaurin": unary(sinc_at_zero), "_xlogx": unary(xlogx)}
_EXPANDED = ("SearchSorted",)  # primitives of JAX 0.12 that it makes of others; the derivative is that of these
_OWN = str(pathlib.Path(jax.__file__).parent)

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr"}


class OwnRule(NotImplementedError):
    """A derivative of the user's own."""


def traced(tracer: Any, fn: Callable[..., Any], arguments: Sequence[Symbols]) -> Any:
    """The result of fn, of symbols; an error of JAX's or NotImplementedError where it has none."""
    # A function of its own for each trace: JAX keeps what it made of one by its identity, and would give that again after what it reads has changed.
    closed = jax.make_jaxpr(lambda *symbols: fn(*symbols))(*[jax.ShapeDtypeStruct(x._shape, x._dtype) for x in arguments])
    if closed.effects:
        raise NotImplementedError("a score or mask with effects; expected a function of its arguments alone, and of a jax.Ref only ref[i, j] or ref[...][i, j]")
    results = _Reader(tracer).jaxpr(closed.jaxpr, closed.consts, arguments)
    if len(results) != 1:
        raise TypeError(f"the function returned {len(results)} values; expected one number for each pair")
    return results[0]


class _Reader:
    def __init__(self, tracer: Any):
        self.tracer = tracer
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
        if not any(map(depends, values)):
            return _computed(equation, values)
        if name == "select_n" and (known := _known_case(values)) is not None:
            return [known]
        if name in _CALLS:
            return self.closed(params[_CALLS[name]], values)
        if name == "call_hi_primitive" and type(params["_prim"]).__qualname__ in _EXPANDED and type(params["_prim"]).__module__.startswith("jax."):
            return self.closed(jax.make_jaxpr(params["_prim"].expand)(*params["_prim"].in_avals), values)
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
            found = meaning_of(call, params)
        if not many:
            self.origins[id(found)] = name, given[0], given[-1], found
        return found if many else [found]

    def wrapped_index(self, values: list[Any]) -> Any:
        """select_n(x < 0, x, x + size), what JAX makes of each index; None for others."""
        which, x, moved = (*values[:3], None)[:3]
        below, plus = (self.origins.get(id(value), ("", None, None, None)) for value in (which, moved))
        if (below[0], plus[0]) != ("lt", "add") or not (below[1] is plus[1] is x) or not isinstance(x, Symbols) or len(values) != 3:
            return None
        if any([depends(number) or isinstance(number, jax.Array) for number in (below[2], plus[2])]) or int(below[2]) != 0:
            return None
        return self.tracer.symbol([_core.wrapped_index(item, int(plus[2])) for item in x._items], x._shape, x._dtype)

    def constants(self, value: Any) -> Any:
        """Numbers of the program, such as the 0 of x[0, j]; arrays that it captured stay arrays."""
        if not isinstance(value, np.ndarray) or value.size > MAX_CHOICES:
            return value
        items = [_core.constant(x) if x == x else formulas.nan() for x in value.reshape(-1).tolist()]
        return self.tracer.symbol(items, value.shape, value.dtype)

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
        meaning = TABLE.get(name, _WITH_RULES.get(name))
        if meaning is None:
            raise call.refuse("not part of the score language")
        return [meaning(call)]

    def cond(self, branches: Sequence[Any], which: Any, values: Sequence[Any], looks: Sequence[Any]) -> list[Any]:
        if not depends(which):
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
        return select(Call(self.tracer, "select_n", jax.lax.select_n, (flag, *cases), {}, look), {})

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
            if not any(map(depends, of_step)):
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
