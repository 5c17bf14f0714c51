"""What Python asks of symbols without calling them: isinstance() is answered as of what they stand for, hashes are refused."""

import builtins
import importlib.util

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
    ("numpy", lambda row: getattr(row * 1, "T", None) is None, "numpy.ndarray.T in a score or mask"),
    ("numpy", lambda row: hasattr(row * 1, "flat"), "numpy.ndarray.flat in a score or mask"),
], ids=["grad_fn", "grad", "T", "flat"])  # fmt: skip
def test_attributes_that_only_tensors_have_are_refused(name, ask, words):
    """hasattr() and getattr() with a default took a symbol for something else than a tensor."""
    table = KINDS[name][0](TABLE) if name in KINDS else pytest.skip(f"{name} is not installed")
    with pytest.raises(NotImplementedError, match=f"foveal.attention: {words}"):
        attend(name, lambda s, b, h, i, j: s * 2 + table[:, j].sum() if ask(table[:, j]) else s)


def test_jax_answers_for_its_own_attributes():
    pytest.importorskip("jax")
    found = attend("jax", lambda s, b, h, i, j: s * 2 if getattr(s, "itemsize", 0) == 4 and hasattr(s, "nbytes") else s * 3)
    np.testing.assert_array_equal(found, attend("jax", "2 * score"))
