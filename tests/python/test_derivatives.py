"""Derivatives beyond the first, in forward mode, and under torch.func."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import foveal
import foveal.torch
from places import seeded

pytestmark = pytest.mark.filterwarnings("ignore::foveal.MaterializedWarning")


def tensors(*shape, n=3, dtype=torch.float64, seed=0):
    generator = seeded(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(n)]


def torchs(*t, **arguments):
    """By torch's operations that have all derivatives."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*t, **arguments)


DOORS = (foveal.torch.scaled_dot_product_attention, torchs)

SCORES = {
    "plain": (None, None, ()),
    "masked": (None, lambda b, h, q, k: (q >= k) | (k < 2), ()),
    "biased": (lambda p: lambda s, b, h, q, k: s + p[h, (q - k) + 6], foveal.causal(), (2, 13)),
    "gated": (lambda p: lambda s, b, h, q, k: s * torch.sigmoid(p[h]), None, (2,)),
    "softcapped": (lambda p: lambda s, b, h, q, k: (2 + p.abs()) * torch.tanh(s / (2 + p.abs())), None, ()),
    "branches": (lambda p: lambda s, b, h, q, k: foveal.where(q >= k, s * p[h], torch.log(s * s) + s), None, (2,)),
    "parts without derivative": (lambda p: lambda s, b, h, q, k: F.softplus(s * p[h]) + torch.log1p(s * s) + torch.asinh(s) * torch.erfc(s), None, (2,)),
    "an infinite branch": (lambda p: lambda s, b, h, q, k: foveal.where(q > k, s * torch.sqrt((q - k) * p[h] * p[h]), s), None, (2,)),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("mode", ["twice", "forward"])
def test_scores(name, mode):
    factory, mask, shape = SCORES[name]
    inputs = tensors(1, 3, 2, 2)
    if factory is not None:
        inputs.append(torch.rand(shape, dtype=torch.float64).add(0.5).requires_grad_())

    def attend(q, k, v, *p):
        return foveal.torch.attention(q, k, v, factory(*p) if p else None, mask, return_lse=True)

    if mode == "twice":
        assert gradgradcheck(attend, inputs, check_undefined_grad=False, fast_mode=True)
    else:
        assert gradcheck(attend, inputs, check_forward_ad=True, check_backward_ad=False, check_undefined_grad=False, fast_mode=True)


def test_sinks_gqa_packed_batches_and_offsets():
    q = tensors(5, 4, 3, n=1)[0]
    k, v = tensors(6, 2, 3, n=2, seed=1)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)
    cu = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 4, 6], dtype=torch.int32)

    def attend(q, k, v, sink):
        return foveal.torch.attention(
            q, k, v, "score + 0.1 * batch * kv_idx", foveal.causal_bottom_right(), sink=sink, cu_seqlens=cu, max_seqlens=(3, 4), q_offset=1, kv_offset=1,
            return_lse=True,
        )  # fmt: skip

    assert gradgradcheck(attend, (q, k, v, sink), check_undefined_grad=False, fast_mode=True)
    assert gradcheck(attend, (q, k, v, sink), check_forward_ad=True, check_backward_ad=False, check_undefined_grad=False, fast_mode=True)


def test_the_composite_is_the_forward_pass():
    """Outputs beside the kernels': dropout, rows without keys, an index outside, values shared by name, both layouts."""
    from foveal.torch import composite
    from foveal.torch.programs import bound

    q, k, v = tensors(2, 9, 4, 8, n=3)
    table = torch.randn(4, 3, dtype=torch.float64)
    cases = [
        ("score + table[head, q_idx - kv_idx]", "kv_idx < q_idx", {"dropout_p": 0.4, "seed": 2**40 + 7, "offset": 2**33 + 5}),
        ("max(min(score, 0.5), -0.5) * (kv_idx % 3) // 1 - (q_idx // 2 == kv_idx // 2 and q_idx % 2 == 1)", None, {}),
        ("_1 = tanh(score); _1 * exp(_1) + where(score < 0, sqrt(-score), abs(score)) ** 1.5", "(q_idx ^ 1 == 1) if False else True" and "q_idx != 3", {}),
        ("exp2(score) + log(2 + cos(score)) - erf(score) * sigmoid(-score) + floor(3 * score) + rsqrt(1 + score * score)", None, {"scale": 0.7}),
        ("score + to_real(to_integer(score * 3)) + log2(3 + sin(score)) + tan(0.1 * score)", "to_boolean(kv_idx % 2) | ~(head == 1) ^ (batch <= 0)", {}),
    ]
    for score_mod, mask, rest in cases:
        for heads_first in (False, True):
            run = None, None, 0, 0, rest.get("seed", 0), rest.get("offset", 0), None
            arguments = {"params": {"table": table}, **{name: x for name, x in rest.items() if name not in ("seed", "offset")}}
            program, params = bound(score_mod, mask, foveal.Options(), arguments, heads_first)
            inputs = [t.detach().transpose(1, 2) if heads_first else t.detach() for t in (q, k, v)]
            expected = program.forward(*inputs, params, True, *run)
            found = composite.attend(program, *inputs, params, run)
            for a, b in zip(found, expected):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_gradient_penalty_is_not_lost():
    """The first cotangent needs no gradient here: the sum's."""
    q, k, v = tensors(2, 2, 6, 4)

    def penalty(attend):
        (dq,) = torch.autograd.grad(attend(q, k, v).sum(), q, create_graph=True)
        return torch.autograd.grad(dq.pow(2).sum(), (q, k, v))

    expected = penalty(lambda *t: torchs(*t, is_causal=True))
    for a, b in zip(penalty(lambda *t: foveal.torch.scaled_dot_product_attention(*t, is_causal=True)), expected):
        torch.testing.assert_close(a, b)


def test_one_tensor_as_query_key_and_value():
    (x,) = tensors(1, 2, 5, 4, n=1)

    def penalty(attend):
        (dx,) = torch.autograd.grad(attend(x, x, x).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(dx.pow(2).sum(), x)[0]

    torch.testing.assert_close(penalty(foveal.torch.scaled_dot_product_attention), penalty(torchs))


def test_third_derivatives():
    q, k, v = tensors(1, 1, 3, 2)

    def third(attend):
        (d1,) = torch.autograd.grad(attend(q, k, v).pow(2).sum(), q, create_graph=True)
        (d2,) = torch.autograd.grad(d1.pow(2).sum(), q, create_graph=True)
        return torch.autograd.grad(d2.pow(2).sum(), (q, k, v))

    for a, b in zip(third(foveal.torch.scaled_dot_product_attention), third(torchs)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_second_derivatives_of_narrow_types(dtype):
    q, k, v = tensors(1, 2, 8, 16, dtype=dtype)
    (dq,) = torch.autograd.grad(foveal.torch.scaled_dot_product_attention(q, k, v).sum(), q, create_graph=True)
    found = torch.autograd.grad(dq.float().pow(2).sum(), (q, k, v))
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    (dq,) = torch.autograd.grad(torchs(*wide).sum(), wide[0], create_graph=True)
    for a, b in zip(found, torch.autograd.grad(dq.pow(2).sum(), wide)):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=0, atol=(1e-4 if dtype == torch.float32 else 5e-2) * b.abs().max().item())


def loss_of(attend):
    return lambda q, k, v: attend(q, k, v).pow(2).sum()




def test_func_jvp_and_dual_tensors():
    q, k, v = (t.detach() for t in tensors(2, 2, 5, 4))
    t = [torch.randn_like(x) for x in (q, k, v)]
    (out, tangent), expected = (torch.func.jvp(door, (q, k, v), tuple(t)) for door in DOORS)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(tangent, expected[1])
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(a, b) for a, b in zip((q, k, v), t)]
        torch.testing.assert_close(forward_ad.unpack_dual(DOORS[0](*duals)).tangent, expected[1])
        one = forward_ad.unpack_dual(DOORS[0](q, duals[1], v)).tangent
    torch.testing.assert_close(one, torch.func.jvp(lambda k: DOORS[1](q, k, v), (k,), (t[1],))[1])


@pytest.mark.parametrize("transform", ["grad", "jacrev", "jacfwd", "hessian", "grad of grad", "vmap of grad", "grad of vmap", "vmap of jvp"])
def test_torch_func(transform):
    q, k, v = (t.detach() for t in tensors(3, 2, 4, 2))

    def run(door):
        loss = loss_of(door)
        if transform == "grad":
            return torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)
        if transform in ("jacrev", "jacfwd"):
            return getattr(torch.func, transform)(door, argnums=(0, 1, 2))(q, k, v)
        if transform == "hessian":
            return torch.func.hessian(loss)(q, k, v)
        if transform == "grad of grad":
            return torch.func.grad(lambda q, k, v: torch.func.grad(loss)(q, k, v).pow(2).sum(), argnums=(0, 1, 2))(q, k, v)
        if transform == "vmap of grad":
            return torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
        if transform == "grad of vmap":
            return torch.func.grad(lambda *t: torch.func.vmap(door)(*t).pow(2).sum(), argnums=(0, 1, 2))(q, k, v)
        return torch.func.vmap(lambda *t: torch.func.jvp(door, t, t)[1])(q, k, v)

    for a, b in zip(torch.utils._pytree.tree_leaves(run(DOORS[0])), torch.utils._pytree.tree_leaves(run(DOORS[1]))):
        torch.testing.assert_close(a, b)


def test_func_linearize():
    """It takes the derivative below torch's functions, where operators stand for calls."""
    q, k, v = (t.detach() for t in tensors(2, 2, 5, 4))
    t = [torch.randn_like(x) for x in (q, k, v)]
    found, expected = (torch.func.linearize(door, q, k, v)[1](*t) for door in DOORS)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("order", [1, 2])
def test_batches_of_cotangents(order):
    """As autograd.grad(is_grads_batched=True), functional.jacobian(vectorize=True) and gradcheck(check_batched_grad=True) have them."""

    def run(door):
        q, k, v = tensors(2, 2, 5, 4)
        cotangents = torch.randn(3, *q.shape, dtype=q.dtype, generator=seeded(1))
        out = door(q, k, v)
        if order == 2:
            out = torch.autograd.grad(out.sin().sum(), k, create_graph=True)[0]
        return torch.autograd.grad(out, (q, k, v), cotangents, is_grads_batched=True)

    for found, expected in zip(*map(run, DOORS)):
        torch.testing.assert_close(found, expected)


def _jvp(attend, *t):
    return torch.func.jvp(attend, t, t)


def _of_vmap(attend, *t):
    return torch.func.vmap(attend)(*[torch.stack([x, 2 * x]) for x in t])


def _of_grad(attend, *t):
    return torch.func.grad(lambda *t: attend(*t).sin().sum(), argnums=(0, 1, 2))(*t)


@pytest.mark.parametrize("transform", [_jvp, _of_vmap, _of_grad])
@pytest.mark.parametrize("where", ["within", "around", "around what ran"])
def test_transforms_and_torch_compile(transform, where):
    """Tangents were lost within compiled code; now transforms run outside of it."""
    torch._dynamo.reset()
    t = [t.detach() for t in tensors(2, 2, 5, 4)]

    def plain(*t):
        return DOORS[0](*t)

    if where == "within":
        found = torch.compile(lambda *t: transform(plain, *t), backend="aot_eager")(*t)
    else:
        compiled = torch.compile(plain, backend="aot_eager")
        if where == "around what ran":
            compiled(*t)
        found = transform(compiled, *t)
    torch.testing.assert_close(found, transform(DOORS[1], *t))


@pytest.mark.parametrize("ran", [False, True])
def test_dual_tensors_and_torch_compile(ran):
    """torch.compile does not notice that a level of dual tensors was entered: code that was made before refuses."""
    torch._dynamo.reset()
    q, k, v = (t.detach() for t in tensors(2, 2, 5, 4))
    compiled = torch.compile(lambda *t: DOORS[0](*t), backend="aot_eager")
    if ran:
        compiled(q, k, v)
    expected = torch.func.jvp(lambda q: DOORS[1](q, k, v), (q,), (k,))[1]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, k)
        if ran:
            with pytest.raises(NotImplementedError, match="dual_level"):
                compiled(dual, k, v)
        else:
            torch.testing.assert_close(forward_ad.unpack_dual(compiled(dual, k, v)).tangent, expected)


def test_compiled_autograd():
    q, k, v = tensors(2, 2, 5, 4)
    found = DOORS[0](q, k, v).sin().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        found.backward()
    torch.testing.assert_close([q.grad, k.grad, v.grad], list(torch.autograd.grad(DOORS[1](q, k, v).sin().sum(), (q, k, v))))


def test_it_is_said():
    q, k, v = tensors(1, 1, 3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (dq,) = torch.autograd.grad(foveal.torch.scaled_dot_product_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.warns(foveal.MaterializedWarning, match="all seqlen_q x seqlen_kv scores in memory"):
        dq.sum().backward()


def test_an_unknown_operation_is_refused():
    from foveal.torch.evaluate import Evaluation

    with pytest.raises(NotImplementedError, match="digamma has no differentiable form"):
        Evaluation("digamma(score)", {"score": torch.zeros(3)}, {}, torch.float32, torch.device("cpu")).result()
    assert math.isinf(Evaluation("-inf", {}, {}, torch.float32, torch.device("cpu")).result().item())


@pytest.mark.parametrize("seed, offset", [(7, 9), (2**63 + 12345, 2**64 - 3)])
@pytest.mark.filterwarnings("ignore::foveal.MaterializedWarning")
def test_dropout_falls_on_the_same_pairs_everywhere(seed, offset):
    generator = seeded(0)
    q, k, v = (torch.randn(2, 9, 2, 4, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(3))
    state = torch.tensor([x if x < 2**63 else x - 2**64 for x in (seed, offset)])
    by_number = lambda q: foveal.torch.attention(q, k, v, dropout_p=0.5, seed=seed, offset=offset)  # noqa: E731
    by_state = lambda q: foveal.torch.attention(q, k, v, dropout_p=0.5, rng_state=state)  # noqa: E731
    expected = by_number(q)
    for attend in (by_number, by_state):
        torch.testing.assert_close(attend(q), expected, rtol=0, atol=0)
        torch.testing.assert_close(torch.func.jvp(attend, (q,), (torch.ones_like(q),))[0], expected)
        assert torch.autograd.gradgradcheck(attend, (q,))
        examples = torch.stack([q, 2 * q]).detach()
        torch.testing.assert_close(torch.func.vmap(attend)(examples), torch.stack([attend(x) for x in examples]))
