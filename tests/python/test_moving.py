"""The tables of docs/moving.md: what stands in the right column computes what the library on the left documents."""

import pathlib
import re

import pytest

torch = pytest.importorskip("torch")

import foveal.torch  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/moving.md"


def codes(left):
    """The pieces of code in the right cell of the one row whose left cell begins so."""
    (cell,) = re.findall(rf"^\| {re.escape(left)}[^|]*\|(.*)\|$", PAGE.read_text(), re.M)
    return re.findall(r"`([^`]+)`", cell)


class Case:
    def __init__(self, seqlen_q, seqlen_kv, heads=4):
        generator = torch.Generator().manual_seed(0)
        self.q = torch.randn(2, seqlen_q, heads, 16, generator=generator)
        self.k, self.v = (torch.randn(2, seqlen_kv, heads, 16, generator=generator) for _ in range(2))
        self.i, self.j = torch.arange(seqlen_q)[:, None], torch.arange(seqlen_kv)
        self.bottom = seqlen_kv - seqlen_q  # from the diagonal of the top left to that of the bottom right

    def expected(self, keep=None, score=lambda s: s):
        scores = score(torch.einsum("bqhd,bkhd->bhqk", self.q, self.k) / 4)
        if keep is not None:
            scores = scores.masked_fill(~keep, -torch.inf)
        return torch.einsum("bhqk,bkhd->bqhd", torch.nan_to_num(scores.softmax(-1)), self.v)

    def check(self, arguments, keep=None, score=lambda s: s, **names):
        found = eval(f"foveal.torch.attention(q, k, v, {arguments})", {"foveal": foveal, "q": self.q, "k": self.k, "v": self.v, **names})
        torch.testing.assert_close(found, self.expected(keep, score), atol=1e-5, rtol=1e-5)


UNEQUAL, EQUAL = Case(40, 56), Case(48, 48)


def test_flash_attn_masks():
    (call,) = codes("`flash_attn_func(q, k, v, causal=True)`")
    UNEQUAL.check(re.fullmatch(r"foveal.torch.attention\(q, k, v, (.*)\)", call)[1], UNEQUAL.j <= UNEQUAL.i + UNEQUAL.bottom)
    for case, arguments in zip((UNEQUAL, EQUAL), codes("`window_size=(w, 0)`"), strict=True):
        diagonal = case.i + case.bottom
        case.check(arguments, (case.j <= diagonal) & (case.j >= diagonal - 7), w=7)


def test_flash_attn_scores():
    (cap,) = codes("`softcap=30.0`")
    UNEQUAL.check(cap, score=lambda s: 30 * torch.tanh(s / 30))
    m = torch.tensor([0.5, 0.25, 0.1, 0.05])
    general, causal, _ = codes("`alibi_slopes=m`")
    for case in (UNEQUAL, EQUAL):
        case.check(general, score=lambda s: s - m[:, None, None] * (case.i + case.bottom - case.j).abs(), m=m)
    keep = EQUAL.j <= EQUAL.i
    EQUAL.check(f"{causal}, mask=foveal.causal()", keep, lambda s: s - m[:, None, None] * (EQUAL.i - EQUAL.j).abs(), m=m)


def test_flash_attn_packed():
    whole = EQUAL
    (views, *_) = codes("`flash_attn_qkvpacked_func(qkv)`")
    names = {"qkv": torch.stack([whole.q, whole.k, whole.v], 2)}
    exec(views, names)
    assert all(torch.equal(names[x], getattr(whole, x)) for x in "qkv")
    (packed,) = codes("`flash_attn_varlen_func")
    cu = torch.tensor([0, 48, 96], dtype=torch.int32)
    q, k, v = (x.flatten(0, 1) for x in (whole.q, whole.k, whole.v))
    found = eval(f"foveal.torch.attention(q, k, v, {packed})", {"foveal": foveal, "q": q, "k": k, "v": v, "cu_q": cu, "cu_k": cu, "max_q": 48, "max_k": 48})
    torch.testing.assert_close(found.view_as(whole.q), whole.expected(), atol=1e-5, rtol=1e-5)


def test_cudnn():
    case, equal = UNEQUAL, Case(160, 160, heads=16)
    top_left, bottom_right = codes("`set_causal_mask`, `set_causal_mask_bottom_right`")
    case.check(f"mask={top_left}", case.j <= case.i)
    case.check(f"mask={bottom_right}", case.j <= case.i + case.bottom)
    (window,) = codes("`set_sliding_window_length(128)`")
    equal.check(f"mask={window}", (equal.j <= equal.i) & (equal.j > equal.i - 128))
    (alibi,) = codes("`set_alibi_mask`")
    slopes = 2.0 ** (-8 * (torch.arange(16) + 1) / 16)
    equal.check(f"score_mod={alibi}, mask=foveal.causal()", equal.j <= equal.i, lambda s: s + slopes[:, None, None] * (equal.j - equal.i))
    bias = torch.randn(4, 40, 56)
    case.check(f"score_mod={codes('`set_bias`')[0]}, params={{'bias': bias}}", score=lambda s: s + bias, bias=bias)
    n_q, n_kv = torch.tensor([30, 40], dtype=torch.int32), torch.tensor([56, 20], dtype=torch.int32)
    keep = ((case.i < n_q[:, None, None]) & (case.j < n_kv[:, None, None]))[:, None]
    case.check(f"mask={codes('`set_padding_mask`')[0]}, params={{'n_q': n_q, 'n_kv': n_kv}}", keep, n_q=n_q, n_kv=n_kv)
