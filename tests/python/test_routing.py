"""patch(): what it routes, what it counts, and that nothing of it stays."""

import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import foveal.torch


def tensors():
    return [torch.randn(1, 2, 8, 4) for _ in range(3)]


def test_names_that_modules_imported_are_routed_and_come_back():
    torchs = imported_by_name
    with foveal.torch.patch() as routed:
        imported_by_name(*tensors())
        F.scaled_dot_product_attention(*tensors(), is_causal=True)
        late = types.ModuleType("late")
        sys.modules["late"] = late
        exec("from torch.nn.functional import scaled_dot_product_attention\nfrom torch.nn.attention.flex_attention import flex_attention", late.__dict__)
        late.flex_attention(*tensors())
        assert late.scaled_dot_product_attention is imported_by_name is not torchs
    del sys.modules["late"]
    assert routed.calls == {"scaled_dot_product_attention": 2, "flex_attention": 1} and not routed.elsewhere
    assert imported_by_name is F.scaled_dot_product_attention is torchs


def test_a_module_imported_within_has_torchs_functions_afterwards():
    with foveal.torch.patch() as routed:
        sys.modules["later"] = later = types.ModuleType("later")
        exec("from torch.nn.functional import scaled_dot_product_attention", later.__dict__)
        later.scaled_dot_product_attention(*tensors())
    del sys.modules["later"]
    assert sum(routed.calls.values()) == 1 and later.scaled_dot_product_attention is F.scaled_dot_product_attention


def test_an_error_within_undoes_it_too():
    torchs = F.scaled_dot_product_attention
    with pytest.raises(KeyError), foveal.torch.patch():
        raise KeyError
    assert F.scaled_dot_product_attention is torchs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_fast_path_of_encoders_is_routed():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).eval()
    encoder = torch.nn.TransformerEncoder(layer, 2)
    x = torch.randn(2, 5, 16)
    with torch.inference_mode():
        expected = encoder(x)
        with foveal.torch.patch() as routed:
            found = encoder(x)
    assert routed.calls["scaled_dot_product_attention"] == 2
    assert torch.backends.mha.get_fastpath_enabled()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_weights_that_are_asked_for_go_elsewhere_and_are_counted():
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    with foveal.torch.patch() as routed:
        with_weights, weights = attention(x, x, x, need_weights=True)
        without, _ = attention(x, x, x, need_weights=False)
    assert weights.shape == (2, 5, 5) and sum(routed.elsewhere.values()) == 1 and sum(routed.calls.values()) == 1
    torch.testing.assert_close(with_weights, without, rtol=1e-5, atol=1e-5)


def test_calls_count_once_within_a_default_device():
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    with torch.device(x.device), foveal.torch.patch() as routed:
        attention(x, x, x, need_weights=True)
        attention(x, x, x, need_weights=False)
    assert sum(routed.elsewhere.values()) == 1 and sum(routed.calls.values()) == 1


def test_each_call_of_a_compiled_flex_attention_counts():
    """torch.compile(flex_attention), as transformers has it, in one patch() after the other, and with many functions."""
    torch._dynamo.reset()
    q = torch.randn(1, 2, 8, 8)
    for times in range(1, 12):
        with foveal.torch.patch() as routed:
            compiled = torch.compile(torch.nn.attention.flex_attention.flex_attention)
            for _ in range(2):
                torch.testing.assert_close(compiled(q, q, q, lambda s, b, h, i, j: s * times), foveal.torch.flex_attention(q, q, q, scale=times * 8**-0.5))
        assert routed.calls == {"flex_attention": 2} and routed.compiled == 0


def test_nothing_that_came_is_said():
    with pytest.warns(UserWarning, match="no call of scaled_dot_product_attention or flex_attention came by$"), foveal.torch.patch():
        pass
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    with pytest.warns(UserWarning, match="elsewhere: 1 of multi_head_attention_forward"), foveal.torch.patch():
        attention(x, x, x)


def test_contexts_nest():
    torchs = F.scaled_dot_product_attention
    with foveal.torch.patch() as outer:
        with foveal.torch.patch() as inner:
            F.scaled_dot_product_attention(*tensors())
        F.scaled_dot_product_attention(*tensors())
    assert sum(inner.calls.values()) == 1 and sum(outer.calls.values()) == 2 and F.scaled_dot_product_attention is torchs


def test_compiled_code_is_counted_when_it_is_traced_and_when_it_runs():
    def model(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    q, k, v = tensors()
    expected = model(q, k, v)
    with foveal.torch.patch() as routed:
        for _ in range(3):
            torch.testing.assert_close(compiled(q, k, v), expected, rtol=1e-5, atol=1e-5)
    assert routed.calls == {"scaled_dot_product_attention": 1} and routed.compiled == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with foveal.torch.patch() as again:
            compiled(q, k, v)
    assert not again.calls and again.compiled == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_functions_run_again_as_they_were_routed(reentrant):
    """Also when the backward pass begins afterwards: with torch's function it would drop other pairs than the forward pass did."""
    from torch.utils.checkpoint import checkpoint

    def attend(*qkv):
        return F.scaled_dot_product_attention(*qkv, dropout_p=0.5)

    values = tensors()

    def gradients(way, inside):
        qkv = [t.clone().requires_grad_() for t in values]
        torch.manual_seed(3)
        with foveal.torch.patch():
            out = way(*qkv).sum()
            if inside:
                out.backward()
        if not inside:
            out.backward()
        return [t.grad for t in qkv]

    torch.testing.assert_close(gradients(lambda *qkv: checkpoint(attend, *qkv, use_reentrant=reentrant), inside=False), gradients(attend, inside=True))
    assert not foveal.torch.routing._active
