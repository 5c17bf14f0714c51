"""What float32 and the types of 16 bits round, where it decides something: a multiple, a bucket, an equality, an infinity.

One key for each query: the log of the softmax's denominator is the score, which is the function's value.
"""

import importlib.util

import numpy as np
import pytest

import foveal

N = 512
STEPS = [0.1, 0.2, 0.3, 1 / 3, 0.7, 1.1, 3.0, -0.3, 1e-3]
FUNCTIONS = {
    "x // step": lambda x, step: x // step,
    "x % step": lambda x, step: x % step,
    "step // x": lambda x, step: step // (x + 0.5),
    "product // step": lambda x, step: (x * 0.1) // step,
    "product % step": lambda x, step: (x * 0.1) % step,
    "power of 2 // step": lambda x, step: (0.5 * x * x) // step,
    "equal": lambda x, step: 1.0 * (x * step == (x + 3) * step - 3 * step),
    "less": lambda x, step: 1.0 * ((x + 1) * step - x * step < step),
    "less than a number": lambda x, step: 1.0 * (x * 0.1 <= 3 * step),
    "less than an integer": lambda x, step: 1.0 * (x * step * 10 >= x),
}
TORCHS = {
    "floor": lambda torch, x, step: torch.floor(x / step),
    "floor of a product": lambda torch, x, step: torch.floor(x * step),
    "ceil": lambda torch, x, step: torch.ceil(x * step * 10),
    "round": lambda torch, x, step: torch.round(x * step * 0.5),
    "decimals": lambda torch, x, step: torch.round(x * step, decimals=1),
    "trunc": lambda torch, x, step: torch.div(x * 0.1, step, rounding_mode="trunc"),
    "floor of a quotient": lambda torch, x, step: torch.div(x * 0.1, step, rounding_mode="floor"),
    "fmod": lambda torch, x, step: torch.fmod(x * 0.1, step),
    "remainder": lambda torch, x, step: torch.remainder(x * 0.1, step),
    "frac": lambda torch, x, step: torch.frac(x * step),
    "int": lambda torch, x, step: (x * step * 10).int(),
    "full_like": lambda torch, x, step: x.float() // torch.full_like(x.float(), step),
    "where": lambda torch, x, step: torch.where(x > 5, x * step, 0.3) // step,
    "buckets": lambda torch, x, step: (torch.log((x.abs() + 1).float() / 8) / 2.772588722239781 * 8).long() + step,
    "integers beyond 24 bits": lambda torch, x, step: (x * 65537 * 127).float() - (x * 65537 * 127 + 1) == 0.0,
}


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def of_torch(torch, fn, dtype):
    q = torch.zeros(1, N, 1, 1, dtype=dtype)
    return foveal.torch.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: s + fn(i - 200), return_lse=True)[1][0, 0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*FUNCTIONS, *TORCHS])
def test_multiples_in_torch(torch, name, dtype):
    """0.1 of float32 is not 0.1 of float64, and 9 // 0.3 is 29 there: foveal decided as float64 does."""
    import foveal.torch

    fn = FUNCTIONS.get(name) or (lambda x, step: TORCHS[name](torch, x, step))
    x = torch.arange(N) - 200
    for step in STEPS:
        expected = fn(x, step).to(torch.float64)
        found = of_torch(torch, lambda x: fn(x, step), getattr(torch, dtype)).double()  # noqa: B023
        tolerance = (1e-7 if dtype == "float64" else 4e-7) * float(expected.abs().max())
        assert float((found - expected).abs().max()) <= tolerance, (step, x[(found - expected).abs() > tolerance])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_multiples_in_jax(name):
    jax = pytest.importorskip("jax")
    import foveal.jax

    fn, x = FUNCTIONS[name], np.arange(N, dtype=np.int32) - 200
    q = jax.numpy.zeros((1, N, 1, 1))
    for step in STEPS:
        expected = np.asarray(fn(jax.numpy.asarray(x), step), np.float64)
        found = foveal.jax.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: s + fn(i - 200, step), return_lse=True)[1][0, 0]  # noqa: B023
        np.testing.assert_allclose(found, expected, rtol=0, atol=4e-7 * np.abs(expected).max(), err_msg=str(step))


CONVERSIONS = {
    "bfloat16": lambda x: (x * 0.37).bfloat16().float(),
    "half": lambda x: (x * 0.37).half().float(),
    "to": lambda x: (x * 123.0 + 77).to(x.new_tensor(0).bfloat16().dtype).double(),
    "a part lost": lambda x: x * 0.37 - (x * 0.37).bfloat16(),
    "of integers": lambda x: (x * 97 + 5).bfloat16() % 7.0,
    "to halves": lambda x: ((x * 9.9).half().float() * 1e-5).clamp(-3, 3),
    "beyond the halves": lambda x: (1000.0 * x).half().isinf().float(),
    "tiny halves": lambda x: (x * 1.23e-7).half().float() * 1e7,
    "through two types": lambda x: (x * 0.37).half().bfloat16().float(),
    "type_as": lambda x: (x * 0.37).type_as((x * 1.0).bfloat16()).float(),
    "double to float": lambda x: (x.double() * 0.1).float().double() * 3 - x.double() * 0.3,
    "full_like": lambda x: x * x.float().bfloat16().new_full((), 0.1).float(),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_round(torch, name, dtype):
    """They kept the digits and the range that they had."""
    import foveal.torch

    fn = CONVERSIONS[name]
    expected = fn(torch.arange(N) - 200).double()
    found = of_torch(torch, lambda x: fn(x).double(), getattr(torch, dtype)).double()
    tolerance = 1e-4 if name == "double to float" and dtype != "float64" else 1e-5
    assert float((found - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_conversions_of_scores_have_derivatives(torch, device):
    import foveal.torch

    generator = torch.Generator().manual_seed(0)
    q, k, v, table = [torch.randn(1, 16, 2, 8, generator=generator) for _ in range(3)] + [torch.randn(2, 16, generator=generator)]
    leaves = [x.requires_grad_() for x in (q, k, v, table)]

    def score_mod(s, b, h, i, j):
        return (s * 2).bfloat16().float() + table[h, j].half() * table[h, i]

    out = foveal.torch.attention(q, k, v, score_mod, options=foveal.Options(backend=device))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5
    scores = (scores * 2).bfloat16().float() + table[:, None, :].half() * table[:, :, None]
    expected = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    for found, wanted in zip((out, *torch.autograd.grad(out.sin().sum(), leaves)), (expected, *torch.autograd.grad(expected.sin().sum(), leaves))):
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)  # a score at the edge between two numbers may take the other one


def test_numbers_that_change_are_those_of_float32(torch):
    import foveal.torch

    x = torch.arange(N) - 200
    for step in (0.1, 0.2, 0.3, 0.7, 0.9, 1.1, 1.3, 0.6):  # from the fifth on an element of an array
        found = of_torch(torch, lambda x: x // step, torch.float64)  # noqa: B023
        torch.testing.assert_close(found, (x // step).double(), rtol=0, atol=1e-9)


def test_jaxs_reduce_precision():
    jax = pytest.importorskip("jax")
    import foveal.jax

    q, x = jax.numpy.zeros((1, N, 1, 1)), jax.numpy.arange(N) - 200
    for exponent, mantissa in ((8, 7), (5, 10), (8, 23)):
        fn = lambda x: jax.lax.reduce_precision(x * 0.37, exponent, mantissa)  # noqa: B023, E731
        found = foveal.jax.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: s + fn(i - 200), return_lse=True)[1][0, 0]  # noqa: B023
        np.testing.assert_allclose(found, fn(x), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="reduce_precision in a score or mask: 5 and 2 bits"):
        foveal.jax.attention(q, q, q, lambda s, b, h, i, j: jax.lax.reduce_precision(s, 5, 2))


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_what_decides_nothing_stays_as_it_is_written(name):
    """No roundings where float32 computes anyway: kernels know ALiBi by its form."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(name)
    module = importlib.import_module(f"foveal.{name}")
    make = importlib.import_module("torch").zeros if name == "torch" else importlib.import_module("jax.numpy").zeros
    q = make((1, 16, 2, 8))
    text = str(foveal.explain(q, q, q, lambda s, b, h, i, j: s * 0.3 + 0.1 * (j - i)))
    assert "to_float32" not in text and module


@pytest.mark.parametrize("fn, text", [
    (lambda b, h, i, j: i.float() >= j.float(), "kv_idx <= q_idx"),
    (lambda b, h, i, j: i * 1.0 >= j * 1.0, "kv_idx <= q_idx"),
    (lambda b, h, i, j: (i.float() - j) <= 4.0, "q_idx <= kv_idx + 4"),
    (lambda b, h, i, j: (i.double() - j.double()).abs() < 5, "abs(kv_idx - q_idx) <= 4"),
], ids=["float", "product", "difference", "double"])  # fmt: skip
def test_positions_are_compared_as_integers(torch, fn, text):
    """float32 holds them as they are, and kernels know such masks."""
    import foveal.torch

    q = torch.zeros(1, 64, 1, 8)
    assert f'mask="{foveal.parse(text)!r}"' in str(foveal.explain(q, q, q, mask=fn))


SUMS = {
    "differences": lambda s, t, w, h, i, j: s - 0.01 * (t[i] - t[j]).abs() * w[h],
    "squares": lambda s, t, w, h, i, j: s - w[h] * (0.01 * (t[i] - t[j])) ** 2,
    "functions": lambda s, t, w, h, i, j: s * (-0.01 * w[h] * (t[i] - t[j]).abs()).exp(),
    "one after the other": lambda s, t, w, h, i, j: s + t[i] - t[j],
    "float32 in between": lambda s, t, w, h, i, j: s - t[j] + w[h] * (i - j) * 0.1 + t[i],
    "from the left": lambda s, t, w, h, i, j: t[i] * 2.0 + s - t[j] * 2.0 + 3.0,
    "sums of sums": lambda s, t, w, h, i, j: s + w[h] * ((t[i] - 1.7e9) - (t[j] - 1.7e9)) * 0.01,
    "that decide, too": lambda s, t, w, h, i, j: s + (t[i] - t[j]) * (t[i] - t[j] > 3.0) * 0.01,
    "integers": lambda s, t, w, h, i, j: s + 0.01 * ((t * 8).long()[i].double() / 8 - (t * 8).long()[j].double() / 8),
    "conversions": lambda s, t, w, h, i, j: s + 0.01 * (t[i] - t[j]).float(),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_float64_beside_scores_of_float32(torch, name):
    """Times in seconds were subtracted in float32, which holds them to 128 seconds."""
    import foveal.torch

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 16, 2, 8, generator=generator, requires_grad=True) for _ in range(3))
    t, w = 1.7e9 + 100 * torch.rand(16, generator=generator, dtype=torch.float64), torch.rand(2, generator=generator, requires_grad=True)
    fn = SUMS[name]
    out = foveal.torch.attention(q, k, v, lambda s, b, h, i, j: fn(s, t, w, h, i, j))
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) * 8**-0.5
    h, i, j = torch.arange(2)[:, None, None], torch.arange(16)[:, None], torch.arange(16)
    expected = torch.einsum("bhij,bjhd->bihd", fn(scores, t, w, h, i, j).softmax(-1), v.double())
    leaves = [q, k, v, w]
    found = torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True)
    wanted = torch.autograd.grad(expected.sin().sum(), leaves, allow_unused=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(found, wanted):
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


STAMPS = {
    "differences": lambda x: (x(0).float() - x(3).float()) * 1e-2,
    "products": lambda x: 1e-2 * (x(0) * 1.0 - x(3) * 1.0) + (x(0) + 1.0 - x(3)) * 1e-3,
    "of integers": lambda x: (x(0) - x(3)).float() * 1e-2 + (x(0) - x(3)) * 1e-3,
    "beside numbers": lambda x: ((x(0) + 0.0) - (x(3) + 0.0)).clamp(-1000, 1000) * 1e-2,
    "to another type": lambda x: (x(0).to(x(0).new_tensor(0).float().dtype) - x(3).type_as(x(3).float())) * 1e-2,
}


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("name", STAMPS)
def test_captured_integers_become_float32_one_by_one(torch, name, dtype):
    """Time stamps of 2^30: float32 has steps of 128 there, which the integer difference does not show."""
    import foveal.torch

    stamps = (1_700_000_000 + 37 * torch.arange(N + 3)).to(getattr(torch, dtype))
    expected = STAMPS[name](lambda by: stamps[by : N + by])
    found = of_torch(torch, lambda i: STAMPS[name](lambda by: stamps[i + 200 + by]), torch.float32)
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-6)


def test_captured_integers_become_float32_one_by_one_in_jax():
    jax = pytest.importorskip("jax")
    import foveal.jax

    stamps = jax.numpy.asarray(1_700_000_000 + 37 * np.arange(N + 3), np.int32)
    q = jax.numpy.zeros((1, N, 1, 1))
    steps = lambda i: (stamps[i].astype("float32") - stamps[i + 3].astype("float32")) * 1e-2 + (stamps[i] * 1.0 - stamps[i + 3]) * 1e-3  # noqa: E731
    found = foveal.jax.attention(q, q[:, :1], q[:, :1], lambda s, b, h, i, j: s + steps(i), return_lse=True)[1][0, 0]
    np.testing.assert_allclose(found, steps(np.arange(N)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_differences_are_taken_before_they_are_scaled(torch, dtype):
    """Time stamps and coordinates: a constant that is multiplied into both of them rounds what the difference has."""
    import foveal.torch

    generator = torch.Generator().manual_seed(0)
    stamps, points = 1e7 + torch.randint(0, 200, (N,), generator=generator).float(), 1e6 + 3 * torch.randn(N, 3, generator=generator)
    functions = [
        lambda a, b, x, y: 0.01 * (a - b),
        lambda a, b, x, y: (a - b) / 300,
        lambda a, b, x, y: 0.1 * (3 - (a - b - 17.0) * 0.3),
        lambda a, b, x, y: -0.01 * ((x - y) ** 2).sum(-1),
        lambda a, b, x, y: 0.7 * torch.clamp(0.03 * (a - b), -2, 2) - 0.01 * (x - y).abs().amax(-1),
    ]
    q = torch.zeros(1, N, 1, 1, dtype=getattr(torch, dtype))
    for fn in functions:
        lse = foveal.torch.attention(q, q, q, lambda s, b, h, i, j: s + fn(stamps[i], stamps[j], points[i], points[j]), return_lse=True)[1][0, 0]  # noqa: B023
        expected = fn(stamps[:, None], stamps, points[:, None], points).double().logsumexp(-1)
        torch.testing.assert_close(lse.double(), expected, rtol=1e-6, atol=4e-6)
