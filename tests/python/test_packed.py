"""varlen_attn and nested tensors, beside each sequence alone."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import AuxRequest

import foveal.torch
from places import seeded

LENGTHS_Q, LENGTHS_K = [3, 7, 1, 5], [6, 7, 4, 5]


def packed(lengths, heads, dim=8, dtype=torch.float64, seed=0):
    generator = seeded(seed)
    values = torch.randn(sum(lengths), heads, dim, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return values, torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


def alone(q, k, v, keep, gqa=False):
    """Each sequence by torch's SDPA; keep(seqlen_q, seqlen_k, which): its mask."""
    outs = []
    for i, parts in enumerate(zip(q.split(LENGTHS_Q), k.split(LENGTHS_K), v.split(LENGTHS_K))):
        one = [part.transpose(0, 1)[None] for part in parts]
        outs.append(F.scaled_dot_product_attention(*one, attn_mask=keep(len(parts[0]), len(parts[1]), i), enable_gqa=gqa)[0].transpose(0, 1))
    return torch.cat(outs)


def windowed(left, right, used=None):
    def keep(seqlen_q, seqlen_k, which):
        there = seqlen_k if used is None else used[which]
        at = torch.arange(seqlen_q)[:, None] + there - seqlen_q
        kv = torch.arange(seqlen_k)[None, :]
        return (kv < there) & ((kv >= at - left) if left >= 0 else True) & ((kv <= at + right) if right >= 0 else True)

    return keep


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (1, 1), (0, -1)])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_varlen_attn(window, heads_kv):
    (q, cu_q), (k, cu_k), (v, _) = packed(LENGTHS_Q, 4), packed(LENGTHS_K, heads_kv, seed=1), packed(LENGTHS_K, heads_kv, seed=2)
    expected = alone(q, k, v, windowed(*window), gqa=heads_kv != 4)
    found = foveal.torch.varlen_attn(q, k, v, cu_q, cu_k, 7, 7, window_size=window, enable_gqa=heads_kv != 4)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*[torch.autograd.grad(out.pow(2).sum(), (q, k, v)) for out in (found, expected)]):
        torch.testing.assert_close(a, b)


def test_varlen_attn_with_keys_that_are_not_there_yet_and_lse():
    (q, cu_q), (k, cu_k), (v, _) = packed(LENGTHS_Q, 4), packed(LENGTHS_K, 4, seed=1), packed(LENGTHS_K, 4, seed=2)
    used = [4, 7, 2, 5]
    found, lse = foveal.torch.varlen_attn(
        q, k, v, cu_q, cu_k, 7, 7, window_size=(-1, 0), seqused_k=torch.tensor(used, dtype=torch.int32), return_aux=AuxRequest(lse=True), scale=8**-0.5
    )  # fmt: skip
    torch.testing.assert_close(found, alone(q, k, v, windowed(-1, 0, used)))
    assert lse.shape == (4, sum(LENGTHS_Q))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda a: a.update(block_table=torch.zeros(4, 1, dtype=torch.int32)), RuntimeError, "seqused_k: found None; expected int32 or int64"),
        (lambda a: a.update(cu_seq_k=None), RuntimeError, "cu_seq_k: found NoneType; expected an int32 or int64 tensor"),
        (lambda a: a.update(query=a["query"][None]), RuntimeError, "query: found rank 4; expected a tensor of rank 3"),
        (lambda a: a.update(key=a["key"][:, :2], value=a["value"][:, :2]), ValueError, "key: 2 heads, query: 4; expected equal, or enable_gqa=True"),
        (lambda a: a.update(key=a["key"][:, :3], value=a["value"][:, :3], enable_gqa=True), ValueError, "key: 3 heads; expected a number that divides"),
        (lambda a: a.update(enable_gqa="no"), TypeError, "enable_gqa: found str 'no'; expected True or False"),
        (lambda a: a.update(return_aux=True), ValueError, "return_aux: found bool; expected an AuxRequest or None"),
        (lambda a: a.update(max_q=7.0), ValueError, "max_q: found float 7.0; expected an int"),
        (lambda a: a.update(seqused_k=torch.ones(2, dtype=torch.int32)), ValueError, rf"seqused_k: found torch.int32 of shape \(2,\); expected .*, \[{len(LENGTHS_K)}\]"),
        (lambda a: a.update(seqused_k=torch.ones(len(LENGTHS_K))), ValueError, "seqused_k: found torch.float32 of shape"),
        (lambda a: a.update(seqused_k=torch.full((len(LENGTHS_K),), 99)), ValueError, f"seqused_k: 99 of sequence 0; expected 0 to {LENGTHS_K[0]}"),
        (lambda a: a.update(seqused_k=torch.full((len(LENGTHS_K),), -1)), ValueError, "seqused_k: -1 of sequence 0; expected 0 to"),
    ],
)
def test_varlen_refusals(change, error, words):
    (q, cu), (k, _), (v, _) = packed(LENGTHS_K, 4), packed(LENGTHS_K, 4), packed(LENGTHS_K, 4)
    arguments = dict(query=q, key=k, value=v, cu_seq_q=cu, cu_seq_k=cu, max_q=7, max_k=7)
    change(arguments)
    if arguments.get("seqused_k") is not None and cu.is_cuda and arguments["seqused_k"].shape == (len(LENGTHS_K),):
        pytest.skip("numbers on a device are not read")
    with pytest.raises(error, match=f"varlen_attn: {words}"):
        foveal.torch.varlen_attn(**arguments)


@pytest.mark.parametrize("dynamic", [False, True])
def test_varlen_attn_is_compiled_whole(dynamic):
    attend = torch.compile(
        lambda q, k, cu, longest, used: foveal.torch.varlen_attn(q, k, k, cu, cu, longest, longest, window_size=(2, 0), seqused_k=used),
        backend="aot_eager", fullgraph=True, dynamic=dynamic,
    )  # fmt: skip
    for length in (5, 7):
        cu, used = torch.tensor([0, length, 2 * length], dtype=torch.int32), torch.tensor([length, length - 2], dtype=torch.int32)
        q, k = (torch.randn(2 * length, 2, 8, requires_grad=True) for _ in range(2))
        found, expected = attend(q, k, cu, length, used), foveal.torch.varlen_attn(q, k, k, cu, cu, length, length, window_size=(2, 0), seqused_k=used)
        for a, b in zip((found, *torch.autograd.grad(found.sum(), (q, k))), (expected, *torch.autograd.grad(expected.sum(), (q, k)))):
            torch.testing.assert_close(a, b)


def nested(lengths, heads=4, seed=0, dtype=torch.float64):
    generator = seeded(seed)
    parts = [torch.randn(n, heads, 8, generator=generator, dtype=torch.float64).to(dtype) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("patched", [False, True])
def test_nested_tensors(causal, patched):
    rows = [nested(LENGTHS_K)]
    rows += [torch.nested.nested_tensor_from_jagged(torch.randn_like(rows[0].values()).requires_grad_(), offsets=rows[0].offsets()) for _ in range(2)]
    q, k, v = (t.transpose(1, 2) for t in rows)
    plain = F.scaled_dot_product_attention(q, k, v)  # with is_causal torch has none on the CPU
    split = [t.values().split(LENGTHS_K) for t in rows]
    expected = torch.cat([
        F.scaled_dot_product_attention(*[part.transpose(0, 1) for part in parts], is_causal=causal).transpose(0, 1) for parts in zip(*split)
    ])  # fmt: skip
    if patched:
        with foveal.torch.patch():
            found = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    else:
        found = foveal.torch.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert found.shape == plain.shape and found.is_nested
    torch.testing.assert_close(found.transpose(1, 2).values(), expected)
    gradients = [torch.autograd.grad(out.pow(2).sum(), rows) for out in (found.transpose(1, 2).values(), expected)]
    for a, b in zip(*gradients):
        torch.testing.assert_close(a.values(), b.values())
    assert (found + q).is_nested  # of the same lengths for torch, too


def test_nested_tensors_of_two_lengths():
    rows_q, rows_k = nested(LENGTHS_Q), nested(LENGTHS_K, seed=1)
    rows_v = torch.nested.nested_tensor_from_jagged(torch.randn_like(rows_k.values()), offsets=rows_k.offsets())
    found = foveal.torch.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (rows_q, rows_k, rows_v)))
    expected = alone(rows_q.values(), rows_k.values(), rows_v.values(), windowed(-1, -1))
    torch.testing.assert_close(found.transpose(1, 2).values(), expected)


def test_nested_refusals():
    rows, other = nested(LENGTHS_K), nested(LENGTHS_Q)
    q, k = rows.transpose(1, 2), other.transpose(1, 2)
    attend = foveal.torch.scaled_dot_product_attention
    with pytest.raises(RuntimeError, match="attn_mask: must be None with nested tensors"):
        attend(q, q, q, attn_mask=torch.ones(7, 7, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="is_causal: queries and keys of different lengths"):
        attend(q, k, k, is_causal=True)
    with pytest.raises(RuntimeError, match="value: other sequence lengths"):
        attend(q, q, k)
    with pytest.raises(RuntimeError, match="key: a dense tensor beside nested ones"):
        attend(q, torch.randn(4, 4, 7, 8), q)
    with pytest.raises(RuntimeError, match="query: a nested tensor of layout torch.strided"):
        attend(*[torch.nested.nested_tensor([torch.randn(4, n, 8) for n in LENGTHS_K])] * 3)


@pytest.mark.parametrize("again", [False, True])
def test_lengths_that_change_before_the_backward_pass_are_noticed(again):
    """Also before the second one."""
    values, cu = packed([3, 9], 2)
    out = foveal.torch.attention(values, values, values, cu_seqlens=(cu, cu), max_seqlens=(9, 9))
    if again:
        (out,) = torch.autograd.grad(out.sin().sum(), values, create_graph=True)
    cu[1] = 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_lengths_are_kept_by_hooks_of_saved_tensors():
    values, cu = packed([3, 9], 2)
    attend = lambda: foveal.torch.attention(values, values, values, cu_seqlens=(cu, cu), max_seqlens=(9, 9))  # noqa: E731
    (expected,) = torch.autograd.grad(attend().sin().sum(), values)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        out = attend()
    cu[1] = 4
    (found,) = torch.autograd.grad(out.sin().sum(), values)
    assert torch.equal(found, expected)


def test_jagged_that_drops_every_pair():
    """As dense tensors and as torch: zeros, with gradients of zero."""
    offsets = torch.tensor([0, 3, 8])
    q, k, v = (torch.nested.nested_tensor_from_jagged(torch.randn(8, 2, 4), offsets=offsets).requires_grad_() for _ in range(3))
    out = foveal.torch.scaled_dot_product_attention(*[t.transpose(1, 2) for t in (q, k, v)], dropout_p=1.0)
    values = out.transpose(1, 2).values()
    assert values.shape == (8, 2, 4) and not values.any()
    values.sum().backward()
    assert not any([t.grad.values().any() for t in (q, k, v)])
    with pytest.raises(RuntimeError, match="dropout_p: 1.5; expected 0 <= dropout_p <= 1"):
        foveal.torch.scaled_dot_product_attention(*[t.transpose(1, 2) for t in (q, k, v)], dropout_p=1.5)
