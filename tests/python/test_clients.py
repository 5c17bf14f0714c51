"""Ways in which FlexAttention is used by others, written anew: paged caches, rings, transforms of transforms, recursive helpers."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import foveal
import foveal.torch
from places import seeded

B, H, LEN, DIM, PAGE = 2, 2, 48, 8, 16


def tensors(seqlen=LEN, seed=0, batch=B):
    generator = seeded(seed)
    return [torch.randn(batch, H, seqlen, DIM, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def full(q, k, v, mask_mod, score_mod=None):
    places = [torch.arange(n).reshape([n if d == at else 1 for d in range(4)]) for at, n in enumerate((q.shape[0], H, q.shape[2], k.shape[2]))]
    s = q @ k.transpose(-1, -2) / DIM**0.5
    s = s if score_mod is None else score_mod(s, *places)
    s = s.masked_fill(~mask_mod(*places), -math.inf)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Pages:
    """Keys of several sequences in pages of one long row: page_table[b, logical block] = physical block, as paged caches have it."""

    def __init__(self, blocks):
        order = torch.randperm(B * blocks + 3, generator=seeded(3))[: B * blocks]
        self.table = order.reshape(B, blocks)
        self.physical = B * blocks + 3
        self.logical = torch.full((B, self.physical), -1)
        self.logical.scatter_(1, self.table, torch.arange(blocks).expand(B, blocks))

    def scatter(self, x):
        """[1, heads, pages * PAGE, dim] of [batch, heads, seqlen, dim]."""
        paged = x.new_full((H, self.physical, PAGE, DIM), 7.0)
        for b in range(B):
            paged = paged.index_copy(1, self.table[b], x[b].reshape(H, -1, PAGE, DIM))
        return paged.reshape(1, H, -1, DIM)

    def converted(self, block_mask):
        """The lists of a BlockMask of logical blocks as one of physical blocks, its mask_mod from physical to logical positions."""

        def lists(counts, indices):
            found = torch.zeros((B, 1, indices.shape[2], self.physical), dtype=torch.int32)
            for b in range(B):
                found[b, 0, :, : indices.shape[3]] = self.table[b][indices[min(b, indices.shape[0] - 1), 0].long()].int()
            return counts.expand(B, -1, -1).contiguous(), found

        logical, inner = self.logical, block_mask.mask_mod

        def mask_mod(b, h, q_idx, physical_idx):
            block = logical[b, physical_idx // PAGE]
            return torch.where(block >= 0, inner(b, h, q_idx, block * PAGE + physical_idx % PAGE), False)

        return BlockMask.from_kv_blocks(
            *lists(block_mask.kv_num_blocks, block_mask.kv_indices), *lists(block_mask.full_kv_num_blocks, block_mask.full_kv_indices), PAGE, mask_mod,
            seq_lengths=(LEN, self.physical * PAGE),
        )  # fmt: skip

    def score_mod(self, inner):
        logical = self.logical
        return lambda s, b, h, q_idx, p: torch.where(logical[b, p // PAGE] >= 0, inner(s, b, h, q_idx, logical[b, p // PAGE] * PAGE + p % PAGE), -math.inf)


@pytest.mark.parametrize("scored", [False, True])
def test_paged_caches(scored):
    q, k, v = tensors()
    pages = Pages(LEN // PAGE)
    score_mod = (lambda s, b, h, i, j: s + 0.125 * (j - i) * (h + 1)) if scored else None
    block_mask = pages.converted(create_block_mask(causal, 1, 1, LEN, LEN, device=torch.get_default_device(), BLOCK_SIZE=PAGE))
    found = foveal.torch.flex_attention(q, pages.scatter(k), pages.scatter(v), pages.score_mod(score_mod) if scored else None, block_mask)
    wanted, _ = full(q, k, v, causal, score_mod)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    for a, b in zip(torch.autograd.grad(found.sin().sum(), (q, k, v)), torch.autograd.grad(wanted.sin().sum(), (q, k, v))):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mask", ["causal", "window"])
def test_rings(ranks, mask):
    """Each rank's queries see the others' keys in turn; parts are merged by their lse, gradients flow through it."""
    mask_mod = causal if mask == "causal" else lambda b, h, i, j: (i - j).abs() <= 9
    q, k, v = tensors()
    shard = LEN // ranks
    results = []
    for rank in range(ranks):
        own = q[:, :, rank * shard : (rank + 1) * shard]
        out, lse = None, None
        for other in range(ranks):

            def shifted(b, h, i, j, rank=rank, other=other):
                return mask_mod(b, h, i + rank * shard, j + other * shard)

            part, part_lse = foveal.torch.flex_attention(
                own, *[t[:, :, other * shard : (other + 1) * shard] for t in (k, v)], block_mask=shifted, return_lse=True
            )
            if out is None:
                out, lse = part, part_lse
                continue
            both = torch.logaddexp(lse, part_lse)
            both = torch.where(both == -math.inf, 0.0, both)
            out = out * torch.exp(lse - both)[..., None] + part * torch.exp(part_lse - both)[..., None]
            lse = torch.logaddexp(lse, part_lse)
        results.append(out)
    found = torch.cat(results, 2)
    wanted, _ = full(q, k, v, mask_mod)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    if mask == "window" or ranks == 2:
        gradients = torch.autograd.grad(found.sin().sum(), (q, k, v))
        for a, b in zip(gradients, torch.autograd.grad(wanted.sin().sum(), (q, k, v))):
            torch.testing.assert_close(a.nan_to_num(0.0) if mask == "causal" else a, b, rtol=1e-5, atol=1e-7)


MODS = {
    "leaky_relu": lambda s, b, h, i, j: torch.nn.functional.leaky_relu(s, 0.2),
    "elu": lambda s, b, h, i, j: torch.nn.functional.elu(s),
    "selu": lambda s, b, h, i, j: torch.selu(s),
    "mish": lambda s, b, h, i, j: torch.nn.functional.mish(s),
    "hardtanh": lambda s, b, h, i, j: torch.nn.functional.hardtanh(s),
    "relu6": lambda s, b, h, i, j: torch.nn.functional.relu6(s),
    "hardsigmoid": lambda s, b, h, i, j: torch.nn.functional.hardsigmoid(s),
    "logsigmoid": lambda s, b, h, i, j: torch.nn.functional.logsigmoid(s),
    "bits": lambda s, b, h, i, j: s + ((i & 3) | (j ^ 5)) * 0.125,
    "shifts": lambda s, b, h, i, j: s + ((i << 2) - (j >> 1)) * 0.125,
    "round and ceil": lambda s, b, h, i, j: s + torch.round(s) * 0.5 + torch.ceil(i / 4),
    "logaddexp": lambda s, b, h, i, j: torch.logaddexp(s, s * 0.5),
    "where of booleans": lambda s, b, h, i, j: torch.where(torch.where(i > j, True, h == 0), s, s - 1.0),
    "unsqueeze and max": lambda s, b, h, i, j: torch.cat([s.unsqueeze(0), (s * 0.5).unsqueeze(0)]).max(),
    "any and all": lambda s, b, h, i, j: s + (torch.stack([i > j, i == 3]).any() | torch.stack([j > 2, h == 1]).all()) * 0.5,
    "last column": lambda s, b, h, i, j: s + TABLE[h, -1] + TABLE[h, i],
    "slices and ellipsis": lambda s, b, h, i, j: s + TABLE[..., 1:][h, j % 8] + TABLE[:, ::2][h, i % 4],
    "constant indices": lambda s, b, h, i, j: s + TABLE[torch.tensor([0, 1]), torch.tensor([2, 3])].sum() + TABLE[torch.tensor(1), j % 9],
    "min of many": lambda s, b, h, i, j: s + torch.amin(torch.stack([i, j, h + 5])) * 0.125,
}  # fmt: skip
TABLE = torch.randn(H, 48, generator=seeded(5), dtype=torch.float64)


@pytest.mark.parametrize("name", MODS)
def test_mods(name):
    mod = MODS[name]
    q, k, v = tensors(9)
    found = foveal.torch.flex_attention(q, k, v, mod)

    def at_each_pair(s, b, h, i, j):
        one = lambda *at: mod(s[at], *[torch.tensor(x) for x in at])  # noqa: E731
        rows = [[[[one(b, h, i, j) for j in range(9)] for i in range(9)] for h in range(H)] for b in range(B)]
        return torch.stack([torch.stack([torch.stack([torch.stack(row) for row in head]) for head in batch]) for batch in rows])

    wanted, _ = full(q, k, v, lambda b, h, i, j: i == i, at_each_pair)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    for a, b in zip(torch.autograd.grad(found.sin().sum(), (q, k, v)), torch.autograd.grad(wanted.sin().sum(), (q, k, v))):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def distance(i, j, depth):
    """Of a function that has the name of an attribute that it reads, and calls itself."""
    return (i - j).abs() if depth == 0 else distance(i, j, depth - 1) * 0.5


def test_recursive_helpers():
    q, k, v = tensors(9)
    found = foveal.torch.flex_attention(q, k, v, lambda s, b, h, i, j: s - distance(i, j, 3))
    torch.testing.assert_close(found, full(q, k, v, lambda b, h, i, j: i == i, lambda s, b, h, i, j: s - distance(i, j, 3))[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("door", ["flex", "sdpa", "attention"])
def test_transforms_of_transforms(door):
    """vmap of vmap, grad under vmap, vmap over one argument alone."""
    bias = torch.randn(H, generator=seeded(1), dtype=torch.float64)

    def attend(q, k, v):
        if door == "sdpa":
            return foveal.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
        if door == "flex":
            return foveal.torch.flex_attention(q, k, v, lambda s, b, h, i, j: s * 0.5 + bias[h], causal)
        return foveal.torch.attention(*[t.transpose(1, 2) for t in (q, k, v)], lambda s, b, h, i, j: s * 0.5 + bias[h], causal).transpose(1, 2)

    generator = seeded(2)
    q, k, v = (torch.randn(3, 2, B, H, 5, DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    one_by_one = torch.stack([torch.stack([attend(q[a, c], k[a, c], v[a, c]) for c in range(2)]) for a in range(3)])
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(attend))(q, k, v), one_by_one)
    across = torch.func.vmap(torch.func.vmap(attend, in_dims=(0, None, 0)), in_dims=(0, None, None))(q, k[0, 0], v[0])
    torch.testing.assert_close(across, torch.stack([torch.stack([attend(q[a, c], k[0, 0], v[0, c]) for c in range(2)]) for a in range(3)]))
    loss = lambda q, k, v: attend(q, k, v).sin().sum()  # noqa: E731
    found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q[0], k[0], v[0])
    for at, gradient in enumerate(found):
        alone = torch.stack([torch.func.grad(loss, argnums=at)(q[0, c], k[0, c], v[0, c]) for c in range(2)])
        torch.testing.assert_close(gradient, alone)
