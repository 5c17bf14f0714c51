"""What Python asks of symbols without calling them, while a function is traced: whose instances they are, their classes and their hashes. (hasattr()
and getattr() with a default ask a symbol's own __getattr__, which refuses what tensors have and symbols have not.)

A symbol is no tensor, and its hash is none of its values': `isinstance(x, torch.Tensor)` would take another branch than the function does on
tensors, `head in {0, 1}` would be false of every head. The first is answered as of what a symbol stands for, as are `x.__class__` and
`case torch.Tensor():`; the second is refused. `type(x)` asks nobody, so that functions that call it get another `type` while they run
(types_answered): those that type_calls.py finds, which refuses what their bytecode shows to be asked of a symbol, and those that are entered.

The text of a symbol says nothing of its value either: it is for print(), for messages that libraries write, and for debuggers. A function that makes one
itself might branch on it, and is refused.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import sys
import threading
import types
from typing import Any, Callable, Iterator, Sequence

from . import _core, bytecode
from .refusals import LIBRARIES, asked_by_a_library, here, package_of, refused, refused_here

_isinstance, _issubclass = builtins.isinstance, builtins.issubclass
_lock = threading.Lock()
_tracing = 0  # functions, in all threads


def _asked_by_library(frame: types.FrameType) -> bool:
    return package_of(frame) in LIBRARIES


def _is_instance(value: Any, kinds: Any) -> bool:
    kinds = _class_of(kinds, sys._getframe(1))
    if _isinstance(value, kinds):
        return True
    stands_for = getattr(type(value), "__stands_for__", None)
    if stands_for is None or _asked_by_library(sys._getframe(1)):
        return False
    return _issubclass(stands_for(value), kinds)


def _is_subclass(kind: Any, kinds: Any) -> bool:
    frame = sys._getframe(1)
    return _issubclass(_class_of(kind, frame), _class_of(kinds, frame))


def _class_of(kind: Any, frame: types.FrameType) -> Any:
    """What a function that is traced means by it."""
    return type if kind is _type_of else _meant(kind, frame) if type(kind) is SymbolType else kind


# ---- type(x) ----


class SymbolType(type):
    """Of the classes of symbols. A function that is traced has such a class of type(x); what it does with it next is answered as of array_type, or
    refused where that is not known."""

    array_type: type | None = None

    def __eq__(cls, other: Any) -> bool:
        mine = _meant(cls, sys._getframe(1))
        return mine is (_meant(other, sys._getframe(1)) if type(other) is SymbolType else other)

    def __hash__(cls) -> int:
        """For tables of types."""
        return hash(cls.array_type or _NAME.__get__(_meant(cls, sys._getframe(1))))

    __name__ = property(lambda cls: _NAME.__get__(_meant(cls, sys._getframe(1))))


_NAME: Any = type.__dict__["__name__"]


def _meant(kind: SymbolType, frame: types.FrameType) -> type:
    """The class itself for libraries, whose own code tells symbols and arrays apart, and for what Python's abstract classes remember."""
    if not here.count or package_of(frame) in {"torch", "abc", *LIBRARIES}:
        return kind
    if kind.array_type is None:
        raise refused(TypeError("a score or mask asks for the type() of a symbol, which is not what it stands for; expected isinstance()"))
    return kind.array_type


def _type_of(*given: Any) -> Any:
    """The `type` of such functions: isinstance() and issubclass() take it for type, `type(C) is type` holds."""
    kind: Any = type(*given)
    if len(given) > 1 or (kind is not type and type(kind) is not SymbolType):
        return kind
    symbol_kind: Any = kind
    return _type_of if kind is type else _meant(symbol_kind, sys._getframe(1))


_scopes: dict[int, int] = {}  # by the id of a module's globals, how many functions that run now have its `type` replaced


def _is_imported_now(name: str | None) -> bool:
    """A module whose classes are still made, perhaps of `type` itself."""
    spec = getattr(sys.modules.get(name or ""), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


@contextlib.contextmanager
def types_answered(scopes: Sequence[dict[str, Any]], is_the_users: Callable[[str | None], bool]) -> Iterator[None]:
    """While a function runs: `type` of functions with these globals answers for symbols, and of those that are the user's and only show when they
    are called: a helper in an attribute, in a registry, behind a decorator. Packages that are installed keep theirs: torch imports some on first use."""
    replaced: dict[int, dict[str, Any]] = {}

    def replace(scope: dict[str, Any]) -> None:
        with _lock:
            if id(scope) not in replaced and scope.get("type", _type_of) is _type_of:  # not one of their own
                scope["type"] = _type_of
                _scopes[id(scope)] = _scopes.get(id(scope), 0) + 1
                replaced[id(scope)] = scope

    def entered(frame: types.FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__")
        if event != "call" or not is_the_users(name) or _is_imported_now(name) or "-packages" in frame.f_code.co_filename:
            return
        if "type" in frame.f_code.co_names:
            replace(frame.f_globals)
        found = bytecode.past_names(frame.f_code)
        if found is not None:
            refused(_past_names(found))

    for scope in scopes:
        replace(scope)
    watched = sys.getprofile() is None  # a profiler of the user's stays
    if watched:
        sys.setprofile(entered)
    try:
        yield
    finally:
        if watched:
            sys.setprofile(None)
        with _lock:
            for scope in replaced.values():
                _scopes[id(scope)] -= 1
                if _scopes[id(scope)] == 0:
                    del _scopes[id(scope)], scope["type"]


def _past_names(found: str) -> TypeError:
    return TypeError(
        f"a score or mask reaches Python's own functions by {found}, which do not know what symbols stand for; expected type(x), isinstance() and the like by their names"
    )


def check_names(code: types.CodeType) -> None:
    """Refuses a function that comes by type() and isinstance() other than by these names."""
    found = bytecode.past_names(code)
    if found is not None:
        raise _past_names(found)


# ---- hasattr(x, name), getattr(x, name) ----

_hasattr, _getattr = builtins.hasattr, builtins.getattr


def _is_hidden(value: Any, name: Any, frame: types.FrameType) -> bool:
    """An attribute of a symbol that what it stands for has not."""
    stands_for = _getattr(type(value), "__stands_for__", None)
    return stands_for is not None and here.count > 0 and package_of(frame) not in {"torch", *LIBRARIES} and not _hasattr(stands_for(value), name)


def _has_attribute(value: Any, name: str, /) -> bool:
    return _hasattr(value, name) and not _is_hidden(value, name, sys._getframe(1))


def _get_attribute(value: Any, name: str, /, *default: Any) -> Any:
    found = _getattr(value, name, *default)
    if not _is_hidden(value, name, sys._getframe(1)):
        return found
    if default:
        return default[0]
    raise AttributeError(f"{name}: no attribute of what a symbol stands for")


# ---- x.__class__, case torch.Tensor(): ----

_OF_A_CLASS = {dis.opmap[name] for name in ("LOAD_ATTR", "MATCH_CLASS") if name in dis.opmap}


def _instruction(frame: types.FrameType) -> int:
    """That the frame is at; some versions of Python stand on the caches behind it."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and code[at] == 0:
        at -= 2
    return code[at]


def _knows_isinstance(frame: types.FrameType) -> bool:
    """By a name that it had before tracing, under which the builtin itself is called."""
    reads = frame.f_globals
    return any([reads.get(name) is _isinstance for name in frame.f_code.co_names]) or any([value is _isinstance for value in frame.f_locals.values()])


def class_property(stands_for: Callable[[Any], type]) -> Any:
    """A __class__ that answers the functions that are traced, by what a symbol stands for. Functions of C, which ask on behalf of a call, get its
    type: torch's would take it for a tensor of theirs otherwise, and read its memory as one."""

    def class_of(self: Any) -> type:
        frame = sys._getframe(1)
        if not here.count or _asked_by_library(frame):
            return type(self)
        if _instruction(frame) in _OF_A_CLASS:
            return stands_for(self)
        if _knows_isinstance(frame):
            raise refused(
                TypeError("the builtin isinstance() by a name of your own in a score or mask, which does not know what symbols stand for; expected isinstance() itself")
            )
        return type(self)

    return property(class_of)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """While a function runs on symbols."""
    global _tracing
    with _lock:
        _tracing += 1
        setattr(builtins, "isinstance", _is_instance)
        setattr(builtins, "issubclass", _is_subclass)
        setattr(builtins, "print", _print)
        setattr(builtins, "hasattr", _has_attribute)
        setattr(builtins, "getattr", _get_attribute)
    outer, here.refusal = here.refusal, None
    here.count += 1
    try:
        yield
    finally:
        here.count -= 1
        here.refusal = outer
        with _lock:
            _tracing -= 1
            if _tracing == 0:
                setattr(builtins, "isinstance", _isinstance)
                setattr(builtins, "issubclass", _issubclass)
                setattr(builtins, "print", _print_itself)
                setattr(builtins, "hasattr", _hasattr)
                setattr(builtins, "getattr", _getattr)


def no_hash(value: Any) -> int:
    raise refused_here(
        TypeError(
            "a score expression has no value while it is traced, so that it is no key of a dict, a set or a cache: write foveal.where(x == 0, a, b), "
            "or index an array with it"
        )
    )


def no_number(value: Any, *_: Any) -> Any:
    raise refused_here(
        TypeError("a score expression has no value while it is traced: int(), float(), range() and Python's functions of numbers cannot take it")
    )


class NoArray(TypeError):
    """NumPy asks for the elements of a symbol."""


def no_array(value: Any, *_: Any, **named: Any) -> Any:
    raise refused_here(NoArray())


def no_copy(value: Any, *_: Any) -> Any:
    raise refused_here(TypeError("a score expression has no value while it is traced, so that it is neither copied nor pickled: x + 0 is a new one"))


def _insides(value: Any) -> dict[str, Any]:
    """vars(x), x.__dict__: what a symbol is made of is nothing of a tensor's."""
    if asked_by_a_library():
        return {}
    raise refused(TypeError("a score or mask asks for the vars() of a symbol, which are not those of what it stands for; expected its shape and dtype"))


insides: Any = property(_insides)


# ---- str(x), f"{x}", repr(x) ----

# Whose code makes text for people: logging, warnings, debuggers.
_SHOWING = LIBRARIES | sys.stdlib_module_names | {"torch", "IPython", "_pytest", "_pydevd_bundle", "debugpy"}
_print_itself = builtins.print


def _print(*values: Any, **named: Any) -> None:
    outer, here.printing = here.printing, True
    try:
        _print_itself(*values, **named)
    finally:
        here.printing = outer


def text_by(plain: Callable[[Any], str]) -> Any:
    """A __repr__, or a __format__, that gives this text where nothing can follow from it."""

    def text(self: Any, spec: str = "") -> str:
        if here.count and not here.printing and package_of(sys._getframe(1)) not in _SHOWING:
            raise refused(
                TypeError(
                    "a score expression has no value while it is traced, and its text says none: leave out str(), repr() and f-strings; print(x) shows it"
                )
            )
        return object.__format__(self, spec) if spec else plain(self)

    return text


_hash_of = _core.Expr.__hash__


def _hash(self: _core.Expr) -> int:
    return no_hash(self) if here.count else _hash_of(self)


def truth(self: Any) -> bool:
    """bool(self)."""
    try:
        return _truth_of(self if _isinstance(self, _core.Expr) else self.__score__())
    except TypeError as error:  # says what to write instead
        raise refused_here(error) from None


_truth_of = _core.Expr.__bool__
def _copy(self: _core.Expr, *_: Any) -> _core.Expr:
    """copy.copy() and deepcopy() of an expression, which nothing changes. For symbols of functions that are traced: no_copy()."""
    if here.count:
        no_copy(self)
    return self


def _reduce(self: _core.Expr, *_: Any) -> tuple[Any, ...]:
    """pickle: as text."""
    if here.count:
        no_copy(self)
    read = ", ".join(sorted(_core.params_of(self)))
    if read:
        raise TypeError(f"an expression that reads parameters ({read}) is not pickled; expected its text, and parse() with them")
    return _read, (repr(self),)


def _read(text: str) -> _core.Expr:
    """What pickle calls by its name, which functions of the compiled part do not have."""
    return _core.parse(text)


setattr(_core.Expr, "__hash__", _hash)
setattr(_core.Expr, "__repr__", text_by(_core.Expr.__repr__))
setattr(_core.Expr, "__format__", text_by(repr))
setattr(_core.Expr, "__reduce_ex__", _reduce)
setattr(_core.Expr, "__copy__", _copy)
setattr(_core.Expr, "__deepcopy__", _copy)
setattr(_core.Expr, "__bool__", truth)
for _name in ("__float__", "__int__", "__index__", "__complex__"):
    setattr(_core.Expr, _name, no_number)
