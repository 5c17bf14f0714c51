"""foveal on NumPy arrays, without any framework."""

import functools
import os
import signal

import numpy as np
import pytest

import foveal


def softmax_attention(q, k, v, scores=lambda s: s):
    s = scores(np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", p, v)


def arrays(*shape, n=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for _ in range(n)]


def test_one_array_under_two_names():
    """They were one parameter: the other name was unknown, and a later call with two arrays read the first one twice."""
    q, k, v = arrays(1, 5, 2, 4)
    x, y, _ = arrays(2)
    text = "score * a[head] + b[kv_idx % 2]"
    named = lambda a, b, sink=None: foveal.attention(q, k, v, text, params={"a": a, "b": b}, sink=sink)  # noqa: E731
    np.testing.assert_array_equal(named(x, x), named(x, x.copy()))
    np.testing.assert_array_equal(named(x, y), named(x.copy(), y.copy()))
    np.testing.assert_array_equal(named(x, y, sink=x), named(x, y, sink=x.copy()))
    np.testing.assert_array_equal(named(x, y, sink=y), named(x, y, sink=y.copy()))
    out, lse = foveal.forward(q, k, v, text, params={"a": x, "b": x}, sink=x)
    *_, together = foveal.backward(q, k, v, out, lse, out, text, params={"a": x, "b": x}, sink=x, gradients=("a", "b", "sink"))
    *_, apart = foveal.backward(q, k, v, out, lse, out, text, params={"a": x, "b": x + 0}, sink=x + 0, gradients=("a", "b", "sink"))
    assert all((together[name] == apart[name]).all() for name in ("a", "b", "sink")) and not np.allclose(together["a"], together["b"])
    with pytest.raises(ValueError, match="foveal.attention: params: found an array called sink beside the sink, which is another"):
        foveal.attention(q, k, v, "score + sink[head]", params={"sink": x}, sink=y)


def test_plain_and_causal():
    q, k, v = arrays(2, 9, 3, 4)
    np.testing.assert_allclose(foveal.attention(q, k, v), softmax_attention(q, k, v), rtol=1e-10)
    keep = np.tril(np.ones((9, 9), bool))
    out, lse = foveal.attention(q, k, v, mask=foveal.causal(), return_lse=True)
    np.testing.assert_allclose(out, softmax_attention(q, k, v, lambda s: np.where(keep, s, -np.inf)), rtol=1e-10)
    assert lse.shape == (2, 3, 9) and lse.dtype == np.float64


def test_captured_array_and_named_gradient():
    q, k, v = arrays(1, 8, 2, 4)
    bias = np.random.default_rng(1).standard_normal((2, 15))
    relative = np.arange(8)[:, None] - np.arange(8)[None]

    def score(s, b, h, q_idx, kv_idx):
        return s + bias[h, q_idx - kv_idx + 7]

    out, lse = foveal.forward(q, k, v, score)
    np.testing.assert_allclose(out, softmax_attention(q, k, v, lambda s: s + bias[:, relative + 7][None]), rtol=1e-10)
    dout = np.ones_like(out) * np.arange(4)
    _, _, dv, gradients = foveal.backward(q, k, v, out, lse, dout, score, gradients=("bias",), params={"bias": bias})
    step = 1e-6
    moved = bias.copy()
    moved[1, 5] += step
    numeric = ((softmax_attention(q, k, v, lambda s: s + moved[:, relative + 7][None]) - out) * dout).sum() / step
    np.testing.assert_allclose(gradients["bias"][1, 5], numeric, rtol=1e-4)
    assert dv.shape == v.shape


def test_text_expressions_and_explain():
    q, k, v = arrays(1, 32, 2, 4)
    np.testing.assert_array_equal(
        foveal.attention(q, k, v, "30 * tanh(score / 30)", "kv_idx <= q_idx"), foveal.attention(q, k, v, foveal.softcap(30.0), foveal.causal())
    )
    report = foveal.explain(q, k, v, mask="kv_idx <= q_idx")
    assert report["backend"] and report["kernel"] in report["text"]


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(k=np.zeros((1, 4, 3, 8))), "heads"),
        (dict(v=np.zeros((1, 5, 2, 8))), "v: "),
        (dict(q=np.zeros((1, 4, 2, 8), np.complex64)), "complex64"),
        (dict(q=np.zeros((4, 8))), "rank 2"),
        (dict(score_mod="score + nothing[q_idx]"), "nothing"),
        (dict(strategy="both"), "strategy"),
        (dict(checked=2), "checked: found int 2; expected True or False"),
        (dict(deterministic=-1), "deterministic: found int -1; expected True or False"),
    ],
)
def test_wrong_calls_name_the_argument(change, message):
    call = dict(q=np.zeros((1, 4, 2, 8)), k=np.zeros((1, 4, 2, 8)), v=np.zeros((1, 4, 2, 8)))
    with pytest.raises((ValueError, TypeError), match=message):
        foveal.attention(**{**call, **change})


def test_back_ends_are_chosen_and_excluded():
    """The reference is exact and a hundred times slower: it never takes a call without a word."""
    q, k, v = arrays(1, 5, 2, 1030)
    with pytest.raises(NotImplementedError, match="cpu: head_dim 1030 exceeds 1024\n.*\n *reference: exact and slow; it runs only when it is asked for by name"):
        foveal.attention(q, k, v)
    by_name = foveal.attention(q, k, v, options=foveal.Options(backend="reference"))
    np.testing.assert_allclose(by_name, softmax_attention(q, k, v), rtol=1e-10)
    q, k, v = arrays(1, 5, 2, 1000)
    assert foveal.explain(q, k, v)["backend"] == "cpu"
    np.testing.assert_allclose(foveal.attention(q, k, v, options=foveal.Options(exclude="reference")), softmax_attention(q, k, v), rtol=1e-10)
    with pytest.raises(NotImplementedError, match="cpu: it was excluded"):
        foveal.attention(q, k, v, options=foveal.Options(exclude="cpu"))


def test_scores_of_more_tensors_than_a_tape_reads_are_refused():
    q, k, v = arrays(1, 5, 2, 8)
    tables = [np.full(5, 0.1 * i) for i in range(33)]

    def score(score, b, h, i, j):
        return score + sum(table[j] for table in tables)

    with pytest.raises(NotImplementedError, match="reference: exact and slow"):
        foveal.attention(q, k, v, score_mod=score)
    foveal.attention(q, k, v, score_mod=score, options=foveal.Options(backend="reference"))


def test_wrong_back_ends_are_named():
    q, k, v = arrays(1, 5, 2, 8)
    with pytest.raises(ValueError, match="options.exclude: there is no 'gpu'"):
        foveal.attention(q, k, v, options=foveal.Options(exclude="gpu"))


def test_runs_in_a_forked_child():
    q, k, v = arrays(1, 300, 2, 16)
    expected = foveal.attention(q, k, v, options=foveal.Options(threads=3))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if np.array_equal(foveal.attention(q, k, v, options=foveal.Options(threads=3)), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("rows", [slice(2, 6), slice(0, 4), slice(6, 2, -1), slice(1, 9, 2)], ids=str)
def test_an_index_outside_of_a_slice(rows):
    """Reads the nearest element of the slice, or is an error where reads are checked. It read what lies beside the slice."""
    table, q = np.arange(10, dtype=np.float32), np.zeros((1, 6, 1, 1), np.float32)
    score_mod = lambda s, b, h, i, j: s + table[rows][i]  # noqa: E731
    found = foveal.forward(q, q[:, :1], q[:, :1], score_mod)[1][0, 0]
    np.testing.assert_array_equal(found, table[rows][np.minimum(np.arange(6), 3)])
    with pytest.raises(ValueError, match="p0"):
        foveal.forward(q, q[:, :1], q[:, :1], score_mod, checked=True)
    inside = foveal.forward(q[:, :4], q[:, :1], q[:, :1], score_mod, checked=True)[1][0, 0]
    np.testing.assert_array_equal(inside, table[rows])


def test_strides_that_are_no_whole_elements():
    """Of a field of packed records, for instance: they were rounded down, and other memory was read."""
    q, k, v = arrays(1, 5, 2, 8)
    records = np.zeros((5, 5), [("real", "f8"), ("flag", "i1")])
    table = records["real"]
    with pytest.raises(ValueError, match=r"foveal.attention: p0: strides of \(45, 9\) bytes; expected multiples of 8, .*ascontiguousarray"):
        foveal.attention(q, k, v, lambda s, b, h, i, j: s + table[i, j])
    between = np.lib.stride_tricks.as_strided(np.zeros(200), q.shape, (960, 192, 96, 12))
    with pytest.raises(ValueError, match="foveal.attention: q: strides of"):
        foveal.attention(between, k, v)
    with pytest.raises(ValueError, match="foveal.Plan.run: q: strides of"):
        foveal.plan(q, k, v).run(q=between, k=k, v=v, out=np.empty_like(q), lse=np.empty((1, 2, 5)))
    records[:] = [(i * 0.1, 1) for i in range(5)]
    aligned = records.astype(np.dtype([("real", "f8"), ("flag", "i1")], align=True))["real"]
    found, copied = (foveal.attention(q, k, v, lambda s, b, h, i, j, x=x: s + x[i, j]) for x in (aligned, aligned.copy()))
    np.testing.assert_array_equal(found, copied)


class Doubled(functools.partial):
    def __call__(self, *given):
        return super().__call__(*given) * 2


def test_partials():
    """A call of its own was left out, and attributes were lost."""
    q, k, v = arrays(1, 5, 2, 4)
    table = np.full(2, 3.0)

    def score_mod(factor, s, b, h, i, j):
        return s * table[h] * factor

    def scaled(factor, s, b, h, i, j):
        return inner(s, b, h, i, j) * getattr(inner, "scale", 1.0) * factor

    inner = functools.partial(score_mod, 1.0)
    inner.scale = 4.0
    np.testing.assert_allclose(foveal.attention(q, k, v, functools.partial(scaled, 0.5)), foveal.attention(q, k, v, "score * 6.0"))
    with pytest.raises(TypeError, match="foveal.attention: score_mod: a symbol indexes an array that tracing cannot see"):
        foveal.attention(q, k, v, Doubled(score_mod, 1.0))
    np.testing.assert_allclose(foveal.attention(q, k, v, Doubled(lambda c, s, b, h, i, j: s * c, 1.5)), foveal.attention(q, k, v, "score * 3.0"))
