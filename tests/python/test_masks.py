"""Masks that read an array: the same as their text, in every framework; what they do not take is refused."""

import copy
import pickle

import numpy
import pytest

import foveal
from foveal import trace_key

S = 96
IDS = numpy.repeat(numpy.arange(6, dtype=numpy.int32), 16)
BATCHED_IDS = numpy.stack([IDS, IDS[::-1]]).copy()
LENGTHS = numpy.array([96, 41], dtype=numpy.int64)
GLOBAL = numpy.arange(S) % 31 == 5

MASKS = {
    "document": (lambda make: foveal.document(make(IDS)), "document(ids)", {"ids": IDS}),
    "document_batched": (lambda make: foveal.document(make(BATCHED_IDS)), "document(ids)", {"ids": BATCHED_IDS}),
    "padding": (lambda make: foveal.padding(make(LENGTHS)), "padding(lengths)", {"lengths": LENGTHS}),
    "global_tokens": (lambda make: foveal.global_tokens(7, make(GLOBAL)), "global_tokens(7, chosen)", {"chosen": GLOBAL}),
    "global_tokens_of_integers": (
        lambda make: foveal.global_tokens(7, make(GLOBAL.astype(numpy.int8) * 3)),
        "global_tokens(7, chosen)",
        {"chosen": GLOBAL},
    ),
}


def tensors():
    random = numpy.random.default_rng(3)
    return [random.standard_normal((2, S, 2, 16), dtype=numpy.float32) for _ in range(3)]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", MASKS)
def test_mask_is_its_text(name, framework):
    make_mask, text, params = MASKS[name]
    q, k, v = tensors()
    expected = foveal.attention(q, k, v, mask=text, params=params)
    make = numpy.asarray
    if framework == "torch":
        make = pytest.importorskip("torch").from_numpy
    elif framework == "jax":
        make = pytest.importorskip("jax.numpy").asarray
    out = foveal.attention(make(q), make(k), make(v), mask=make_mask(make))
    assert numpy.array_equal(numpy.asarray(out), expected)


DOCUMENT, GLOBALS = foveal.document(IDS), foveal.global_tokens(7, GLOBAL)


def even(batch, head, q_idx, kv_idx):
    return kv_idx % 2 == 0


@pytest.mark.parametrize(
    "mask, text",
    [
        (lambda *symbols: DOCUMENT(*symbols) & (symbols[3] <= symbols[2]), "document(ids) & causal()"),
        (DOCUMENT & foveal.causal(), "document(ids) & causal()"),
        (foveal.causal() & DOCUMENT, "document(ids) & causal()"),
        (DOCUMENT | foveal.window(3), "document(ids) | window(3)"),
        (foveal.window(3) | DOCUMENT, "document(ids) | window(3)"),
        (~DOCUMENT & foveal.causal() | foveal.window(0), "(ids[q_idx] != ids[kv_idx]) & causal() | window(0)"),
        (~(DOCUMENT & foveal.causal()), "~(document(ids) & causal())"),
        (DOCUMENT & GLOBALS, "document(ids) & global_tokens(7, chosen)"),
        (DOCUMENT & even, "document(ids) & (kv_idx % 2 == 0)"),
        (foveal.causal() & even, "causal() & (kv_idx % 2 == 0)"),
        (even | foveal.causal() & DOCUMENT, "causal() & document(ids) | (kv_idx % 2 == 0)"),
        (lambda *symbols: DOCUMENT(*symbols) & foveal.window(3), "document(ids) & window(3)"),
        (even & DOCUMENT | GLOBALS, "document(ids) & (kv_idx % 2 == 0) | global_tokens(7, chosen)"),
    ],
)
def test_masks_combine(mask, text):
    q, k, v = tensors()
    expected = foveal.attention(q, k, v, mask=text, params={name: x for name, x in (("ids", IDS), ("chosen", GLOBAL)) if name in text})
    assert numpy.array_equal(foveal.attention(q, k, v, mask=mask), expected)
    assert trace_key.key_of((None, mask), None) is not None  # it is traced once


@pytest.mark.parametrize("other", [3, None, "causal()"])
def test_masks_combine_with_masks_only(other):
    for combine in (lambda: DOCUMENT & other, lambda: other | DOCUMENT):
        with pytest.raises(TypeError, match="a mask combines with an expression or with a function of"):
            combine()


@pytest.mark.parametrize("other", [foveal.causal(), DOCUMENT, even, foveal.window], ids="expression function lambda maker".split())
@pytest.mark.parametrize("maker", [foveal.causal, foveal.prefix_lm, foveal.document], ids=lambda maker: maker.__name__)
def test_what_makes_a_mask_is_no_mask(maker, other):
    for combine in (lambda: maker & other, lambda: other & maker, lambda: maker | other, lambda: other | maker, lambda: ~maker, lambda: maker(0, 0, foveal.q_idx, 0)):
        with pytest.raises(TypeError, match=r"mask: found foveal\.\w+ itself; expected what it makes: foveal\.\w+\("):
            combine()
    assert pickle.loads(pickle.dumps(maker)) is maker
    with pytest.raises(TypeError, match="score_mod: found foveal"):
        foveal.alibi(foveal.score, 0, 0, foveal.q_idx, 0)
    with pytest.raises(TypeError, match="window: w: found Expr .*; expected an integer"):
        foveal.window(foveal.head)


@pytest.mark.parametrize("ask", [lambda: DOCUMENT and even, lambda: DOCUMENT or even, lambda: not DOCUMENT], ids="and or not".split())
def test_a_mask_has_no_truth_value(ask):
    """It was true: `document(ids) and causal()` was causal() alone."""
    with pytest.raises(TypeError, match="a mask has no truth value: write & for `and`"):
        ask()


def test_a_changed_array_is_read_anew():
    q, k, v = tensors()
    ids = IDS.copy()
    mask = foveal.document(ids)
    first = foveal.attention(q, k, v, mask=mask)
    ids[:] = 0
    assert numpy.array_equal(foveal.attention(q, k, v, mask=mask), foveal.attention(q, k, v))
    assert not numpy.array_equal(first, foveal.attention(q, k, v))


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: foveal.document([1, 2]), TypeError, "document: ids is a list; expected an integer array of shape"),
        (lambda: foveal.document(IDS.astype(numpy.float32)), ValueError, "document: ids is of shape"),
        (lambda: foveal.padding(BATCHED_IDS), ValueError, "padding: lengths is of shape"),
        (lambda: foveal.global_tokens(-1, GLOBAL), ValueError, "global_tokens: w is -1; expected 0 or more"),
        (lambda: foveal.global_tokens(4, GLOBAL.astype(numpy.float64)), ValueError, "expected a boolean or integer array"),
    ],
)
def test_what_is_no_such_array_is_refused(make, error, words):
    with pytest.raises(error) as found:
        make()
    assert words in str(found.value)


def test_a_mask_is_traced_once():
    assert trace_key.key_of((None, foveal.document(IDS)), None) is not None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda expr: pickle.loads(pickle.dumps(expr))], ids="copy deepcopy pickle".split())
def test_expressions_are_copied(copied):
    """So that a model with a mask among its attributes can be."""
    for expr in (foveal.causal() & foveal.window(3), foveal.alibi(4), foveal.softcap(2.5), foveal.where(foveal.head < 2, foveal.score, 0.1)):
        assert repr(copied({"expr": expr})["expr"]) == repr(expr)


def test_expressions_with_parameters_are_not_pickled():
    expr = foveal.parse("score + x[head]", [foveal.Param("x", [4])])
    assert copy.deepcopy(expr) is expr
    with pytest.raises(TypeError, match=r"an expression that reads parameters \(x\) is not pickled"):
        pickle.dumps(expr)
