"""Where results lie in memory: torch's functions keep the layout of query, so that what follows them may be a view."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import foveal.torch

SIZES = {"q": (2, 3, 5, 4), "k": (2, 3, 6, 4), "v": (2, 3, 6, 4)}
DOORS = {"sdpa": foveal.torch.scaled_dot_product_attention, "flex": foveal.torch.flex_attention}


def stored(shape, order):
    """A tensor whose dimensions have this order in memory."""
    return torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(order))])


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=lambda order: "".join("bhsd"[d] for d in order))
def test_results_are_stored_as_their_tensors(door, order):
    q, k, v = [stored(shape, order).requires_grad_() for shape in SIZES.values()]
    out = DOORS[door](q, k, v)
    theirs = F.scaled_dot_product_attention(q.detach(), k.detach(), v.detach())
    assert out.stride() == theirs.stride()
    gradients = torch.autograd.grad(out.sin().sum(), (q, k, v))
    contiguous = [t.contiguous() for t in (q, k, v)]
    expected = torch.autograd.grad(F.scaled_dot_product_attention(*contiguous).sin().sum(), contiguous)
    for t, gradient, wanted in zip((q, k, v), gradients, expected, strict=True):
        assert gradient.stride() == (t.stride() if order[-1] == 3 else gradient.contiguous().stride())
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("door", DOORS)
def test_views_and_repeated_elements(door):
    qkv = torch.randn(2, 5, 3, 3, 4)  # packed projections
    q, k, v = [qkv[:, :, n].transpose(1, 2) for n in range(3)]
    assert DOORS[door](q, k, v).stride() == F.scaled_dot_product_attention(q, k, v).stride() == (60, 4, 12, 1)
    one = torch.randn(1, 3, 5, 4).expand(2, -1, -1, -1)
    assert DOORS[door](one, k, v).is_contiguous()
    padded = torch.randn(2, 3, 5, 8)[..., :4]
    assert DOORS[door](padded, k, v).view(2, -1).shape == (2, 60)
    empty = torch.zeros(2, 3, 0, 4)
    assert DOORS[door](empty, k, v).shape == empty.shape


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (2, 3, 5, 4), (2, 2, 3, 5, 4)], ids=len)
def test_any_rank_of_sdpa(shape):
    q = torch.randn(shape)
    assert foveal.torch.scaled_dot_product_attention(q, q, q).view(-1).numel() == q.numel()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3), (3, 2, 1, 0)])
def test_under_compile_too(order):
    """Fake tensors have the strides that real ones get."""
    q, k, v = [stored(shape, order).requires_grad_() for shape in SIZES.values()]

    def step(q, k, v):
        out = foveal.torch.scaled_dot_product_attention(q, k, v)
        return out, *torch.autograd.grad(out.sum(), (q, k, v))

    eager = step(q, k, v)
    exported = torch.export.export(Attend(), (q, k, v)).module()(q, k, v)
    compiled = torch.compile(foveal.torch.scaled_dot_product_attention, backend="aot_eager", fullgraph=True)(q, k, v)
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda *given: foveal.torch.scaled_dot_product_attention(*given), tracing_mode="fake")(q, k, v)(q, k, v)
    gradients = torch.autograd.grad(compiled.sum(), (q, k, v))
    assert compiled.stride() == exported.stride() == traced.stride() == eager[0].stride()
    assert [t.stride() for t in gradients] == [t.stride() for t in eager[1:]]


class Attend(torch.nn.Module):
    def forward(self, q, k, v):
        return foveal.torch.scaled_dot_product_attention(q, k, v)


def test_a_view_under_patch():
    q = torch.randn(2, 3, 5, 4)
    with foveal.torch.patch():
        assert F.scaled_dot_product_attention(q, q, q).view(6, 5, 4).shape == (6, 5, 4)
