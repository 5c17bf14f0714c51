"""x += y in a score writes into x, whatever other names x has, as torch does; where elements are shared with a view it is refused."""

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
