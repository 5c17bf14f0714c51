"""Keys and values in pages, beside the same keys in one piece."""

import numpy as np
import pytest
import torch
from torch.nn.attention.varlen import AuxRequest

import foveal
import foveal.torch
from foveal.signatures import Options
from foveal import MaterializedWarning
from foveal.torch.programs import bound
from places import seeded

LENGTHS, PAGE = [40, 17, 0, 64], 16


def cache(heads=2, dim=8, dtype=torch.float64, seed=0, shared=False):
    """(k, v of each sequence, pools of k and v, block_table, seqlens_kv)"""
    generator = seeded(seed)
    keys = [[torch.randn(n, heads, dim, generator=generator, dtype=torch.float64).to(dtype) for n in LENGTHS] for _ in range(2)]
    pages = [-(-n // PAGE) for n in LENGTHS]
    order = torch.randperm(sum(pages) + 2, generator=generator).to(torch.int32).tolist()
    table = torch.full((len(LENGTHS), max(pages)), -1, dtype=torch.int32)
    pools = [torch.full((len(order), PAGE, heads, dim), torch.nan, dtype=dtype) for _ in range(2)]
    for b, count in enumerate(pages):
        for i in range(count):
            table[b, i] = order.pop()
            for parts, pool in zip(keys, pools):
                rows = parts[b][i * PAGE : (i + 1) * PAGE]
                pool[table[b, i], : len(rows)] = rows
    return keys, [pool.requires_grad_() for pool in pools], table, torch.tensor(LENGTHS, dtype=torch.int32)


def queries(seqlen, heads=4, dim=8, dtype=torch.float64):
    return torch.randn(len(LENGTHS), seqlen, heads, dim, generator=seeded(9), dtype=torch.float64).to(dtype).requires_grad_()


def alone(q, keys, **arguments):
    """Each sequence by itself, keys repeated from the pools' rows."""
    outs = []
    for b, (k, v) in enumerate(zip(*keys)):
        outs.append(foveal.torch.attention(q[b : b + 1], k[None], v[None], **arguments) if len(k) else torch.zeros_like(q[b : b + 1]))
    return torch.cat(outs)


def rows_of(pool, table, lengths):
    return [pool[pages[: -(-n // PAGE)].long()].flatten(0, 1)[:n] for pages, n in zip(table, lengths.tolist())]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seqlen", [1, 5])
def test_torch_and_its_gradients(dtype, seqlen):
    keys, (k, v), table, lengths = cache(dtype=dtype)
    q = queries(seqlen, dtype=dtype)
    arguments = dict(mask=foveal.causal_bottom_right(), score_mod=lambda s, b, h, i, j: s + 0.1 * h)
    out = foveal.torch.attention(q, k, v, block_table=table, seqlens_kv=lengths, **arguments)
    pieces = [rows_of(pool, table, lengths) for pool in (k, v)]
    expected = alone(q, pieces, **arguments)
    exact = {} if dtype in (torch.float64, torch.float32) else dict(atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(out, expected, **exact)
    for found, wanted in zip(*[torch.autograd.grad(x.float().pow(2).sum(), (q, k, v)) for x in (out, expected)]):
        torch.testing.assert_close(found, wanted, **exact)


def test_shared_pages_sum_their_gradients():
    torch.manual_seed(0)
    k, v = (torch.randn(3, PAGE, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    q = torch.randn(2, 3, 2, 8, dtype=torch.float64, requires_grad=True)
    table, lengths = torch.tensor([[2, 0], [2, 1]], dtype=torch.int32), torch.tensor([30, 20])
    out = foveal.torch.attention(q, k, v, block_table=table, seqlens_kv=lengths)
    expected = alone_two(q, k, v, table, lengths)
    torch.testing.assert_close(out, expected)
    for found, wanted in zip(*[torch.autograd.grad(x.pow(2).sum(), (q, k, v)) for x in (out, expected)]):
        torch.testing.assert_close(found, wanted)


def alone_two(q, k, v, table, lengths):
    pieces = [rows_of(pool, table, lengths) for pool in (k, v)]
    return torch.cat([foveal.torch.attention(q[b : b + 1], pieces[0][b][None], pieces[1][b][None]) for b in range(len(q))])


def test_numpy_forward_backward_plan_explain_and_check():
    keys, pools, table, lengths = cache(dtype=torch.float32)
    keys = [[t.cpu() for t in parts] for parts in keys]
    k, v = (np.nan_to_num(pool.detach().cpu().numpy()) for pool in pools)
    q, table, lengths = queries(3, dtype=torch.float32).detach().cpu().numpy(), table.cpu().numpy(), lengths.cpu().numpy()
    paged = dict(block_table=table, seqlens_kv=lengths, mask="causal_bottom_right()")
    expected = alone(torch.from_numpy(q), keys, mask="causal_bottom_right()").numpy()
    out, lse = foveal.forward(q, k, v, **paged)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_array_equal(foveal.attention(q, k, v, **paged), out)
    assert np.isinf(lse[2]).all()
    dq, dk, dv, _ = foveal.backward(q, k, v, out, lse, np.ones_like(out), **paged)
    assert dk.shape == k.shape and dv.shape == v.shape and dq.shape == q.shape

    plan = foveal.plan(q, k, v, **paged)
    made, sums = np.empty_like(out), np.empty_like(lse)
    plan.run(q=q, k=k, v=v, out=made, lse=sums)
    np.testing.assert_array_equal(made, out)
    fewer = np.minimum(lengths, 20).astype(np.int32)
    plan.run(q=q, k=k, v=v, out=made, lse=sums, seqlens_kv=fewer)
    np.testing.assert_array_equal(made, foveal.attention(q, k, v, **{**paged, "seqlens_kv": fewer}))

    assert "pages=16" in foveal.explain(q, k, v, **paged)["problem"]
    assert ".gathered" in foveal.explain(q, k, v, backward=True, **paged)["kernel"]
    report = foveal.check(q, k, v, dout=np.ones_like(out), **paged)
    assert report and not report.refused, str(report)
    assert foveal.check('backward bf16 b2 h4:2 q9:50 d32 pages=32:3 mask="causal()"')


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (7, 0)])
def test_varlen_attn(window):
    keys, (k, v), table, lengths = cache()
    counts = [3, 1, 2, 5]
    q = torch.randn(sum(counts), 4, 8, dtype=torch.float64, requires_grad=True)
    cu_q = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    found, lse = foveal.torch.varlen_attn(
        q, k, v, cu_q, None, 5, 64, window_size=window, enable_gqa=True, seqused_k=lengths, block_table=table, return_aux=AuxRequest(lse=True)
    )  # fmt: skip
    cu_k = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)
    packed = [torch.cat(rows_of(pool, table, lengths)) for pool in (k, v)]
    expected, expected_lse = foveal.torch.varlen_attn(
        q, *packed, cu_q, cu_k, 5, 64, window_size=window, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    assert torch.equal(found, expected) and torch.equal(lse, expected_lse)
    for a, b in zip(*[torch.autograd.grad(out.pow(2).sum(), (q, k, v)) for out in (found, expected)]):
        torch.testing.assert_close(a, b)


def test_module_compile_and_functorch():
    _, (k, v), table, lengths = cache(dtype=torch.float32)
    k, v = (torch.nan_to_num(pool.detach()).requires_grad_() for pool in (k, v))
    q = queries(2, dtype=torch.float32)
    module = foveal.torch.Attention(mask=foveal.causal_bottom_right())
    expected = module(q, k, v, block_table=table, seqlens_kv=lengths)
    gradients = torch.autograd.grad(expected.sum(), (q, k, v))

    compiled = torch.compile(lambda *x: module(*x, block_table=table, seqlens_kv=lengths), fullgraph=True, backend="aot_eager")
    out = compiled(q, k, v)
    assert torch.equal(out, expected)
    for a, b in zip(torch.autograd.grad(out.sum(), (q, k, v)), gradients):
        assert torch.equal(a, b)

    vmapped = torch.func.vmap(lambda one: module(one, k, v, block_table=table, seqlens_kv=lengths))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(vmapped[0], expected)
    with pytest.warns(MaterializedWarning):
        _, tangent = torch.func.jvp(lambda one: module(one, k, v, block_table=table, seqlens_kv=lengths), (q,), (torch.ones_like(q),))
    step = 1e-2
    slope = (module(q + step, k, v, block_table=table, seqlens_kv=lengths) - module(q - step, k, v, block_table=table, seqlens_kv=lengths)) / (2 * step)
    torch.testing.assert_close(tangent, slope, atol=2e-3, rtol=2e-2)


def test_one_plan_for_all_tables_and_lengths():
    _, (k, v), table, lengths = cache(dtype=torch.float32)
    q = queries(1, dtype=torch.float32)
    planner = bound(None, None, Options(), {}, heads_first=False)[0]
    foveal.torch.attention(q, k, v, block_table=table, seqlens_kv=lengths)
    before = planner.planned
    for n in (1, 16, 30):
        foveal.torch.attention(q, k, v, block_table=table.flip(0), seqlens_kv=torch.zeros_like(lengths) + torch.tensor([n, 0, 0, 0]).int())
    assert planner.planned == before


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(seqlens_kv=None), ValueError, "seqlens_kv: absent beside block_table"),
        (dict(block_table=None), ValueError, "block_table: absent beside seqlens_kv"),
        (dict(block_table=torch.zeros(4, 4)), ValueError, "block_table: dtype f32; expected i32"),
        (dict(block_table=torch.zeros(4, 4, dtype=torch.int64)), ValueError, "block_table: dtype i64; expected i32"),
        (dict(block_table=[[0]]), TypeError, "block_table: found list; expected a"),
        (dict(block_table=torch.full((4, 4), 99, dtype=torch.int32), checked=True), ValueError, r"block_table: page 99 at \[0, 0\]; expected 0 to 10"),
        (dict(seqlens_kv=torch.tensor([65, 0, 0, 0]), checked=True), ValueError, "seqlens_kv: 65 of sequence 0; expected 0 to 64"),
        (dict(cu_seqlens=(torch.tensor([0, 1]), torch.tensor([0, 1]))), ValueError, "cu_seqlens: for kv: given beside a block_table"),
        (dict(page_table=1), TypeError, "page_table: no argument of this function; expected block_table"),
    ],
)
def test_wrong_calls(change, error, words):
    _, (k, v), table, lengths = cache()
    arguments = {"block_table": table, "seqlens_kv": lengths, **change}
    with pytest.raises(error, match=words):
        foveal.torch.attention(queries(1), k, v, **arguments)


def test_page_sizes_are_multiples_of_16():
    k = torch.zeros(4, 8, 2, 8)
    with pytest.raises(ValueError, match="k: page_size 8 in dimension 1; expected a multiple of 16"):
        foveal.torch.attention(torch.zeros(1, 1, 2, 8), k, k, block_table=torch.zeros(1, 1, dtype=torch.int32), seqlens_kv=torch.ones(1, dtype=torch.int32))
