"""scaled_dot_product_attention beside torch's own, class by class of what it accepts, and the words of each refusal."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import foveal.torch
from places import seeded

B, H, L, S, E = 2, 4, 5, 7, 8


def inputs(q=(B, H, L, E), k=(B, H, S, E), v=None, dtype=torch.float64):
    generator = seeded(0)
    shapes = (q, k, k if v is None else v)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def same(tensors, tolerance=1e-10, **arguments):
    """Output and gradients of foveal's beside torch's."""
    expected = F.scaled_dot_product_attention(*tensors, **arguments)
    found = foveal.torch.scaled_dot_product_attention(*tensors, **arguments)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    wanted = [t for t in (*tensors, arguments.get("attn_mask")) if t is not None and t.requires_grad]
    weight = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).reshape(expected.shape)
    gradients = [torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True) for out in (found, expected)]
    for a, b in zip((found, *gradients[0]), (expected, *gradients[1])):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(), (1,), (S,)])
@pytest.mark.parametrize("lead", [(), (H,), (1, B, H)])
def test_masks_of_rank_0_and_1(lead, shape):
    """torch refuses them where its fused kernels are asked, of four dimensions."""
    mask = torch.randn(shape, generator=seeded(1), dtype=torch.float64)
    tensors = inputs((*lead, L, E), (*lead, S, E))
    same(tensors, attn_mask=mask.requires_grad_())
    same(tensors, attn_mask=torch.ones(shape, dtype=torch.bool))
    with pytest.raises(RuntimeError, match=f"attn_mask: rank {len(shape)} beside a query of rank 4; expected at least 2"):
        foveal.torch.scaled_dot_product_attention(*inputs(), attn_mask=mask)


@pytest.mark.parametrize("shape", [(L, S), (1, S), (L, 1), (1, 1), (1, L, S), (H, L, S), (H, 1, S), (1, 1, L, S), (B, 1, L, S), (1, H, 1, S), (B, H, L, S)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast(shape, kind):
    generator = seeded(1)
    mask = torch.randn(shape, generator=generator, dtype=torch.float64)
    same(inputs(), attn_mask=mask > -0.5 if kind == "bool" else mask.requires_grad_())


@pytest.mark.parametrize("shape", [(), (S,), (L - 1, S), (L, S + 1), (3, L, S), (B, H, L, S - 1), (H, 1, L, S), (1, B, H, L, S)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_masks_that_do_not_broadcast_are_refused_as_torch_does(shape, dtype):
    mask = torch.zeros(shape, dtype=dtype)
    with pytest.raises((RuntimeError, IndexError)):  # on GPUs torch takes more than it says
        F.scaled_dot_product_attention(*[t.cpu() for t in inputs()], attn_mask=mask.cpu())
    with pytest.raises(RuntimeError, match="attn_mask: (shape|rank)"):
        foveal.torch.scaled_dot_product_attention(*inputs(), attn_mask=mask)


@pytest.mark.parametrize("query", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [torch.bool, torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.complex64])
def test_dtypes_of_masks(query, mask):
    tensors = inputs(dtype=query)
    attn_mask = (torch.arange(L * S).reshape(L, S) % 3 > 0).to(mask)
    try:  # on GPUs torch takes fewer than it says
        expected = F.scaled_dot_product_attention(*[t.cpu() for t in tensors], attn_mask=attn_mask.cpu())
    except RuntimeError:
        with pytest.raises(RuntimeError, match=f"attn_mask: dtype {mask}; expected torch.bool"):
            foveal.torch.scaled_dot_product_attention(*tensors, attn_mask=attn_mask)
    else:
        tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[query]
        found = foveal.torch.scaled_dot_product_attention(*tensors, attn_mask=attn_mask)
        gradients = [torch.autograd.grad(out.float().sin().sum(), tensors) for out in (found, expected)]
        for a, b in zip((found, *gradients[0]), (expected, *gradients[1])):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a.cpu(), b.cpu(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", [causal_lower_right, causal_upper_left])
@pytest.mark.parametrize("sizes", [(L, S), (S, S)])
@pytest.mark.parametrize("patched", [False, True])
def test_causal_biases(variant, sizes, patched):
    tensors = inputs(q=(B, H, sizes[0], E), k=(B, H, sizes[1], E))
    bias = variant(*sizes)
    expected = F.scaled_dot_product_attention(*tensors, attn_mask=bias)
    if patched:
        with foveal.torch.patch():
            found = F.scaled_dot_product_attention(*tensors, attn_mask=bias)
    else:
        found = foveal.torch.scaled_dot_product_attention(*tensors, attn_mask=bias)
    torch.testing.assert_close(found, expected)


def test_causal_biases_of_another_length_are_refused():
    with pytest.raises(RuntimeError, match="attn_mask: a causal bias of 6 x 7; expected seqlen_q x seqlen_kv, 5 x 7"):
        foveal.torch.scaled_dot_product_attention(*inputs(), attn_mask=causal_lower_right(L + 1, S))
    with pytest.raises(ValueError, match="is_causal"):
        foveal.torch.scaled_dot_product_attention(*inputs(), attn_mask=causal_lower_right(L, S), is_causal=True)


def test_rows_without_keys_are_zero():
    mask = torch.ones(L, S, dtype=torch.bool)
    mask[2] = False
    same(inputs(), attn_mask=mask)
    same(inputs(), attn_mask=torch.zeros(L, S, dtype=torch.float64).masked_fill(~mask, -torch.inf))


@pytest.mark.parametrize(
    ("q", "k", "v", "gqa"),
    [
        ((L, E), (S, E), (S, 3), False),
        ((H, L, E), (H, S, E), None, False),
        ((H, L, E), (2, S, E), None, True),
        ((3, B, H, L, E), (3, B, H, S, E), None, False),
        ((3, B, H, L, E), (B, 2, S, E), None, True),
        ((B, H, L, E), (1, H, S, E), None, False),
        ((1, H, L, E), (B, H, S, E), None, False),
        ((B, H, L, E), (B, 1, S, E), None, False),
        ((B, 1, L, E), (B, H, S, E), None, False),
        ((B, H, L, E), (H, S, E), None, False),
        ((B, H, L, E), (B, H, S, E), (1, 1, S, 3), False),
        ((B, H, L, E), (B, 2, S, E), None, True),
        ((B, H, L, E), (B, 2, S, E), (B, 1, S, E), True),
        ((B, H, L, E), (1, 2, S, E), None, True),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_ranks_and_broadcasting(q, k, v, gqa, masked):
    arguments = {"attn_mask": torch.randn(L, S, dtype=torch.float64, requires_grad=True)} if masked else {"is_causal": True}
    same(inputs(q, k, v), enable_gqa=gqa, **arguments)


def test_masks_of_five_dimensions():
    tensors = inputs((3, B, H, L, E), (3, B, H, S, E))
    for shape in [(3, B, H, L, S), (3, 1, 1, L, S), (B, H, 1, S), (B, 1, L, S), (H, L, S)]:
        same(tensors, attn_mask=torch.randn(shape, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("empty", range(6))
def test_empty_tensors(empty):
    sizes = [B, H, L, S, E, E]
    sizes[empty] = 0
    b, h, l, s, e, ev = sizes
    same(inputs((b, h, l, e), (b, h, s, e), (b, h, s, ev)))
    same(inputs((b, h, l, e), (b, h, s, e), (b, h, s, ev)), attn_mask=torch.ones(l, s, dtype=torch.bool))


def test_scales():
    for scale in (0.3, 1, 0.0, -1.0, torch.tensor(0.3)):
        same(inputs(), scale=scale)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda q, k, v: (q.detach().cpu().numpy(), k, v, {}), TypeError, "query: found ndarray; expected a torch.Tensor"),
        (lambda q, k, v: (q[0, 0, 0], k, v, {}), RuntimeError, "query: rank 1; expected at least 2"),
        (lambda q, k, v: (q, k.float(), v, {}), RuntimeError, "key: dtype torch.float32; expected torch.float64, query's"),
        (lambda q, k, v: (q.int(), k, v, {}), RuntimeError, "query: dtype torch.int32"),
        (lambda q, k, v: (q.to("meta"), k, v, {}), RuntimeError, "key: on cpu; expected meta, query's device"),
        (lambda q, k, v: (q, k.detach().to_sparse(), v, {}), RuntimeError, "key: torch.sparse_coo on (cpu|cuda:0); expected a dense tensor"),
        (lambda q, k, v: (q, k[..., :4], v, {}), RuntimeError, "key: head_dim 4; expected 8, query's"),
        (lambda q, k, v: (q, k, v[:, :, :3], {}), RuntimeError, "value: seqlen 3; expected 7, key's"),
        (lambda q, k, v: (q, k[:, :2], v[:, :2], {}), RuntimeError, r"key: shape \(2, 2, 7, 8\).*enable_gqa=True"),
        (lambda q, k, v: (q, k[:, :3], v[:, :3], {"enable_gqa": True}), RuntimeError, "key: shape.*divides query's"),
        (lambda q, k, v: (q, k, v, {"dropout_p": 1.5}), RuntimeError, "dropout_p: 1.5; expected 0 <= dropout_p <= 1"),
        (lambda q, k, v: (q, k, v, {"dropout_p": -0.1}), RuntimeError, "dropout_p: -0.1"),
        (lambda q, k, v: (q, k, v, {"scale": "0.1"}), TypeError, "scale: found str; expected a number"),
        (lambda q, k, v: (q, k, v, {"attn_mask": torch.zeros(L, S, dtype=torch.float64), "is_causal": True}), RuntimeError, "attn_mask: must be None"),
        (lambda q, k, v: (q, k, v, {"attn_mask": [[True]]}), TypeError, "attn_mask: found list"),
    ],
)
def test_refusals(change, error, words):
    *tensors, arguments = change(*inputs())
    with pytest.raises(error, match=f"scaled_dot_product_attention: {words}"):
        foveal.torch.scaled_dot_product_attention(*tensors, **arguments)


def test_everything_dropped_is_zero():
    tensors = inputs()
    out = foveal.torch.scaled_dot_product_attention(*tensors, dropout_p=1.0)
    assert out.abs().max() == 0 and all(g.abs().max() == 0 for g in torch.autograd.grad(out.sum(), tensors))


def test_head_dims_of_0_drop_too():
    """Each query takes the mean of the values that are kept."""
    q, k, v = torch.empty(2, 3, 5, 0), torch.empty(2, 3, 7, 0), torch.randn(2, 3, 7, 4, generator=seeded(0))
    torch.testing.assert_close(foveal.torch.scaled_dot_product_attention(q, k, v), v.mean(-2, keepdim=True).expand(2, 3, 5, 4))
    assert not foveal.torch.scaled_dot_product_attention(q, k, v, dropout_p=1.0).any()


@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_takes_what_layers_in_different_types_give(mask, compiled):
    """A projection's values are bfloat16 there, queries and keys that a rotation made are float32."""
    q, k, v = inputs(dtype=torch.float32)
    attn_mask = None if mask is None else (torch.rand(L, S, generator=seeded(2)) < 0.8).to(mask)

    def both(q, k, v):
        return (
            foveal.torch.scaled_dot_product_attention(q, k, v.bfloat16(), attn_mask),
            F.scaled_dot_product_attention(q, k, v.bfloat16(), attn_mask),
        )

    device = q.device.type
    with torch.autocast(device, torch.bfloat16):
        found, expected = (torch.compile(both, fullgraph=True, backend="aot_eager") if compiled else both)(q, k, v)
        of_flex = foveal.torch.flex_attention(q, k, v.bfloat16())
    assert found.dtype == expected.dtype == of_flex.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    with pytest.raises(RuntimeError, match="value: dtype torch.bfloat16; expected torch.float32"):
        foveal.torch.scaled_dot_product_attention(q, k, v.bfloat16())


def test_autocast_leaves_doubles_alone():
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        assert foveal.torch.scaled_dot_product_attention(*inputs()).dtype == torch.float64
        same(inputs(dtype=torch.float32), 3e-2)


@pytest.mark.parametrize("shapes", [((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)), ((5, 8), (7, 8), (7, 6)), ((3, 2, 4, 5, 8), (2, 4, 7, 8), (1, 4, 7, 6)), ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))])
def test_meta_tensors(shapes):
    """As models are built without memory: the result's shape, dtype and place in the graph of gradients."""
    q, k, v = (torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
    gqa = q.dim() == 4 and q.shape[1] != k.shape[1]
    mask = torch.empty(5, 7, device="meta", dtype=torch.bool)
    for options in ({}, {"attn_mask": mask}, {"is_causal": True, "dropout_p": 0.1}):
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=gqa, **options)
        found = foveal.torch.scaled_dot_product_attention(q, k, v, enable_gqa=gqa, **options)
        assert (found.shape, found.dtype, found.device.type, found.requires_grad) == (wanted.shape, wanted.dtype, "meta", True)
        assert torch.autograd.grad(found.sum(), q)[0].shape == q.shape
    with pytest.raises(ValueError, match="attn_mask: shape"):
        foveal.torch.scaled_dot_product_attention(q, k, v, torch.empty(5, 6, device="meta", dtype=torch.bool), enable_gqa=gqa)
    with pytest.raises(ValueError, match="attn_mask: on cpu; expected meta"):
        foveal.torch.scaled_dot_product_attention(q, k, v, torch.ones(5, 7, dtype=torch.bool), enable_gqa=gqa)
