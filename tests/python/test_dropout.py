"""Which pairs a call drops: drawn from the framework's generator, or given; none in eval()."""

import numpy as np
import pytest
import torch

import foveal
import foveal.torch
from places import seeded


def tensors(dtype=torch.float32):
    generator = seeded(0)
    return [torch.randn(1, 24, 2, 8, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("door", ["attention", "foveal.attention", "Attention", "sdpa"])
def test_calls_drop_other_pairs_and_manual_seed_repeats_them(door):
    q, k, v = tensors()
    layer = foveal.torch.Attention(mask=foveal.causal(), dropout_p=0.5)

    def run():
        if door == "Attention":
            return layer(q, k, v)
        if door == "sdpa":
            return foveal.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        attend = foveal.attention if door == "foveal.attention" else foveal.torch.attention
        return attend(q, k, v, mask=foveal.causal(), dropout_p=0.5)

    torch.manual_seed(1)
    first, second = run(), run()
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(run(), first) and torch.equal(run(), second)


def test_eval_drops_nothing():
    q, k, v = tensors()
    layer = foveal.torch.Attention(lambda s, b, h, i, j: 2 * s, dropout_p=0.5)
    plain = foveal.torch.attention(q, k, v, "2 * score")
    assert not torch.allclose(layer(q, k, v), plain)
    assert torch.equal(layer.eval()(q, k, v), plain)


def test_an_explicit_seed_holds():
    q, k, v = tensors()
    layer = foveal.torch.Attention(dropout_p=0.5)
    for attend in (layer, lambda *t, **rest: foveal.torch.attention(*t, dropout_p=0.5, **rest)):
        assert torch.equal(attend(q, k, v, seed=7), attend(q, k, v, seed=7))
        assert not torch.equal(attend(q, k, v, seed=7), attend(q, k, v, seed=8))
    state = torch.tensor([7, 0])
    assert torch.equal(layer(q, k, v, rng_state=state), layer(q, k, v, seed=7))


def test_numpy_draws_from_numpys_generator():
    q, k, v = (t.cpu().numpy() for t in tensors())
    np.random.seed(1)
    first, second = foveal.attention(q, k, v, dropout_p=0.5), foveal.attention(q, k, v, dropout_p=0.5)
    assert not np.array_equal(first, second)
    np.random.seed(1)
    assert np.array_equal(foveal.attention(q, k, v, dropout_p=0.5), first)
    assert np.array_equal(foveal.attention(q, k, v, dropout_p=0.5, seed=3), foveal.attention(q, k, v, dropout_p=0.5, seed=3))


def test_the_backward_pass_and_checkpointing_drop_the_same_pairs():
    from torch.utils.checkpoint import checkpoint

    q, k, v = (t.double().requires_grad_() for t in tensors())
    torch.manual_seed(1)
    plain = torch.autograd.grad(foveal.torch.attention(q, k, v, dropout_p=0.5).pow(2).sum(), (q, k, v))
    torch.manual_seed(1)
    saved = torch.autograd.grad(checkpoint(lambda *t: foveal.torch.attention(*t, dropout_p=0.5), q, k, v, use_reentrant=False).pow(2).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(plain, saved))
    assert torch.autograd.gradcheck(lambda *t: foveal.torch.attention(*t, dropout_p=0.5, seed=5), [t[:, :4] for t in (q, k, v)], fast_mode=True)


def test_dropout_inside_a_whole_graph():
    """A compiled function draws anew at each run."""
    q, k, v = (t.transpose(1, 2) for t in tensors())

    def model(q):
        return foveal.torch.scaled_dot_product_attention(q * 2, k, v, dropout_p=0.5)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = compiled(q), compiled(q)
    torch.manual_seed(1)
    assert not torch.equal(first, second) and torch.equal(compiled(q), first)
    leaf = q.clone().requires_grad_()
    assert torch.isfinite(torch.autograd.grad(compiled(leaf).sum(), leaf)[0]).all()


def test_jax_needs_a_seed():
    jax = pytest.importorskip("jax")
    import foveal.jax

    q = jax.numpy.ones((1, 4, 1, 8))
    with pytest.raises(ValueError, match="seed: found None; expected an integer"):
        foveal.attention(q, q, q, dropout_p=0.5)
    assert (foveal.attention(q, q, q, dropout_p=0.5, seed=1) == foveal.attention(q, q, q, dropout_p=0.5, seed=1)).all()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_state_that_changes_before_the_backward_pass_is_noticed(compiled):
    q, k, v = (t.requires_grad_() for t in tensors())
    layer, state = foveal.torch.Attention(dropout_p=0.5), torch.tensor([7, 0])
    attend = torch.compile(layer, backend="eager") if compiled else layer
    out = attend(q, k, v, rng_state=state)
    state.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
