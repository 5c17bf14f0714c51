"""BlockMasks: what their lists say holds, beside a dense mask made from the lists one block at a time."""

import time

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, noop_mask

import foveal
import foveal.torch
from foveal.torch import block_masks
from foveal.torch.block_masks import as_mask
from places import seeded


def causal(b, h, q, kv):
    return q >= kv


def dense(block_mask, batch, heads, mask_mod):
    """[batch, heads, seqlen_q, seqlen_kv], from the lists, block by block."""
    seqlen_q, seqlen_kv = block_mask.seq_lengths
    block_q, block_kv = block_mask.BLOCK_SIZE
    keep = torch.zeros(batch, heads, seqlen_q, seqlen_kv, dtype=torch.bool)
    lists = [(block_mask.kv_num_blocks, block_mask.kv_indices, False), (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True)]
    for b in range(batch):
        for h in range(heads):
            for num_blocks, indices, full in lists:
                if num_blocks is None:
                    continue
                at = (b % num_blocks.shape[0], h % num_blocks.shape[1])
                for row in range(indices.shape[2]):
                    for column in indices[at][row][: num_blocks[at][row]].tolist():
                        q = torch.arange(row * block_q, min((row + 1) * block_q, seqlen_q))[:, None]
                        kv = torch.arange(column * block_kv, min((column + 1) * block_kv, seqlen_kv))[None, :]
                        kept = torch.ones(len(q), kv.shape[1], dtype=torch.bool) if full or mask_mod is None else mask_mod(b, h, q, kv)
                        keep[b, h, q, kv] = kept
    return keep


def check(block_mask, mask_mod, batch=2, heads=2, seqlen_q=None, seqlen_kv=None):
    generator = seeded(0)
    lengths = block_mask.seq_lengths
    q = torch.randn(batch, heads, lengths[0], 8, generator=generator, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(batch, heads, lengths[1], 8, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2))
    keep = dense(block_mask, batch, heads, mask_mod)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    found, lse = foveal.torch.flex_attention(q, k, v, block_mask=block_mask, return_lse=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(lse == -torch.inf, ~keep.any(-1))
    gradients = [torch.autograd.grad(out.pow(2).sum(), (q, k, v)) for out in (found, expected)]
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def random_lists(batch, heads, rows, columns, seed=0):
    """kv_num_blocks and kv_indices; what lies past the number of blocks is rubbish."""
    generator = seeded(seed)
    kept = torch.rand(batch, heads, rows, columns, generator=generator) < 0.4
    num_blocks = kept.sum(-1).to(torch.int32)
    indices = torch.argsort(~kept, dim=-1, stable=True).to(torch.int32)
    rubbish = torch.arange(columns) >= num_blocks[..., None]
    return num_blocks, torch.where(rubbish, torch.tensor(10**6, dtype=torch.int32), indices), kept


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("block_size", [16, (16, 32), (32, 16)])
@pytest.mark.parametrize("mask_mod", [None, causal], ids=["no mask_mod", "causal"])
@pytest.mark.parametrize("lengths", [(64, 96), (60, 90)])
def test_lists_of_partial_blocks(batch, heads, block_size, mask_mod, lengths):
    block_q, block_kv = (block_size, block_size) if isinstance(block_size, int) else block_size
    rows, columns = -(-lengths[0] // block_q), -(-lengths[1] // block_kv)
    num_blocks, indices, kept = random_lists(batch, heads, rows, columns)
    block_mask = BlockMask.from_kv_blocks(num_blocks, torch.where(indices > columns, 0, indices), BLOCK_SIZE=block_size, mask_mod=mask_mod, seq_lengths=lengths)
    block_mask.kv_indices = indices
    check(block_mask, mask_mod)


def test_lists_of_full_and_partial_blocks():
    num_blocks, indices, kept = random_lists(1, 2, 4, 6)
    others = ~kept & (torch.rand(kept.shape, generator=seeded(1)) < 0.5)
    full = others.sum(-1).to(torch.int32), torch.argsort(~others, dim=-1, stable=True).to(torch.int32)
    lists = (num_blocks, torch.where(indices > 6, 0, indices), *full)
    check(BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=16, mask_mod=causal, seq_lengths=(64, 96)), causal)


@pytest.mark.parametrize("mask_mod", [causal, noop_mask, and_masks(causal, lambda b, h, q, kv: q - kv < 20), lambda b, h, q, kv: (q + h) % 3 > kv % 2])
@pytest.mark.parametrize("batch_and_heads", [(None, None), (2, None), (2, 2)])
def test_masks_of_create_block_mask(mask_mod, batch_and_heads):
    block_mask = create_block_mask(mask_mod, *batch_and_heads, 70, 90, device=torch.get_default_device(), BLOCK_SIZE=16)
    check(block_mask, lambda *at: torch.func.vmap(torch.func.vmap(mask_mod, in_dims=(None, None, None, 0)), in_dims=(None, None, 0, None))(
        torch.tensor(at[0]), torch.tensor(at[1]), at[2][:, 0], at[3][0]))  # fmt: skip


def test_adjusted_masks():
    block_mask = create_block_mask(causal, None, None, 128, 128, device=torch.get_default_device(), BLOCK_SIZE=16)
    check(block_mask._adjust(70, 100), causal)


def test_sliced_masks_need_a_mask_mod_as_torchs_do():
    block_mask = create_block_mask(causal, 2, 2, 64, 64, device=torch.get_default_device(), BLOCK_SIZE=16)
    q = torch.randn(1, 2, 64, 8)
    part = block_mask[0:1]
    with pytest.raises(RuntimeError, match="slice"):
        foveal.torch.flex_attention(q, q, q, block_mask=part)
    part.mask_mod = causal
    check(part, causal, batch=1)


def test_blocks_that_are_not_listed_are_not_visited():
    """A thirty-second of the blocks, on the diagonal, beside all of them; on the CPU, where a call has ended when it returns."""
    q = torch.randn(1, 4, 2048, 64, device="cpu")
    rows = torch.arange(32, dtype=torch.int32, device="cpu")
    diagonal = BlockMask.from_kv_blocks(torch.ones(1, 1, 32, dtype=torch.int32, device="cpu"), rows.reshape(1, 1, 32, 1).expand(-1, -1, -1, 32).contiguous(), BLOCK_SIZE=64)
    found = foveal._core.tile_classes(
        *(lambda d: (d.mask, d.params, d.arrays))(foveal.describe.describe(None, as_mask(diagonal, q, 2048), tracer=foveal.torch.tracing.TorchTracer())),
        2048, 2048, 64, 64, 0, 0,
    )  # fmt: skip
    assert torch.equal(torch.frombuffer(bytearray(found), dtype=torch.int8).reshape(32, 32), 2 * torch.eye(32, dtype=torch.int8, device="cpu"))

    def seconds(block_mask):
        return min(timed(block_mask) for _ in range(3))

    def timed(block_mask):
        begin = time.perf_counter()
        foveal.torch.flex_attention(q, q, q, block_mask=block_mask)
        return time.perf_counter() - begin

    assert seconds(diagonal) < 0.5 * seconds(None)


def test_where_mask_mod_says_it_all_the_lists_are_not_read():
    """Kernels know causal masks; a table would be read at every pair."""
    q = torch.randn(1, 2, 64, 8)
    assert as_mask(create_block_mask(causal, None, None, 64, 64, device=torch.get_default_device(), BLOCK_SIZE=16), q, 64) is causal
    cropped = create_block_mask(causal, None, None, 64, 64, device=torch.get_default_device(), BLOCK_SIZE=16)
    cropped.kv_num_blocks[0, 0, 2] = 0
    assert as_mask(cropped, q, 64) is not causal


def test_a_mask_that_is_changed_in_place_counts_anew():
    q = torch.randn(1, 1, 32, 8)
    block_mask = BlockMask.from_kv_blocks(torch.ones(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32), BLOCK_SIZE=16)
    first = foveal.torch.flex_attention(q, q, q, block_mask=block_mask)
    assert as_mask(block_mask, q, 32) is as_mask(block_mask, q, 32)
    block_mask.kv_indices[..., 0] = 1
    second = foveal.torch.flex_attention(q, q, q, block_mask=block_mask)
    torch.testing.assert_close(first, foveal.torch.flex_attention(q, q[:, :, :16], q[:, :, :16]))
    torch.testing.assert_close(second, foveal.torch.flex_attention(q, q[:, :, 16:], q[:, :, 16:]))


@pytest.mark.parametrize("how", ["data", "swap", "set"])
def test_lists_with_other_memory_count_anew(how):
    q = torch.randn(1, 1, 32, 8)
    block_mask = BlockMask.from_kv_blocks(torch.ones(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32), BLOCK_SIZE=16)
    foveal.torch.flex_attention(q, q, q, block_mask=block_mask)
    other = torch.ones_like(block_mask.kv_indices)
    if how == "data":
        block_mask.kv_indices.data = other
    elif how == "swap":
        torch.utils.swap_tensors(block_mask.kv_indices, other)
    else:
        block_mask.kv_indices.set_(other)
    found = foveal.torch.flex_attention(q, q, q, block_mask=block_mask)
    torch.testing.assert_close(found, foveal.torch.flex_attention(q, q[:, :, 16:], q[:, :, 16:]))


@pytest.mark.parametrize("write", [lambda t: t.data.fill_(1), lambda t: t.numpy().fill(1), lambda t: t.detach().data.add_(1)], ids=["data", "numpy", "view"])
@pytest.mark.parametrize("inference", [False, True])
def test_lists_that_are_written_past_torch_count_anew(write, inference):
    """On CPUs, where looking at them costs nothing."""
    with torch.inference_mode(inference):
        q = torch.randn(1, 1, 32, 8)
        block_mask = BlockMask.from_kv_blocks(torch.ones(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32), BLOCK_SIZE=16)
        foveal.torch.flex_attention(q, q, q, block_mask=block_mask)
        write(block_mask.kv_indices)
        found = foveal.torch.flex_attention(q, q, q, block_mask=block_mask)
        torch.testing.assert_close(found, foveal.torch.flex_attention(q, q[:, :, 16:], q[:, :, 16:]))


def test_inside_compiled_code():
    num_blocks, indices, _ = random_lists(1, 1, 4, 4)
    block_mask = BlockMask.from_kv_blocks(num_blocks, torch.where(indices > 4, 0, indices), BLOCK_SIZE=16)
    q = torch.randn(1, 2, 64, 8)

    def model(q):
        return foveal.torch.flex_attention(q * 2, q, q, block_mask=block_mask)

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(q), model(q))


@pytest.mark.parametrize(
    ("made_for", "shape", "words"),
    [
        ((None, None, 64, 64), (1, 2, 60, 8), "block_mask: made for seqlen_q x seqlen_kv of 64 x 64; expected 60 x 60.*_adjust"),
        ((None, None, 64, 64), (1, 2, 80, 8), "block_mask: made for seqlen_q x seqlen_kv of 64 x 64; expected 80 x 80"),
        ((3, None, 64, 64), (2, 2, 64, 8), "block_mask: made for batch 3 and 1 heads; expected 1 or 2, and 1 or 2"),
        ((None, 3, 64, 64), (2, 2, 64, 8), "block_mask: made for batch 1 and 3 heads"),
    ],
)
def test_masks_of_another_size_are_refused(made_for, shape, words):
    block_mask = create_block_mask(causal, *made_for, device=torch.get_default_device(), BLOCK_SIZE=16)
    q = torch.randn(shape)
    with pytest.raises((ValueError, RuntimeError), match=words):
        foveal.torch.flex_attention(q, q, q, block_mask=block_mask)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda q: (q.cpu().numpy(), q, q), TypeError, "query: found ndarray"),
        (lambda q: (q[0], q, q), RuntimeError, "query: rank 3; expected 4"),
        (lambda q: (q, q.double(), q), RuntimeError, "key: dtype torch.float64; expected torch.float32, query's"),
        (lambda q: (q.int(), q, q), RuntimeError, "query: dtype torch.int32"),
        (lambda q: (q, q[..., :4], q), RuntimeError, "key: head_dim 4; expected 8"),
        (lambda q: (q, q[:, :, :5], q), RuntimeError, "value: batch, heads, seqlen of"),
        (lambda q: (q, q[:, :1], q[:, :1]), ValueError, "enable_gqa"),
        (lambda q: (q.to("meta"), q, q), RuntimeError, "query: torch.strided on meta"),
        (lambda q: (q, q.repeat(3, 1, 1, 1), q.repeat(3, 1, 1, 1)), RuntimeError, "key: batch 6; expected 2, query's, or 1"),
    ],
)
def test_refusals(change, error, words):
    with pytest.raises(error, match=f"flex_attention: .*{words}"):
        foveal.torch.flex_attention(*change(torch.randn(2, 2, 16, 8)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"block_mask": torch.ones(16, 16, dtype=torch.bool)}, "block_mask: found Tensor; expected a BlockMask"),
        ({"kernel_options": 3}, "kernel_options: found int; expected a dict"),
        ({"return_aux": True}, "return_aux: found bool; expected an AuxRequest"),
    ],
)
def test_wrong_options_are_named(wrong, words):
    with pytest.raises(TypeError, match=f"foveal.torch.flex_attention: {words}"):
        foveal.torch.flex_attention(*[torch.randn(2, 2, 16, 8)] * 3, **wrong)


def test_aux_outputs():
    """torch's own has no max_scores on the CPU: beside all scores in memory."""
    from torch.nn.attention.flex_attention import AuxRequest

    q, k, v = torch.randn(2, 4, 300, 8), torch.randn(2, 2, 300, 8), torch.randn(2, 2, 300, 8)
    bias = torch.randn(4)
    keep = torch.ones(300, 300, dtype=torch.bool).tril() & (torch.arange(300) > 2)[:, None]

    def score(s, b, h, i, j):
        return torch.tanh(s) * 3 + bias[h]

    raw = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 8**-0.5
    scores = (torch.tanh(raw) * 3 + bias[:, None, None]).masked_fill(~keep, -torch.inf)
    block_mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q > 2), None, None, 300, 300, device=torch.get_default_device(), BLOCK_SIZE=16)
    arguments = dict(score_mod=score, block_mask=block_mask, enable_gqa=True)
    out, aux = foveal.torch.flex_attention(q, k, v, **arguments, return_aux=AuxRequest(lse=True, max_scores=True))
    torch.testing.assert_close(aux.lse, scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aux.max_scores, scores.amax(-1), rtol=1e-5, atol=1e-5)
    assert torch.equal(out, foveal.torch.flex_attention(q, k, v, **arguments))
    assert foveal.torch.flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True))[1].max_scores is None
    with pytest.raises(ValueError, match="return_aux: must be None"):
        foveal.torch.flex_attention(q, k, v, enable_gqa=True, return_lse=True, return_aux=AuxRequest(lse=True))


REACH = 40


def test_a_mask_mod_whose_globals_change_is_compared_again(monkeypatch):
    q, k, v = (torch.randn(1, 2, 128, 8) for _ in range(3))
    near = lambda b, h, q_idx, kv_idx: abs(q_idx - kv_idx) < REACH  # noqa: E731
    block_mask = create_block_mask(near, None, None, 128, 128, device=torch.get_default_device(), BLOCK_SIZE=16)
    listed = block_mask.to_dense().repeat_interleave(16, -2).repeat_interleave(16, -1)[..., :128, :128].bool()
    distance = (torch.arange(128)[:, None] - torch.arange(128)).abs()
    full = torch.zeros_like(listed[0, 0])
    for row, count in enumerate(block_mask.full_kv_num_blocks[0, 0].tolist()):
        for column in block_mask.full_kv_indices[0, 0, row, :count].tolist():
            full[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = True
    for reach in (40, 70, 9):
        monkeypatch.setitem(globals(), "REACH", reach)
        keep = full | (listed[0, 0] & (distance < reach))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        torch.testing.assert_close(foveal.torch.flex_attention(q, k, v, block_mask=block_mask), expected, rtol=1e-4, atol=1e-5)


def test_a_mask_mod_that_asks_for_its_device_is_compared_as_on_that_device():
    """It was taken for a CPU's, whose mask may say the same as the lists where a GPU's does not."""
    tracer = foveal.torch.tracing.TorchTracer
    block_mask = create_block_mask(causal, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    table = block_masks._block_classes(block_mask)
    for kind in ("cpu", "cuda"):
        for asked in ("cpu", "cuda"):
            mask_mod = lambda b, h, q, kv: q >= kv if q.device.type == asked else q >= 0 * kv  # noqa: E731, B023
            said = block_masks._says_the_same(mask_mod, table, block_mask, 1, 1, tracer.like(torch.device(kind), torch.float32)())
            assert said == (kind == asked)
