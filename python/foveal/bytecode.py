"""What a function reads, by its bytecode: free variables, globals (its own and those of functions nested in it), and attributes of these."""

from __future__ import annotations

import dis
import functools
import itertools
import types
from typing import Any, Iterator, NamedTuple

MAX_CODES = 4096  # that are remembered


class Read(NamedTuple):
    name: str
    attributes: tuple[str, ...]  # x.a.b: ("a", "b")


class Code:
    """The reads of one code object; compares by identity."""

    __slots__ = ("code", "first", "free", "globals", "known", "names", "of_tensors", "types", "writes")

    def __init__(self, code: types.CodeType):
        free, found, self.known = _reads_in(code)
        self.writes = _writes(code)
        self.names = _names_in(code)
        self.of_tensors: tuple[int, list[Any]] = (-1, [])  # of names, those that classes of tensors had when these had so many attributes (trace_key.py)
        self.first = _first_reads(code)  # attributes of the first argument, a method's self; None: not known
        self.types = _types_asked(code)
        self.code = code  # kept alive: it is found by its id
        self.free = tuple((code.co_freevars.index(read.name), read.attributes) for read in free)
        self.globals = tuple(found)


_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_FREE = {"LOAD_DEREF", "LOAD_CLASSDEREF"}
_UNKNOWN = {"IMPORT_NAME", "LOAD_BUILD_CLASS", "LOAD_SUPER_ATTR", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF", "LOAD_LOCALS"}
# Of functions: more than what they read.
_INSIDES = set("__self__ __func__ __closure__ __globals__ __dict__ __name__ __qualname__ __doc__ __module__ __annotations__ __type_params__".split())
_WRITES = {f"{verb}_{what}" for verb in ("STORE", "DELETE") for what in ("ATTR", "GLOBAL", "SUBSCR")}

_codes: dict[int, Code] = {}


def code_of(code: types.CodeType) -> Code:
    found = _codes.get(id(code))
    if found is None:
        if len(_codes) >= MAX_CODES:
            _codes.clear()
        found = _codes[id(code)] = Code(code)
    return found


def _reads_in(code: types.CodeType) -> tuple[list[Read], list[Read], bool]:
    """(reads of free variables, reads of globals, is that all?), those of nested functions included."""
    free: dict[Read, None] = {}
    found: dict[Read, None] = {}
    known = True
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    for at, instruction in enumerate(instructions):
        known = known and instruction.opname not in _UNKNOWN and not (instruction.opname in _ATTRIBUTE and instruction.argval in _INSIDES)
        into = found if instruction.opname in _GLOBAL else free if instruction.opname in _FREE else None
        if into is None or (into is free and instruction.argval not in code.co_freevars):
            continue
        into[Read(instruction.argval, _attributes_after(instructions, at))] = None
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            inner_free, inner_globals, inner_known = _reads_in(nested)
            free.update((read, None) for read in inner_free if read.name in code.co_freevars)
            found.update((read, None) for read in inner_globals)
            known = known and inner_known
    return list(free), list(found), known


def _attributes_after(instructions: list[dis.Instruction], at: int) -> tuple[str, ...]:
    """Those that are read of what the instruction loads, one of the other."""
    return tuple([i.argval for i in itertools.takewhile(lambda i: i.opname in _ATTRIBUTE, instructions[at + 1 :])])


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
        found[_attributes_after(instructions, at)] = None
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


def global_names(code: types.CodeType) -> set[str]:
    """Of the globals that a function with this code reads, functions nested in it included."""
    return {read.name for read in code_of(code).globals}


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
    return code_of(fn.__code__).types


def attributes_read(fn: types.FunctionType) -> Iterator[tuple[str, ...]]:
    """What it, or a function nested in it, reads of names: ("torch", "Tensor")."""
    code = code_of(fn.__code__)
    for read in (*code.globals, *[Read(fn.__code__.co_freevars[index], attributes) for index, attributes in code.free]):
        yield from [(read.name, *read.attributes[:length]) for length in range(1, len(read.attributes) + 1)]


def handed_on(fn: types.FunctionType) -> list[tuple[str, ...]]:
    """Names that it, or a function nested in it, reads without an attribute of them."""
    code = code_of(fn.__code__)
    found = [read.name for read in code.globals if not read.attributes]
    found += [fn.__code__.co_freevars[index] for index, attributes in code.free if not attributes]
    return [(name,) for name in found]


_PAST_NAMES = {"__builtins__", "__getattribute__", "__instancecheck__", "__subclasscheck__"}


@functools.lru_cache(MAX_CODES)
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
