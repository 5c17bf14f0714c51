"""What Python asks of symbols without calling them: isinstance() is answered as of what they stand for, hashes are refused."""

import builtins
import copy
import functools
import importlib
import importlib.util
import logging
import pickle
import types

import numpy as np
import pytest

import foveal

X = np.random.default_rng(0).standard_normal((1, 6, 2, 8)).astype(np.float32)
TABLE = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)


# framework -> how it makes an array, and the type of its arrays
KINDS = {"numpy": (np.asarray, np.ndarray)}
if importlib.util.find_spec("torch"):
    import torch

    KINDS["torch"] = (lambda x: torch.as_tensor(x, device=torch.get_default_device()), torch.Tensor)
if importlib.util.find_spec("jax"):
    import jax

    KINDS["jax"] = (jax.numpy.asarray, jax.Array)


def attend(name, score_mod=None):
    found = foveal.attention(*[KINDS[name][0](X)] * 3, score_mod)
    return np.asarray(found.cpu() if name == "torch" else found)


@pytest.mark.parametrize("name", KINDS)
def test_isinstance_of_what_is_captured(name):
    make, kind = KINDS[name]
    table = make(TABLE)
    expected = attend(name, lambda s, b, h, i, j: s + table[h, j])
    np.testing.assert_array_equal(attend(name, lambda s, b, h, i, j: s + table[h, j] if isinstance(table, kind) else s), expected)
    np.testing.assert_array_equal(attend(name, lambda s, b, h, i, j: s + table[h][j] if isinstance(table[h], kind) else s), expected)
    assert isinstance.__module__ == "builtins"


@pytest.mark.parametrize("name", [name for name in KINDS if name != "numpy"])
@pytest.mark.parametrize("kinds", [lambda kind: kind, lambda kind: (int, kind), lambda kind: int | kind, lambda kind: object])
def test_isinstance_of_symbols(name, kinds):
    asked = kinds(KINDS[name][1])
    expected = attend(name, lambda s, b, h, i, j: s * 2 + h * j)
    found = attend(name, lambda s, b, h, i, j: s * 2 + h * j if all(isinstance(x, asked) for x in (s, b, h, i, j, s * 2)) else s)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(attend(name, lambda s, b, h, i, j: s if isinstance(h, (int, float, str)) else s * 2 + h * j), expected)


class Settings:
    factor = 2.0


SETTINGS = Settings()
known_before = isinstance


@functools.singledispatch
def doubled(x):
    return x * 3


def matched(x, kind):
    match x:
        case kind():
            return x * 2
        case _:
            return x * 3


def table_of(kind):
    return next(make(TABLE) for make, of in KINDS.values() if of is kind)


ASKING = {
    "match": lambda kind: lambda s, b, h, i, j: matched(s, kind) + 0 * matched(h, kind),
    "singledispatch": lambda kind: lambda s, b, h, i, j: doubled(s),
    "__class__": lambda kind: lambda s, b, h, i, j: s * 2 if s.__class__ is kind and issubclass((s * h).__class__, kind) else s * 3,
    "a row": lambda kind: lambda s, b, h, i, j, table=table_of(kind): s * 2 if issubclass(table[h].__class__, kind) else s,
    "many times": lambda kind: lambda s, b, h, i, j: [matched(s, kind) if s.__class__ is kind else s for _ in range(100)][-1],
}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "numpy"])
@pytest.mark.parametrize("ask", ASKING)
def test_classes_of_symbols(name, ask):
    """Python's own questions, which isinstance() has no part in, took a symbol for no tensor."""
    doubled.register(KINDS[name][1], lambda x: x * 2)
    np.testing.assert_array_equal(attend(name, ASKING[ask](KINDS[name][1])), attend(name, "2 * score"))


def test_a_row_of_a_parameter_is_none():
    torch = pytest.importorskip("torch")
    table = torch.nn.Parameter(KINDS["torch"][0](TABLE))
    with torch.no_grad():
        found = attend("torch", lambda s, b, h, i, j: s if isinstance(table[h], torch.nn.Parameter) else s * 2)
        np.testing.assert_array_equal(found, attend("torch", "2 * score"))


def test_isinstance_by_another_name_is_refused():
    """In torch; JAX traces such a function itself."""
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="foveal.attention: the builtin isinstance.. by a name of your own"):
        attend("torch", lambda s, b, h, i, j: s * 2 if known_before(s, torch.Tensor) else s)


def of_helper(x, kind):
    return type(x) is kind


def helper_is(x, kind):
    return kind is type(x)


def of_attribute(x, holder):
    return type(x) is holder.kind


TYPES = {
    "is": lambda kind: lambda s, b, h, i, j: s * 2 if type(s) is kind else s,
    "name": lambda kind: lambda s, b, h, i, j: s * 2 if "Tensor" in type(i).__name__ else s,
    "nested": lambda kind: lambda s, b, h, i, j: s * 2 if (lambda: type(s) == kind)() else s,
    "partial": lambda kind: functools.partial(lambda k, s, b, h, i, j: s * 2 if type(s) is k else s, kind),
    "helper": lambda kind: lambda s, b, h, i, j, of_array=array_asked(kind): s * 2 if of_array(s) else s,
    "the other way round": lambda kind: lambda s, b, h, i, j, of_array=array_is(kind): s * 2 if of_array(s) else s,
}


def array_asked(kind):
    return lambda x: type(x) is kind


def array_is(kind):
    return lambda x: kind is type(x)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "numpy"])
@pytest.mark.parametrize("ask", TYPES)
def test_types_of_symbols_are_refused(name, ask):
    """Nobody answers type(x)."""
    with pytest.raises(TypeError, match=r"foveal.attention: a score or mask asks for type\(.\), .* expected isinstance"):
        attend(name, TYPES[ask](KINDS[name][1]))


class OfTypes:
    @staticmethod
    def plainly(x, kind):
        return type(x) is kind

    def by_method(self, x, kind):
        return self.plainly(x, kind)


OF_TYPES = OfTypes()
MODULE = types.ModuleType("of_a_user")
exec("def asked(x, kind):\n    found = type(x)\n    return found is kind", vars(MODULE))

TYPES_IN_HELPERS = {
    "is, by a method": lambda x, kind: OF_TYPES.by_method(x, kind),
    "is, by a class": lambda x, kind: OfTypes.plainly(x, kind),
    "is, by a module": lambda x, kind: MODULE.asked(x, kind),
    "is": lambda x, kind: of_helper(x, kind),
    "is, the other way round": lambda x, kind: helper_is(x, kind),
    "is an attribute": lambda x, kind: of_attribute(x, types.SimpleNamespace(kind=kind)),
    "in": lambda x, kind: type(x) in (kind, int),
    "of a table": lambda x, kind: {kind: True}.get(type(x), False),
    "of a set": lambda x, kind: type(x) in {int, kind},
    "==": lambda x, kind: kind == type(x),
    "!=": lambda x, kind: not type(x) != kind,
    "name": lambda x, kind: type(x).__name__ == kind.__name__,
    "subclass": lambda x, kind: issubclass(type(x), kind),
    "instance": lambda x, kind: isinstance(x + 1, type(x)),
    "dir": lambda x, kind: "reshape" in dir(x),
}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "numpy"])
@pytest.mark.parametrize("ask", TYPES_IN_HELPERS)
def test_what_is_done_with_types_of_symbols(name, ask):
    """type(x) itself asks nobody. JAX traces such functions by itself: there it is a tracer's."""
    asked, kind = TYPES_IN_HELPERS[ask], KINDS[name][1]
    expected = name == "torch" or ask in ("instance", "dir")
    kept = []
    found = attend(name, lambda s, b, h, i, j: kept.append(asked(s, kind)) or s * 2)
    np.testing.assert_array_equal(found, attend(name, "2 * score"))
    assert kept[-1] == expected
    assert "type" not in globals()
    assert issubclass.__module__ == "builtins"


def asked_elsewhere():
    """Of a module that the score reaches by no name."""
    module = types.ModuleType("elsewhere")
    exec("def asked(x, kind): return type(x) is kind\ndef in_steps(x, kind): yield type(x) is kind", vars(module))
    return module


class Holder:
    pass


def in_a_registry():
    holder, held = Holder(), {"entries": [Holder()]}
    held["entries"][0].call = holder.call = asked_elsewhere().asked
    return holder, held


HOLDER, HELD = in_a_registry()
Holder.call_of_class = functools.partial(asked_elsewhere().asked)
HIDDEN = {
    "an attribute": lambda x, kind: HOLDER.call(x, kind),
    "a registry": lambda x, kind: HELD["entries"][0].call(x, kind),
    "a partial of a class": lambda x, kind: HOLDER.call_of_class(x, kind),
    "made while it runs": lambda x, kind: asked_elsewhere().asked(x, kind),
    "a generator": lambda x, kind: next(asked_elsewhere().in_steps(x, kind)),
    "compiled while it runs": lambda x, kind: eval("type(x) is kind", {"x": x, "kind": kind, "__name__": "elsewhere"}),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_types_are_answered_wherever_a_helper_is_found(where):
    torch = pytest.importorskip("torch")
    found = attend("torch", lambda s, b, h, i, j: s * 2 if HIDDEN[where](s + 0, torch.Tensor) else s)
    np.testing.assert_array_equal(found, attend("torch", "2 * score"))


def test_what_is_imported_while_a_function_runs_has_its_own_type(tmp_path, monkeypatch):
    """Torch imports much on first use."""
    torch = pytest.importorskip("torch")
    (tmp_path / "of_classes.py").write_text("def kind(x): return type(x)\nkind(1)\nclass Meta(type): pass\nclass Made(metaclass=Meta): pass\n")
    monkeypatch.syspath_prepend(tmp_path)

    def score_mod(s, b, h, i, j):
        made = importlib.import_module("of_classes")
        return s * 2 if isinstance(made.Made, made.Meta) and made.kind(s + 0) is torch.Tensor else s

    np.testing.assert_array_equal(attend("torch", score_mod), attend("torch", "2 * score"))


TYPE, KEPT_TYPES = type, (int, type)
OTHER_TYPES = types.SimpleNamespace(of=types.SimpleNamespace(kind=type))
OTHER_NAMES = {
    "a global": lambda kind: lambda s, b, h, i, j: s * 2 if TYPE(s) is kind else s,
    "a default": lambda kind: lambda s, b, h, i, j, f=type: s * 2 if f(s) is kind else s,
    "a closure": lambda kind, f=type: lambda s, b, h, i, j: s * 2 if f(s) is kind else s,
    "a module": lambda kind: lambda s, b, h, i, j: s * 2 if builtins.type(s) is kind else s,
    "a tuple": lambda kind: lambda s, b, h, i, j: s * 2 if KEPT_TYPES[1](s) is kind else s,
    "an attribute": lambda kind: lambda s, b, h, i, j: s * 2 if OTHER_TYPES.of.kind(s) is kind else s,
    "a partial": lambda kind: functools.partial(lambda f, s, b, h, i, j: s * 2 if f(s) is kind else s, type),
}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "numpy"])
@pytest.mark.parametrize("where", OTHER_NAMES)
def test_type_by_another_name_is_refused(name, where):
    with pytest.raises(TypeError, match=r"foveal.attention: a score or mask has the builtin type\(\) by a name of its own"):
        attend(name, OTHER_NAMES[where](KINDS[name][1]))


def imported_as(s, kind):
    from builtins import type as f

    return f(s) is kind


def imported_whole(s, kind):
    import builtins as B

    return B.isinstance(s, kind)


class Behind:
    """Found as it is entered, as an attribute of an object."""

    of = types.SimpleNamespace(imported=imported_as)


PAST_NAMES = {
    "getattr": lambda s, kind: getattr(builtins, "type")(s) is kind,
    "vars": lambda s, kind: vars(builtins)["type"](s) is kind,
    "__import__": lambda s, kind: __import__("builtins").type(s) is kind,
    "importlib": lambda s, kind: importlib.import_module("builtins").type(s) is kind,
    "__builtins__": lambda s, kind: __builtins__["type"](s) is kind,
    "the class of a class": lambda s, kind: (5).__class__.__class__(s) is kind,
    "the attribute": lambda s, kind: object.__getattribute__(s, "__class__") is kind,
    "the check": lambda s, kind: kind.__instancecheck__(s),
    "imported as": imported_as,
    "imported whole": imported_whole,
    "behind an object": lambda s, kind: Behind().of.imported(s, kind),
}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "numpy"])
@pytest.mark.parametrize("where", PAST_NAMES)
def test_builtins_past_their_names_are_refused(name, where):
    """They gave what is so of a symbol, and the function went another way than on tensors."""
    asked = PAST_NAMES[where]
    if (name, where) == ("jax", "behind an object"):
        pytest.skip("JAX traces such functions itself")
    with pytest.raises(TypeError, match="foveal.attention: a score or mask (reaches Python's own functions by|hands on the module builtins)"):
        attend(name, lambda s, b, h, i, j: s * 2 if asked(s + 0, KINDS[name][1]) else s)


def test_builtins_by_their_names_are_not():
    np.testing.assert_array_equal(attend("numpy", lambda s, b, h, i, j: s * builtins.max(1, 2)), attend("numpy", "2 * score"))


ATTRIBUTES = "__array_priority__ __array__ __array_wrap__ __array_function__ __array_ufunc__ __score__ __index__ __iter__ _items _tracer _shape shape foo".split()


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_attributes_are_those_of_tensors(attribute):
    """Or the question is refused."""
    torch = pytest.importorskip("torch")
    expected = attend("torch", f"{2 if hasattr(torch.Tensor, attribute) else 3} * score")
    asked = {
        "hasattr": lambda s, b, h, i, j: s * 2 if hasattr(s, attribute) else s * 3,
        "getattr": lambda s, b, h, i, j: s * 2 if getattr(s, attribute, None) is not None else s * 3,
    }
    for score_mod in asked.values():
        if attribute == "__array_wrap__":
            with pytest.raises(NotImplementedError, match="a symbol has none"):
                attend("torch", score_mod)
        else:
            np.testing.assert_array_equal(attend("torch", score_mod), expected)
    assert hasattr.__module__ == getattr.__module__ == "builtins"


def test_symbols_are_no_arrays_of_numpys():
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match="foveal.attention: score_mod: a symbol .* is to become an array of NumPy's"):
        attend("torch", lambda s, b, h, i, j: s * float(np.asarray(s).size))


@pytest.mark.parametrize("name", KINDS)
def test_type_stays_a_class(name):
    """To functions whose `type` is another one while they run."""
    of_classes = lambda x: (isinstance(x, type), issubclass(type(x), type), type("Made", (), {}).__name__, type(x) is type)  # noqa: E731
    seen = []
    found = attend(name, lambda s, b, h, i, j: seen.append((of_classes(int), of_classes(3))) or s * 2)
    np.testing.assert_array_equal(found, attend(name, "2 * score"))
    assert all(value == ((True, True, "Made", True), (False, False, "Made", False)) for value in seen) and seen


@pytest.mark.parametrize("name", KINDS)
def test_types_of_numbers_may_be_asked(name):
    """By a function that knows with what it compares."""
    factor, of_number = 2.0, array_asked(float)
    expected = attend(name, "2 * score")

    def with_default(s, b, h, i, j, factor=2.0, kind=float):
        return s * factor if type(factor) is kind else s

    np.testing.assert_array_equal(attend(name, lambda s, b, h, i, j: s * factor if of_number(factor) else s), expected)
    np.testing.assert_array_equal(attend(name, with_default), expected)


TEXTS = {
    "str": str,
    "repr": repr,
    "f-string": lambda x: f"{x}",
    "format": lambda x: f"{x:.2f}",
    "percent": lambda x: "%s" % (x,),
    "of a list": lambda x: str([x]),
}


@pytest.mark.parametrize("make", [lambda s, h: s, lambda s, h: h, lambda s, h: s * 2 > h], ids=["score", "head", "comparison"])
@pytest.mark.parametrize("name", [name for name in KINDS if name != "jax"])
@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_symbols_are_refused(text, name, make):
    """What follows from them would follow from no value, also where the function catches the refusal. (JAX traces such a function by itself.)"""

    def caught(s, b, h, i, j):
        try:
            return s * len(TEXTS[text](make(s, h)))
        except TypeError:
            return s

    for score_mod in (lambda s, b, h, i, j: s * len(TEXTS[text](make(s, h))), caught):
        with pytest.raises(TypeError, match="foveal.attention: a score expression has no value while it is traced, and its text says none"):
            attend(name, score_mod)


@pytest.mark.parametrize("name", KINDS)
def test_symbols_are_printed_and_logged(name, capsys, caplog):
    def score_mod(s, b, h, i, j):
        print("seen:", s, [h], i <= j)
        logging.getLogger("a score").warning("seen: %s", s)
        return s * 2

    np.testing.assert_array_equal(attend(name, score_mod), attend(name, "2 * score"))
    assert "score" in capsys.readouterr().out and "score" in caplog.text
    assert print.__module__ == "builtins"


@pytest.mark.parametrize("name", [name for name in KINDS if name != "jax"])
@pytest.mark.parametrize("text", [str, repr, lambda x: f"{x:.3f}"], ids=["str", "repr", "format"])
def test_texts_of_elements_are_their_own(name, text):
    """Of captured arrays, whose elements have values: read anew on each call."""
    table = KINDS[name][0](TABLE.copy())
    first = text(table[0, 0])

    def score_mod(s, b, h, i, j):
        return s * 2 if text(table[0, 0]) == first else s * 3

    np.testing.assert_array_equal(attend(name, score_mod), attend(name, "2 * score"))
    table[0, 0] += 1
    np.testing.assert_array_equal(attend(name, score_mod), attend(name, "3 * score"))


def test_types_of_parts_of_arrays_are_refused():
    torch = pytest.importorskip("torch")
    table = KINDS["torch"][0](TABLE)
    with pytest.raises(TypeError, match=r"foveal.attention: a score or mask asks for the type\(\) of a symbol"):
        attend("torch", lambda s, b, h, i, j: s * 2 if type(table[h]) in (torch.Tensor,) else s)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "torch"])
def test_types_of_captured_arrays_are_refused(name):
    """Where symbols take their place."""
    table = KINDS[name][0](TABLE)
    with pytest.raises(TypeError, match=r"foveal.attention: a score or mask asks for type\(table\)"):
        attend(name, lambda s, b, h, i, j: s + table[h, j] if type(table).__name__ == "Capture" else s)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("factor", [
    lambda: SETTINGS.factor if type(SETTINGS) is Settings else 1.0, lambda: 2.0 if of_helper(SETTINGS, Settings) else 1.0, lambda: type(1.5)(2),
])  # fmt: skip
def test_types_of_what_is_no_symbol(name, factor):
    np.testing.assert_array_equal(attend(name, lambda s, b, h, i, j: s * factor()), attend(name, "2 * score"))


@pytest.mark.parametrize("name", [name for name in KINDS if name != "numpy"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_symbols_are_not_copied(name, copied):
    if name == "jax":
        pytest.skip("JAX traces such a function itself")
    with pytest.raises(TypeError, match="foveal.attention: a score expression has no value while it is traced, so that it is neither copied nor pickled"):
        attend(name, lambda s, b, h, i, j: copied(s) and s)


HANDED_TO_C = [
    lambda s, t: t[s.long()], lambda s, t: torch.add(t, s), lambda s, t: torch.stack([s]), lambda s, t: torch.tensor([s]), lambda s, t: torch.zeros(s),
    lambda s, t: torch.Tensor(s), lambda s, t: torch.Tensor._make_subclass(torch.Tensor, s), lambda s, t: t.expand(s), lambda s, t: torch.Size([s]),
    lambda s, t: torch.from_numpy(s), lambda s, t: torch.utils.dlpack.to_dlpack(s), lambda s, t: torch.nn.Parameter(s), lambda s, t: torch.vmap(torch.neg)(s),
]  # fmt: skip


@pytest.mark.parametrize("call", HANDED_TO_C)
def test_functions_of_c_see_no_tensor_in_a_symbol(call):
    """Its __class__ says so to Python alone: torch would read a tensor's memory in it."""
    pytest.importorskip("torch")

    def score_mod(s, b, h, i, j):
        try:
            call(s, torch.arange(3.0))
        except (TypeError, ValueError, RuntimeError, NotImplementedError, IndexError):
            pass
        return s * 2

    try:
        found = attend("torch", score_mod)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, IndexError):
        return
    np.testing.assert_array_equal(found, attend("torch", "2 * score"))


CAUGHT = {
    "bool": lambda s, h, i, table: s if h else s * 3, "and": lambda s, h, i, table: s * (i > 1 and i < 3), "int": lambda s, h, i, table: s * int(i),
    "float": lambda s, h, i, table: s * float(i), "a dict": lambda s, h, i, table: s * {0: 2.0}.get(h, 1.0), "a list": lambda s, h, i, table: s * [2.0, 3.0][h],
    "a slice": lambda s, h, i, table: s + table[h, :i].sum(), "a mask": lambda s, h, i, table: s + table[h][table[h] > 0].sum(),
    "tolist": lambda s, h, i, table: s * table[h].tolist()[0], "copy": lambda s, h, i, table: copy.copy(s) * 4,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in KINDS if name != "jax"])
@pytest.mark.parametrize("risky", CAUGHT)
def test_refusals_are_not_caught(name, risky):
    """The except clause was run, as it would not be on tensors."""
    if (name, risky) == ("numpy", "copy"):
        pytest.skip("a number of the score language may be copied")
    table = KINDS[name][0](TABLE)

    def score_mod(s, b, h, i, j):
        try:
            return CAUGHT[risky](s, h, i, table)
        except Exception:
            return s * 5

    for _ in range(2):
        with pytest.raises((TypeError, NotImplementedError), match="foveal.attention: "):
            attend(name, score_mod)


def test_what_tensors_refuse_may_be_caught():
    torch = pytest.importorskip("torch")
    table = KINDS["torch"][0](TABLE)

    def caught(risky, kind):
        def score_mod(s, b, h, i, j):
            try:
                return risky(s, h)
            except kind:
                return s * 2

        return score_mod

    risky = {
        AttributeError: lambda s, h: s.no_such_name, IndexError: lambda s, h: s + table[2, h], ZeroDivisionError: lambda s, h: s * (1 // 0),
        (RuntimeError, TypeError): lambda s, h: s + table[h] @ torch.ones(3, 5),
    }  # fmt: skip
    for kind, fn in risky.items():
        np.testing.assert_array_equal(attend("torch", caught(fn, kind)), attend("torch", "2 * score"))


def test_jax_traces_what_is_caught_itself():
    jax = pytest.importorskip("jax")

    def score_mod(s, b, h, i, j):
        try:
            return s if i > j else s * 3
        except jax.errors.TracerBoolConversionError:
            return s * 2

    np.testing.assert_array_equal(attend("jax", score_mod), attend("jax", "2 * score"))


@pytest.mark.parametrize("other", [None, "a", [1], ()])
def test_what_is_no_number_is_not_equal(other):
    pytest.importorskip("torch")
    np.testing.assert_array_equal(attend("torch", lambda s, b, h, i, j: s * 3 if i == other else s * 2 if i != other else s), attend("torch", "2 * score"))


def test_torchs_own_question():
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(attend("torch", lambda s, b, h, i, j: s * 2 if torch.is_tensor(i) else s), attend("torch", "2 * score"))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("ask", [
    lambda h: 2.0 if h in {0, 1} else 1.0,
    lambda h: {0: 2.0, 1: 3.0}.get(h, 1.0),
    lambda h: {0: 2.0, 1: 3.0}.get(h + 1, 1.0),
    lambda h: 1.0 if len({h, 0, 1}) == 3 else 2.0,
    hash,
], ids=["a set", "a dict", "a dict of a sum", "a new set", "hash"])  # fmt: skip
def test_hashes_are_refused(name, ask):
    with pytest.raises(TypeError, match=r"attention: a score expression has no value while it is traced, so that it is no key of a dict.*foveal\.where"):
        attend(name, lambda s, b, h, i, j: s * ask(h))


def test_expressions_have_hashes_where_nothing_is_traced():
    mask = foveal.causal()
    assert {mask: 1}[mask] == 1 and hash(foveal.head) == hash(foveal.head)


@pytest.mark.parametrize("ask", [
    lambda s: getattr(s, "is_sparse", None) is False, lambda s: not getattr(s, "is_nested", True), lambda s: s.layout == torch.strided, lambda s: s.itemsize == 4,
    lambda s: getattr(s, "is_cpu", not s.is_cuda) != s.is_cuda, lambda s: not hasattr(s, "no_such_attribute"), lambda s: not getattr(s, "is_meta", True),
    lambda s: hasattr(s, "numpy") and hasattr(s, "shape"),
])  # fmt: skip
def test_plain_attributes_of_a_tensor(ask):
    pytest.importorskip("torch")
    np.testing.assert_array_equal(attend("torch", lambda s, b, h, i, j: s * 2 if ask(s) else s * 3), attend("torch", "2 * score"))


@pytest.mark.parametrize("name, ask, words", [
    ("torch", lambda row: hasattr(row * 1, "grad_fn"), "torch.Tensor.grad_fn in a score or mask"),
    ("torch", lambda row: getattr(row * 1, "grad", None) is None, "torch.Tensor.grad in a score or mask"),
    ("torch", lambda row: hasattr(row * 1, "_version"), "torch.Tensor._version in a score or mask"),
    ("torch", lambda row: hasattr(row * 1, "__dlpack__"), "torch.Tensor.__dlpack__ in a score or mask"),
    ("numpy", lambda row: getattr(row * 1, "T", None) is None, "numpy.ndarray.T in a score or mask"),
    ("numpy", lambda row: hasattr(row * 1, "flat"), "numpy.ndarray.flat in a score or mask"),
], ids=["grad_fn", "grad", "_version", "__dlpack__", "T", "flat"])  # fmt: skip
def test_attributes_that_only_tensors_have_are_refused(name, ask, words):
    """hasattr() and getattr() with a default took a symbol for something else than a tensor."""
    table = KINDS[name][0](TABLE) if name in KINDS else pytest.skip(f"{name} is not installed")
    with pytest.raises(NotImplementedError, match=f"foveal.attention: {words}"):
        attend(name, lambda s, b, h, i, j: s * 2 + table[:, j].sum() if ask(table[:, j]) else s)


def test_jax_answers_for_its_own_attributes():
    pytest.importorskip("jax")
    found = attend("jax", lambda s, b, h, i, j: s * 2 if getattr(s, "itemsize", 0) == 4 and hasattr(s, "nbytes") else s * 3)
    np.testing.assert_array_equal(found, attend("jax", "2 * score"))


@pytest.mark.skipif("torch" not in KINDS, reason="torch has attributes of tensors")
@pytest.mark.parametrize("ask", [vars, lambda x: x.__dict__])
def test_what_a_symbol_is_made_of_is_refused(ask):
    with pytest.raises(TypeError, match=r"a score or mask asks for the vars\(\) of a symbol"):
        attend("torch", lambda s, b, h, i, j: s * len(ask(s)))
    table = torch.as_tensor(TABLE)
    with pytest.raises(TypeError, match=r"a score or mask asks for the vars\(\) of a symbol"):
        attend("torch", lambda s, b, h, i, j: s * len(ask(table[h])))
