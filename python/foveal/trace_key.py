"""The key under which a trace is remembered: what the traced function can read.

A trace is right for a later call when everything that the function could read is what it was. Its bytecode tells what that is (bytecode.py). Numbers,
texts and containers count by value, arrays by identity (their elements are read at run time), functions by what they read in turn.
Whatever else it meets, it cannot vouch for: then there is no key, and the function is traced again on every call.
"""

from __future__ import annotations

import enum
import functools
import math
import types
from typing import Any, Callable, Iterable, Mapping, NamedTuple

from . import arrays
from ._core import Expr, Param
from .bytecode import MAX_CODES, Code, code_of
from .masks import Maker, MaskFunction
from .pure_functions import PURE

MAX_PARTS = 4096  # of a key: beyond it, comparing costs more than tracing


class Key(NamedTuple):
    parts: tuple[Any, ...]  # equal for calls whose trace is the same
    arrays: list[Any]  # that the functions can reach: later calls find them again
    expressions: list[Expr]  # that they can reach


class Unknown(Exception):
    """Something of which it is not known when it changes."""


_of_tensors: list[Mapping[str, Any]] = []  # the attributes of their classes


def watch(classes: Iterable[type]) -> None:
    """Classes of tensors, of a framework where users may add to them."""
    _of_tensors.extend(map(vars, classes))


_structures: dict[int, tuple[Expr, bytes]] = {}  # of expressions, which do not change, by their identities


class Walk:
    """Collects the parts of a key. tensors: the type of arrays that tracing notices wherever they come from; others only where they are
    put in place of the captured ones (Tracer), not as attributes."""

    __slots__ = ("arrays", "carried", "expressions", "parts", "seen", "tensors")

    def __init__(self, tensors: type | None):
        self.tensors = tensors
        self.parts: list[Any] = []
        self.arrays: list[Any] = []
        self.carried: list[Any] = []  # attributes, by name, of what was met itself: functions that it is handed to may read them
        self.expressions: list[Expr] = []
        self.seen: dict[Any, int] = {}

    def finish(self) -> None:
        """Adds what is read, under a name that stands somewhere in the functions, of what they hand on."""
        if self.tensors is not None:
            self.of_tensors()
        if not self.carried:
            return
        names = frozenset().union(*[part.names for part in self.parts if type(part) is Code])
        while self.carried:
            attributes = self.carried.pop()
            for name in [name for name in attributes if name in names]:
                self.parts.append(name)
                self.plain(attributes[name])

    def of_tensors(self) -> None:
        """What users have put into the classes of tensors under such a name: each tensor has it, also one that the functions make."""
        count = sum(map(len, _of_tensors))
        for part in self.parts:  # which grow by what the functions found there have
            if type(part) is Code:
                if part.of_tensors[0] != count:
                    part.of_tensors = count, [(held, name) for held in _of_tensors for name in part.names if name in held]
                for held, name in part.of_tensors[1]:
                    found = held.get(name, ABSENT)
                    if not _is_own(found):
                        self.parts.append(name)
                        self.value(found) if type(found) is types.FunctionType else self.plain(found)

    def carry(self, value: Any) -> None:
        """What it has of its own, and of classes that are the user's."""
        kind: Any = type(value)
        for owner in (value, *_users_classes(kind)):
            if owner.__dict__ and ("carried", id(owner)) not in self.seen:
                self.seen["carried", id(owner)] = len(self.seen)
                self.carried.append(owner.__dict__)

    def whole(self, value: Any) -> None:
        """A tensor or a member of an enumeration that is handed on: with what the user's classes add to it."""
        kind: Any = type(value)
        if not _has_plain_operators(kind):
            raise Unknown
        self.carry(value)
        for text in _texts(kind):
            self.bound(text, value)

    def plain(self, value: Any) -> None:
        """An attribute as it stands in its owner. Where reading it may run code, it is not known what that reads."""
        if hasattr(type(value), "__get__"):
            raise Unknown
        self.value(value, (), False)

    def value(self, value: Any, attributes: tuple[str, ...] = (), captured: bool = True) -> None:
        kind = type(value)
        handle = HANDLERS.get(kind)
        if handle is None:
            if len(HANDLERS) >= MAX_CODES:
                HANDLERS.clear()
                HANDLERS.update(_EXACT)
            handle = HANDLERS[kind] = handler_of(kind, value)
        handle(self, value, attributes, captured)

    def number(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        self.parts.append(type(value))
        self.parts.append(value)

    def real(self, value: float, attributes: tuple[str, ...], captured: bool) -> None:
        self.parts.append(float)
        self.parts.append(value or math.copysign(1.0, value))
        if not value:
            self.parts.append("zero")

    def range_(self, value: range, attributes: tuple[str, ...], captured: bool) -> None:
        """Ranges are equal that have the same numbers, with other ends."""
        self.parts += [range, value.start, value.stop, value.step]

    def complex_(self, value: complex, attributes: tuple[str, ...], captured: bool) -> None:
        self.parts.append(complex)
        self.real(value.real, (), False)
        self.real(value.imag, (), False)

    def numpy_scalar(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """By its bits: -0.0 is not 0.0, and an element of a structured array changes with it."""
        if value.dtype.hasobject:
            raise Unknown
        self.parts += [type(value), value.dtype, value.tobytes()]

    def sequence(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if self.again(value):
            return
        self.parts.append(type(value))
        self.parts.append(len(value))
        if len(self.parts) + len(value) > MAX_PARTS:
            raise Unknown
        for item in value:
            self.value(item, (), captured and type(value) in (tuple, list))

    def named_tuple(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """Where it is no more than its items: no methods, no properties, no operators of its own."""
        kind = type(value)
        own = [name for base in kind.__mro__ if base not in (tuple, object) for name, held in vars(base).items() if callable(held) or hasattr(held, "__get__")]
        if not set(own) <= _OF_NAMED_TUPLES.union(kind._fields) or (attributes and attributes[0] not in kind._fields):
            raise Unknown
        if not self.again(value):
            self.parts.append(kind)
            for item in value:
                self.value(item, (), False)

    def mapping(self, value: dict[Any, Any], attributes: tuple[str, ...], captured: bool) -> None:
        if self.again(value):
            return
        self.parts.append(dict)
        self.parts.append(len(value))
        if len(self.parts) + 2 * len(value) > MAX_PARTS:
            raise Unknown
        for key, item in value.items():
            self.value(key, (), False)
            self.value(item, (), captured)

    def again(self, value: Any) -> bool:
        """For what may hold itself."""
        place = self.seen.get(id(value))
        if place is None:
            self.seen[id(value)] = len(self.seen)
            return False
        self.parts.append("again")
        self.parts.append(place)
        return True

    def array(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        kind: Any = type(value)
        if self.tensors is not None and isinstance(value, self.tensors):
            if attributes:  # its own are noticed by tracing; those that a user gave it are not
                if type(value).__module__.partition(".")[0] != "torch":
                    raise Unknown
                if attributes[0] in vars(value):
                    return self.value(vars(value)[attributes[0]], attributes[1:], False)
                of_class = in_class(kind, attributes[0])
                if isinstance(of_class, types.FunctionType) and of_class.__module__.partition(".")[0] != "torch":
                    raise Unknown
                if of_class is not ABSENT and not hasattr(type(of_class), "__get__"):
                    return self.value(of_class, attributes[1:], False)
            elif value.__dict__ or _users_classes(kind):
                self.whole(value)
        elif not captured or self.tensors is not None:
            raise Unknown
        try:
            shape = value.shape
        except RuntimeError:  # a nested tensor's
            raise Unknown from None
        self.arrays.append(value)
        self.parts.append(id(value))  # which another one has when this one is gone
        self.parts.append(type(value))
        self.parts.append(shape)
        self.parts.append(value.dtype)

    def expression(self, value: Expr, attributes: tuple[str, ...], captured: bool) -> None:
        known = _structures.get(id(value))
        if known is None:
            if len(_structures) >= MAX_CODES:
                _structures.clear()
            known = _structures[id(value)] = value, value.structure()
        self.expressions.append(value)
        self.parts.append(Expr)
        self.parts.append(known[1])

    def itself(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """Immutable, and compared by identity."""
        self.parts.append(value)

    def function(self, value: types.FunctionType, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes:
            return self.value(self.own(value, attributes[0]), attributes[1:], False)
        if value in PURE:
            self.parts.append(value)
            return
        if self.again(value):
            return
        if value.__dict__:
            self.carry(value)
        code = code_of(value.__code__)
        if not code.known or len(self.parts) > MAX_PARTS:
            raise Unknown
        self.parts.append(code)
        cells = value.__closure__ or ()
        for index, read in code.free:
            try:
                content = cells[index].cell_contents
            except ValueError:  # not filled yet
                raise Unknown from None
            self.value(content, read)
        for name, read in code.globals:
            self.value(seen_as(name, value), read)
        if value.__defaults__:
            for default in value.__defaults__:
                self.value(default)
        if value.__kwdefaults__:
            self.mapping(value.__kwdefaults__, (), True)

    def method(self, value: types.MethodType, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes:
            raise Unknown
        self.bound(value.__func__, value.__self__)

    def bound(self, function: Any, owner: Any) -> None:
        """A method counts by what its function reads, of its owner and of all else."""
        first = code_of(function.__code__).first if type(function) is types.FunctionType else None
        if first is None:
            raise Unknown
        self.parts.append("method")
        place = self.seen.setdefault((id(function), id(owner)), len(self.seen))
        self.parts.append(place)
        if place != len(self.seen) - 1:
            return
        self.function(function, (), True)
        for attributes in first:
            self.value(owner, attributes)

    def partial(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes:
            raise Unknown
        if value.__dict__:
            self.carry(value)
        self.parts.append(functools.partial)
        self.value(value.func)
        self.sequence(value.args, (), True)
        self.mapping(value.keywords, (), True)

    def pure(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """A function of C, or another callable that was vouched for."""
        if attributes or value not in PURE:
            raise Unknown
        self.parts.append(value)

    def module(self, value: types.ModuleType, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            raise Unknown
        self.value(present(value, attributes[0]), attributes[1:], False)

    def class_(self, value: type, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            if value not in PURE:
                raise Unknown
            self.parts.append(value)
        elif type(value) is enum.EnumMeta and attributes[0] in value.__members__:
            self.value(value.__members__[attributes[0]], attributes[1:], False)
        elif type(value) is type:
            found = in_class(value, attributes[0])
            if isinstance(found, staticmethod):
                found = found.__func__
            elif found is ABSENT or (hasattr(type(found), "__get__") and not isinstance(found, types.FunctionType)):
                raise Unknown
            self.value(found, attributes[1:], False)
        else:
            raise Unknown

    def member(self, value: enum.Enum, attributes: tuple[str, ...], captured: bool) -> None:
        kind = type(value)
        if not attributes:
            self.whole(value)
        elif attributes[0] not in ("value", "name"):
            raise Unknown
        self.parts.append(kind)
        self.parts.append(value.name)
        self.value(value.value, (), False)

    def object(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """An instance counts by the attributes that are read, where reading them runs no code."""
        if not attributes:
            raise Unknown
        of_class = in_class(type(value), attributes[0])
        if isinstance(of_class, (types.FunctionType, staticmethod, classmethod)) and attributes[0] not in getattr(value, "__dict__", {}):
            attribute_of: Any = type(value).__getattribute__
            if len(attributes) > 1 or attribute_of not in _PLAIN_ATTRIBUTES:
                raise Unknown
            if isinstance(of_class, staticmethod):
                return self.value(of_class.__func__)
            return self.bound(*((of_class.__func__, type(value)) if isinstance(of_class, classmethod) else (of_class, value)))
        self.value(self.own(value, attributes[0]), attributes[1:], False)

    @staticmethod
    def own(value: Any, name: str) -> Any:
        kind = type(value)
        attribute_of: Any = kind.__getattribute__
        if attribute_of not in _PLAIN_ATTRIBUTES and not isinstance(value, types.FunctionType):
            raise Unknown
        of_class = in_class(kind, name)
        if isinstance(of_class, types.MemberDescriptorType):
            return present(value, name)
        if hasattr(type(of_class), "__set__"):
            raise Unknown
        held = getattr(value, "__dict__", {})
        if name in held:
            return held[name]
        if of_class is ABSENT and _is_of_torch(in_class(kind, "__getattr__"), "Module.__getattr__"):
            of_class = next((held[group][name] for group in ("_parameters", "_buffers", "_modules") if name in held.get(group, ())), ABSENT)
        elif hasattr(type(of_class), "__get__"):
            raise Unknown
        if of_class is ABSENT:
            raise Unknown
        return of_class


@functools.lru_cache(256)
def _users_classes(kind: type) -> tuple[type, ...]:
    """Of its bases, those that are neither torch's nor Python's: they may have anything."""
    return tuple([base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins", "enum")])


def _is_own(value: Any) -> bool:
    """Of an attribute of a class of torch's, whether torch has it there."""
    value = getattr(value, "fget", value)  # a property's
    module = getattr(value, "__module__", None) if callable(value) else None
    return isinstance(value, (types.MethodDescriptorType, types.GetSetDescriptorType)) or (module or "").partition(".")[0] == "torch"


@functools.lru_cache(256)
def _has_plain_operators(kind: type) -> bool:
    """Whether those of a class of enumerations or of tensors, a call among them, are none of the user's."""
    held = [value for base in _users_classes(kind) for name, value in vars(base).items() if name.startswith("__") and name not in _NO_OPERATORS]
    return not any([hasattr(type(value), "__get__") and getattr(value, "__module__", None) != "enum" for value in held])


@functools.lru_cache(256)
def _texts(kind: type) -> list[types.FunctionType]:
    """What a user has put in the place of str(x), repr(x) and f"{x}"."""
    held = [value for base in _users_classes(kind) for name, value in vars(base).items() if name in _TEXTS]
    return [value for value in held if type(value) is types.FunctionType and value.__module__ != "enum"]


_TEXTS = {"__repr__", "__str__", "__format__"}
_NO_OPERATORS = _TEXTS | set(
    "__new__ __init__ __init_subclass__ __copy__ __deepcopy__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __dict__ __weakref__ "
    "__torch_function__ __torch_dispatch__ __tensor_flatten__ __tensor_unflatten__".split()
)
_PLAIN_ATTRIBUTES = (object.__getattribute__, types.SimpleNamespace.__getattribute__)


ABSENT: Any = object()


def present(owner: Any, name: str) -> Any:
    """Of what may have any value, and may have none: both could change into the other."""
    found = getattr(owner, name, ABSENT)
    if found is ABSENT:
        raise Unknown
    return found


def seen_as(name: str, function: types.FunctionType) -> Any:
    """What a global name is to a function."""
    scopes = function.__globals__, getattr(function, "__builtins__")
    if [type(scope) for scope in scopes] != [dict, dict]:  # one that answers by code of its own
        raise Unknown
    found = next((scope[name] for scope in scopes if name in scope), ABSENT)
    if found is ABSENT:
        raise Unknown
    return found


def in_class(kind: type, name: str) -> Any:
    """As it stands in the class, without running descriptors; ABSENT when it does not."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return ABSENT


def _is_of_torch(method: Any, name: str) -> bool:
    return (getattr(method, "__module__", ""), getattr(method, "__qualname__", "")) == ("torch.nn.modules.module", name)


_Plain = NamedTuple("_Plain", [("field", int)])  # has to live while its names are looked through
_OF_NAMED_TUPLES = {name for name in vars(_Plain) if name != "field"}

# How each kind of object is read.
_Handler = Callable[[Walk, Any, "tuple[str, ...]", bool], None]
_EXACT: dict[type, _Handler] = {
    **{kind: Walk.number for kind in (bool, int, str, bytes, type(None), type(Ellipsis))},
    float: Walk.real,
    complex: Walk.complex_,
    range: Walk.range_,
    tuple: Walk.sequence,
    list: Walk.sequence,
    dict: Walk.mapping,
    types.FunctionType: Walk.function,
    functools.partial: Walk.partial,
    MaskFunction: Walk.partial,
    Maker: Walk.pure,
    types.MethodType: Walk.method,
    types.ModuleType: Walk.module,
    Expr: Walk.expression,
    Param: Walk.itself,
}
HANDLERS: dict[type, _Handler] = dict(_EXACT)
_IMMUTABLE = {("torch", "dtype"), ("torch", "device"), ("torch", "finfo"), ("torch", "iinfo"), ("torch", "Size")}


def handler_of(kind: type, value: Any) -> _Handler:
    if issubclass(kind, type):
        return Walk.class_
    if issubclass(kind, enum.Enum):
        return Walk.member
    if issubclass(kind, types.ModuleType):
        return Walk.module
    if any((base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__):
        return Walk.numpy_scalar
    if (kind.__module__, kind.__name__) in _IMMUTABLE:
        return Walk.number
    if arrays.is_array(value):
        return Walk.array
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return Walk.named_tuple
    if callable(value) and not hasattr(value, "__dict__"):
        return Walk.pure
    return Walk.object


def as_called(value: Any) -> Any:
    """An object as the method that calling it comes to: __call__, or a torch.nn.Module's forward; functions and all else as they are."""
    if HANDLERS.get(type(value), Walk.object) is not Walk.object:
        return value
    call = in_class(type(value), "__call__")
    if type(call) is not types.FunctionType:
        return value
    if not _is_of_torch(call, "Module._wrapped_call_impl"):
        return types.MethodType(call, value)
    hooks = [held for name, held in call.__globals__.items() if name.startswith("_global_") and "hooks" in name]
    hooks += [held for name, held in vars(value).items() if name.endswith("_hooks") and "state_dict" not in name]
    plain = not any(hooks) and "forward" not in vars(value) and value._compiled_call_impl is None
    return value.forward if plain else value


def key_of(functions: Iterable[Any], tensors: type | None = None) -> Key | None:
    """Of functions, expressions and texts that are traced together; None: they must be traced again."""
    walk = Walk(tensors)
    try:
        for function in functions:
            handle = _EXACT.get(type(function))
            if handle is None:
                walk.value(as_called(function))
            else:  # a function, an expression, a text or None: called as it is
                handle(walk, function, (), True)
        walk.finish()
    except (Unknown, RecursionError):
        return None
    return Key(tuple(walk.parts), walk.arrays, walk.expressions)
