"""Python numbers that change from call to call: one program, values always right."""

import dataclasses
import math
import types
from functools import partial

import numpy as np
import pytest
import torch

import foveal
import foveal.torch
from foveal import describe
from places import seeded

q, k, v = (torch.randn(1, 6, 2, 4, generator=seeded(i), dtype=torch.float64) for i in range(3))
STEP = 1.0
WINDOW = 2


def expected(score_mod=None, mask=None):
    a, b, c = (t.transpose(1, 2) for t in (q, k, v))
    s = a @ b.transpose(-1, -2) / 2.0
    places = [torch.arange(n).reshape([n if d == at else 1 for d in range(4)]) for at, n in enumerate((1, 2, 6, 6))]
    s = s if score_mod is None else score_mod(s, *places)
    s = s if mask is None else s.masked_fill(~mask(*places), -math.inf)
    return (torch.softmax(s, -1) @ c).transpose(1, 2)


def programs(make, values, kind="score_mod", most=6, attend=None):
    """How many programs calls with these values make; each is compared with torch."""
    before = set(describe._programs)
    for value in values:
        fn = make(value)
        found = foveal.torch.attention(q, k, v, **{kind: fn}) if attend is None else attend(fn)
        torch.testing.assert_close(found, expected(**{kind: make(value)}), rtol=1e-7, atol=1e-9)
    made = len(set(describe._programs) - before)
    assert made <= most
    return made


def default(value):
    def fn(s, b, h, i, j, cap=value):
        return cap * torch.tanh(s / cap)

    return fn


def keyword(value):
    def fn(s, b, h, i, j, *, cap=value):
        return s * cap - 1.0

    return fn


def nested(value):
    def inner(x):
        return x * value + (1 - value)

    def fn(s, b, h, i, j):
        return inner(s) + inner(i - j)

    return fn


def scaled(factor, s, b, h, i, j):
    return s * factor


class Settings:
    value = 1.0

    def __init__(self, value=1.0):
        self.own = value
        self.inner = types.SimpleNamespace(value=value)
        self.table = {"a": value, "b": [value]}


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@dataclasses.dataclass
class Data:
    value: float


MODULE = types.ModuleType("settings")
HELD = Settings()


def of_the_class(value):
    Settings.value = value
    return lambda s, b, h, i, j: s * Settings.value


def of_a_module(value):
    MODULE.value = value
    return lambda s, b, h, i, j: s * MODULE.value


def of_a_global_object(value):
    HELD.own = HELD.inner.value = value
    return lambda s, b, h, i, j: s * HELD.own + HELD.inner.value


def of_a_torch_module(value):
    module = torch.nn.Module()
    module.factor = value
    return lambda s, b, h, i, j: s * module.factor


MAKERS = {
    "attribute": lambda value: (lambda held: lambda s, b, h, i, j: s * held.own)(Settings(value)),
    "attribute of an attribute": lambda value: (lambda held: lambda s, b, h, i, j: s * held.inner.value - held.own)(Settings(value)),
    "slots": lambda value: (lambda held: lambda s, b, h, i, j: s * held.value)(Slotted(value)),
    "dataclass": lambda value: (lambda held: lambda s, b, h, i, j: s * held.value)(Data(value)),
    "namespace": lambda value: (lambda held: lambda s, b, h, i, j: s * held.value)(types.SimpleNamespace(value=value)),
    "dict": lambda value: (lambda held: lambda s, b, h, i, j: s * held["a"] + held["b"][0])({"a": value, "b": [value]}),
    "get": lambda value: (lambda held: lambda s, b, h, i, j: s * held.get("a"))({"a": value}),
    "dict of an object": lambda value: (lambda held: lambda s, b, h, i, j: s * held.table["a"] + held.table["b"][0])(Settings(value)),
    "list of dicts": lambda value: (lambda held: lambda s, b, h, i, j: s * held[0]["a"])([{"a": value}]),
    "object in a dict": lambda value: (lambda held, inner: lambda s, b, h, i, j: s * held["a"] * inner.own)({"a": value}, Settings(value)),
    "class": of_the_class,
    "module": of_a_module,
    "global object": of_a_global_object,
    "torch module": of_a_torch_module,
    "closure": lambda value: lambda s, b, h, i, j: s * value,
    "closure, twice": lambda value: lambda s, b, h, i, j: s * value + value / 2.0,
    "integers": lambda value: (lambda n: lambda s, b, h, i, j: s + (i - j) * n * 0.25)(int(4 * value)),
    "default": default,
    "keyword": keyword,
    "nested": nested,
    "partial": lambda value: partial(scaled, value),
    "list": lambda value: (lambda weights: lambda s, b, h, i, j: s * weights[0] + weights[1])([value, 2 * value]),
    "arithmetic": lambda value: lambda s, b, h, i, j: s * (2 * value - 1) / (value + 1.5) + -value + abs(value) % 3,
    "where": lambda value: lambda s, b, h, i, j: torch.where(i - j > value, s - value, s),
    "clamp": lambda value: lambda s, b, h, i, j: s.clamp(-value, value),
}


@pytest.mark.parametrize("name", MAKERS)
def test_one_program_serves_all_values(name):
    programs(MAKERS[name], [0.5 + 0.25 * n for n in range(40)])


@pytest.mark.parametrize("name", ["lists of masks", "window", "float"])
def test_masks(name):
    makers = {
        "window": lambda value: lambda b, h, i, j: (i - j).abs() <= value,
        "float": lambda value: lambda b, h, i, j: (i - j) * 0.5 <= float(1) * value,
        "lists of masks": lambda value: (lambda parts: lambda b, h, i, j: parts[0](b, h, i, j) & (j >= 0))([lambda b, h, i, j: j <= i + value]),
    }
    programs(makers[name], [n % 7 for n in range(40)], kind="mask")


def test_globals_and_numpy():
    global STEP
    fn = lambda s, b, h, i, j: s * STEP  # noqa: E731
    before = set(describe._programs)
    for n in range(40):
        STEP = 0.1 * n
        torch.testing.assert_close(foveal.torch.attention(q, k, v, fn), expected(fn), rtol=1e-7, atol=1e-9)
        found = foveal.attention(*(t.cpu().numpy() for t in (q, k, v)), fn)
        np.testing.assert_allclose(found, expected(fn).cpu().numpy(), rtol=1e-7, atol=1e-9)
    assert len(set(describe._programs) - before) <= 12


def test_captured_tensors_beside_numbers_get_gradients():
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
    before = set(describe._programs)
    for n in range(20):
        fn = lambda s, b, h, i, j, n=n: s * (1 + 0.1 * n) * bias[h]  # noqa: E731
        (found,) = torch.autograd.grad(foveal.torch.attention(q, k, v, fn).pow(2).sum(), bias)
        (wanted,) = torch.autograd.grad(expected(fn).pow(2).sum(), bias)
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)
    assert len(set(describe._programs) - before) <= 6


@pytest.mark.parametrize(
    "make",
    [
        lambda n: lambda s, b, h, i, j: s if n % 2 else s * 2.0,
        lambda n: lambda s, b, h, i, j: s + sum(0.1 for _ in range(n)),
        lambda n: lambda s, b, h, i, j: s * math.sqrt(n),
        lambda n: lambda s, b, h, i, j: s * [1.0, 2.0, 3.0][n % 3],
        lambda n: lambda s, b, h, i, j: s * (1.0 if isinstance(n, int) else 9.0) * (n > 3),
        lambda n: lambda s, b, h, i, j: s * min(n, 5),
        lambda n: lambda s, b, h, i, j: s * torch.tensor([float(n)])[0],
        lambda n: lambda s, b, h, i, j: s * torch.ones(n + 1, dtype=torch.float64).sum(),
        lambda n: lambda s, b, h, i, j: s**n,
        lambda n: lambda s, b, h, i, j: s * float(f"{n}"),
        lambda n: lambda s, b, h, i, j: s * {0: 1.0}.get(n, 2.0),
    ],
    ids="branch range sqrt item type comparison tensor shape power text key".split(),
)
def test_what_needs_a_value_stays_a_constant(make):
    """Control flow, shapes, indices, functions of numbers: another program for each, and right."""
    programs(make, [n % 5 for n in range(15)], most=5 * 8)


def test_one_that_must_be_constant_beside_one_that_changes():
    def make(n):
        power, factor = n % 2, 0.5 + 0.1 * n
        return lambda s, b, h, i, j: (s if power else s * 2.0) * factor

    programs(make, range(40), most=20)


def test_types_of_numbers_promote_as_torch_says():
    table = torch.arange(6, dtype=torch.int32)
    for fn in (
        lambda n: lambda s, b, h, i, j: s + (table[i] * n).double() * 0.1,
        lambda n: lambda s, b, h, i, j: s + table[i] * (n * 0.1),
        lambda n: lambda s, b, h, i, j: s + (table[i] + n) // 2 * 0.1,
        lambda n: lambda s, b, h, i, j: s + (i % (n + 2)) * 0.1,
        lambda n: lambda s, b, h, i, j: s + i / (n + 2),
    ):
        programs(fn, range(1, 25))


def test_memory_stays_flat():
    """4,000 calls, one program."""
    before = len(describe._programs), len(describe._traces)
    for n in range(4000):
        foveal.torch.attention(q, k, v, lambda s, b, h, i, j, n=n: s * (1.0 + n))
    assert len(describe._programs) - before[0] <= 6 and len(describe._traces) - before[1] <= 6


@pytest.mark.parametrize("kind", ["global", "closure", "attribute", "item", "update", "pop"])
def test_what_a_function_counts_is_counted(kind):
    """A function that writes to what it reads is traced as it is, each time."""
    global COUNT
    COUNT, held, table = 0, Settings(0), {"n": 0, "rest": list(range(100))}
    count = 0

    def by_global():
        global COUNT
        COUNT += 1
        return COUNT

    def by_closure():
        nonlocal count
        count += 1
        return count

    def by_attribute():
        held.own += 1
        return held.own

    def by_item():
        table["n"] += 1
        return table["n"]

    def by_update():
        table.update(n=table["n"] + 1)
        return table["n"]

    def by_pop():
        return table["rest"].pop(0) + 1

    step = {"global": by_global, "closure": by_closure, "attribute": by_attribute, "item": by_item, "update": by_update, "pop": by_pop}[kind]
    for n in range(1, 13):
        found = foveal.torch.attention(q, k, v, lambda s, b, h, i, j: s * step())
        torch.testing.assert_close(found, expected(lambda s, b, h, i, j: s * n), rtol=1e-7, atol=1e-9)


COUNT = 0


def test_a_number_that_is_reached_in_two_ways():
    """The function calls itself: a copy of it would call the old one."""

    def make(n):
        def fn(s, b, h, i, j, depth=0):
            return s * n if depth else fn(s, b, h, i, j, 1) + n

        return fn

    programs(make, [0.1 * n for n in range(20)], most=20)


# What Python computes of numbers has its digits and its range, whatever the type of q: by what, and of which values.
COMPUTED = {
    "digits that cancel": (lambda c: (c - 1.0) * 1e7, [1.0 + n * 1e-9 for n in range(1, 9)]),
    "a range beyond float32": (lambda c: c * 1e200 * 1e-200, [float(n) for n in range(1, 9)]),
    "large integers": (lambda c: c / 3 * 3 - c + 1, [10**9 + n for n in range(8)]),
    "integers beyond 64 bits": (lambda c: c * c * c // 10**18 % 7 + 1, [10**9 + n * 10**7 for n in range(8)]),
    "a generator of random numbers": (lambda c: (c * 6364136223846793005 + 1) % 2**64 / 2**64, [10**9 + n for n in range(8)]),
    "powers": (lambda c: c**2 - c**0.5, [float(n) for n in range(1, 9)]),
    "signs": (lambda c: abs(-c) + +c, [float(n) for n in range(-4, 4)]),
    "another type": (lambda c: c // 2 + 0.5 * c, [1.0, 2, 3.0, 4, 5.0, 6, 7.0, 8]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", COMPUTED)
def test_numbers_of_numbers_are_pythons(name, dtype):
    compute, values = COMPUTED[name]
    x = q.to(dtype)
    for value in values * 2:
        found = foveal.torch.attention(x, x, x, (lambda c: lambda s, b, h, i, j: s * compute(c))(value))
        torch.testing.assert_close(found, foveal.torch.attention(x, x, x, foveal.score * float(compute(value))), rtol=1e-6, atol=1e-6)


def test_numbers_of_numbers_make_few_programs():
    make = lambda c: lambda s, b, h, i, j: s * (c * c + 1) / (2 * c + 0.5) + (c + 1) * i  # noqa: E731
    programs(make, [0.25 * n for n in range(1, 40)])


FAILING = {
    "/": (lambda c: 1 / (c - 9), 9),
    "//": (lambda c: 7 // (c - 9), 9),
    "%": (lambda c: 7 % (c - 9), 9),
    "**": (lambda c: 2.0 ** (c * 10**4), 1),
}


@pytest.mark.parametrize("name", FAILING)
def test_errors_of_numbers_are_pythons(name):
    compute, wrong = FAILING[name]
    make = lambda c: lambda s, b, h, i, j: s * compute(c)  # noqa: E731
    for value in range(-8, 0):
        foveal.torch.attention(q, q, q, make(value))
    with pytest.raises(ArithmeticError):
        foveal.torch.attention(q, q, q, make(wrong))
    foveal.torch.attention(q, q, q, make(-20))


@pytest.mark.parametrize("divide", [lambda i, c: i % c, lambda i, c: i // c, torch.fmod], ids=["%", "//", "fmod"])
def test_integers_are_not_divided_by_0(divide):
    make = lambda c: lambda s, b, h, i, j: s + divide(i, c)  # noqa: E731
    for value in range(1, 9):
        foveal.torch.attention(q, q, q, make(value))
    for _ in range(2):
        with pytest.raises((NotImplementedError, ValueError), match="divided by"):
            foveal.torch.attention(q, q, q, make(0))
    programs(lambda c: lambda s, b, h, i, j: s + i % c, range(1, 9), most=12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
@pytest.mark.parametrize("fn", ["<", "==", "%", "+"])
def test_numbers_beside_narrow_integers_wrap_as_constants_do(fn, dtype):
    row = torch.arange(6).to(dtype)
    compute = {"<": lambda x, c: x < c, "==": lambda x, c: x == c, "%": lambda x, c: x % c, "+": lambda x, c: x + c}[fn]
    for value in (1, 2, 3, 4, 5, 6, 7, 3 << 30, -(3 << 30) + 1, 1 << 32, 8):
        make = lambda c: lambda s, b, h, i, j: torch.where(compute(row[i], c) > 3, s, -s)  # noqa: E731
        try:
            wanted = expected(make(value))
        except (RuntimeError, ArithmeticError):  # more than this type holds
            with pytest.raises((RuntimeError, NotImplementedError, ValueError)):
                foveal.torch.attention(q, k, v, make(value))
            continue
        torch.testing.assert_close(foveal.torch.attention(q, k, v, make(value)), wanted)


CAUGHT = {
    "an attribute": lambda c: c.hex(),
    "divmod": lambda c: divmod(c, 2.0),
    "divmod of another": lambda c: divmod(2.0, c),
    "a complex number": lambda c: c * 1j,
    "a bool": lambda c: c + True,
    "bits": lambda c: c & 3,
    "bits of another": lambda c: 1 << c,
}


@pytest.mark.parametrize("name", CAUGHT)
def test_what_pythons_numbers_have_is_not_missing(name):
    """A function that catches errors took another way once its number was read at run time."""

    def make(value):
        def score_mod(s, b, h, i, j):
            try:
                CAUGHT[name](value)
            except (AttributeError, TypeError):
                return -s
            return s * value

        return score_mod

    for value in range(1, 8) if "bits" in name else np.arange(1.5, 8.0).tolist():
        torch.testing.assert_close(foveal.torch.attention(q, k, v, make(value)), expected(make(value)), rtol=1e-7, atol=1e-9)
