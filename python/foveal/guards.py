"""What a traced function can read: the key under which its trace is remembered.

A trace is right for a later call when everything that the function could read is what it was. Its bytecode tells what that is: free
variables, globals (its own and those of functions nested in it), defaults, and attributes of these. Numbers, texts and containers count by
value, arrays by identity (their elements are read at run time), functions by what they read in turn. Whatever else it meets, it cannot vouch
for: then there is no key, and the function is traced again on every call.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import math
import operator
import types
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from . import arrays
from ._core import Expr, Param
from .masks import Maker, MaskFunction

MAX_PARTS = 4096  # of a key: beyond it, comparing costs more than tracing
_MAX_CODES = 4096


class Key(NamedTuple):
    parts: tuple[Any, ...]  # equal for calls whose trace is the same
    arrays: list[Any]  # that the functions can reach: later calls find them again
    expressions: list[Expr]  # that they can reach


class _Unknown(Exception):
    """Something of which it is not known when it changes."""


# ---- what a function reads, by its bytecode ----


class _Read(NamedTuple):
    name: str
    attributes: tuple[str, ...]  # x.a.b: ("a", "b")


class _Code:
    """The reads of one code object; compares by identity."""

    __slots__ = ("code", "first", "free", "globals", "known", "names", "types", "writes")

    def __init__(self, code: types.CodeType):
        free, found, self.known = _reads_in(code)
        self.writes = _writes(code)
        self.names = _names_in(code)
        self.first = _first_reads(code)  # attributes of the first argument, a method's self; None: not known
        self.types = _types_asked(code)
        self.code = code  # kept alive: it is found by its id
        self.free = tuple((code.co_freevars.index(read.name), read.attributes) for read in free)
        self.globals = tuple(found)


_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_FREE = {"LOAD_DEREF", "LOAD_CLASSDEREF"}
_UNKNOWN = {"IMPORT_NAME", "LOAD_BUILD_CLASS", "LOAD_SUPER_ATTR", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF", "LOAD_LOCALS"}

_INSIDES = set("__self__ __func__ __closure__ __globals__ __dict__ __name__ __qualname__ __doc__".split())  # of functions: more than what they read


def _reads_in(code: types.CodeType) -> tuple[list[_Read], list[_Read], bool]:
    """(reads of free variables, reads of globals, is that all?), those of nested functions included."""
    free: dict[_Read, None] = {}
    found: dict[_Read, None] = {}
    known = True
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    for at, instruction in enumerate(instructions):
        known = known and instruction.opname not in _UNKNOWN and not (instruction.opname in _ATTRIBUTE and instruction.argval in _INSIDES)
        into = found if instruction.opname in _GLOBAL else free if instruction.opname in _FREE else None
        if into is None or (into is free and instruction.argval not in code.co_freevars):
            continue
        attributes = []
        for following in instructions[at + 1 :]:
            if following.opname not in _ATTRIBUTE:
                break
            attributes.append(following.argval)
        into[_Read(instruction.argval, tuple(attributes))] = None
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            inner_free, inner_globals, inner_known = _reads_in(nested)
            free.update((read, None) for read in inner_free if read.name in code.co_freevars)
            found.update((read, None) for read in inner_globals)
            known = known and inner_known
    return list(free), list(found), known


def _names_in(code: types.CodeType) -> frozenset[str]:
    """Of globals and of attributes of anything, also in functions nested in it."""
    return frozenset(code.co_names).union(*[_names_in(nested) for nested in code.co_consts if isinstance(nested, types.CodeType)])


def _first_reads(code: types.CodeType) -> tuple[tuple[str, ...], ...] | None:
    """What is read of the first argument, also in functions nested in it; None where the argument itself is passed on or changed."""
    if code.co_argcount == 0:
        return None
    name = code.co_varnames[0]
    found: dict[tuple[str, ...], None] = {}
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE", "NOP", "MAKE_CELL", "LOAD_CLOSURE")]
    for at, instruction in enumerate(instructions):
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if name not in names or not ("_FAST" in instruction.opname or "_DEREF" in instruction.opname):
            continue
        if not instruction.opname.startswith("LOAD") or name in names[:-1]:
            return None
        attributes = []
        for following in instructions[at + 1 :]:
            if following.opname not in _ATTRIBUTE:
                break
            attributes.append(following.argval)
        found[tuple(attributes)] = None
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType) and name in nested.co_freevars:
            found.update((read.attributes, None) for read in _reads_in(nested)[0] if read.name == name)
            if _writes(nested):
                return None
    return None if () in found else tuple(found)


def _writes(code: types.CodeType) -> bool:
    """Whether it, or a function nested in it, may change what it reads."""
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in _WRITES or (name in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in code.co_freevars):
            return True
    return any([_writes(nested) for nested in code.co_consts if isinstance(nested, types.CodeType)])


_WRITES = {f"{verb}_{what}" for verb in ("STORE", "DELETE") for what in ("ATTR", "GLOBAL", "SUBSCR")}

_codes: dict[int, _Code] = {}
_structures: dict[int, tuple[Expr, bytes]] = {}  # of expressions, which do not change, by their identities


def _code_of(code: types.CodeType) -> _Code:
    found = _codes.get(id(code))
    if found is None:
        if len(_codes) >= _MAX_CODES:
            _codes.clear()
        found = _codes[id(code)] = _Code(code)
    return found


def global_names(code: types.CodeType) -> set[str]:
    """Of the globals that a function with this code reads, functions nested in it included."""
    return {read.name for read in _code_of(code).globals}


class TypeAsked(NamedTuple):
    """A `type(x)` in a function's code."""

    of: str  # x
    against: tuple[str, ...]  # what it is compared with: torch.Tensor as ("torch", "Tensor")


_NAME = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL"}
_BETWEEN = {"EXTENDED_ARG", "CACHE", "NOP", "PRECALL", "PUSH_NULL"}


def _types_asked(code: types.CodeType) -> tuple[TypeAsked, ...]:
    """Of names that are not assigned again, also by functions nested in it."""
    if "type" not in code.co_names and not any([isinstance(nested, types.CodeType) for nested in code.co_consts]):
        return ()
    found = []
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _BETWEEN]
    stored = {i.argval for i in instructions if i.opname in ("STORE_FAST", "STORE_DEREF", "DELETE_FAST")}
    for at, (asked, of, call) in enumerate(zip(instructions, instructions[1:], instructions[2:])):
        if asked.opname not in _GLOBAL or asked.argval != "type" or of.opname not in _NAME or of.argval in stored or not call.opname.startswith("CALL") or call.arg != 1:
            continue
        names: list[str] = []
        for following in instructions[at + 3 :]:
            if following.opname not in _ATTRIBUTE | _GLOBAL | _FREE:
                if following.opname not in ("IS_OP", "COMPARE_OP"):
                    names.clear()
                elif not names:  # C is type(x)
                    names += _names_before(instructions[:at])
                break
            names.append(following.argval)
        found.append(TypeAsked(of.argval, tuple(names)))
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            found += [asked for asked in _types_asked(nested) if asked.of not in nested.co_varnames or asked.against]
    return tuple(found)


def _names_before(instructions: list[dis.Instruction]) -> list[str]:
    """What was put on the stack last, where that is a name and attributes of it."""
    names: list[str] = []
    for instruction in reversed(instructions):
        if instruction.opname not in _ATTRIBUTE:
            return [instruction.argval, *names] if instruction.opname in _GLOBAL | _FREE else []
        names.insert(0, instruction.argval)
    return []


def types_asked(fn: types.FunctionType) -> tuple[TypeAsked, ...]:
    """By a function and those nested in it."""
    return _code_of(fn.__code__).types


def attributes_read(fn: types.FunctionType) -> Iterator[tuple[str, ...]]:
    """What it, or a function nested in it, reads of names: ("torch", "Tensor")."""
    code = _code_of(fn.__code__)
    for read in (*code.globals, *[_Read(fn.__code__.co_freevars[index], attributes) for index, attributes in code.free]):
        yield from [(read.name, *read.attributes[:length]) for length in range(1, len(read.attributes) + 1)]


def handed_on(fn: types.FunctionType) -> list[tuple[str, ...]]:
    """Names that it, or a function nested in it, reads without an attribute of them."""
    code = _code_of(fn.__code__)
    found = [read.name for read in code.globals if not read.attributes]
    found += [fn.__code__.co_freevars[index] for index, attributes in code.free if not attributes]
    return [(name,) for name in found]


_PAST_NAMES = {"__builtins__", "__getattribute__", "__instancecheck__", "__subclasscheck__"}


@functools.lru_cache(_MAX_CODES)
def past_names(code: types.CodeType) -> str | None:
    """How a function, or one nested in it, comes by type() and isinstance() other than by these names: by the module that has them, by the class of a
    class, by what they call. What it gets so does not know symbols."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _BETWEEN]
    for at, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME" and instruction.argval == "builtins":
            return "import builtins"
        if instruction.opname in _ATTRIBUTE | _GLOBAL and instruction.argval in _PAST_NAMES:
            return str(instruction.argval)
        if [i.argval for i in instructions[at : at + 2] if i.opname in _ATTRIBUTE] == ["__class__", "__class__"]:
            return "__class__.__class__"
    if any([constant in ("builtins", "__builtins__") for constant in code.co_consts if type(constant) is str]):
        return "'builtins'"
    return next((found for nested in code.co_consts if isinstance(nested, types.CodeType) and (found := past_names(nested)) is not None), None)


def calls_type(code: types.CodeType) -> bool:
    """Whether it, or a function nested in it, may."""
    return "type" in code.co_names or any([calls_type(nested) for nested in code.co_consts if isinstance(nested, types.CodeType)])


# ---- functions that depend on their arguments only ----

_trusted: set[Any] = set()


def trust(functions: Iterable[Any]) -> None:
    """These functions, methods and types depend on nothing but their arguments."""
    _trusted.update(functions)


_BUILTINS = (
    "abs all any bool bytes complex dict divmod enumerate filter float frozenset int isinstance len list map max min pow print range "
    "reversed round set slice sorted str sum tuple zip"
)  # fmt: skip
trust(getattr(builtins, name) for name in _BUILTINS.split())
trust(value for value in vars(builtins).values() if isinstance(value, type) and issubclass(value, BaseException))
# Of operator, not what writes and not what reads an attribute by its name.
_LEFT_OUT = {"attrgetter", "methodcaller", "setitem", "delitem"}
_LEFT_OUT |= {f"i{name}" for name in "add and concat floordiv lshift matmul mod mul or pow rshift sub truediv xor".split()}
for _module in (math, operator):
    trust(value for name, value in vars(_module).items() if not name.startswith("_") and name not in _LEFT_OUT and callable(value))
trust((functools.partial, functools.reduce))


# ---- the walk ----


class _Walk:
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
        if not self.carried:
            return
        names = frozenset().union(*[part.names for part in self.parts if type(part) is _Code])
        while self.carried:
            attributes = self.carried.pop()
            for name in [name for name in attributes if name in names]:
                self.parts.append(name)
                self.plain(attributes[name])

    def carry(self, value: Any) -> None:
        """What it has of its own, and of classes that are the user's."""
        kind: Any = type(value)
        for owner in (value, *_users_classes(kind)):
            if owner.__dict__ and ("carried", id(owner)) not in self.seen:
                self.seen["carried", id(owner)] = len(self.seen)
                self.carried.append(owner.__dict__)

    def plain(self, value: Any) -> None:
        """An attribute as it stands in its owner. Where reading it may run code, it is not known what that reads."""
        if isinstance(value, enum.Enum):  # a member in its class
            return
        if hasattr(type(value), "__get__"):
            raise _Unknown
        self.value(value, (), False)

    def value(self, value: Any, attributes: tuple[str, ...] = (), captured: bool = True) -> None:
        kind = type(value)
        handle = _HANDLERS.get(kind)
        if handle is None:
            if len(_HANDLERS) >= _MAX_CODES:
                _HANDLERS.clear()
                _HANDLERS.update(_EXACT)
            handle = _HANDLERS[kind] = _handler_of(kind, value)
        handle(self, value, attributes, captured)

    def number(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        self.parts.append(type(value))
        self.parts.append(value)

    def real(self, value: float, attributes: tuple[str, ...], captured: bool) -> None:
        self.parts.append(float)
        self.parts.append(value or math.copysign(1.0, value))
        if not value:
            self.parts.append("zero")

    def complex_(self, value: complex, attributes: tuple[str, ...], captured: bool) -> None:
        self.parts.append(complex)
        self.real(value.real, (), False)
        self.real(value.imag, (), False)

    def numpy_scalar(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """By its bits: -0.0 is not 0.0, and an element of a structured array changes with it."""
        if value.dtype.hasobject:
            raise _Unknown
        self.parts += [type(value), value.dtype, value.tobytes()]

    def sequence(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if self.again(value):
            return
        self.parts.append(type(value))
        self.parts.append(len(value))
        if len(self.parts) + len(value) > MAX_PARTS:
            raise _Unknown
        for item in value:
            self.value(item, (), captured and type(value) in (tuple, list))

    def named_tuple(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """Where it is no more than its items: no methods, no properties, no operators of its own."""
        kind = type(value)
        own = [name for base in kind.__mro__ if base not in (tuple, object) for name, held in vars(base).items() if callable(held) or hasattr(held, "__get__")]
        if not set(own) <= _OF_NAMED_TUPLES.union(kind._fields) or (attributes and attributes[0] not in kind._fields):
            raise _Unknown
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
            raise _Unknown
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
                    raise _Unknown
                if attributes[0] in vars(value):
                    return self.value(vars(value)[attributes[0]], attributes[1:], False)
                of_class = _in_class(kind, attributes[0])
                if isinstance(of_class, types.FunctionType) and of_class.__module__.partition(".")[0] != "torch":
                    raise _Unknown
                if of_class is not None and not hasattr(type(of_class), "__get__"):
                    return self.value(of_class, attributes[1:], False)
            elif value.__dict__ or _users_classes(kind):
                self.carry(value)
        elif not captured or self.tensors is not None:
            raise _Unknown
        try:
            shape = value.shape
        except RuntimeError:  # a nested tensor's
            raise _Unknown from None
        self.arrays.append(value)
        self.parts.append(id(value))  # which another one has when this one is gone
        self.parts.append(type(value))
        self.parts.append(shape)
        self.parts.append(value.dtype)

    def expression(self, value: Expr, attributes: tuple[str, ...], captured: bool) -> None:
        known = _structures.get(id(value))
        if known is None:
            if len(_structures) >= _MAX_CODES:
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
        if value in _trusted:
            self.parts.append(value)
            return
        if self.again(value):
            return
        if value.__dict__:
            self.carry(value)
        code = _code_of(value.__code__)
        if not code.known or len(self.parts) > MAX_PARTS:
            raise _Unknown
        self.parts.append(code)
        cells, scope = value.__closure__ or (), value.__globals__
        for index, read in code.free:
            try:
                content = cells[index].cell_contents
            except ValueError:  # not filled yet
                raise _Unknown from None
            self.value(content, read)
        for name, read in code.globals:
            if name in scope:
                self.value(scope[name], read)
            else:
                self.value(getattr(builtins, name, None), read)
        if value.__defaults__:
            for default in value.__defaults__:
                self.value(default)
        if value.__kwdefaults__:
            self.mapping(value.__kwdefaults__, (), True)

    def method(self, value: types.MethodType, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes:
            raise _Unknown
        self.bound(value.__func__, value.__self__)

    def bound(self, function: Any, owner: Any) -> None:
        """A method counts by what its function reads, of its owner and of all else."""
        first = _code_of(function.__code__).first if type(function) is types.FunctionType else None
        if first is None:
            raise _Unknown
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
            raise _Unknown
        self.parts.append(functools.partial)
        self.value(value.func)
        self.sequence(value.args, (), True)
        self.mapping(value.keywords, (), True)

    def pure(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """A function of C, or another callable that was vouched for."""
        if attributes or value not in _trusted:
            raise _Unknown
        self.parts.append(value)

    def module(self, value: types.ModuleType, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            raise _Unknown
        self.value(getattr(value, attributes[0], None), attributes[1:], False)

    def class_(self, value: type, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            if value not in _trusted:
                raise _Unknown
            self.parts.append(value)
        elif issubclass(value, enum.Enum):
            self.value(value.__members__.get(attributes[0]), attributes[1:], False)
        elif type(value) is type:
            found = _in_class(value, attributes[0])
            if isinstance(found, staticmethod):
                found = found.__func__
            elif hasattr(type(found), "__get__") and not isinstance(found, types.FunctionType):
                raise _Unknown
            self.value(found, attributes[1:], False)
        else:
            raise _Unknown

    def member(self, value: enum.Enum, attributes: tuple[str, ...], captured: bool) -> None:
        kind = type(value)
        if not attributes:
            if not _has_plain_operators(kind):
                raise _Unknown
            self.carry(value)
        elif attributes[0] not in ("value", "name"):
            raise _Unknown
        self.parts.append(kind)
        self.parts.append(value.name)
        self.value(value.value, (), False)

    def object(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        """An instance counts by the attributes that are read, where reading them runs no code."""
        if not attributes:
            raise _Unknown
        of_class = _in_class(type(value), attributes[0])
        if isinstance(of_class, (types.FunctionType, staticmethod, classmethod)) and attributes[0] not in getattr(value, "__dict__", {}):
            attribute_of: Any = type(value).__getattribute__
            if len(attributes) > 1 or attribute_of not in _PLAIN_ATTRIBUTES:
                raise _Unknown
            if isinstance(of_class, staticmethod):
                return self.value(of_class.__func__)
            return self.bound(*((of_class.__func__, type(value)) if isinstance(of_class, classmethod) else (of_class, value)))
        self.value(self.own(value, attributes[0]), attributes[1:], False)

    @staticmethod
    def own(value: Any, name: str) -> Any:
        kind = type(value)
        attribute_of: Any = kind.__getattribute__
        if attribute_of not in _PLAIN_ATTRIBUTES and not isinstance(value, types.FunctionType):
            raise _Unknown
        of_class = _in_class(kind, name)
        if isinstance(of_class, types.MemberDescriptorType):
            return getattr(value, name, None)
        if hasattr(type(of_class), "__set__"):
            raise _Unknown
        held = getattr(value, "__dict__", {})
        if name in held:
            return held[name]
        for group in ("_parameters", "_buffers", "_modules"):  # torch.nn.Module
            if name in held.get(group, ()):
                return held[group][name]
        if of_class is None or hasattr(type(of_class), "__get__"):
            raise _Unknown
        return of_class


@functools.lru_cache(256)
def _users_classes(kind: type) -> tuple[type, ...]:
    """Of its bases, those that are neither torch's nor Python's: they may have anything."""
    return tuple([base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins", "enum")])


@functools.lru_cache(256)
def _has_plain_operators(kind: type) -> bool:
    """Whether those of a class of enumerations, a call among them, are none of the user's."""
    held = [(name, value) for base in _users_classes(kind) for name, value in vars(base).items() if name.startswith("__") and name not in _OF_MAKING]
    return not any([type(value) is types.FunctionType and value.__module__ != "enum" for _, value in held])


_OF_MAKING = {"__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__format__"}
_PLAIN_ATTRIBUTES = (object.__getattribute__, types.SimpleNamespace.__getattribute__)


def _in_class(kind: type, name: str) -> Any:
    """As it stands in the class, without running descriptors; None when it does not."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


_OF_NAMED_TUPLES = {name for name in vars(NamedTuple("_Plain", [("field", int)])) if name != "field"}


class _PathWalk(_Walk):
    """The same, but for numbers that stand by themselves in closures, globals and defaults, in containers of these and in attributes of objects: of
    them the type counts, and `numbers` says where they are and what. A path is a step for each function, container and object on the way. What a
    function may write to is not replaced by copies."""

    def __init__(self, tensors: type | None):
        super().__init__(tensors)
        self.path: tuple[Any, ...] = ()
        self.numbers: dict[tuple[Any, ...], float | int] = {}
        self.codes: list[types.CodeType] = []

    def value(self, value: Any, attributes: tuple[str, ...] = (), captured: bool = True) -> None:
        handle = _HANDLERS.get(type(value)) or _handler_of(type(value), value)
        _BY_PATH.get(handle, handle)(self, value, attributes, captured)

    def under(self, step: tuple[Any, ...], value: Any, attributes: tuple[str, ...] = (), captured: bool = True) -> None:
        before, self.path = self.path, (*self.path, step)
        if attributes or type(value) not in (int, float) or value != value:
            self.value(value, attributes, captured)
        else:
            self.numbers[self.path] = value
            self.parts.append(("number", type(value)))
        self.path = before

    def again(self, value: Any) -> bool:
        if super().again(value):
            raise _Unknown  # a number that is reached in two ways would be replaced in one
        return False

    def sequence(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if type(value) not in (tuple, list):
            return super().sequence(value, attributes, captured)
        self.contained(value, attributes, enumerate(value), captured)

    def mapping(self, value: dict[Any, Any], attributes: tuple[str, ...], captured: bool) -> None:
        for key in value:
            self.value(key, (), False)
        self.contained(value, attributes, enumerate(value.values()), captured)

    def contained(self, value: Any, attributes: tuple[str, ...], items: Iterable[tuple[int, Any]], captured: bool) -> None:
        self.again(value)
        self.parts += [type(value), len(value)]
        if len(self.parts) + 2 * len(value) > MAX_PARTS or not {*attributes[:1]} <= _READING:
            raise _Unknown
        for at, item in items:
            self.under(("item", at), item, (), captured)

    def object(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            raise _Unknown
        self.under(("attribute", attributes[0]), self.own(value, attributes[0]), attributes[1:], False)

    def module(self, value: types.ModuleType, attributes: tuple[str, ...], captured: bool) -> None:
        if not attributes:
            raise _Unknown
        self.under(("attribute", attributes[0]), getattr(value, attributes[0], None), attributes[1:], False)

    def class_(self, value: type, attributes: tuple[str, ...], captured: bool) -> None:
        found = _in_class(value, attributes[0]) if len(attributes) == 1 and type(value) is type else None
        if type(found) not in (int, float):
            return super().class_(value, attributes, captured)
        self.under(("attribute", attributes[0]), found)

    def function(self, value: types.FunctionType, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes or value in _trusted:
            return super().function(value, attributes, captured)
        self.again(value)
        if value.__dict__:
            self.carry(value)
        code = _code_of(value.__code__)
        if not code.known or code.writes or len(self.parts) > MAX_PARTS:
            raise _Unknown
        self.parts.append(code)
        self.codes.append(value.__code__)
        cells, scope = value.__closure__ or (), value.__globals__
        for index, read in code.free:
            self.under(("cell", index), cells[index].cell_contents, read)
        for name, read in code.globals:
            if name in scope:
                self.under(("global", name), scope[name], read)
            else:
                self.value(getattr(builtins, name, None), read)
        for at, default in enumerate(value.__defaults__ or ()):
            self.under(("default", at), default)
        for at, (name, default) in enumerate((value.__kwdefaults__ or {}).items()):
            self.parts.append(name)
            self.under(("keyword default", at), default)

    def bound(self, function: Any, owner: Any) -> None:
        first = _code_of(function.__code__).first if type(function) is types.FunctionType else None
        if first is None or (self.path and self.path[-1] != ("function",)):
            raise _Unknown
        self.parts.append("method")
        before = self.path
        self.path = (*before, ("function",))
        self.function(function, (), True)
        self.path = (*before, ("owner",))
        for attributes in first:
            self.value(owner, attributes)
        self.path = before

    def partial(self, value: Any, attributes: tuple[str, ...], captured: bool) -> None:
        if attributes:
            raise _Unknown
        self.parts.append(functools.partial)
        self.under(("function",), value.func)
        for at, item in enumerate(value.args):
            self.under(("argument", at), item)
        for name, item in value.keywords.items():
            self.parts.append(name)
            self.under(("keyword", name), item)


_READING = {"get", "keys", "values", "items", "index", "count", "copy"}  # methods of containers that change nothing

_Handler = Callable[[_Walk, Any, "tuple[str, ...]", bool], None]
_EXACT: dict[type, _Handler] = {
    **{kind: _Walk.number for kind in (bool, int, str, bytes, range, type(None), type(Ellipsis))},
    float: _Walk.real,
    complex: _Walk.complex_,
    tuple: _Walk.sequence,
    list: _Walk.sequence,
    dict: _Walk.mapping,
    types.FunctionType: _Walk.function,
    functools.partial: _Walk.partial,
    MaskFunction: _Walk.partial,
    Maker: _Walk.pure,
    types.MethodType: _Walk.method,
    types.ModuleType: _Walk.module,
    Expr: _Walk.expression,
    Param: _Walk.itself,
}
_HANDLERS: dict[type, _Handler] = dict(_EXACT)
_BY_PATH: dict[Any, Callable[..., None]] = {
    getattr(_Walk, name): getattr(_PathWalk, name) for name in ("sequence", "mapping", "function", "partial", "object", "module", "class_")
}
_IMMUTABLE = {("torch", "dtype"), ("torch", "device"), ("torch", "finfo"), ("torch", "iinfo"), ("torch", "Size")}


def _handler_of(kind: type, value: Any) -> _Handler:
    if issubclass(kind, type):
        return _Walk.class_
    if issubclass(kind, enum.Enum):
        return _Walk.member
    if issubclass(kind, types.ModuleType):
        return _Walk.module
    if any((base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__):
        return _Walk.numpy_scalar
    if (kind.__module__, kind.__name__) in _IMMUTABLE:
        return _Walk.number
    if arrays.is_array(value):
        return _Walk.array
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Walk.named_tuple
    if callable(value) and not hasattr(value, "__dict__"):
        return _Walk.pure
    return _Walk.object


def as_called(value: Any) -> Any:
    """An object as the method that calling it comes to: __call__, or a torch.nn.Module's forward; functions and all else as they are."""
    if _HANDLERS.get(type(value), _Walk.object) is not _Walk.object:
        return value
    call = _in_class(type(value), "__call__")
    if type(call) is not types.FunctionType:
        return value
    if (call.__module__, call.__qualname__) != ("torch.nn.modules.module", "Module._wrapped_call_impl"):
        return types.MethodType(call, value)
    hooks = [held for name, held in call.__globals__.items() if name.startswith("_global_") and "hooks" in name]
    hooks += [held for name, held in vars(value).items() if name.endswith("_hooks") and "state_dict" not in name]
    plain = not any(hooks) and "forward" not in vars(value) and value._compiled_call_impl is None
    return value.forward if plain else value


def key_of(functions: Iterable[Any], tensors: type | None = None) -> Key | None:
    """Of functions, expressions and texts that are traced together; None: they must be traced again."""
    walk = _Walk(tensors)
    try:
        for function in functions:
            handle = _EXACT.get(type(function))
            if handle is None:
                walk.value(as_called(function))
            else:  # a function, an expression, a text or None: called as it is
                handle(walk, function, (), True)
        walk.finish()
    except (_Unknown, RecursionError):
        return None
    return Key(tuple(walk.parts), walk.arrays, walk.expressions)


class NumberKey(NamedTuple):
    parts: tuple[Any, ...]  # equal for calls that differ in numbers alone
    arrays: list[Any]
    numbers: list[dict[tuple[Any, ...], float | int]]  # of each function, by where they are
    codes: list[types.CodeType]  # of all functions


def number_key_of(functions: Iterable[Any], tensors: type | None = None) -> NumberKey | None:
    """As key_of(), of functions apart from the numbers in their closures, globals and defaults; None where that cannot be said."""
    walk = _PathWalk(tensors)
    numbers = []
    try:
        for function in functions:
            walk.numbers = {}
            walk.value(as_called(function))
            numbers.append(walk.numbers)
        walk.finish()
    except (_Unknown, RecursionError, ValueError):
        return None
    return NumberKey(tuple(walk.parts), walk.arrays, numbers, walk.codes)
