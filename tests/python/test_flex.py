"""Every score_mod, mask_mod and learnable bias through the FlexAttention front door, unchanged, forward and backward.

The rule is FlexAttention's: the error against an fp64 eager run is at most `fudge` times that of an eager run in the dtype under test, the
factor applied once, nothing skipped.
"""

import pytest
import torch

import foveal.torch
from catalogue import ALL, Make, Shape, eager

FUDGE = {torch.float32: 10.0, torch.bfloat16: 1.35, torch.float16: 1.35}
# What one rounding to the dtype costs, relative to the golden tensor's rms: eager may happen to be exact where we round once.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def run(attention, case, shape, dtype, weight_seed=1):
    make = Make(dtype)
    score_mod, mask_mod, learned = ALL[case](shape, make)
    weights = Make(dtype, weight_seed)
    q, k, v = (weights.real(shape.batch, shape.heads, shape.seqlen, shape.head_dim).requires_grad_() for _ in range(3))
    out, lse = attention(q, k, v, score_mod, mask_mod)
    dout, dlse = weights.real(*out.shape), weights.real(*lse.shape)
    finite = torch.where(torch.isfinite(lse), lse, 0.0)
    loss = (out * dout).sum() + (finite * dlse.to(lse.dtype)).sum()
    gradients = torch.autograd.grad(loss, (q, k, v, *learned), allow_unused=True)
    return [out, finite, *gradients], torch.isfinite(lse)


def run_seeds(attention, case, shape, dtype):
    """One element of a gradient has an error by luck: where a parameter is that small, several draws are judged together."""
    draws = 12 if case in ("learn:scalar_add_and_multiply", "learn:trained_softcap") else 1
    results = [run(attention, case, shape, dtype, weight_seed=1 + draw) for draw in range(draws)]
    tensors = [None if parts[0] is None else torch.stack(parts) for parts in zip(*(tensors for tensors, _ in results))]
    return tensors, torch.stack([rows for _, rows in results])


def front_door(q, k, v, score_mod, mask_mod):
    return foveal.torch.flex_attention(q, k, v, score_mod, mask_mod, return_lse=True)


def rms(x):
    return x.double().pow(2).mean().sqrt().item()


PLACES = [("cpu", torch.float32), ("cpu", torch.bfloat16)]
if torch.cuda.is_available():
    PLACES += [("cuda", torch.bfloat16), ("cuda", torch.float16)]


@pytest.mark.parametrize("device, dtype", PLACES, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("case", ALL)
def test_catalogue(case, device, dtype):
    with torch.device(device):
        judge(case, dtype)


def judge(case, dtype):
    shape = Shape()
    golden, golden_rows = run_seeds(eager, case, shape, torch.float64)
    reference, _ = run_seeds(eager, case, shape, dtype)
    ours, rows = run_seeds(front_door, case, shape, dtype)
    assert torch.equal(golden_rows, rows), "rows without keys differ"
    names = ["out", "lse", "dq", "dk", "dv", *(f"dparam{i}" for i in range(len(ours) - 5))]
    for name, gold, eager_value, value in zip(names, golden, reference, ours):
        if gold is None:
            assert value is None or value.abs().max() == 0, name
            continue
        if value is None:
            assert gold.abs().max() < 1e-12, f"{name}: no gradient"
            continue
        assert torch.isfinite(value).all(), f"{name} is not finite"
        error, allowed = rms(value - gold), max(FUDGE[dtype] * rms(eager_value - gold), ROUNDING[dtype] * rms(gold) + 1e-6)
        assert error <= allowed, f"{name}: error {error:.3e}, allowed {allowed:.3e}, eager {rms(eager_value - gold):.3e}"


def test_one_tensor_read_twice_gets_both_gradients():
    """FlexAttention refuses this score."""
    n = 32
    t = torch.randn(n, dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.randn(1, 2, n, 8, dtype=torch.float64) for _ in range(3))

    def score(s, b, h, i, j):
        return s * t[i] + t[j]

    (expected,) = torch.autograd.grad(eager(q, k, v, score, None)[0].pow(2).sum(), t)
    (found,) = torch.autograd.grad(foveal.torch.flex_attention(q, k, v, score).pow(2).sum(), t)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_only_the_bias_wants_a_gradient():
    n = 32
    t = torch.randn(2 * n, dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.randn(1, 2, n, 8, dtype=torch.float64) for _ in range(3))

    def score(s, b, h, i, j):
        return s + t[torch.abs(i - j)]

    (expected,) = torch.autograd.grad(eager(q, k, v, score, None)[0].pow(2).sum(), t)
    (found,) = torch.autograd.grad(foveal.torch.flex_attention(q, k, v, score).pow(2).sum(), t)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_an_own_derivative_is_refused():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dx):
            return dx

    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="Twice"):
        foveal.torch.flex_attention(q, q, q, lambda s, b, h, i, j: Twice.apply(s))
    assert Twice.apply(q).requires_grad  # as before


def test_block_mask_and_gqa_and_broadcast_batch():
    from torch.nn.attention.flex_attention import and_masks, create_block_mask

    def causal(b, h, q, k):
        return q >= k

    def window(b, h, q, k):
        return q - k < 20

    block_mask = create_block_mask(and_masks(causal, window), None, None, 64, 64, device=torch.get_default_device())
    q = torch.randn(2, 4, 64, 16)
    k, v = torch.randn(1, 2, 64, 16), torch.randn(1, 2, 64, 8)
    out = foveal.torch.flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    expected, _ = eager(q, k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1), None, lambda b, h, i, j: (i >= j) & (i - j < 20))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="enable_gqa"):
        foveal.torch.flex_attention(q, k, v)


def test_results_are_bitwise_repeatable():
    shape = Shape(seqlen=70)
    first, _ = run(front_door, "learn:local_window", shape, torch.float32)
    for _ in range(5):
        again, _ = run(front_door, "learn:local_window", shape, torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_a_python_if_on_a_symbol_says_what_to_write():
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(TypeError, match="foveal.where"):
        foveal.torch.flex_attention(q, q, q, lambda s, b, h, i, j: s if i >= j else -s)
    with pytest.raises(TypeError, match="&"):
        foveal.torch.flex_attention(q, q, q, block_mask=lambda b, h, i, j: i >= j and i - j < 3)
    with pytest.raises(NotImplementedError, match="digamma"):
        foveal.torch.flex_attention(q, q, q, lambda s, b, h, i, j: torch.digamma(s))
