"""What each rank of test_sharded.py runs: attention of distributed tensors beside the whole tensors' own."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

import foveal
import foveal.torch as ft

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


Q, K, V, BIAS, SLOPES, SINK = random(4, 4, 8, 8), random(4, 4, 8, 8), random(4, 4, 8, 8), random(4, 4, 8, 8), random(4), random(4)


def sunk(q, k, v, sink):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return ft.attention(q, k, v, mask=foveal.causal(), sink=sink).transpose(1, 2)


def alibi(q, k, v, slopes):
    return ft.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i) + 0.1 * b * i)


CASES = [
    (lambda q, k, v: ft.scaled_dot_product_attention(q, k, v, is_causal=True), ()),
    (lambda q, k, v, mask: ft.scaled_dot_product_attention(q, k, v, attn_mask=mask), (BIAS,)),
    (alibi, (SLOPES,)),
    (sunk, (SINK,)),
]


def is_right(mesh, placements, function, others, of_others):
    whole = [t.clone().requires_grad_() for t in (Q, K, V, *others)]
    expected = function(*whole)
    shards = [distribute_tensor(t, mesh, placements).requires_grad_() for t in (Q, K, V)]
    shards += [distribute_tensor(t, mesh, of_others).requires_grad_() for t in others]
    found = function(*shards)
    assert list(found.placements) == list(placements)
    wanted = (expected, *torch.autograd.grad(expected.sin().sum(), whole))
    for ours, theirs in zip((found, *torch.autograd.grad(found.sin().sum(), shards)), wanted):
        torch.testing.assert_close(ours.full_tensor(), theirs, rtol=1e-9, atol=1e-9)


def is_refused(error, words, call):
    try:
        call()
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(f"not refused: {words}")


def refusals(mesh):
    sdpa, everywhere = ft.scaled_dot_product_attention, [Replicate()] * mesh.ndim
    for placement in (Shard(2), Shard(3), Partial()):
        t = DTensor.from_local(Q, mesh, [placement, *everywhere[1:]])
        is_refused(NotImplementedError, "expected Replicate() or Shard() of the batch or the heads", lambda: sdpa(t, t, t))  # noqa: B023
    q = distribute_tensor(Q, mesh, [Shard(1), *everywhere[1:]])
    is_refused(TypeError, "key: found a torch.Tensor beside distributed ones", lambda: sdpa(q, K, V))
    is_refused(ValueError, "value: placed as", lambda: sdpa(q, q, distribute_tensor(V, mesh, everywhere)))
    is_refused(NotImplementedError, "dropout_p: dropout of distributed tensors", lambda: sdpa(q, q, q, dropout_p=0.5))
    is_refused(TypeError, "attn_mask: found a torch.Tensor that requires a gradient", lambda: sdpa(q, q, q, attn_mask=BIAS.clone().requires_grad_()))
    packed, cu = Q.flatten(0, 1), torch.tensor([0, 10, 16])
    of_ranks = distribute_tensor(cu, mesh, everywhere)
    told = "found a DTensor beside plain tensors; expected a plain one: full_tensor()"
    is_refused(TypeError, f"attention: cu_seqlens: for q: {told}", lambda: ft.attention(packed, packed, packed, cu_seqlens=(of_ranks, cu), max_seqlens=(10, 10)))
    is_refused(TypeError, f"varlen_attn: cu_seq_k: {told}", lambda: ft.varlen_attn(packed, packed, packed, cu, of_ranks, 10, 10))
    is_refused(TypeError, f"attention: rng_state: {told}", lambda: ft.attention(Q, Q, Q, dropout_p=0.5, rng_state=of_ranks[:2]))
    odd = distribute_tensor(Q[:, :3].contiguous(), mesh, [Shard(1), *everywhere[1:]])
    is_refused(ValueError, "query: 3 of dim 1 over 2 ranks; expected a multiple of them", lambda: sdpa(odd, odd, odd))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
    for mesh, every in (
        (init_device_mesh("cpu", (4,)), ([Shard(0)], [Shard(1)], [Replicate()])),
        (init_device_mesh("cpu", (2, 2)), ([Shard(0), Shard(1)], [Shard(1), Shard(0)], [Replicate(), Shard(1)], [Shard(1), Shard(1)])),
    ):
        for placements in every:
            for function, others in CASES:
                is_right(mesh, placements, function, others, [Replicate()] * mesh.ndim)
        is_right(mesh, every[0], *CASES[1], [Shard(0)] * mesh.ndim)  # a mask of shards is gathered
    refusals(mesh)
    dist.destroy_process_group()


main()
