"""A function that keeps a symbol of one call for the next, where the same name stands for another array, is refused."""

import importlib.util

import numpy as np
import pytest

import foveal
from foveal.describe import describe

X = np.random.default_rng(0).standard_normal((1, 6, 2, 8)).astype(np.float32)
ROWS = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)
MAKERS = {"numpy": np.asarray}
if importlib.util.find_spec("torch"):
    import torch

    MAKERS["torch"] = lambda x: torch.as_tensor(x, device=torch.get_default_device())
if importlib.util.find_spec("jax"):
    import jax

    MAKERS["jax"] = jax.numpy.asarray


def keeping(make, kept):
    """The second call would read ROWS[1] in the place of ROWS[0]."""
    first, second = make(ROWS[0]), make(ROWS[1])
    memo = {}

    def score_mod(s, b, h, i, j):
        if not memo:
            memo["x"] = kept(first, s, j)
        return s + second[i] * s + memo["x"]

    return score_mod


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kept", [lambda row, s, j: row[j], lambda row, s, j: row[j] * 2 + s, lambda row, s, j: foveal.tanh(row[j])], ids=["a read", "a sum", "of foveal"])
def test_kept_symbols_are_refused(name, kept):
    x = MAKERS[name](X)
    score_mod = keeping(MAKERS[name], kept)
    refused = pytest.raises(TypeError, match="foveal.attention: a score or mask (keeps|uses a symbol that it kept).*made anew each time")
    try:
        foveal.attention(x, x, x, score_mod)
    except TypeError:
        pass  # seen at once, where the functions' names can be followed
    for _ in range(2):
        with refused:
            foveal.attention(x, x, x, score_mod)


def test_a_symbol_may_go_from_the_score_to_the_mask():
    torch = pytest.importorskip("torch")
    x, row, memo = MAKERS["torch"](X), MAKERS["torch"](ROWS[0]), {}

    def score_mod(s, b, h, i, j):
        memo["x"] = row[j]
        return s + memo["x"]

    found = foveal.attention(x, x, x, score_mod, lambda b, h, i, j: (memo["x"] > 0) | (i == j))
    torch.testing.assert_close(found, foveal.attention(x, x, x, lambda s, b, h, i, j: s + row[j], lambda b, h, i, j: (row[j] > 0) | (i == j)))


def test_expressions_without_reads_may_be_kept():
    memo = {}

    def mask(b, h, i, j):
        if not memo:
            memo["x"] = foveal.causal()
        return memo["x"]

    for _ in range(2):
        np.testing.assert_array_equal(foveal.attention(X, X, X, mask=mask), foveal.attention(X, X, X, mask=foveal.causal()))


class Held:
    """What the names of a function do not lead to."""


def holding(make, kept):
    first, second, held = make(ROWS[0]), make(ROWS[1]), [Held()]

    def score_mod(s, b, h, i, j):
        if not hasattr(held[0], "x"):
            setattr(held[0], "x", kept(first, s, j))
        return s + second[i] * s + held[0].x

    return score_mod


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kept", [lambda row, s, j: row[j], lambda row, s, j: row[j] * 2 + s, lambda row, s, j: foveal.tanh(row[j])], ids=["a read", "a sum", "of foveal"])
def test_kept_symbols_are_refused_wherever_they_are(name, kept):
    """A read of NumPy's, or a result of foveal's functions, was taken for one of the second call's arrays."""
    x = MAKERS[name](X)
    score_mod = holding(MAKERS[name], kept)
    foveal.attention(x, x, x, score_mod)
    for _ in range(2):
        with pytest.raises(TypeError, match="foveal.attention: a score or mask uses a symbol that it kept.*made anew each time"):
            foveal.attention(x, x, x, score_mod)


def test_names_of_parameters_are_the_same_in_every_trace():
    tables = [np.full((2, 6), n, np.float32) for n in range(12)]

    def score_mod(s, b, h, i, j):
        return sum(table[h, j] * (n + 1) for n, table in enumerate(tables)) + s

    texts = {describe(score_mod).text for _ in range(3)}
    assert len(texts) == 1 and "p11[head, kv_idx]" in texts.pop()
