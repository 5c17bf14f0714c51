"""foveal.torch as a citizen of torch: gradcheck, opcheck, compile, autocast, checkpointing, layouts, front doors."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

import foveal
import foveal.torch
from places import seeded


def tensors(*shape, n=3, dtype=torch.float64, grad=True, seed=0):
    generator = seeded(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad) for _ in range(n)]


SCORES = {
    "plain": (None, None, ()),
    "masked": (None, lambda b, h, q, k: (q >= k) | (k < 2), ()),
    "biased": (lambda p: lambda s, b, h, q, k: s + p[h, (q - k) + 6], foveal.causal(), (2, 13)),
    "gated": (lambda p: lambda s, b, h, q, k: s * torch.sigmoid(p[h]), None, (2,)),
    "softcapped": (lambda p: lambda s, b, h, q, k: (2 + p.abs()) * torch.tanh(s / (2 + p.abs())), None, ()),
}


@pytest.mark.parametrize("name", SCORES)
def test_gradcheck(name):
    factory, mask, shape = SCORES[name]
    q, k, v = tensors(2, 7, 2, 5)
    if factory is None:
        assert gradcheck(lambda *t: foveal.torch.attention(*t, mask=mask), (q, k, v))
        return
    p = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda q, k, v, p: foveal.torch.attention(q, k, v, factory(p), mask), (q, k, v, p))


def test_gradcheck_with_sink_lse_and_gqa():
    q = tensors(2, 6, 4, 5, n=1)[0]
    k, v = tensors(2, 7, 2, 5, n=2, seed=1)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda q, k, v, s: foveal.torch.attention(q, k, v, mask=foveal.causal(), sink=s, return_lse=True), (q, k, v, sink))


def test_gradcheck_of_a_packed_batch():
    q, k, v = tensors(9, 2, 4)
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    assert gradcheck(lambda *t: foveal.torch.attention(*t, mask=foveal.causal(), cu_seqlens=(cu, cu), max_seqlens=(5, 5)), (q, k, v))


def test_opcheck():
    q, k, v = tensors(1, 6, 2, 4, dtype=torch.float32)
    bias = torch.randn(6, requires_grad=True)
    layer = foveal.torch.Attention(lambda s, b, h, i, j: s + bias[j], foveal.causal())
    assert repr(layer) == "Attention(score_mod='score + p0[kv_idx]', mask='kv_idx <= q_idx')"
    torch.library.opcheck(torch.ops.foveal.forward.default, (q, k, v, [bias], None, None, None, 0, 0, 1, -2, None, layer.key))
    plain = [t.detach() for t in (q, k, v)]
    out, lse = torch.ops.foveal.forward(*plain, [bias.detach()], None, None, None, 0, 0, 1, -2, None, layer.key)
    arguments = (*plain, out, lse, torch.ones_like(out), None, [bias.detach()], None, None, None, 0, 0, 1, -2, None, layer.key, [True, False, True, True])
    torch.library.opcheck(torch.ops.foveal.backward.default, arguments)


def test_what_no_derivative_leads_to_gets_no_gradient():
    """As in torch, also where it was made by an operation that has no derivative."""
    q, k, v = tensors(1, 6, 2, 4)
    t = torch.randn(6, dtype=torch.float64, requires_grad=True)
    steps = t // 0.7
    scores = {
        "mask": (None, lambda b, h, i, j: (steps[j] > -9) & (t[i] > -9)),
        "condition": (lambda s, b, h, i, j: torch.where(steps[j] > 0, s, 2 * s), None),
        "integer": (lambda s, b, h, i, j: s * t[i].long(), foveal.causal()),
        "detached": (lambda s, b, h, i, j: s * t.detach()[i] + s * t[j].detach(), foveal.causal()),
    }
    for score, mask in scores.values():
        foveal.torch.attention(q, k, v, score, mask).sum().backward()
        assert t.grad is None and q.grad is not None
        compiled = torch.compile(lambda *x: foveal.torch.attention(*x, score, mask))  # noqa: B023
        compiled(q, k, v).sum().backward()
        assert t.grad is None
    p = torch.nn.Parameter(t.detach())
    module = foveal.torch.Attention(lambda s, b, h, i, j: torch.where(p[i] > 0, s, 2 * s), lambda b, h, i, j: p[j] > -9)
    texts = lambda q, k, v: foveal.torch.attention(q, k, v, "where(p[q_idx] > 0.0, score, 2.0 * score)", "p[kv_idx] > -9.0", params={"p": p})  # noqa: E731
    for attend in (module, texts):
        for run in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True)):
            run(q, k, v).sum().backward()
            assert p.grad is None
    foveal.torch.attention(q, k, v, lambda s, b, h, i, j: s + t[i] + t[j].floor()).sum().backward()  # a derivative, which is zero
    assert (t.grad == 0).all()
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)
    foveal.torch.attention(q, k, v, sink=sink).sum().backward()
    assert (sink.grad != 0).any()


def test_explain_is_of_the_pass_that_training_runs():
    """A gradient that the captured tensor requires takes kernels of its own."""
    q, k, v = tensors(1, 6, 2, 4, dtype=torch.float32)
    bias, fixed = torch.randn(6, requires_grad=True), torch.randn(6)
    score = lambda s, b, h, i, j: s + bias[j] * fixed[i]  # noqa: E731
    asked = foveal.explain(q, k, v, score, backward=True)["text"]
    assert 'param="p0: real[6] grad" param="p1: real[6]"' in asked and asked == foveal.explain(q, k, v, score, backward=True, gradients=("p0",))["text"]
    assert " grad" not in foveal.explain(q, k, v, score, backward=True, gradients=())["text"]
    assert " grad" not in foveal.explain(q, k, v, score)["text"]


def test_compile_without_graph_break():
    bias = torch.nn.Parameter(torch.randn(4, 33))
    layer = foveal.torch.Attention(lambda s, b, h, q, k: s + bias[h, foveal.clamp(q - k, -16, 16) + 16], foveal.causal())

    def model(q, k, v):
        return layer(q * 1.5, k, v).sin()

    q, k, v = tensors(2, 32, 4, 16, dtype=torch.float32)
    expected = torch.autograd.grad(model(q, k, v).sum(), (q, k, v, bias))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v, bias))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("scale", [0.3, None], ids=["a number", "of the sizes"])
def test_compile_with_open_numbers(scale, dynamic):
    """Which torch.compile keeps open are this call's; a mask of a fixed size fits sizes that are open."""
    mask = torch.rand(20, 20) > 0.3

    def model(q, k, v, scale):
        scale = q.shape[2] / q.shape[-1] ** 0.5 if scale is None else scale
        masked = foveal.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return masked + foveal.torch.attention(*[t.transpose(1, 2) for t in (q, k, v)], "tanh(score)", scale=scale).transpose(1, 2)

    q, k, v = tensors(2, 4, 20, 16, dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n, number in enumerate((scale, scale and 0.5, scale and 2)):
        part = [t[:, : 4 - n] for t in (q, k, v)]
        torch.testing.assert_close(compiled(*part, number), model(*part, number))


def test_errors_of_compiled_calls_are_the_same():
    """torch.compile leaves the call to eager code, or tells what was raised."""
    q = torch.randn(1, 2, 5, 8)
    wrong = lambda q: foveal.torch.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(3, 3))  # noqa: E731
    for fullgraph in (False, True):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"scaled_dot_product_attention: attn_mask: shape \(3, 3\); expected one that broadcasts to"):
            torch.compile(wrong, fullgraph=fullgraph, backend="eager")(q)


MASK = foveal.causal()


@pytest.mark.parametrize("name", ["sdpa", "patched", "text", "expression"])
def test_front_doors_compile_without_graph_break(name):
    q, k, v = tensors(2, 4, 20, 16, dtype=torch.float32)
    mask = torch.randn(20, 20, requires_grad=True)

    def model(q, k, v):
        if name == "sdpa":
            return foveal.torch.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask).sin()
        if name == "patched":
            return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask).sin()
        score = "score + m[q_idx, kv_idx]"
        if name == "text":
            return foveal.torch.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), score, "kv_idx <= q_idx", params={"m": mask}).sin()
        return foveal.torch.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), score, MASK, params={"m": mask}).sin()

    torch._dynamo.reset()
    with foveal.torch.patch() if name == "patched" else contextlib.nullcontext():
        compiled = torch.compile(model, fullgraph=name != "expression" or torch.__version__ >= (2, 13), backend="aot_eager")
        for _ in range(2):
            found = torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v, mask))
            for a, b in zip(found, torch.autograd.grad(model(q, k, v).sum(), (q, k, v, mask))):
                torch.testing.assert_close(a, b)
            mask.data.mul_(0.5)


def test_functions_inside_compiled_code_are_right():
    """They are run on symbols, which breaks the graph; their captured tensors still get gradients."""
    q, k, v = tensors(2, 4, 20, 16, dtype=torch.float32)
    bias = torch.nn.Parameter(torch.randn(4, 39))

    def model(q, k, v):
        return foveal.torch.flex_attention(q * 2, k, v, lambda s, b, h, i, j: s + bias[h, i - j + 19], lambda b, h, i, j: i >= j).sin()

    torch._dynamo.reset()
    found = torch.autograd.grad(torch.compile(model, backend="aot_eager")(q, k, v).sum(), (q, k, v, bias))
    for a, b in zip(found, torch.autograd.grad(model(q, k, v).sum(), (q, k, v, bias))):
        torch.testing.assert_close(a, b)


def test_the_module_moves_copies_and_saves_like_one():
    bias, ids = torch.nn.Parameter(torch.randn(2, 8)), torch.arange(8) // 3
    layer = foveal.torch.Attention(lambda s, b, h, q, k: s + bias[h, k], lambda b, h, q, k: ids[q] == ids[k])
    q, k, v = tensors(1, 8, 2, 4, dtype=torch.float32)
    assert [name for name, _ in layer.named_parameters()] == ["p0"] and list(layer.state_dict()) == ["p0"]
    assert [name for name, _ in layer.named_buffers()] == ["p1"]
    copied = copy.deepcopy(layer)
    assert torch.equal(copied(q, k, v), layer(q, k, v))
    copied.load_state_dict({"p0": torch.zeros(2, 8)})
    assert not torch.equal(copied(q, k, v), layer(q, k, v))
    replaced = torch.func.functional_call(layer, {"p0": torch.zeros(2, 8)}, (q, k, v))
    assert torch.equal(replaced, copied(q, k, v))


def test_autocast_and_checkpoint():
    q, k, v = tensors(1, 16, 2, 8, dtype=torch.float32)
    with torch.autocast(q.device.type, torch.bfloat16):
        out = foveal.torch.attention(q, k, v)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32
    from torch.utils.checkpoint import checkpoint

    plain = torch.autograd.grad(foveal.torch.attention(q, k, v).pow(2).sum(), (q, k, v))
    saved = torch.autograd.grad(checkpoint(foveal.torch.attention, q, k, v, use_reentrant=False).pow(2).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(plain, saved))


def test_packed_qkv_and_non_contiguous_inputs():
    qkv = torch.randn(2, 24, 3, 4, 16, requires_grad=True)
    q, k, v = qkv.unbind(2)
    reference = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)
    (expected,) = torch.autograd.grad(reference.pow(2).sum(), qkv)
    (found,) = torch.autograd.grad(foveal.torch.attention(q, k, v, mask=foveal.causal()).pow(2).sum(), qkv)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    strided = torch.randn(1, 16, 2, 32)[..., ::2]
    torch.testing.assert_close(
        foveal.torch.attention(strided, strided, strided), foveal.torch.attention(*(strided.contiguous() for _ in range(3))), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("mask", [None, "bool", "float", "causal"])
def test_scaled_dot_product_attention(mask):
    q, k, v = tensors(2, 4, 20, 16, dtype=torch.float32)
    arguments = {}
    if mask == "bool":
        arguments["attn_mask"] = torch.rand(2, 1, 20, 20) > 0.3
    if mask == "float":
        arguments["attn_mask"] = torch.randn(20, 20, requires_grad=True)
    if mask == "causal":
        arguments["is_causal"] = True
    wanted = (q, k, v, arguments["attn_mask"]) if mask == "float" else (q, k, v)
    expected = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, **arguments).pow(2).sum(), wanted)
    with foveal.torch.patch():
        found = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, **arguments).pow(2).sum(), wanted)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_makes_one_program_and_one_plan():
    from foveal import describe

    torch.manual_seed(0)
    q, k, v = tensors(1, 2, 24, 8, dtype=torch.float32)
    programs, results = len(describe._programs), set()
    for _ in range(1000):
        out = foveal.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.4375)
        results.add(out.sum().item())
    out.sum().backward()
    assert len(describe._programs) - programs <= 1 and len(results) > 990
    key = next(reversed(describe._programs))
    assert "'dropout_p': 0.4375" in key and describe.program(key).planned == 2  # one forward, one backward


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_draws_by_the_run(compiled):
    q, k, v = tensors(1, 40, 2, 8, dtype=torch.float32)
    attention = foveal.torch.Attention(dropout_p=0.5)
    module = torch.compile(attention, fullgraph=True, backend="aot_eager") if compiled else attention
    seed, offset = 2**64 - 5, 2**63 + 1
    state = torch.tensor([seed - 2**64, offset - 2**64])
    expected = foveal.forward(*(x.detach() for x in (q, k, v)), dropout_p=0.5, seed=seed, offset=offset)[0]
    for rng in (dict(seed=seed, offset=offset), dict(rng_state=state)):
        out = module(q, k, v, **rng)
        assert torch.equal(out, expected)
        found = torch.autograd.grad(out.pow(2).sum(), (q, k, v))
        detached = [x.detach() for x in (q, k, v)]
        out, lse = foveal.forward(*detached, dropout_p=0.5, seed=seed, offset=offset)
        again = foveal.backward(*detached, out, lse, 2 * out, dropout_p=0.5, seed=seed, offset=offset)
        for a, b in zip(found, again):
            assert torch.equal(a, b)
    assert not torch.equal(module(q, k, v, seed=1), expected)


def test_dropout_redraws_where_the_forward_pass_is_done_again():
    q, k, v = tensors(1, 2, 40, 8, dtype=torch.float32)
    attend = lambda *x: foveal.torch.scaled_dot_product_attention(*x, dropout_p=0.5)  # noqa: E731
    torch.manual_seed(3)
    expected = torch.autograd.grad(attend(q, k, v).pow(2).sum(), (q, k, v))
    torch.manual_seed(3)
    out = torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(out.pow(2).sum(), (q, k, v)), expected):
        assert torch.equal(a, b)


def test_dropout_keeps_the_expected_share():
    torch.manual_seed(0)
    q, k, _ = tensors(1, 2, 64, 8, dtype=torch.float32, grad=False)
    v = torch.ones(1, 2, 64, 8)
    out = foveal.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert abs(out.mean().item() - 1.0) < 0.1 and out.std().item() > 0.01


def test_a_module_saved_as_a_whole_is_loaded_by_another_process(tmp_path):
    import subprocess
    import sys

    bias, ids = torch.nn.Parameter(torch.randn(2, 8)), torch.arange(8) // 3
    layer = foveal.torch.Attention(lambda s, b, h, q, k: foveal.softcap(3.0) + bias[h, k], lambda b, h, q, k: ids[q] == ids[k], sink=torch.randn(2), scale=0.3)
    q, k, v = tensors(1, 8, 2, 4, dtype=torch.float32, grad=False)
    torch.save((layer, q, k, v, layer(q, k, v).detach()), tmp_path / "layer.pt")
    code = f"""
import torch, foveal.torch
layer, q, k, v, expected = torch.load({str(tmp_path / "layer.pt")!r}, weights_only=False)
assert torch.equal(layer(q, k, v), expected) and [name for name, _ in layer.named_parameters()] == ["p0"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("empty", ["batch", "queries", "keys", "heads", "dim_v"])
@pytest.mark.parametrize("door", ["attention", "flex"])
def test_tensors_without_elements(door, empty):
    """Zeros where torch gives zeros, with gradients of zero."""
    sizes = dict(batch=2, heads=2, queries=3, keys=4, dim=8, dim_v=8)
    sizes[empty] = 0
    q, k, v = (
        torch.randn(sizes["batch"], sizes["heads"], sizes[n], sizes[d], requires_grad=True) for n, d in (("queries", "dim"), ("keys", "dim"), ("keys", "dim_v"))
    )
    expected = F.scaled_dot_product_attention(q, k, v)
    if door == "flex":
        out, lse = foveal.torch.flex_attention(q, k, v, return_lse=True)
    else:
        out, lse = foveal.torch.attention(*(t.transpose(1, 2) for t in (q, k, v)), return_lse=True)
        out = out.transpose(1, 2)
    assert out.shape == expected.shape and torch.equal(out, expected) and lse.shape == expected.shape[:-1] and bool((lse == -torch.inf).all())
    assert all(g.abs().sum() == 0 for g in torch.autograd.grad(out.sum(), (q, k, v)))
    sink = torch.randn(2)
    if empty == "keys" and door == "attention":
        lse = foveal.torch.attention(*(t.transpose(1, 2) for t in (q, k, v)), sink=sink, return_lse=True)[1]
        assert torch.equal(lse, sink[:, None].expand(2, 2, 3))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_tensors_without_elements_are_compiled_whole(empty, dynamic):
    sizes = dict(batch=2, queries=3, keys=4)
    sizes[empty] = 0
    q, k, v = (torch.randn(sizes["batch"], sizes[n], 2, 8, requires_grad=True) for n in ("queries", "keys", "keys"))
    layer = foveal.torch.Attention("score * 2", "kv_idx <= q_idx", sink=torch.nn.Parameter(torch.randn(2)))
    run = lambda q, k, v: (*layer(q, k, v, return_lse=True), foveal.torch.attention(q, k, v, "score * 2"))  # noqa: E731
    torch._dynamo.reset()
    found, expected = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=dynamic)(q, k, v), run(q, k, v)
    assert all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(found, expected))
    gradients = torch.autograd.grad(found[0].sum() + found[2].sum(), (q, k, v))
    assert all(g.abs().sum() == 0 for g in gradients)


def test_vmap_of_scores_that_look_at_the_batch():
    q, k, v = (t.detach() for t in tensors(3, 2, 5, 2, 4))
    bias = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, bias):
        return foveal.torch.attention(q, k, v, "score * (1 + batch) + bias[head] * kv_idx", params={"bias": bias})

    found = torch.func.vmap(attend)(q, k, v, bias)
    alone = torch.stack([attend(*one) for one in zip(q, k, v, bias)])
    torch.testing.assert_close(found, alone)
    for a, b in zip(torch.autograd.grad(found.pow(2).sum(), bias), torch.autograd.grad(alone.pow(2).sum(), bias)):
        torch.testing.assert_close(a, b)


class Tagged(torch.Tensor):
    """A class as torch's documentation makes them, whose functions are torch's."""


@pytest.mark.parametrize("door", [foveal.torch.scaled_dot_product_attention, foveal.torch.flex_attention, foveal.torch.attention])
def test_results_have_the_class_of_the_tensors(door):
    q, k, v = tensors(2, 5, 2, 4)
    tagged = q.detach().as_subclass(Tagged).requires_grad_()
    found, expected = door(tagged, k, v), door(q, k, v)
    assert type(found) is Tagged and type(expected) is torch.Tensor and torch.equal(found.as_subclass(torch.Tensor), expected)
    for a, b in zip(torch.autograd.grad(found.pow(2).sum(), (tagged, k, v)), torch.autograd.grad(expected.pow(2).sum(), (q, k, v))):
        assert torch.equal(a.as_subclass(torch.Tensor), b)


def test_results_have_the_class_of_what_a_score_reads():
    q, k, v = tensors(2, 5, 2, 4)
    table = torch.randn(2).as_subclass(Tagged)
    assert type(foveal.torch.attention(q, k, v, lambda s, b, h, i, j: s * table[h])) is Tagged
    assert type(foveal.torch.attention(q, torch.nn.Parameter(k.detach()), v)) is torch.Tensor


OF_THE_SCORES_DTYPE = {
    "a branch": lambda table: lambda s, b, h, i, j: s * 2 if s.dtype == torch.float64 else s,
    "a conversion": lambda table: lambda s, b, h, i, j: s + table[j].to(s.dtype),
    "its precision": lambda table: lambda s, b, h, i, j: s + torch.finfo(s.dtype).bits * j,
    "a tensor like it": lambda table: lambda s, b, h, i, j: s + torch.tensor([0.1, 0.2, 0.3], dtype=s.dtype)[j % 3],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OF_THE_SCORES_DTYPE)
def test_a_module_knows_the_dtype_of_its_scores(name, dtype):
    """It was made for float32, whatever q was. Where the function makes tensors, those of the other dtype are others: refused."""
    table = torch.randn(7, dtype=torch.float64, generator=seeded(2))
    score_mod, qkv = OF_THE_SCORES_DTYPE[name](table), tensors(1, 7, 2, 4, dtype=dtype, grad=False)
    module = foveal.torch.Attention(score_mod)
    try:
        found = copy.deepcopy(module)(*qkv)
    except NotImplementedError as error:
        assert "foveal.torch.Attention: q: of float64" in str(error) and "reads other tensors" in str(error) and name == "a tensor like it"
    else:
        torch.testing.assert_close(found, foveal.torch.attention(*qkv, score_mod), rtol=0, atol=0)


def test_a_module_of_one_dtype():
    def score_mod(s, b, h, i, j):
        assert s.dtype == torch.float32
        return s * 2

    module = foveal.torch.Attention(score_mod)
    module(*tensors(1, 7, 2, 4, dtype=torch.float32))
    with pytest.raises(NotImplementedError, match="foveal.torch.Attention: q: of float64, for whose scores score_mod could not be traced"):
        module(*tensors(1, 7, 2, 4))


ASK_FOR_THE_DEVICE = {
    "is_cuda": lambda s, b, h, i, j: s * 2 if s.is_cuda else s,
    "device": lambda s, b, h, i, j: s * (2 if i.device.type == "cuda" else 1),
}


@pytest.mark.parametrize("name", ASK_FOR_THE_DEVICE)
def test_attention_of_a_function_that_is_another_one_on_gpus(name):
    """Traced before it has tensors, it was that of a CPU everywhere."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    attend = foveal.torch.Attention(ASK_FOR_THE_DEVICE[name])
    with torch.device("cpu"):
        q, k, v = tensors(1, 5, 1, 4, dtype=torch.float32, grad=False)
    torch.testing.assert_close(attend(q, k, v), foveal.torch.attention(q, k, v))
    with FakeTensorMode():
        on_gpu = torch.empty(1, 5, 1, 4, device="cuda")
    with pytest.raises(NotImplementedError, match="Attention: q: on cuda:0, for which score_mod and mask could not be traced: it asks for the device"):
        attend(on_gpu, on_gpu, on_gpu)
    assert foveal.torch.Attention(lambda s, b, h, i, j: s + i)._on_cpu_alone is None


def test_attention_does_not_keep_what_is_computed_of_trained_tensors():
    """It is traced once: a product of a parameter would stay what it was when that is trained."""
    w = torch.nn.Parameter(torch.randn(2, 7))
    with pytest.raises(NotImplementedError, match="Attention: score_mod or mask computes a whole tensor of trained ones"):
        foveal.torch.Attention(lambda s, b, h, i, j: s + (w * 2)[h, i])

    def score_mod(s, b, h, i, j):
        return s + w[h, i] * s + w.t()[j, h] + w[0][i] * w.detach().exp()[1, j]

    attend, (q, k, v) = foveal.torch.Attention(score_mod), tensors(1, 7, 2, 4, dtype=torch.float32)
    w.data.mul_(1.5)
    out = attend(q, k, v)
    with torch.no_grad():
        before = w.detach().clone() / 1.5  # detach().exp() was computed once
        expected = foveal.torch.attention(q, k, v, lambda s, b, h, i, j: s + w[h, i] * s + w.t()[j, h] + w[0][i] * before.exp()[1, j])
    torch.testing.assert_close(out.detach(), expected)
