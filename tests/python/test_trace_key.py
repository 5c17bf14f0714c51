"""A trace is reused only while everything that the function can read is what it was: a retrace test for each source of a value."""

import collections
import dataclasses
import enum
import functools
import math
import operator
import os
import sys
import types
from typing import NamedTuple

import pytest
import torch

import foveal
import foveal.describe
import foveal.trace_key
import foveal.torch
from places import seeded

Q = torch.randn(1, 6, 2, 4, generator=seeded(0), dtype=torch.float64)


def out(score_mod):
    return foveal.torch.attention(Q, Q, Q, score_mod)


def scaled(value):
    """What s * value gives: by an expression, which is not traced."""
    return foveal.torch.attention(Q, Q, Q, foveal.score * float(value))


class Config:
    value = 2.0
    nested = None

    def __init__(self):
        self.own = 2.0


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 2.0


@dataclasses.dataclass
class Data:
    value: float = 2.0


class WithProperty:
    held = 2.0

    @property
    def value(self):
        return self.held


class Dynamic:
    held = {"value": 2.0}

    def __getattr__(self, name):
        return self.held[name]


class Kind(enum.Enum):
    TWO = 2.0
    THREE = 3.0


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.number = 2.0
        self.register_buffer("held", torch.tensor(2.0))

    def score(self, s, b, h, i, j):
        return s * self.number

    forward = score


GLOBAL = 2.0
GLOBAL_LIST = [2.0]
GLOBAL_TENSOR = torch.tensor([2.0])
MODULE = types.ModuleType("a_module")


def set_global(name, value):
    globals()[name] = value


def helper(s):
    return s * GLOBAL


def helper_of_helper(s):
    return helper(s)


def recursive(s, n):
    return s * GLOBAL if n == 0 else recursive(s, n - 1)


def with_default(s, b, h, i, j, scale=2.0, *, bias=0.0):
    return s * scale + bias


def source(fn):
    SOURCES[fn.__name__] = fn
    return fn


SOURCES = {}


# Each returns (score_mod, what changes the value from 2 to 3).


@source
def closure_number():
    value = 2.0

    def change():
        nonlocal value
        value = 3.0

    return lambda s, b, h, i, j: s * value, change


@source
def closure_list():
    held = [2.0]
    return lambda s, b, h, i, j: s * held[0], lambda: operator.setitem(held, 0, 3.0)


@source
def closure_nested_containers():
    held = {"a": [(2.0,)]}
    return lambda s, b, h, i, j: s * held["a"][0][0], lambda: operator.setitem(held["a"], 0, (3.0,))


@source
def closure_that_holds_itself():
    held = [2.0]
    held.append(held)
    return lambda s, b, h, i, j: s * held[1][0], lambda: operator.setitem(held, 0, 3.0)


@source
def global_number():
    return lambda s, b, h, i, j: s * GLOBAL, lambda: set_global("GLOBAL", 3.0)


@source
def global_list():
    return lambda s, b, h, i, j: s * GLOBAL_LIST[0], lambda: operator.setitem(GLOBAL_LIST, 0, 3.0)


@source
def global_of_a_helper():
    return lambda s, b, h, i, j: helper_of_helper(s), lambda: set_global("GLOBAL", 3.0)


@source
def global_of_a_recursive_helper():
    return lambda s, b, h, i, j: recursive(s, 3), lambda: set_global("GLOBAL", 3.0)


@source
def global_of_a_nested_lambda():
    return lambda s, b, h, i, j: (lambda x: x * GLOBAL)(s), lambda: set_global("GLOBAL", 3.0)


@source
def global_of_a_generator():
    return lambda s, b, h, i, j: sum(s * GLOBAL for _ in range(1)), lambda: set_global("GLOBAL", 3.0)


@source
def free_variable_of_a_nested_lambda():
    value = 2.0

    def change():
        nonlocal value
        value = 3.0

    return lambda s, b, h, i, j: (lambda: (lambda: s * value)())(), change


@source
def shadowed_builtin():
    def change():
        globals()["max"] = lambda a, b: 3.0

    return lambda s, b, h, i, j: s * max(2.0, 1.0), change


@source
def default():
    def score_mod(s, b, h, i, j, scale=2.0):
        return s * scale

    return score_mod, lambda: setattr(score_mod, "__defaults__", (3.0,))


@source
def keyword_default():
    def score_mod(s, b, h, i, j, *, scale=2.0):
        return s * scale

    return score_mod, lambda: operator.setitem(score_mod.__kwdefaults__, "scale", 3.0)


@source
def partial_argument():
    keywords = {"scale": 2.0}
    score_mod = functools.partial(with_default, **keywords)
    return lambda *x: score_mod(*x), lambda: operator.setitem(score_mod.keywords, "scale", 3.0)


@source
def function_attribute():
    def score_mod(s, b, h, i, j):
        return s * score_mod.value

    score_mod.value = 2.0
    return score_mod, lambda: setattr(score_mod, "value", 3.0)


@source
def function_code():
    def twice(s):
        return s * 2.0

    def thrice(s):
        return s * 3.0

    return lambda s, b, h, i, j: twice(s), lambda: setattr(twice, "__code__", thrice.__code__)


@source
def instance_attribute():
    config = Config()
    return lambda s, b, h, i, j: s * config.own, lambda: setattr(config, "own", 3.0)


@source
def attribute_of_an_attribute():
    config = Config()
    config.nested = Config()
    return lambda s, b, h, i, j: s * config.nested.own, lambda: setattr(config.nested, "own", 3.0)


@source
def class_attribute():
    class Local:
        value = 2.0

    return lambda s, b, h, i, j: s * Local.value, lambda: setattr(Local, "value", 3.0)


@source
def class_attribute_by_an_instance():
    class Local:
        value = 2.0

    config = Local()
    return lambda s, b, h, i, j: s * config.value, lambda: setattr(Local, "value", 3.0)


@source
def slot():
    config = Slotted()
    return lambda s, b, h, i, j: s * config.value, lambda: setattr(config, "value", 3.0)


@source
def dataclass_field():
    config = Data()
    return lambda s, b, h, i, j: s * config.value, lambda: setattr(config, "value", 3.0)


@source
def property_of_an_instance():
    config = WithProperty()
    return lambda s, b, h, i, j: s * config.value, lambda: setattr(config, "held", 3.0)


@source
def attribute_by_getattr():
    config = Dynamic()
    return lambda s, b, h, i, j: s * config.value, lambda: operator.setitem(config.held, "value", 3.0)


@source
def attribute_by_name():
    config = Config()
    return lambda s, b, h, i, j: s * getattr(config, "own"), lambda: setattr(config, "own", 3.0)


@source
def object_passed_on():
    config = Config()

    def value_of(c):
        return c.own

    return lambda s, b, h, i, j: s * value_of(config), lambda: setattr(config, "own", 3.0)


@source
def object_in_a_local():
    config = Config()

    def score_mod(s, b, h, i, j):
        mine = config
        return s * mine.own

    return score_mod, lambda: setattr(config, "own", 3.0)


@source
def static_method():
    class Local:
        value = staticmethod(lambda: 2.0)

    return lambda s, b, h, i, j: s * Local.value(), lambda: setattr(Local, "value", staticmethod(lambda: 3.0))


@source
def enum_member():
    kind = Kind.TWO

    def change():
        nonlocal kind
        kind = Kind.THREE

    return lambda s, b, h, i, j: s * kind.value, change


@source
def bound_method():
    config = Config()
    config.score = types.MethodType(lambda self, s, b, h, i, j: s * self.own, config)
    return config.score, lambda: setattr(config, "own", 3.0)


@source
def torch_module():
    module = Module()
    return module, lambda: setattr(module, "number", 3.0)


@source
def torch_module_attribute():
    module = Module()
    return lambda s, b, h, i, j: s * module.number, lambda: setattr(module, "number", 3.0)


@source
def torch_module_buffer():
    module = Module()
    return lambda s, b, h, i, j: s * module.held, lambda: setattr(module, "held", torch.tensor(3.0))


@source
def python_module_attribute():
    MODULE.value = 2.0
    return lambda s, b, h, i, j: s * MODULE.value, lambda: setattr(MODULE, "value", 3.0)


@source
def imported_module_attribute():
    sys.modules["a_module"] = MODULE
    MODULE.value = 2.0

    def score_mod(s, b, h, i, j):
        import a_module

        return s * a_module.value

    return score_mod, lambda: setattr(MODULE, "value", 3.0)


@source
def environment():
    os.environ["FOVEAL_TEST_VALUE"] = "2"
    return lambda s, b, h, i, j: s * float(os.environ["FOVEAL_TEST_VALUE"]), lambda: operator.setitem(os.environ, "FOVEAL_TEST_VALUE", "3")


@source
def environment_by_getenv():
    os.environ["FOVEAL_TEST_VALUE"] = "2"
    return lambda s, b, h, i, j: s * float(os.getenv("FOVEAL_TEST_VALUE")), lambda: operator.setitem(os.environ, "FOVEAL_TEST_VALUE", "3")


@source
def iterator():
    values = iter([2.0, 3.0])
    return lambda s, b, h, i, j: s * next(values), lambda: None


@source
def cached_function():
    held = [2.0]
    value = functools.lru_cache(maxsize=0)(lambda: held[0])
    return lambda s, b, h, i, j: s * value(), lambda: operator.setitem(held, 0, 3.0)


@source
def globals_by_name():
    return lambda s, b, h, i, j: s * globals()["GLOBAL"], lambda: set_global("GLOBAL", 3.0)


@source
def default_dtype():
    def score_mod(s, b, h, i, j):
        return s * (2.0 if torch.get_default_dtype() == torch.float32 else 3.0)

    return score_mod, lambda: torch.set_default_dtype(torch.float64)


def tensor_source(name, read, make=lambda: torch.tensor([2.0])):
    def case():
        t = make()
        return lambda s, b, h, i, j: s * read(t), lambda: t.fill_(3.0)

    SOURCES[f"tensor_{name}"] = case


tensor_source("item", lambda t: t.item())
tensor_source("float", lambda t: float(t))
tensor_source("float_of_an_element", lambda t: float(t[0]))
tensor_source("int", lambda t: int(t), lambda: torch.tensor([2]))
tensor_source("index", lambda t: operator.index(t), lambda: torch.tensor(2))
tensor_source("tolist", lambda t: t.tolist()[0])
tensor_source("numpy", lambda t: float(t.numpy()[0]))
tensor_source("bool", lambda t: 2.0 if t < 2.5 else 3.0)
tensor_source("equal", lambda t: 2.0 if torch.equal(t, torch.tensor([2.0])) else 3.0)
tensor_source("sum", lambda t: (t * 2).sum().item() / 2)
tensor_source("max", lambda t: max(t.tolist()))
tensor_source("range", lambda t: float(len(range(t))), lambda: torch.tensor(2))
tensor_source("format", lambda t: float(f"{t.item():.1f}"))
tensor_source("read", lambda t: t[0])
tensor_source("made_here", lambda t: (t + 0)[0])
tensor_source("view", lambda t: t.view(1, 1)[0][0])


@source
def tensor_data():
    t = torch.tensor([2.0])
    return lambda s, b, h, i, j: s * t.item(), lambda: t.data.fill_(3.0)  # tells no version


@source
def tensor_grad():
    """Which may be another tensor at the next call, or none."""
    t = torch.tensor([2.0], requires_grad=True)
    t.grad = torch.ones(1)
    return lambda s, b, h, i, j: s * (3.0 if t.grad is None else 2.0), lambda: setattr(t, "grad", None)


@source
def tensor_requires_grad():
    t = torch.tensor([2.0])
    return lambda s, b, h, i, j: s * (3.0 if t.requires_grad else 2.0), lambda: t.requires_grad_()


@source
def tensor_attribute():
    t = torch.tensor([2.0])
    t.scale = 2.0
    return lambda s, b, h, i, j: s * t.scale, lambda: setattr(t, "scale", 3.0)


@source
def tensor_shape():
    t = torch.zeros(2)
    return lambda s, b, h, i, j: s * t.shape[0], lambda: t.resize_(3)


@source
def global_tensor():
    return lambda s, b, h, i, j: s * float(GLOBAL_TENSOR), lambda: GLOBAL_TENSOR.fill_(3.0)


@source
def numpy_array():
    a = torch.tensor([2.0]).numpy()
    return lambda s, b, h, i, j: s * float(a[0]), lambda: a.fill(3.0)


@source
def negative_zero():
    value = 0.0

    def change():
        nonlocal value
        value = -0.0

    return lambda s, b, h, i, j: s * (2.5 - math.copysign(0.5, value)), change


class Named(NamedTuple):
    item: float

    @property
    def value(self):
        return Config.value


class Sorted(NamedTuple):
    item: float

    def __getitem__(self, index):
        return Config.value


@source
def property_of_a_named_tuple():
    held = Named(1.0)
    Config.value = 2.0
    return lambda s, b, h, i, j: s * held.value, lambda: setattr(Config, "value", 3.0)


@source
def operator_of_a_named_tuple():
    held = Sorted(1.0)
    Config.value = 2.0
    return lambda s, b, h, i, j: s * held[0], lambda: setattr(Config, "value", 3.0)


@source
def field_of_a_named_tuple():
    held = [Named(2.0)]
    return lambda s, b, h, i, j: s * held[0].item, lambda: operator.setitem(held, 0, Named(3.0))


@source
def number_of_elements_found():
    t = torch.tensor([1.0, 1.0, 0.0])
    return lambda s, b, h, i, j: s * len(t.nonzero()), lambda: t.fill_(1.0)


@source
def shape_of_elements_chosen():
    t = torch.tensor([1.0, 1.0, 0.0])
    return lambda s, b, h, i, j: s * t[t > 0].shape[0], lambda: t.fill_(1.0)


@source
def rows_of_elements_found():
    t = torch.tensor([1.0, 1.0, 0.0])
    return lambda s, b, h, i, j: s * sum(1 for _ in torch.masked_select(t, t > 0)), lambda: t.fill_(1.0)


@source
def size_made_of_an_element():
    t = torch.tensor(2)
    return lambda s, b, h, i, j: s * torch.arange(t).size(0), lambda: t.fill_(3)


def scale_of(owner):
    return owner.scale


class Weighed(enum.Enum):
    ONE = 1

    def __init__(self, _):
        self.scale = 2.0


class OfClass(torch.Tensor):
    scale = 2.0


class Doubled(enum.Enum):
    ONE = 1

    def __add__(self, other):
        return GLOBAL + other


def handed_on(name, make, read=scale_of, owner_of=lambda owner: owner):
    """An attribute of something that the score hands to another function, or has under another name."""

    def case():
        owner = make()
        owner_of(owner).scale = 2.0
        return lambda s, b, h, i, j: s * read(owner), lambda: setattr(owner_of(owner), "scale", 3.0)

    SOURCES[f"handed_on_{name}"] = case


handed_on("tensor", lambda: torch.zeros(1))
handed_on("parameter", lambda: torch.nn.Parameter(torch.zeros(1)))
handed_on("function", lambda: lambda x: x)
handed_on("enum_member", lambda: Weighed.ONE)
handed_on("class_of_a_tensor", lambda: torch.zeros(1).as_subclass(OfClass), owner_of=lambda _: OfClass)
handed_on("in_a_list", lambda: [torch.zeros(1)], lambda held: held[0].scale, lambda held: held[0])
handed_on("in_a_dict", lambda: {"a": lambda x: x}, lambda held: held["a"].scale, lambda held: held["a"])
handed_on("by_name", lambda: torch.zeros(1), lambda owner: operator.attrgetter("scale")(owner))
handed_on("owner_of_a_method", lambda: types.MethodType(lambda self: 1, Config()), lambda method: method.__self__.scale, lambda method: method.__self__)


handed_on("partial", lambda: functools.partial(scale_of))


@source
def attribute_of_an_enum_class():
    class Local(enum.Enum):
        ONE = 1

    Local.scale = 2.0
    return lambda s, b, h, i, j: s * Local.scale, lambda: setattr(Local, "scale", 3.0)


@source
def function_of_an_enum_class():
    class Local(enum.Enum):
        ONE = 1

        @staticmethod
        def scale():
            return GLOBAL

    return lambda s, b, h, i, j: s * Local.scale(), lambda: set_global("GLOBAL", 3.0)


def kind_of(owner):
    return owner.kind.value


def enum_member_as_an_attribute(name, owner):
    def case():
        owner.kind = Kind.TWO
        return lambda s, b, h, i, j: s * kind_of(owner), lambda: setattr(owner, "kind", Kind.THREE)

    SOURCES[f"enum_member_of_a_{name}"] = case


enum_member_as_an_attribute("tensor", torch.zeros(1))
enum_member_as_an_attribute("function", lambda x: x)


class Told(enum.Enum):
    ONE = 1

    def __str__(self):
        return str(GLOBAL)


@source
def text_of_an_enum_member():
    kind = Told.ONE
    return lambda s, b, h, i, j: s * float(f"{kind}"), lambda: set_global("GLOBAL", 3.0)


def operator_of_a_tensor(name, read, **methods):
    """Of a class of the user's, without a __torch_function__."""
    kind = type("OfUser", (torch.Tensor,), {f"__{method}__": function for method, function in methods.items()})

    def case():
        t = torch.ones(2, dtype=torch.float64).as_subclass(kind)
        return lambda s, b, h, i, j: read(t, s, h), lambda: set_global("GLOBAL", 3.0)

    SOURCES[f"operator_{name}_of_a_tensor"] = case


operator_of_a_tensor("getitem", lambda t, s, h: s * t[h], getitem=lambda self, at: torch.Tensor.__getitem__(self, at) * GLOBAL)
operator_of_a_tensor("mul", lambda t, s, h: t * s, mul=lambda self, other: other * GLOBAL)
operator_of_a_tensor("float", lambda t, s, h: s * float(t), float=lambda self: GLOBAL)
operator_of_a_tensor("iter", lambda t, s, h: s * sum(t), iter=lambda self: iter([GLOBAL]))
operator_of_a_tensor("later", lambda t, s, h: s * (t - 1), sub=functools.partialmethod(lambda self, here, other: GLOBAL, 0))
operator_of_a_tensor("format", lambda t, s, h: s * float(f"{t}"), format=lambda self, spec: str(GLOBAL))


@source
def class_attribute_before_a_parameter():
    class Local(torch.nn.Module):
        scale = 2.0

    module = Local()
    module._parameters["scale"] = torch.nn.Parameter(torch.ones(()))
    return lambda s, b, h, i, j: s * module.scale, lambda: setattr(Local, "scale", 3.0)


class OwnGetattr(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.number = 2.0
        self.register_buffer("held", torch.tensor(1.0))

    def __getattr__(self, name):
        return self.number if name == "held" and "held" in self.__dict__["_buffers"] else super().__getattr__(name)


@source
def getattr_of_a_module():
    module = OwnGetattr()
    return lambda s, b, h, i, j: s * module.held, lambda: setattr(module, "number", 3.0)


@source
def none_that_goes_of_a_class():
    class Local:
        value = None

    def score_mod(s, b, h, i, j):
        try:
            Local.value  # noqa: B018
        except AttributeError:
            return s * 3.0
        return s * 2.0

    return score_mod, lambda: delattr(Local, "value")


@source
def none_that_goes_of_a_module():
    module = types.ModuleType("local")
    module.value = None

    def score_mod(s, b, h, i, j):
        try:
            module.value  # noqa: B018
        except AttributeError:
            return s * 3.0
        return s * 2.0

    return score_mod, lambda: delattr(module, "value")


@source
def none_that_goes_of_a_slot():
    slotted = Slotted()
    slotted.value = None

    def score_mod(s, b, h, i, j):
        try:
            slotted.value  # noqa: B018
        except AttributeError:
            return s * 3.0
        return s * 2.0

    return score_mod, lambda: delattr(slotted, "value")


@source
def none_that_goes_of_the_globals():
    globals()["LATER"] = None

    def score_mod(s, b, h, i, j):
        try:
            LATER  # noqa: B018
        except NameError:
            return s * 3.0
        return s * 2.0

    return score_mod, lambda: globals().pop("LATER")


@source
def end_of_a_range():
    """range(0, 3, 2) == range(0, 4, 2)."""
    held = [range(0, 3, 2)]
    return lambda s, b, h, i, j: s * (held[0].stop - 1), lambda: operator.setitem(held, 0, range(0, 4, 2))


@source
def annotation_of_a_function():
    def annotated(x: 2.0): ...

    def read(function):
        return function.__annotations__["x"]

    return lambda s, b, h, i, j: s * read(annotated), lambda: operator.setitem(annotated.__annotations__, "x", 3.0)


class AnswersByCode(dict):
    def __missing__(self, name):
        return {"ANSWER": GLOBAL}[name]


@source
def globals_that_answer_by_code():
    return types.FunctionType((lambda s, b, h, i, j: s * ANSWER).__code__, AnswersByCode()), lambda: set_global("GLOBAL", 3.0)  # noqa: F821


@source
def builtins_of_its_own():
    scope = {"__builtins__": {"abs": lambda x: GLOBAL}}
    return types.FunctionType((lambda s, b, h, i, j: s * abs(1)).__code__, scope), lambda: set_global("GLOBAL", 3.0)


@source
def attribute_of_all_tensors():
    t = torch.zeros(1)
    torch.Tensor.scale = 2.0
    return lambda s, b, h, i, j: s * t.scale, lambda: setattr(torch.Tensor, "scale", 3.0)


@source
def function_added_to_all_tensors():
    t = torch.zeros(1)
    torch.Tensor.scale = lambda self: GLOBAL
    return lambda s, b, h, i, j: s * t.scale(), lambda: set_global("GLOBAL", 3.0)


def scale_of(x):
    return x.scale


def scale_by_call(x):
    return x.scale()


@source
def attribute_of_all_tensors_through_a_helper():
    t = torch.zeros(1)
    torch.Tensor.scale = 2.0
    return lambda s, b, h, i, j: s * scale_of(t), lambda: setattr(torch.Tensor, "scale", 3.0)


@source
def attribute_of_all_tensors_of_one_that_the_function_makes():
    torch.Tensor.scale = 2.0
    return lambda s, b, h, i, j: s * scale_of(torch.zeros(1)), lambda: setattr(torch.Tensor, "scale", 3.0)


@source
def attribute_of_all_tensors_in_a_list():
    held = [torch.zeros(1)]
    torch.Tensor.scale = 2.0
    return lambda s, b, h, i, j: s * held[0].scale, lambda: setattr(torch.Tensor, "scale", 3.0)


@source
def attribute_of_all_parameters_through_a_helper():
    t = torch.nn.Parameter(torch.zeros(1))
    torch.Tensor.scale = torch.nn.Parameter.scale = 2.0
    return lambda s, b, h, i, j: s * scale_of(t), lambda: setattr(torch.nn.Parameter, "scale", 3.0)


@source
def property_added_to_all_tensors_through_a_helper():
    t = torch.zeros(1)
    torch.Tensor.scale = property(lambda self: GLOBAL)
    return lambda s, b, h, i, j: s * scale_of(t), lambda: set_global("GLOBAL", 3.0)


@source
def what_a_function_added_to_all_tensors_reads():
    t = torch.zeros(1)
    torch.Tensor.scale = lambda self: GLOBAL
    return lambda s, b, h, i, j: s * scale_by_call(t), lambda: set_global("GLOBAL", 3.0)


@source
def another_function_added_to_all_tensors():
    t = torch.zeros(1)
    torch.Tensor.scale = lambda self: 2.0
    return lambda s, b, h, i, j: s * scale_by_call(t), lambda: setattr(torch.Tensor, "scale", lambda self: 3.0)


@source
def operator_of_an_enum_member():
    kind = Doubled.ONE
    return lambda s, b, h, i, j: s * (kind + 0), lambda: set_global("GLOBAL", 3.0)


@source
def sign_of_a_complex_zero():
    held = [complex(0.0, 0.0)]
    return lambda s, b, h, i, j: s * (2.5 - math.copysign(0.5, held[0].imag)), lambda: operator.setitem(held, 0, complex(0.0, -0.0))


@pytest.mark.parametrize("name", SOURCES)
def test_a_change_is_seen(name):
    before = {key: globals().get(key) for key in ("GLOBAL", "max")}
    try:
        score_mod, change = SOURCES[name]()
        if name != "iterator":
            torch.testing.assert_close(out(score_mod), scaled(2.0), rtol=0, atol=1e-14)
        torch.testing.assert_close(out(score_mod), scaled(2.0), rtol=0, atol=1e-14)
        change()
        torch.testing.assert_close(out(score_mod), scaled(3.0), rtol=0, atol=1e-14)
        torch.testing.assert_close(foveal.torch.flex_attention(*[Q.transpose(1, 2)] * 3, score_mod).transpose(1, 2), scaled(3.0), rtol=0, atol=1e-14) if (
            name != "iterator"
        ) else None
    finally:
        torch.set_default_dtype(torch.float32)
        for kind in (torch.Tensor, torch.nn.Parameter):
            vars(kind).get("scale") is None or delattr(kind, "scale")
        GLOBAL_LIST[0] = 2.0
        GLOBAL_TENSOR.fill_(2.0)
        for key, value in before.items():
            globals().pop(key, None) if value is None else globals().update({key: value})


@pytest.mark.parametrize("kind", ["list", "nested lambda", "attribute"])
def test_a_change_is_seen_by_numpy_functions(kind):
    import numpy as np

    a, number = np.array([2.0]), [2.0]
    q = Q.numpy()
    score_mods = {
        "list": lambda s, b, h, i, j: s * float(a[0]),
        "nested lambda": lambda s, b, h, i, j: (lambda: s * number[0])(),
        "attribute": lambda s, b, h, i, j: s * a.tolist()[0],
    }
    for expected in (2.0, 3.0):
        a[0] = number[0] = expected
        np.testing.assert_allclose(foveal.attention(q, q, q, score_mods[kind]), scaled(expected).numpy(), rtol=0, atol=1e-14)


SETTINGS = {  # a number in a tensor: what it is set to, and what it was
    "scale": (0.7, 0.2),
    "dropout_p": (0.6, 0.1),
    "q_offset": (3, 0),
    "kv_offset": (2, 0),
}


@pytest.mark.parametrize("door", ["attention", "flex_attention", "foveal.attention"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_tensor_counts_by_its_value_where_a_number_is_expected(name, door):
    if door == "flex_attention" and name != "scale":
        pytest.skip("no argument of this door")
    later, first = SETTINGS[name]
    attend = foveal.attention if door == "foveal.attention" else getattr(foveal.torch, door)
    more = {} if door == "flex_attention" else {"mask": foveal.causal(), **({"seed": 1} if name == "dropout_p" else {})}
    number = torch.tensor(first, dtype=torch.float64 if isinstance(first, float) else None)
    for value in (first, later):
        number.fill_(value)
        assert torch.equal(attend(Q, Q, Q, **more, **{name: number}), attend(Q, Q, Q, **more, **{name: value}))


@pytest.mark.parametrize("name, right, wrong", [("q_offset", 1, 1.0), ("kv_offset", 0, 0.0), ("deterministic", True, 1.0), ("options", foveal.Options(threads=1), foveal.Options(threads=1.0))])
def test_an_argument_that_is_refused_is_so_after_its_equal(name, right, wrong):
    """1 == 1.0, of which the trace was found."""
    foveal.torch.attention(Q, Q, Q, mask=foveal.causal(), **{name: right})
    with pytest.raises(TypeError, match=f"foveal.torch.attention: {name}.*: found float 1.0|{name}: found float 0.0"):
        foveal.torch.attention(Q, Q, Q, mask=foveal.causal(), **{name: wrong})


def test_torchs_default_dtype_is_part_of_what_a_function_sees():
    score_mod = lambda s, b, h, i, j: s + torch.tensor(1 / 3) * j  # noqa: E731
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            third = torch.tensor(1 / 3).item()
            torch.testing.assert_close(out(score_mod), out(foveal.score + third * foveal.kv_idx), rtol=0, atol=1e-14)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", ["mul_", "imul", "copy_", "out", "data", "view", "foreach", "set_"])
def test_a_function_that_writes_into_what_it_captures_runs_on_every_call(write, inference):
    """Tensors of inference mode, and .data, tell no version."""
    with torch.inference_mode(inference):
        runs_on_every_call(write)


def runs_on_every_call(write):
    t = torch.ones(1, dtype=torch.float64)

    def score_mod(s, b, h, i, j):
        nonlocal t
        if write == "mul_":
            t.mul_(2)
        elif write == "imul":
            t *= 2
        elif write == "copy_":
            t.copy_(t * 2)
        elif write == "data":
            t.data.mul_(2)
        elif write == "view":
            t.view(1, 1).mul_(2)
        elif write == "foreach":
            torch._foreach_mul_([t], 2)
        elif write == "set_":
            t.set_(t * 2)
        else:
            torch.mul(t, 2, out=t)
        return s * t[0]

    for expected in (2.0, 4.0, 8.0):
        torch.testing.assert_close(out(score_mod), scaled(expected), rtol=0, atol=1e-14)


def turned_nonlocal():
    odd = False

    def score_mod(s, b, h, i, j):
        nonlocal odd
        odd = not odd
        return s * (2.0 if odd else 3.0)

    return score_mod


def turned_item():
    held = [0]

    def score_mod(s, b, h, i, j):
        held[0] = 1 - held[0]
        return s * (3.0 - held[0])

    return score_mod


def turned_by_a_method():
    order = [2.0, 3.0]

    def score_mod(s, b, h, i, j):
        order.reverse()
        return s * order[1]

    return score_mod


def turned_by_operator():
    held = {"at": 0}

    def score_mod(s, b, h, i, j):
        operator.setitem(held, "at", 1 - held["at"])
        return s * (3.0 - held["at"])

    return score_mod


def turned_attribute():
    config = Config()

    def score_mod(s, b, h, i, j):
        config.own = 5.0 - config.own
        return s * (5.0 - config.own)

    return score_mod


@pytest.mark.parametrize("make", [turned_nonlocal, turned_item, turned_by_a_method, turned_by_operator, turned_attribute])
def test_what_a_function_turns_back_and_forth_is_turned_on_every_call(make):
    score_mod = make()
    for expected in (2.0, 3.0) * 4:
        torch.testing.assert_close(out(score_mod), scaled(expected), rtol=0, atol=1e-14)


def test_a_function_that_fills_a_cache_of_its_own_is_traced_twice(monkeypatch):
    cache = {}

    def score_mod(s, b, h, i, j):
        if "scale" not in cache:
            cache["scale"] = 2.0
        return s * cache["scale"]

    for _ in range(2):
        torch.testing.assert_close(out(score_mod), scaled(2.0), rtol=0, atol=1e-14)
    monkeypatch.setattr(foveal.describe, "describe", None)
    torch.testing.assert_close(out(score_mod), scaled(2.0), rtol=0, atol=1e-14)


# ---- what has not changed is not traced again ----

TABLE = torch.randn(2, 13, dtype=torch.float64)


def reuse_closure():
    bias, n, scale = torch.randn(2, 13, dtype=torch.float64), 6, 0.5
    return lambda: lambda s, b, h, i, j: s + bias[h, i - j + n] * scale


def reuse_global():
    return lambda: lambda s, b, h, i, j: torch.where(i >= j, s + TABLE[h, i - j + 6], -math.inf)


def reuse_written():
    """It writes into what it makes of its arguments."""
    return lambda: lambda s, b, h, i, j: torch.nn.functional.relu(s.clone().mul_(2).add_(TABLE[h, j], alpha=0.5), inplace=True)


def reuse_helpers():
    return lambda: lambda s, b, h, i, j: recursive(s, 2) + torch.sigmoid(helper(s)) * TABLE[0, 0]


def reuse_module():
    module = Module()
    return lambda: lambda s, b, h, i, j: s * module.held + module.number


def reuse_dataclass():
    config = Data()
    return lambda: lambda s, b, h, i, j: s * config.value


def reuse_nested():
    scales = [1.0, 2.0]
    return lambda: lambda s, b, h, i, j: sum(s * x for x in scales)


class Held:
    """A score as users write it in a module of their own."""

    of_class = 2.0

    def __init__(self):
        self.value, self.items = 2.0, [2.0]
        self.tensor = torch.tensor([2.0])

    def score(self, s, b, h, i, j):
        return s * self.value

    __call__ = score

    def reads_a_tensor(self, s, b, h, i, j):
        return s * self.tensor[0]

    def reads_items(self, s, b, h, i, j):
        return (lambda x: x * sum(self.items))(s)

    def scaled(self, s):
        return s * self.value * self.of_class / 2.0

    def calls_another(self, s, b, h, i, j):
        return self.scaled(s)

    @classmethod
    def of_the_class(cls, s, b, h, i, j):
        return s * cls.of_class

    def calls_itself(self, s, b, h, i, j, deep=1):
        return self.calls_itself(s, b, h, i, j, deep - 1) if deep else s * self.value

    def passes_itself_on(self, s, b, h, i, j):
        return s * value_of(self)

    def binds_its_name_anew(self, s, b, h, i, j):
        self = OTHER
        return s * self.value


OTHER = Held()


def value_of(held):
    return held.value


class ScoreModule(Module):
    def forward(self, s, b, h, i, j):
        return s * self.number


def changed_method(make, change):
    """What a call gives before and after a change."""
    held = make[0]()
    score = make[1](held)
    assert torch.equal(out(score), scaled(2.0))
    change(held)
    assert torch.equal(out(make[1](held)), scaled(3.0))


METHODS = {
    "an attribute": (lambda held: held.score, lambda held: setattr(held, "value", 3.0)),
    "an object that is called": (lambda held: held, lambda held: setattr(held, "value", 3.0)),
    "a tensor": (lambda held: held.reads_a_tensor, lambda held: setattr(held, "tensor", torch.tensor([3.0]))),
    "elements of a tensor": (lambda held: held.reads_a_tensor, lambda held: held.tensor.fill_(3.0)),
    "items of a list": (lambda held: held.reads_items, lambda held: held.items.append(1.0)),
    "what another method reads": (lambda held: held.calls_another, lambda held: setattr(held, "value", 3.0)),
    "an attribute of the class": (lambda held: held.calls_another, lambda held: setattr(held, "of_class", 3.0)),
    "another method": (lambda held: held.calls_another, lambda held: setattr(held, "scaled", lambda s: s * 3.0)),
    "a method of the class": (lambda held: held.of_the_class, lambda held: setattr(type(held), "of_class", 3.0)),
    "recursion": (lambda held: held.calls_itself, lambda held: setattr(held, "value", 3.0)),
    "an object that is passed on": (lambda held: held.passes_itself_on, lambda held: setattr(held, "value", 3.0)),
    "another object": (lambda held: held.binds_its_name_anew, lambda held: setattr(OTHER, "value", 3.0)),
}


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_reads_is_guarded(name):
    which, change = METHODS[name]
    try:
        changed_method((type("Held", (Held,), {}), which), change)  # a class of its own, which may change
    finally:
        OTHER.value = 2.0


def doubled(module, given, found):
    return found * 1.5


def test_modules_as_scores():
    changed_method((ScoreModule, lambda module: module), lambda module: setattr(module, "number", 3.0))
    changed_method((ScoreModule, lambda module: module), lambda module: module.register_forward_hook(doubled))
    changed_method((ScoreModule, lambda module: module), lambda module: setattr(module, "forward", lambda s, b, h, i, j: s * 3.0))
    module, everywhere = ScoreModule(), torch.nn.modules.module
    assert torch.equal(out(module), scaled(2.0))
    hook = everywhere.register_module_forward_hook(lambda owner, given, found: found * 1.5 if owner is module else None)
    try:
        assert torch.equal(out(module), scaled(3.0))
    finally:
        hook.remove()


def reuse_method():
    held = Held()
    return lambda: held.score


def reuse_methods_of_methods():
    held = Held()
    return lambda: held.calls_another


def reuse_object():
    held = Held()
    return lambda: held


def reuse_module_as_score():
    module = ScoreModule()
    return lambda: module


@pytest.mark.parametrize("which", [lambda held: held.score, lambda held: held, lambda held: functools.partial(held.score)], ids=["method", "object", "partial"])
def test_numbers_of_objects_that_change_make_few_programs(which):
    held, before = Held(), len(foveal.describe._programs)
    for step in range(12):
        held.value = 1.0 + 0.37 * step
        torch.testing.assert_close(out(which(held)), scaled(held.value))
    assert len(foveal.describe._programs) - before <= 5 + 12  # a program of each comparison


def reuse_partial():
    return lambda: functools.partial(with_default, scale=3.0)


@pytest.mark.parametrize("make", [value for name, value in list(globals().items()) if name.startswith("reuse_")])
def test_an_unchanged_function_is_traced_once(make, monkeypatch):
    traced = []
    described = foveal.describe.describe
    monkeypatch.setattr(foveal.describe, "_traces", {})  # not what other tests left
    monkeypatch.setattr(foveal.describe, "_changing", collections.OrderedDict())
    monkeypatch.setattr(foveal.describe, "describe", lambda *a, **k: traced.append(1) or described(*a, **k))
    fresh = make()
    first = out(fresh())
    for _ in range(5):
        assert torch.equal(out(fresh()), first)  # a new function object each time, as in a forward()
    assert len(traced) == 1


def test_a_nested_tensor_that_comes_first_is_no_example_of_other_tensors(monkeypatch):
    monkeypatch.delitem(foveal.trace_key.HANDLERS, torch.Tensor, raising=False)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])  # of the type torch.Tensor, without a shape
    with pytest.raises(TypeError, match="foveal.torch.attention: a captured array: a nested tensor; expected a plain, dense tensor"):
        out(lambda s, b, h, i, j: s + nested)
    test_an_unchanged_function_is_traced_once(reuse_global, monkeypatch)


def test_a_new_tensor_in_the_place_of_one_that_is_gone_is_read():
    for value in (2.0, 3.0, 4.0):
        t = torch.full((1,), value, dtype=torch.float64)
        torch.testing.assert_close(out(lambda s, b, h, i, j: s * t[0]), scaled(value), rtol=0, atol=1e-14)
        del t


def test_a_parameter_in_the_place_of_a_tensor_that_is_gone_is_one():
    for make in (torch.ones, lambda n, dtype: torch.nn.Parameter(torch.ones(n, dtype=dtype))) * 3:
        t = make(1, dtype=torch.float64)
        expected = scaled(3.0 if type(t) is torch.nn.Parameter else 2.0)
        torch.testing.assert_close(out(lambda s, b, h, i, j: s * (t[0] + (2.0 if isinstance(t, torch.nn.Parameter) else 1.0))), expected)
        del t


@pytest.mark.parametrize("other", [torch.tensor([5.0, 7.0]), torch.tensor([[5.0], [7.0]]), torch.tensor([5, 7])], ids=["alike", "shape", "dtype"])
def test_captured_tensors_can_be_swapped(other):
    """torch refuses to where a weak reference is held of one."""
    weight, other = torch.tensor([2.0, 3.0], dtype=torch.float64), other.clone()
    score_mod = lambda s, b, h, i, j: s * weight.reshape(-1)[h]  # noqa: E731
    for _ in range(3):
        torch.testing.assert_close(out(score_mod), out("where(head == 0, 2.0, 3.0) * score"))
    torch.utils.swap_tensors(weight, other)
    for _ in range(3):
        torch.testing.assert_close(out(score_mod), out("where(head == 0, 5.0, 7.0) * score"))


def test_with_and_without_gradients_are_traced_apart():
    scale = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)

    def score_mod(s, b, h, i, j):
        with torch.no_grad():
            stopped = scale[0] * 1.0
        return s * scale[0] + stopped * j

    with torch.no_grad():
        out(score_mod)
    (found,) = torch.autograd.grad(out(score_mod).pow(2).sum(), scale)
    (expected,) = torch.autograd.grad(out(lambda s, b, h, i, j: s * scale[0] + 2.0 * j).pow(2).sum(), scale)
    torch.testing.assert_close(found, expected)


def test_a_global_called_like_an_attribute():
    """The name of a global function that reads an attribute of the same name."""
    assert torch.isfinite(out(own)).all()


def own(s, b, h, i, j):
    return s * CONFIG.own


CONFIG = Config()


def test_the_host_time_of_an_unchanged_function_is_bounded():
    """Finding a trace again costs microseconds; tracing costs a hundred times that."""
    import timeit

    score_mod, options = reuse_closure()(), foveal.Options()
    arguments = {"scale": None}

    def find():
        foveal.describe.trace(score_mod, None, options, arguments, foveal.torch.tracing.TorchTracer)

    find()
    assert min(timeit.repeat(find, number=200, repeat=5)) / 200 < 100e-6
