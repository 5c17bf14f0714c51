"""A Description is what the user asked for: the attention, the parameters it reads, and the arrays bound to them."""

from __future__ import annotations

import ast
import operator
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Collection, Mapping, NamedTuple, Sequence

from . import _core, arrays, logging
from ._core import BackwardStrategy, Determinism, Expr, Param, Type
from .number_key import number_key_of
from .runtime_numbers import LOOKS_AT_VALUES, MOST_CONSTANTS, Computed, Path, replaced
from .signatures import Mask, Options, ScoreMod
from .trace import Tracer
from .trace_key import Key, as_called, key_of


class Rng(NamedTuple):
    """Which pairs a run drops: seed and offset, or, in their place, an array of the two that is read when the run executes."""

    seed: int = 0
    offset: int = 0
    state: Any = None


@dataclass
class Description:
    attention: _core.Attention
    params: list[Param]
    arrays: list[Any]
    text: str  # canonical: equal texts compute the same function of their inputs; read() makes it again of its text
    score_mod: Expr | None
    mask: Expr | None
    sink: Param | None
    dropout: bool
    settings: dict[str, Any]  # of the attention: plain values


def describe(
    score_mod: ScoreMod = None,
    mask: Mask = None,
    *,
    scale: float | None = None,
    sink: Any = None,
    dropout_p: float = 0.0,
    deterministic: bool = False,
    strategy: str = "automatic",
    checked: bool = False,
    q_offset: int = 0,
    kv_offset: int = 0,
    params: Mapping[str, Any] | None = None,
    tracer: Tracer | None = None,
) -> Description:
    """Traces `score_mod` and `mask` and gathers the arrays they read.

    params: names for captured arrays, and the arrays that a text expression reads.
    """
    tracer = tracer or Tracer()
    tracer.checked = _flag("checked", checked)
    for name, array in {**(params or {}), **({} if sink is None else {"sink": sink})}.items():
        if not arrays.is_array(array):
            raise TypeError(f"attention: {name}: found {_found(array)}; expected an array")
    for name, array in (params or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"attention: params: found a name that is {_found(name)}; expected text")
        tracer.given(name, array)
    score_expr = tracer.expression(score_mod, "score_mod")
    mask_expr = tracer.expression(mask, "mask")
    tracer.over = True
    score_expr, mask_expr = tracer.renamed((score_expr, mask_expr))
    tracer.forget_unread([e for e in (score_expr, mask_expr) if e is not None], keep=len(params or {}))
    sink_param = None
    if sink is not None:
        if (params or {}).get("sink", sink) is not sink:
            raise ValueError("attention: params: found an array called sink beside the sink, which is another; expected another name")
        sink_param = next((param for param in tracer.params if param.name == "sink"), None) or tracer.given("sink", sink)
    settings = {
        "scale": None if scale is None else _number("scale", scale),
        "dropout_p": _number("dropout_p", dropout_p),
        "deterministic": _flag("deterministic", deterministic),
        "strategy": strategy,
        "checked": _flag("checked", checked),
        "q_offset": _integer("q_offset", q_offset),
        "kv_offset": _integer("kv_offset", kv_offset),
    }
    return description_of(score_expr, mask_expr, tracer.params, tracer.arrays, sink_param, settings)


def _number(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__") or getattr(value, "shape", ()) != ():
        raise TypeError(f"attention: {name}: found {_found(value)}; expected a number")
    without_gradient(name, value)
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise ValueError(f"attention: {name}: found {_found(value)}; expected a number that a float holds") from None
    except TypeError as error:
        if type(error).__module__ == "builtins":
            raise
        raise TypeError(f"attention: {name}: found {_found(value)}, which has no value while it is traced; expected a number") from None


def without_gradient(name: str, value: Any) -> Any:
    """Refuses a tensor whose gradient a number would lose."""
    if getattr(value, "requires_grad", False):
        raise TypeError(f"attention: {name}: found a tensor that requires a gradient; expected a number. Put trained factors into the score: "
                        "score_mod=lambda s, b, h, i, j: s * t, with scale=1.0")  # fmt: skip
    return value


def _integer(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"attention: {name}: found {_found(value)}; expected an integer") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"attention: {name}: found {number}; expected an integer of 64 bits")
    return number


def _flag(name: str, value: Any) -> bool:
    if not (isinstance(value, int) or type(value).__name__ in ("bool_", "bool")) or value not in (0, 1):
        raise TypeError(f"attention: {name}: found {_found(value)}; expected True or False")
    return bool(value)


def _found(value: Any) -> str:
    """A value in a message."""
    if arrays.is_array(value):
        return f"{type(value).__module__.partition('.')[0]} array of {value.dtype}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"


# Between the parts of a text, none of which can hold it. Not a line's end: what torch.compile makes has a call's arguments in its comments.
SEPARATOR = "\t"


def description_of(
    score_mod: Expr | None, mask: Expr | None, params: list[Param], bound: list[Any], sink: Param | None, settings: dict[str, Any]
) -> Description:
    """settings: the arguments of describe() that are plain values, from scale to kv_offset."""
    plain = dict(settings)
    deterministic, strategy = plain.pop("deterministic"), plain.pop("strategy")
    chosen = getattr(BackwardStrategy, strategy, None) if isinstance(strategy, str) else None
    if chosen is None:
        raise ValueError(f"strategy: found {strategy!r}; expected automatic, fused, split or two_scan") from None
    determinism = Determinism.reproducible if deterministic else Determinism.fast
    attention = _core.Attention(score_mod=score_mod, mask=mask, sink=sink, determinism=determinism, strategy=chosen, **plain)
    looks = [(p.name, tuple(p.shape), p.type.name) for p in params]
    rest = (looks, None if sink is None else sink.name, settings)
    text = SEPARATOR.join(map(repr, (score_mod, mask, rest)))
    return Description(attention, params, bound, text, score_mod, mask, sink, plain["dropout_p"] > 0, settings)


def read(text: str) -> Description:
    """The Description with this text, without arrays."""
    score_mod, mask, rest = text.split(SEPARATOR)
    looks, sink, settings = ast.literal_eval(rest)
    params = [Param(name, list(shape), getattr(Type, kind)) for name, shape, kind in looks]
    exprs = [None if expr == "None" else _core.parse(expr, params) for expr in (score_mod, mask)]
    return description_of(exprs[0], exprs[1], params, [], next((p for p in params if p.name == sink), None), settings)


@dataclass
class Bound:
    """What a call needs of its attention: the compiled program, and the arrays that its parameters are."""

    program: _core.Program  # whose key finds it again from text, as operators of torch.compile need
    names: tuple[str, ...]
    arrays: list[Any]


# By key, the most recently used last. Code that torch.compile made holds keys, not programs, and may outlive them: a key says all that there is
# to a program, so that one that was forgotten is made again.
_programs: OrderedDict[str, _core.Program] = OrderedDict()
_MAX_PROGRAMS = 1024
_traces: dict[Any, tuple[Bound, list[Any]]] = {}  # by signature; where to find each array again beside it
_MAX_TRACES = 1024


def wanted_gradients(gradients: tuple[str, ...], names: Sequence[str]) -> tuple[bool, ...]:
    """For each parameter, whether its gradient was asked for by name."""
    if isinstance(gradients, str) or not isinstance(gradients, Collection):
        raise TypeError(f"gradients: found {_found(gradients)}; expected a tuple of names, as in gradients=('p0',)")
    for name in gradients:
        if name not in names:
            raise ValueError(f"gradients: no parameter is called {name!r}; expected some of {list(names)}")
    return tuple(name in gradients for name in names)


def program(key: str) -> _core.Program:
    """The program with this key, also of another process's."""
    found = _programs.get(key)
    if found is None:
        text, how = key.rsplit(SEPARATOR, 1)
        options, heads_first = ast.literal_eval(how)
        return _made(key, read(text), options, heads_first)
    try:
        _programs.move_to_end(key)
    except KeyError:  # another thread forgot it meanwhile
        pass
    return found


def _made(key: str, description: Description, options: Sequence[Any], heads_first: bool) -> _core.Program:
    backend, target, threads, exclude = options
    made = _programs[key] = _core.Program(key, description.attention, description.params, backend, target, threads, exclude, heads_first)
    while len(_programs) > _MAX_PROGRAMS:
        _programs.popitem(last=False)
    logging.compile.debug("%s", key.replace(SEPARATOR, "; "))
    return made


def checked(options: Options) -> Options:
    """Each field of its declared type."""
    if not isinstance(options, Options):
        raise TypeError(f"attention: options: found {_found(options)}; expected foveal.Options(...)")
    for name in ("backend", "target", "exclude"):
        if not isinstance(getattr(options, name), str):
            raise TypeError(f"attention: options.{name}: found {_found(getattr(options, name))}; expected text")
    return Options(str(options.backend), str(options.target), _integer("options.threads", options.threads), str(options.exclude))


def bind(description: Description, options: Options, heads_first: bool = False) -> Bound:
    how = tuple(checked(options)), heads_first
    key = f"{description.text}{SEPARATOR}{how!r}"
    found = program(key) if key in _programs else _made(key, description, options, heads_first)
    return Bound(found, tuple(param.name for param in description.params), list(description.arrays))


def trace(
    score_mod: ScoreMod,
    mask: Mask,
    options: Options,
    arguments: Mapping[str, Any],
    tracer: type[Tracer] = Tracer,
    heads_first: bool = False,
) -> Bound:
    """describe() and bind(), done anew only when something that the functions can read has changed, or when that cannot be known (trace_key)."""
    reads = key_of((score_mod, mask), tracer.tensors)
    given, rest = _split(arguments)
    found_key = None
    if reads is not None:
        # Given arrays count by their look, unless a function may have captured the very same one.
        captures = given and (callable(score_mod) or callable(mask))
        try:
            looks = tuple([(name, tuple(a.shape), a.dtype, id(a) if captures else 0) for name, a in given.items()]) if given else ()
            plain = (*rest.items(), *map(type, (*rest.values(), *options)))  # 1 == 1.0, of which one may be refused
            found_key = (reads.parts, tracer, tracer.setting(), looks, options, heads_first, plain)
            hit = _traces.get(found_key)
        except (AttributeError, TypeError):  # no array, or no plain value: describe() says which
            found_key = hit = None
        if hit is not None:
            bound, sources = hit
            if not sources:
                return bound
            return Bound(bound.program, bound.names, [given[source] if type(source) is str else reads.arrays[source] for source in sources])
        with_scalars = _with_scalars(score_mod, mask, options, arguments, tracer, heads_first, (found_key or ())[1:], given)
        if with_scalars is not None:
            return with_scalars
    tracing = tracer()
    description = describe(score_mod, mask, tracer=tracing, **arguments)
    bound = bind(description, options, heads_first)
    if found_key is not None and reads is not None and not tracing.saw_values and _still(reads, score_mod, mask, tracer):
        sources = [_source(name, array, reads.arrays, given) for name, array in zip(bound.names, bound.arrays)]
        if None not in sources:
            if len(_traces) >= _MAX_TRACES:
                _traces.pop(next(iter(_traces)))
            _traces[found_key] = (Bound(bound.program, bound.names, []), sources)
    return bound


# ---- numbers that change from call to call ----

Place = tuple[int, Path]  # a number: 0 of the score_mod, 1 of the mask, and where in it


class _Changing:
    """Calls that differ in the values of numbers alone."""

    def __init__(self, numbers: dict[Place, float | int]):
        self.numbers = numbers  # of the last call
        self.changed: set[Place] = set()
        self.constants: set[Place] = set()  # that must be
        self.calls = 0
        self.bound: dict[Any, tuple[Bound, list[Any]]] = {}  # by the constants; a source may be a Place

    def saw(self, numbers: dict[Place, float | int]) -> bool:
        """Have some changed often enough?"""
        self.changed.update([place for place, value in numbers.items() if self.numbers[place] != value])
        self.numbers = numbers
        self.calls += 1
        return self.calls > MOST_CONSTANTS and not self.changed <= self.constants


_changing: OrderedDict[Any, _Changing] = OrderedDict()
_MAX_CHANGING = 256


def _with_scalars(
    score_mod: ScoreMod, mask: Mask, options: Options, arguments: Mapping[str, Any], tracer: type[Tracer], heads_first: bool,
    rest: tuple[Any, ...], given: Mapping[str, Any],
) -> Bound | None:  # fmt: skip
    """What serves all calls whose functions differ in the values of changing numbers; None while there are few, or where there is no such program."""
    key = number_key_of((score_mod, mask), tracer.tensors)
    numbers = {} if key is None else {(at, path): value for at, found in enumerate(key.numbers) for path, value in found.items()}
    if key is None or not numbers:
        return None
    signature = (key.parts, rest)
    known = _changing.get(signature)
    if known is None:
        known = _changing[signature] = _Changing(numbers)
        if len(_changing) > _MAX_CHANGING:
            _changing.popitem(last=False)
    if not known.saw(numbers) or tracer.scalar(0) is None or any([set(code.co_names) & LOOKS_AT_VALUES for code in key.codes]):
        return None
    scalars = known.changed - known.constants
    constants = (frozenset(scalars), tuple([value for place, value in numbers.items() if place not in scalars]))
    found = known.bound.get(constants)
    if found is not None:
        now = [_array_of(source, given, key.arrays, numbers, tracer) for source in found[1]]
        if not any([array is None for array in now]):
            return Bound(found[0].program, found[0].names, now)
    made = _traced_with(scalars, score_mod, mask, arguments, tracer, numbers)
    if made is None:  # some of them are needed while tracing
        alone = {place for place in scalars if _traced_with({place}, score_mod, mask, arguments, tracer, numbers) is None}
        known.constants |= alone or scalars
        return None
    description, computed = made
    bound = bind(description, options, heads_first)
    named = zip(bound.names, bound.arrays)
    sources = [computed[id(array)] if id(array) in computed else _source(name, array, key.arrays, given) for name, array in named]
    if None not in sources:
        if len(known.bound) >= _MAX_CHANGING:
            known.bound.clear()
        known.bound[constants] = (Bound(bound.program, bound.names, []), sources)
    return bound


def _array_of(source: Any, given: Mapping[str, Any], reached: Sequence[Any], numbers: Mapping[Place, float | int], tracer: type[Tracer]) -> Any:
    """None for a number of another kind than that which the program was made with."""
    if isinstance(source, Computed):
        value = source(numbers)
        return None if value is None else tracer.scalar(value)
    return given[source] if type(source) is str else reached[source]


def _traced_with(
    scalars: set[Place], score_mod: ScoreMod, mask: Mask, arguments: Mapping[str, Any], tracer: type[Tracer], numbers: Mapping[Place, float | int]
) -> tuple[Description, dict[int, Computed]] | None:
    """The description with these numbers as scalars, and what arrays hold that are made of them; None where one is needed while tracing."""
    tracing = tracer()
    try:
        stand_ins = {place: tracing.number(numbers[place], operator.itemgetter(place)) for place in numbers if place in scalars}
        functions = [
            replaced(as_called(fn), {path: number for (of, path), number in stand_ins.items() if of == at}) for at, fn in enumerate((score_mod, mask))
        ]
        description = describe(*functions, tracer=tracing, **arguments)
    except ZeroDivisionError:  # as Python's numbers give
        raise
    except Exception:  # whatever is wrong with the functions themselves shows when they are traced as they are
        return None
    return None if tracing.saw_values else (description, tracing.sources)


def _still(reads: Key, score_mod: ScoreMod, mask: Mask, tracer: type[Tracer]) -> bool:
    """Whether the functions have left what they read as it was; else they must run on every call."""
    now = key_of((score_mod, mask), tracer.tensors)
    return now is not None and now.parts == reads.parts


def _split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays given by name, and the other arguments: a number in an array by its value, as it may change."""
    rest = {name: _by_value(name, value) if name in _NUMBERS and type(value) not in _PLAIN else value for name, value in arguments.items()}
    params, sink = rest.pop("params", None), rest.pop("sink", None)
    if not params and sink is None:
        return {}, rest
    return {**(params or {}), **({} if sink is None else {"sink": sink})}, rest


_NUMBERS, _PLAIN = {"scale", "dropout_p", "q_offset", "kv_offset"}, {int, float, type(None)}


def _by_value(name: str, value: Any) -> Any:
    return without_gradient(name, value).item() if arrays.is_array(value) and value.shape == () else value


def _source(name: str, array: Any, reached: Sequence[Any], given: Mapping[str, Any]) -> str | int | None:
    """Where a later call finds this array: under its name among the given ones, or at its place among those that the functions reach, which are as
    many and in the same order wherever keys are equal; None when nowhere, as for an array that was made while tracing. Arrays themselves are not
    held, not even weakly: torch.utils.swap_tensors() refuses tensors that are."""
    if given.get(name) is array:
        return name
    return next((place for place, other in enumerate(reached) if other is array), None)
