"""x += y and x.add_(y) in a score write into x, whatever other names x has, as torch does; where elements are shared with a view they are refused."""

import operator

import numpy as np
import pytest
import torch

import foveal
import foveal.torch
from places import seeded

HEADS, LEN = 2, 5
Q, K, V = (torch.randn(1, LEN, HEADS, 4, dtype=torch.float64, generator=seeded(seed)) for seed in range(3))
TABLE = torch.randn(HEADS, LEN, dtype=torch.float64, generator=seeded(3))


def eager(score_mod):
    """torch itself, one pair after the other."""
    q, k, v = (t.transpose(1, 2) for t in (Q, K, V))
    raw = q @ k.mT * 4**-0.5
    scores = torch.empty_like(raw)
    for h, i, j in np.ndindex(HEADS, LEN, LEN):
        scores[0, h, i, j] = score_mod(raw[0, h, i, j].clone(), *map(torch.tensor, (0, h, i, j)))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def aliased(of, name, other):
    """A function that writes into what it calls by two names."""
    write = getattr(operator, f"__i{name}__")

    def score_mod(s, b, h, i, j):
        x = of(s, h, i, j)
        y = x
        y = write(y, other(s, h, i, j))
        return s + (x * 0.25 + y * i)

    return score_mod


WRITES = [
    *[(name, "score", lambda s, h, i, j: s) for name in "add sub mul truediv floordiv mod pow".split()],
    *[(name, "a sum", lambda s, h, i, j: TABLE[h, j] + s) for name in ("add", "sub", "mul", "truediv")],
    *[(name, "a position", lambda s, h, i, j: i) for name in "add sub mul floordiv mod and or xor lshift rshift".split()],
    *[(name, "converted", lambda s, h, i, j: (i - j).double()) for name in ("add", "sub", "mul", "truediv")],
    *[(name, "a copy", lambda s, h, i, j: s.clone()) for name in ("add", "sub", "mul", "truediv")],
    *[(name, "a comparison", lambda s, h, i, j: i > j) for name in ("and", "or", "xor")],
]


@pytest.mark.parametrize("name, _, of", WRITES, ids=[f"{name} {of}" for name, of, _ in WRITES])
def test_every_name_of_what_is_written_sees_it(name, _, of):
    other = (lambda s, h, i, j: j > 1) if _ == "a comparison" else (lambda s, h, i, j: 2)
    score_mod = aliased(of, name, other)
    torch.testing.assert_close(foveal.torch.attention(Q, K, V, score_mod), eager(score_mod))


def filled(s, h, i, j):
    x = torch.zeros_like(s)
    x.copy_(TABLE[h, j]).mul_(i)
    y = (s * 2).zero_().add_(j, alpha=0.5)
    z = (i * 1).fill_(2.7)  # holds integers
    return x + y + z + (s + 0).fill_(TABLE[h, i])


METHODS = {
    "chain": lambda s, h, i, j: (s * 2).add_(TABLE[h, j], alpha=0.3).mul_(TABLE[h, i]).clamp_(-1.0, 1.5),
    "the score": lambda s, h, i, j: s.mul_(2) + s,
    "masked_fill": lambda s, h, i, j: s.clone().masked_fill_(i < j, -0.5),
    "integers": lambda s, h, i, j: (i * 2).add_(j).floor_divide_(3).clamp_(min=1),
    "rounding": lambda s, h, i, j: (i * 5).div_(3, rounding_mode="trunc"),
    "booleans": lambda s, h, i, j: s * (i > j).logical_not_(),
    "a comparison": lambda s, h, i, j: (s + 0).gt_(TABLE[h, j]),
    "functions": lambda s, h, i, j: torch.sigmoid_(torch.clamp_(s + TABLE[h, i], max=1.0)) + torch.nn.functional.elu_(s - 1),
    "a vector": lambda s, h, i, j: (torch.stack([s, TABLE[h, i], TABLE[h, j]]) * 1).tanh_().cumsum_(0).sum(),
    "fill, copy, zero": filled,
    "inplace": lambda s, h, i, j: torch.nn.functional.relu(s, inplace=True) + s,
    "modules": lambda s, h, i, j: torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Hardtanh(-1.0, 0.5, inplace=True))(s - 0.1),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_write(name):
    """They were refused, also where a module has inplace=True."""
    score_mod = lambda s, b, h, i, j: s + METHODS[name](s, h, i, j)  # noqa: E731
    table = TABLE.clone()
    torch.testing.assert_close(foveal.torch.attention(Q, K, V, score_mod), eager(score_mod))
    assert torch.equal(TABLE, table)


def test_gradients_of_what_is_written():
    def score_mod(s, b, h, i, j):
        x = torch.zeros_like(s)
        x.copy_(table[h, j]).mul_(s).add_(table[h, i], alpha=0.5)
        return x + s.sigmoid()

    def dense(s):
        return table[:, None, :] * s + 0.5 * table[:, :, None] + s.sigmoid()

    q, table = Q.clone().requires_grad_(), TABLE.clone().requires_grad_()
    found = torch.autograd.grad(foveal.torch.attention(q, K, V, score_mod).square().sum(), (q, table))
    scores = dense(q.transpose(1, 2) @ K.transpose(1, 2).mT * 4**-0.5)
    expected = torch.autograd.grad((torch.softmax(scores, -1) @ V.transpose(1, 2)).square().sum(), (q, table))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("write", [lambda x: operator.imul(x, 2), lambda x: x.mul_(2), lambda x: torch.nn.functional.relu(x, inplace=True)], ids="imul mul_ inplace".split())
def test_what_is_written_without_gradient_keeps_that_of_before(write):
    """In torch x *= 2 within no_grad() is seen by x's value alone; here its derivative was gone."""

    def score_mod(s, b, h, i, j):
        x = s * 3
        with torch.no_grad():
            write(x)
        return x

    with pytest.raises(NotImplementedError, match=r"writes within no_grad\(\) into a tensor that has a derivative.*expected x = x \+ y"):
        foveal.torch.attention(Q, K, V, score_mod)

    def of_its_own(s, b, h, i, j):
        with torch.no_grad():
            x = s.abs()
            write(x)
        return s / (1 + x) + write(i * 1)

    torch.testing.assert_close(foveal.torch.attention(Q, K, V, of_its_own), eager(of_its_own))


def test_a_copy_is_not_written_with_what_it_is_of():
    def score_mod(s, b, h, i, j):
        x = s.clone()
        x *= 3
        return s + x * i

    torch.testing.assert_close(foveal.torch.attention(Q, K, V, score_mod), eager(score_mod))


@pytest.mark.parametrize("write", [lambda i, s: operator.iadd(i, s), lambda i, s: operator.itruediv(i, 2), lambda i, s: operator.iadd(s, s[None].expand(2))])
def test_what_torch_cannot_write_is_refused(write):
    score_mod = lambda s, b, h, i, j: s + write(i, s)  # noqa: E731
    with pytest.raises(RuntimeError):
        eager(score_mod)
    with pytest.raises((RuntimeError, NotImplementedError)):
        foveal.torch.attention(Q, K, V, score_mod)


@pytest.mark.parametrize("view", [
    lambda s, h: s[None], lambda s, h: s.reshape(1), lambda s, h: torch.stack([s, s])[0], lambda s, h: s.detach(), lambda s, h: s.double(),
    lambda s, h: +s, lambda s, h: TABLE[h], lambda s, h: s.item(),
], ids="index reshape part detach same positive row number".split())  # fmt: skip
def test_shared_elements_are_not_written(view):
    def score_mod(s, b, h, i, j):
        x = view(s, h)
        x *= 2
        return s + x.sum()

    with pytest.raises(NotImplementedError, match=r"foveal.torch.attention: .*in a score or mask.* writes into|a score or mask writes into"):
        foveal.torch.attention(Q, K, V, score_mod)


def test_numpys_arrays_are_not_written():
    q, k, v = (t.cpu().numpy() for t in (Q, K, V))
    table = TABLE.cpu().numpy()

    def score_mod(s, b, h, i, j):
        row = table[h]
        row += 1
        return s + row[j]

    with pytest.raises(NotImplementedError, match=r"foveal.attention: a score or mask writes into an array.*expected x = x \+ y"):
        foveal.attention(q, k, v, score_mod)


def test_jaxs_arrays_do_not_change():
    jax = pytest.importorskip("jax")
    q, k, v = (jax.numpy.asarray(t.cpu().numpy(), "float32") for t in (Q, K, V))
    table = jax.numpy.asarray(TABLE.cpu().numpy(), "float32")

    def score_mod(s, b, h, i, j):
        x, row = s, table[h]
        x += i
        row *= 2
        return s + x * 0.1 + row[j] - table[h, j]

    expected = foveal.attention(q, k, v, lambda s, b, h, i, j: s + (s + i) * 0.1 + table[h, j])
    np.testing.assert_allclose(foveal.attention(q, k, v, score_mod), expected, rtol=1e-5, atol=1e-5)
