"""Rows whose scores are all about one large finite number, as torch computes them: soft masks of -1e9 or of the least number of a type, with padding at the left."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import foveal.torch  # noqa: E402
from places import seeded  # noqa: E402

CONSTANTS = (-1e4, -1e5, -1e9, -1e30, -3.0e38)
TOLERANCE = {torch.float32: 2e-3, torch.float64: 2e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}


def inputs(dtype, seqlen=48, dim=16):
    generator = seeded(3)
    made = [torch.randn(2, 2, seqlen, dim, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
    return made, torch.randn(2, 2, seqlen, dim, generator=generator).to(dtype)


def results(function, tensors, dout):
    out = function(*tensors)
    return [out, *torch.autograd.grad(out, tensors, dout)]


def unfused(q, k, v, mask):
    """torch's fused kernels on CPUs take exp(score - lse) in the backward pass and are wrong here themselves."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def close(found, expected, dtype):
    for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        assert torch.isfinite(a).all(), name
        difference = (a.double() - b.double()).abs().max() / b.double().abs().max()
        assert difference < TOLERANCE[dtype], (name, float(difference))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("constant", [*CONSTANTS, "least"])
def test_float_masks_with_padding_at_the_left(dtype, constant):
    least = torch.finfo(dtype).min
    value = least if constant == "least" else max(constant, least)
    tensors, dout = inputs(dtype)
    mask = torch.zeros(2, 1, 48, 48, dtype=dtype)
    mask[:, :, torch.ones(48, 48, dtype=torch.bool).triu(1)] = value
    mask[0, :, :, :13] = value  # padding of the first sequence: its first 13 queries have nothing but soft-masked keys
    expected = results(lambda q, k, v: unfused(q, k, v, mask), tensors, dout)
    close(results(lambda q, k, v: foveal.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask), tensors, dout), expected, dtype)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("constant", [*CONSTANTS, "least"])
def test_score_functions_with_padding_at_the_left(dtype, constant):
    value = torch.finfo(dtype).min if constant == "least" else constant
    pad = torch.tensor([13, 0])
    tensors, dout = inputs(dtype)

    def score(score, batch, head, q, kv):
        return torch.where((kv <= q) & (kv >= pad[batch]), score, value)

    def eager(q, k, v):
        place = torch.arange(48)
        positions = torch.arange(2)[:, None, None, None], torch.arange(2)[None, :, None, None], place[:, None], place
        raw = (q.float() @ k.float().mT) * q.size(-1) ** -0.5
        return (score(raw, *positions).softmax(-1) @ v.float()).to(dtype)

    expected = results(eager, tensors, dout)
    close(results(lambda q, k, v: foveal.torch.flex_attention(q, k, v, score_mod=score), tensors, dout), expected, dtype)


def test_a_row_of_the_least_number_is_the_mean():
    (q, k, v), _ = inputs(torch.float32)
    mask = torch.full((48, 48), torch.finfo(torch.float32).min)
    out = foveal.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out, v.mean(dim=2, keepdim=True).expand_as(out))
