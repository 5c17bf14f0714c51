"""foveal.torch.context_parallel on two processes of Gloo: every door, values and gradients as on one."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no Gloo here")

PRELUDE = """
import os, sys
import torch, torch.distributed as dist
import foveal, foveal.torch as ft
from torch.nn.attention.flex_attention import create_block_mask
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

def tensors(*shape, count=3, dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(count)]

def compare(context, door, whole, captured=(), dim=2, tolerance=2e-5):
    '''door(q, k, v) on shards under the context, and on the whole without it: out, gradients of q, k, v and of what was captured.'''
    expected = door(*whole)
    upstream = torch.randn_like(expected)
    want = torch.autograd.grad(expected, (*whole, *captured), upstream)
    with context:
        shards = [context.shard(t.detach(), dim).requires_grad_() for t in whole]
        out = door(*shards)
        found = torch.autograd.grad(out, (*shards, *captured), context.shard(upstream, dim))
        torch.testing.assert_close(context.unshard(out.detach(), dim), expected.detach(), atol=tolerance, rtol=tolerance)
        for a, b in zip(found[:3], want[:3]):
            torch.testing.assert_close(context.unshard(a, dim), b, atol=tolerance, rtol=tolerance)
        for a, b in zip(found[3:], want[3:]):
            torch.testing.assert_close(a, b, atol=10 * tolerance, rtol=10 * tolerance)
"""


def run(body: str, ranks: int = 2, killed: int | None = None) -> list[str]:
    """The body on so many processes; what each wrote. killed: the rank that does not end by itself."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    ends = "\ndist.barrier()\ndist.destroy_process_group()\n" if killed is None else "\nsys.stdout.flush()\nos._exit(0)\n"
    text = PRELUDE + textwrap.dedent(body) + ends
    started = [
        subprocess.Popen([sys.executable, "-c", text], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    outputs = []
    try:
        for rank, process in enumerate(started):
            out, err = process.communicate(timeout=120)
            assert (process.returncode == 0) != (rank == killed), err[-3000:]
            outputs.append(out)
    finally:
        for process in started:
            process.kill()
    return outputs


DOORS = """
for deal, head_groups in (("zigzag", 1), ("contiguous", 1), ("zigzag", 2)):
    context = ft.context_parallel(dist.group.WORLD, 101, seq_dim=2, deal=deal, head_groups=head_groups, unit=8, threads=1)
    whole = tensors(2, 4, 101, 16)
    compare(context, lambda q, k, v: ft.scaled_dot_product_attention(q, k, v, is_causal=True), whole)
    kv = tensors(2, 2, 101, 16, count=2)
    compare(context, lambda q, k, v: ft.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), [whole[0], *kv])
    bias = torch.randn(101, 101, requires_grad=True)
    compare(context, lambda q, k, v: ft.scaled_dot_product_attention(q, k, v, attn_mask=bias), whole, [bias])
    table = torch.randn(4, 101, requires_grad=True)
    documents = torch.arange(101) // 30
    block_mask = create_block_mask(lambda b, h, q, k: (documents[q] == documents[k]) & (k <= q), 2, 4, 101, 101, device=torch.get_default_device())
    scored = lambda q, k, v: ft.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, (i - j).clamp(0, 100)], block_mask)
    compare(context, scored, whole, [table])
    rows = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in whole]
    sink = torch.randn(4, requires_grad=True)
    compare(context, lambda q, k, v: ft.attention(q, k, v, None, "window(20)", sink=sink), rows, [sink], dim=1)
"""

DROPOUT = """
context = ft.context_parallel(dist.group.WORLD, 64, seq_dim=1, unit=8, threads=1)
q, k, v = tensors(1, 64, 2, 8)
whole = ft.attention(q, k, v, None, "causal()", dropout_p=0.5, seed=11)
with context:
    shards = [context.shard(t) for t in (q, k, v)]
    torch.testing.assert_close(context.unshard(ft.attention(*shards, None, "causal()", dropout_p=0.5, seed=11)), whole)
    torch.manual_seed(rank)  # the seed is rank 0's
    drawn = [t.transpose(1, 2) for t in shards]
    out = context.unshard(ft.scaled_dot_product_attention(*drawn, dropout_p=0.5).transpose(1, 2))
torch.manual_seed(0)
alone = ft.scaled_dot_product_attention(*[t.transpose(1, 2) for t in (q, k, v)], dropout_p=0.5).transpose(1, 2)
if rank == 0:
    torch.testing.assert_close(out, alone)
"""

TRAINING = """
x = torch.arange(2 * 50 * 3.0).reshape(2, 50, 3).requires_grad_()
context = ft.context_parallel(dist.group.WORLD, 50, unit=4, threads=1)
same = context.unshard(context.shard(x))
assert torch.equal(same, x)
same.sum().backward()
total = x.grad.clone()
dist.all_reduce(total)
assert torch.equal(total, torch.ones_like(x))
assert torch.equal(context.positions, context.shard(torch.arange(50), dim=0))
for dtype in (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.complex64):
    whole = torch.arange(100).reshape(50, 2).to(dtype)
    again = context.unshard(context.shard(whole, dim=0), dim=0)
    assert again.dtype == dtype and torch.equal(again.view(torch.uint8), whole.view(torch.uint8)), dtype

model = torch.nn.Linear(8, 24)
tokens, labels = torch.randn(1, 50, 8), torch.randn(1, 50, 8)
def loss_of(tokens, labels):
    q, k, v = model(tokens).reshape(1, -1, 3, 2, 4).unbind(2)
    return ((ft.attention(q, k, v, None, "causal()").reshape(1, -1, 8) - labels) ** 2).sum()
alone = loss_of(tokens, labels)
alone.backward()
want = model.weight.grad.clone()
model.zero_grad()
with context:
    loss = loss_of(context.shard(tokens), context.shard(labels))
    loss.backward()
together = torch.stack([loss.detach(), torch.tensor(0.0)])
dist.all_reduce(together)
dist.all_reduce(model.weight.grad)
torch.testing.assert_close(together[0], alone.detach())
torch.testing.assert_close(model.weight.grad, want, atol=1e-4, rtol=1e-4)
"""


def test_every_door_dropout_and_training_are_those_of_one_process():
    run(DOORS + DROPOUT + TRAINING)


PACKED = """
lengths = [37, 0, 5, 120, 64, 9]
total, cu = sum(lengths), torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
table = torch.randn(4, 120, requires_grad=True)
relative = lambda s, b, h, i, j: s + table[h, (i - j).clamp(0, 119)]
for options in ({}, {"deal": "pieces"}, {"deal": "contiguous", "head_groups": 2}, {"masks": ["causal()", "window(16)"]}):
    context = ft.context_parallel(dist.group.WORLD, lengths, seq_dim=0, unit=8, threads=1, **options)
    whole = [*tensors(total, 4, 16, count=1), *tensors(total, 2, 16, count=2)]
    attend = lambda q, k, v: ft.attention(q, k, v, relative, "causal()", cu_seqlens=(cu, cu))
    compare(context, attend, whole, [table], dim=0)
    compare(context, lambda q, k, v: ft.varlen_attn(q, k, v, cu, cu, 120, 120, window_size=(8, 0), enable_gqa=True), whole, dim=0)
    compare(context, torch.compile(attend, backend="aot_eager", fullgraph=False), whole, [table], dim=0)
q, k, v = [context.shard(t.detach()) for t in whole]
dropped = ft.attention(*whole, None, "causal()", cu_seqlens=(cu, cu), dropout_p=0.3, seed=5)
with context:
    torch.testing.assert_close(context.unshard(ft.attention(q, k, v, None, "causal()", cu_seqlens=(cu, cu), dropout_p=0.3, seed=5)), dropped)
    out, lse = ft.attention(q, k, v, None, "causal()", cu_seqlens=(cu, cu), return_lse=True)
_, whole_lse = ft.attention(*whole, None, "causal()", cu_seqlens=(cu, cu), return_lse=True)
torch.testing.assert_close(context.unshard(lse, 1), whole_lse)

want = attend(*whole).detach()

def refused(word, call, of=ValueError):
    try:
        call()
    except of as error:
        assert word in str(error), error
    else:
        raise AssertionError(word)

with context:
    refused("with a batch dimension", lambda: ft.attention(q[None], k[None], v[None]))
    wrong = cu if rank == 0 else torch.tensor([0, total], dtype=torch.int32)  # all ranks hear of it
    refused(f"sequences of [{total}] tokens", lambda: ft.attention(q, k, v, cu_seqlens=(wrong, wrong)))
    torch.testing.assert_close(context.unshard(ft.attention(q, k, v, relative, "causal()", cu_seqlens=(cu, cu)).detach()), want)
refused("expected 0 for packed", lambda: ft.context_parallel(dist.group.WORLD, lengths))
refused("each 0 or more", lambda: ft.context_parallel(dist.group.WORLD, [3, -1], seq_dim=0))
plain = ft.context_parallel(dist.group.WORLD, total, seq_dim=1, unit=8)
with plain:
    refused("to be their lengths", lambda: ft.attention(plain.shard(whole[0].detach(), 0), *[plain.shard(t.detach(), 0) for t in whole[1:]], cu_seqlens=(cu, cu)))
"""

LAYOUTS = """
# Documents of unequal lengths, which no deal that does not look at masks evens out, and a window.
documents = torch.repeat_interleave(torch.arange(5), torch.tensor([300, 10, 20, 40, 142]))
same = lambda b, h, q, k: (documents[q] == documents[k]) & (k <= q)
of_documents = create_block_mask(same, 1, 1, 512, 512, device=torch.get_default_device())
masks = [of_documents, "window(32)", lambda b, h, q, k: same(b, h, q, k), None]
context = ft.context_parallel(dist.group.WORLD, 512, seq_dim=2, unit=8, threads=1, masks=masks, heads=(4, 4, 16))
whole = tensors(1, 4, 512, 16)
for mask in (of_documents, None):
    compare(context, lambda q, k, v: ft.flex_attention(q, k, v, None, mask), whole)
rows = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in whole]
compare(context, lambda q, k, v: ft.attention(q, k, v, None, "window(32)"), rows, dim=1)

def pairs(context):  # of each rank
    mine = torch.tensor(float(sum((same(0, 0, q, torch.arange(512))).sum() for q in context.positions)))
    all_pairs = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(all_pairs, mine)
    return max(all_pairs) / (sum(all_pairs) / len(all_pairs))
even = ft.context_parallel(dist.group.WORLD, 512, seq_dim=2, unit=8, threads=1, masks=[of_documents], deal="pieces")
zigzag = ft.context_parallel(dist.group.WORLD, 512, seq_dim=2, unit=8, threads=1)
assert pairs(even) < 1.08 < 1.2 < pairs(zigzag), (pairs(even), pairs(zigzag))

for word, options in (("expected contiguous or zigzag", {"deal": "pieces"}), ("a list of one or more", {"masks": "causal()"}),
                      ("a list of one or more", {"masks": []}), ("each 1 or more", {"masks": [None], "heads": (0, 1, 2)}),
                      ("deal", {"masks": [None], "deal": "spiral"})):
    try:
        ft.context_parallel(dist.group.WORLD, 512, **options)
    except ValueError as error:
        assert word in str(error), error
    else:
        raise AssertionError(word)
"""


def test_packed_sequences_at_every_door():
    run(PACKED)


def test_one_layout_for_layers_of_different_masks():
    run(LAYOUTS)


COMPILED = """
from torch.utils.checkpoint import checkpoint
class Block(torch.nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.attend = ft.Attention("score + table[q_idx - kv_idx]", "causal()", params={"table": torch.nn.Parameter(bias)})
    def forward(self, x, positions):
        q, k, v = self.qkv(x + torch.sin(positions * 0.1)[None, :, None]).unflatten(-1, (3, 2, 8)).unbind(2)
        x = x + self.out(self.attend(q, k, v).flatten(2))
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).transpose(1, 3).unbind(2)
        return x + self.out(ft.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

torch.manual_seed(3)
model = Block(torch.randn(60))
x, labels, positions = torch.randn(2, 60, 16), torch.randn(2, 60, 16), torch.arange(60.0)
def gradients(run, x, labels, positions, scale=1.0):
    model.zero_grad()
    loss = ((run(x, positions) - labels) ** 2).sum()
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}
alone, want = gradients(model, x, labels, positions)
context = ft.context_parallel(dist.group.WORLD, 60, unit=4, threads=1)
local = context.shard(x), context.shard(labels), context.shard(positions, dim=0)
def check(loss, found):
    dist.all_reduce(loss)
    torch.testing.assert_close(loss, alone, atol=1e-3, rtol=1e-4)
    for name, g in found.items():
        if "table" not in name:  # summed over the ranks already
            dist.all_reduce(g)
        torch.testing.assert_close(g, want[name], atol=1e-3, rtol=1e-3, msg=lambda m: name + m)
with context:
    check(*gradients(model, *local))
    check(*gradients(lambda *a: checkpoint(model, *a, use_reentrant=False), *local))
    check(*gradients(lambda *a: checkpoint(model, *a, use_reentrant=True), local[0].clone().requires_grad_(), *local[1:]))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    check(*gradients(compiled, *local))

    compiled = torch.compile(lambda *a: checkpoint(model, *a, use_reentrant=False), fullgraph=True, backend="aot_eager")
    check(*gradients(compiled, *local))

    def dropping(x, labels):
        q, k, v = x.unflatten(-1, (2, 8)).transpose(1, 2), *[context.shard(t, dim=2) for t in (x2, x2)]
        out = ft.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        return context.unshard(out, dim=2), context.unshard(labels)
    x2 = torch.randn(2, 2, 60, 8)
    torch.manual_seed(5 + rank)
    b = torch.compile(dropping, fullgraph=True, backend="aot_eager")(local[0], local[1])
    torch.testing.assert_close(b[1], labels)
    whole = [torch.empty_like(b[0]) for _ in range(2)]
    dist.all_gather(whole, b[0])
    assert torch.equal(*whole)  # the seed is rank 0's

from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
fully_shard(model, mesh=mesh)
with ft.context_parallel(mesh, 60, unit=4, threads=1) as context:
    model.zero_grad()
    loss = ((model(local[0], local[2]) - local[1]) ** 2).sum()
    loss.backward()
    for name, p in model.named_parameters():
        g = p.grad.full_tensor() * (1 if "table" in name else 2)  # FSDP gives the mean over ranks
        torch.testing.assert_close(g, want[name], atol=1e-3, rtol=1e-3, msg=lambda m: name + m)

# The habit of parallelize_module: shards are DTensors, split along the sequence in the order of the plan.
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module
class Attends(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
torch.manual_seed(0)
whole = tensors(1, 2, 64, 8)
expected = Attends()(*whole)
want = torch.autograd.grad(expected.square().sum(), whole)
style = ft.ContextParallelStyle(64, seq_dim=2, unit=8, threads=1)
attends = parallelize_module(Attends(), mesh, style)
shards = [DTensor.from_local(style.context.shard(t.detach()), mesh, [Shard(2)]).requires_grad_() for t in whole]
out = attends(*shards)
assert isinstance(out, DTensor) and out.placements == (Shard(2),)
torch.testing.assert_close(style.context.unshard(out.to_local().detach()), expected.detach())
for g, w in zip(torch.autograd.grad(out.square().sum(), shards), want):
    torch.testing.assert_close(style.context.unshard(g.to_local()), w)
try:
    attends(*[DTensor.from_local(t.detach(), mesh, [Shard(1)]) for t in whole])
except ValueError as error:
    assert "context_parallel: argument 0: a DTensor of placements (Shard(dim=1),); expected Shard(2)" in str(error), error
else:
    raise AssertionError("a wrong placement was taken")
assert ft.calls.context is None
"""


def test_compiled_checkpointed_and_sharded_models_are_those_of_one_process():
    run(COMPILED)


def test_wrong_calls_are_refused_on_every_rank():
    outputs = run(
        """
        def message(fn):
            try:
                fn()
            except Exception as error:
                print(type(error).__name__, error)
        context = ft.context_parallel(dist.group.WORLD, 64, seq_dim=1, unit=8, threads=1)
        q, k, v = tensors(1, 64, 2, 8)
        with context:
            shards = [context.shard(t) for t in (q, k, v)]
            message(lambda: ft.attention(q, k, v))
            message(lambda: ft.attention(*shards, None, "causal()" if rank == 0 else "window(3)"))
            message(lambda: context.shard(shards[0]))
            message(lambda: torch.func.grad(lambda q: ft.attention(q, *shards[1:]).sum())(shards[0]))
            message(lambda: torch.vmap(lambda *qkv: ft.attention(*[t[None] for t in qkv])[0])(*shards))
            message(lambda: torch.func.jvp(lambda q: ft.attention(q, *shards[1:]), (shards[0],), (shards[0],)))
            message(lambda: torch.func.jvp(context.unshard, (shards[0],), (shards[0],)))
        message(lambda: ft.context_parallel(dist.group.WORLD, 64, deal="pieces"))
        message(lambda: ft.context_parallel(dist.group.WORLD, 64))
        message(lambda: ft.context_parallel(dist.group.WORLD, 64, head_groups=3))
        message(lambda: context.shard(torch.arange(64)))
        message(lambda: context.unshard(shards[0], -5))
        message(lambda: context.shard([1, 2]))
        message(lambda: ft.context_parallel(dist.group.WORLD, [64], seq_dim=0, head_groups=2, heads=(3, 3, 8)))
        from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
        everywhere = DTensor.from_local(q.detach(), init_device_mesh("cpu", (2,)), [Replicate()])
        message(lambda: context.shard(everywhere))
        message(lambda: context.unshard(everywhere))
        torch.testing.assert_close(ft.attention(q, k, v), ft.attention(q, k, v))  # outside, tensors are whole again
        """
    )
    for out in outputs:
        lines = out.splitlines()
        assert "query and key have 64 and 64 tokens; expected this rank's 32 of 64" in lines[0]
        assert lines[1].startswith("ValueError") and "ranks 0 and 1 differ in description" in lines[1]
        assert "shard: tensor: 32 tokens in dimension 1; expected the whole sequence, 64" in lines[2]
        assert all(["NotImplementedError" in line and "torch.func (grad, vmap, jvp)" in line for line in lines[3:7]])
        assert "expected contiguous or zigzag" in lines[7]
        assert "leaves a rank of 2 without tokens; expected a lower unit" in lines[8]
        assert "head_groups: 3; expected a number that divides the 2 ranks" in lines[9]
        assert "shard: dim: 1 of a tensor [64]; expected a dimension of it" in lines[10]
        assert "unshard: dim: -5 of a tensor [1, 32, 2, 8]; expected a dimension of it" in lines[11]
        assert lines[12] == "TypeError shard: tensor: list; expected a torch.Tensor"
        assert "head_groups: 2 with the 3 kv heads of heads=(3, 3, 8); expected a divisor of these" in lines[13]
        assert lines[14:] == [f"TypeError {name}: tensor: a DTensor; expected a plain tensor, such as its to_local()" for name in ("shard", "unshard")]


ERRORS = """
import time

def message(fn):
    begin = time.monotonic()
    try:
        fn()
    except Exception as error:
        print(type(error).__name__, "late" if time.monotonic() - begin > 20 else "soon", str(error).replace(chr(10), " "))
    else:
        print("fine")

def new(limit=60.0):
    return ft.context_parallel(dist.group.WORLD, 64, seq_dim=1, unit=8, threads=1, time_limit=limit)

q, k, v = tensors(1, 64, 2, 8)
"""


def test_an_error_of_one_rank_reaches_the_others_at_once():
    outputs = run(
        ERRORS
        + """
bias = torch.zeros(64, 64)
with new() as context:
    shards = [context.shard(t) for t in (q, k, v)]
    heads_first = [t.transpose(1, 2) for t in shards]
    # A call that one rank refuses before it says a word, and one that all refuse.
    message(lambda: ft.scaled_dot_product_attention(*heads_first, attn_mask=bias[:, :60] if rank == 1 else bias))
    message(lambda: ft.attention(*shards))
    message(lambda: ft.scaled_dot_product_attention(*heads_first, attn_mask=bias[:, :60]))
    message(lambda: ft.attention(*shards))
    # What ranks compare before anything is under way.
    message(lambda: ft.attention(*[t.bfloat16() if rank == 1 else t for t in shards]))
    table = torch.zeros(64, requires_grad=rank == 0)
    out = ft.attention(*shards, lambda s, b, h, i, j: s + table[i])
    message(lambda: out.sum().backward())
    message(lambda: ft.attention(*shards))
with new() as context:
    if rank == 1:
        time.sleep(0.2)
        context._ranks.transport.fail("its own reasons")
    message(lambda: context.unshard(shards[0]))
    message(lambda: context.shard(q))
""",
        ranks=3,
    )
    for rank, out in enumerate(outputs):
        lines = out.splitlines()
        one = rank == 1
        assert "late" not in out
        assert lines[0].startswith("CallError soon" if one else "ValueError soon"), lines[0]
        assert "attn_mask: shape (64, 60)" in lines[0] and (one or "context parallelism: rank 1: " in lines[0]), lines[0]
        assert lines[1] == "fine"
        assert lines[2].startswith("CallError soon") and lines[3] == "fine"
        assert lines[4].startswith("ValueError soon") and "ranks 0 and 1 differ in" in lines[4] and "bf16" in lines[4], lines[4]
        assert lines[5].startswith("ValueError soon") and "ranks 0 and 1 differ in gradients that are asked for: rank 0 has" in lines[5], lines[5]
        assert lines[6] == "fine"
        assert "soon" in lines[7] and "rank 1 failed: its own reasons" in lines[7], lines[7]
        assert lines[8] == "fine"


def test_a_rank_that_stalls_or_dies_is_an_error_of_communication():
    outputs = run(
        ERRORS
        + """
with new(1.0) as context:
    shards = [context.shard(t) for t in (q, k, v)]
    if rank == 1:
        time.sleep(2.5)
    message(lambda: ft.attention(*shards))
with new(15.0) as context:
    shards = [t.detach().requires_grad_() for t in shards]
    out = ft.attention(*shards)
    if rank == 2:
        os.kill(os.getpid(), 9)
    message(lambda: out.sum().backward())
""",
        ranks=3,
        killed=2,
    )
    for rank, out in enumerate(outputs[:2]):
        lines = out.splitlines()
        assert lines[0].startswith("Error soon") and "waited 1 s for rank" in lines[0], lines[0]
        assert lines[1].startswith("Error soon") and "rank 2" in lines[1], lines[1]


def test_plans_follow_the_tensors_that_masks_read():
    """A float tensor that the mask reads decides the plan like an integer one; one that only the score reads does not. Inference tensors do not tell."""
    outputs = run(
        """
        q, k, v = [t.detach() for t in tensors(1, 64, 2, 8)]
        kept = torch.zeros(64); kept[:40] = 1
        rows = torch.arange(64)
        def reading(kept, rows):
            return lambda q, k, v: ft.attention(q, k, v, lambda s, b, h, i, j: s + 0.01 * rows[i], lambda b, h, i, j: kept[j] > 0.5)
        def check(context, kept, rows):
            expected = reading(kept, rows)(q, k, v)
            with context:
                out = reading(kept, rows)(*[context.shard(t) for t in (q, k, v)])
                torch.testing.assert_close(context.unshard(out), expected, atol=2e-5, rtol=2e-5)
        context = ft.context_parallel(dist.group.WORLD, 64, seq_dim=1, unit=8, threads=1)
        check(context, kept, rows)
        kept[:20] = 0
        check(context, kept, rows)  # changed in place
        assert len(context.explain()) == 2
        rows += 1
        check(context, kept, rows)
        assert len(context.explain()) == 2
        for step in range(4):
            check(context, kept.roll(step), rows)  # a new tensor for every step
        assert len(context.explain()) == 6
        with torch.inference_mode():
            kept, rows = kept.clone(), rows.clone()
            for step in range(3):
                kept.copy_(kept.roll(7))
                check(context, kept, rows)
        """
    )
    assert outputs == ["", ""]


def test_errors_of_all_ranks_are_told_from_those_of_one():
    """Where messages go from GPU to GPU: by the group's store."""
    run(
        """
        import time
        from foveal.torch.context_transport import Departures, Refusals
        class Transport:
            failure, told = "", []
            def fail(self, why):
                self.told.append(why)
        transport, departures = Transport(), Departures(dist.group.WORLD, rank, 2)
        new = lambda limit: Refusals(dist.group.WORLD, 2, limit, departures, transport)
        refusals = new(0.5)
        assert refusals.are_of_all(begun=False)
        if rank == 1:
            assert not refusals.are_of_all(begun=False)
        begin = time.monotonic()
        # Who is in the call that this rank refuses waits for it, and is not waited for.
        for begun in (False, True):
            refusals = new(100.0)
            refusals.listen(True)
            for _ in range(3 if rank == 0 else 2 + begun):
                refusals.begin()
            if rank == 1:
                assert not refusals.are_of_all(begun=begun)
            dist.barrier()
            assert refusals.are_of_all(begun=False)  # the next call, which both refuse
        # A failure of one is one of all.
        if rank == 1:
            transport.failure = "rank 1 failed: its own reasons"
        while rank == 0 and not transport.told and time.monotonic() - begin < 9:
            time.sleep(0.01)
        assert transport.told[:1] == ["rank 1 failed: its own reasons"] * (1 - rank)
        dist.barrier()
        # Who has left the block is not waited for.
        refusals = new(100.0)
        if rank == 0:
            departures.leave(by_error=False)
        else:
            assert not refusals.are_of_all(begun=False)
        assert time.monotonic() - begin < 9
        """
    )


def test_checkpointed_functions_run_again_in_their_context():
    """Also when the backward pass begins after the context was left."""
    run("""
    from torch.distributed._composable import checkpoint as composable
    from torch.utils.checkpoint import checkpoint
    context = ft.context_parallel(dist.group.WORLD, 64, unit=8, threads=1)
    whole, w, upstream = tensors(1, 64, 2, 16), torch.randn(16, 16), torch.randn(1, 64, 2, 16)
    def attend(q, k, v):
        return ft.attention(q @ w, k, v, None, "causal()", dropout_p=0.2, seed=3).sin()
    class Module(torch.nn.Module):
        def forward(self, *qkv):
            return attend(*qkv)
    want = torch.autograd.grad(attend(*whole), whole, upstream)
    again = lambda function, reentrant: lambda *qkv: checkpoint(function, *qkv, use_reentrant=reentrant)
    compiled = torch.compile(attend, backend="aot_eager")
    ways = {
        "plain": attend, "composable": Module(), "compiled inside": again(compiled, False), "compiled outside": torch.compile(again(attend, False), backend="aot_eager"),
        "compiled inside reentrant": again(compiled, True), "reentrant": again(attend, True),
        "nested": again(lambda *qkv: again(attend, False)(*qkv).neg().neg(), False), "nested in reentrant": again(again(attend, False), True),
        "reentrant in nested": again(again(attend, True), False),
    }
    composable(ways["composable"])
    for way, function in ways.items():
        shards = [context.shard(t.detach()).requires_grad_() for t in whole]
        with context:
            out = function(*shards)
        out.backward(context.shard(upstream))
        for shard, gradient in zip(shards, want):
            torch.testing.assert_close(shard.grad, context.shard(gradient), atol=1e-4, rtol=1e-4, msg=lambda m: way + m)
        assert ft.calls.context is None

    heads_first = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in whole]
    causal = lambda *qkv: torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
    want = torch.autograd.grad(causal(*heads_first).square().sum(), heads_first)
    for reentrant in (False, True):
        shards = [context.shard(t.detach(), 2).requires_grad_() for t in heads_first]
        with context, ft.patch():
            out = again(causal, reentrant)(*shards)
        out.square().sum().backward()
        for shard, gradient in zip(shards, want):
            torch.testing.assert_close(shard.grad, context.shard(gradient, 2), atol=1e-4, rtol=1e-4, msg=lambda m: f"patched, {reentrant}: {m}")
        assert not ft.routing._active
    """)


def test_an_error_of_one_rank_leaves_the_ranks_in_step():
    """Whatever kind of error, and wherever it is raised: after it all ranks are at the same call, and none waits for the others' time limit."""
    outputs = run(
        ERRORS
        + """
context = new()
shards = [context.shard(t.detach()) for t in (q, k, v)]
def on_rank_1(error):
    def score(s, b, h, i, j):
        if rank == 1:
            raise error
        return s
    return score
with context:
    right = lambda: ft.attention(*shards, None, "causal()")
    for wrong in (
        lambda: ft.attention(*shards, on_rank_1(KeyError("a key"))),
        lambda: ft.attention(*shards, on_rank_1(AssertionError())),
        lambda: ft.attention(*shards, on_rank_1(MemoryError("no memory"))),
        lambda: ft.attention(*shards, None, "causal()", dropout_p=0.5 * rank),  # rank 1 draws a seed
        lambda: ft.attention(*[t[: 1 - rank] for t in shards]),  # rank 1 has nothing to send
        lambda: context.unshard(shards[0][:, rank:]),
        lambda: context.unshard(torch.zeros(32, 32), rank),
        lambda: torch.autograd.grad(right_of(shards[0]).sum(), shards[0], create_graph=rank == 1),
        lambda: ft.attention(*shards, None, "causal()", scale=0.5 + 1e-12 * rank),
        lambda: ft.attention(*[t.to(torch.float8_e4m3fn) if rank == 1 else t for t in shards]),
        lambda: ft.attention(*shards, lambda s, b, h, i, j: s + torch.zeros(64, device="meta" if rank == 1 else "cpu")[i]),
        lambda: context.unshard(shards[0].to("meta") if rank == 1 else shards[0]),
        lambda: ft.attention(*shards, options=foveal.Options(backend="nowhere" if rank == 1 else "")),
    ):
        right_of = lambda q: ft.attention(q.requires_grad_(), *shards[1:], None, "causal()")
        message(wrong)
        message(right)
def leaves():
    with context:
        q = shards[0].detach().requires_grad_()
        out = ft.attention(q, *shards[1:], None, "causal()")
        if rank == 1:
            out.register_hook(lambda gradient: 1 / 0)
        out.sum().backward()
def leaves_nested():
    with context, new():
        if rank == 1:
            raise LookupError("none")
        ft.attention(*shards, None, "causal()")
def all_leave():
    with context:
        raise LookupError("of all")
for wrong in (leaves, leaves_nested, all_leave):
    message(wrong)
    with context:
        message(right)
message(lambda: ft.context_parallel(dist.group.WORLD, 64, deal="contiguous" if rank == 1 else "zigzag", unit=8))
message(new)
"""
    )
    assert all(["late" not in out for out in outputs])
    said = [[line for line in out.splitlines() if line != "fine"] for out in outputs]
    assert [out.splitlines()[1::2] for out in outputs] == [["fine"] * 17] * 2, outputs
    for by_rank_1, words in zip(
        zip(*said),
        ("KeyError: 'a key'", "AssertionError", "MemoryError: no memory", "rank 1 has a seed of dropout", "rank 1 has attention of tensors without elements",
         "unshard: tensor: 31 tokens in dimension 1; expected this rank's 32", "differ in tensor: rank 0 has torch.float32 [] + tokens + [32]",
         "second derivatives (create_graph=True)", "scale=0.500000000001", "rank 1: context_parallel: q: dtype torch.float8_e4m3fn",
         "Cannot copy out of meta tensor", "rank 1: unshard: tensor: on device meta", "rank 1: options.backend: there is no 'nowhere'",
         "rank 1: ZeroDivisionError: division by zero", "rank 1: LookupError: none",
         "LookupError soon of all", "rank 1 has contiguous, unit 8"),
    ):  # fmt: skip
        assert words in by_rank_1[0], (words, by_rank_1)


def test_an_error_after_the_last_call_waits_for_nobody():
    """Rank 1 ends a block by an error at whose place the others had nothing more to do in it: they are in the next block, or in other work with rank 1."""
    outputs = run(
        ERRORS
        + """
def took(fn):
    begin = time.monotonic()
    try:
        fn()
    except LookupError as error:
        print(error)
    return time.monotonic() - begin
def step(late):
    with context:
        ft.attention(*shards, None, "causal()")
        if rank == 1:
            time.sleep(late)
            raise LookupError("after the last call")
for late in (0.0, 1.0):  # before and after the others have left
    context = new()
    shards = [context.shard(t.detach()) for t in (q, k, v)]
    if rank == 0:
        step(late)
        if late == 0.0:
            time.sleep(1.0)
    else:
        print("late" if took(lambda: step(late)) > 8 + late else "soon")
    dist.barrier()
    message(lambda: ft.attention(*shards, None, "causal()"))
    with context:
        message(lambda: ft.attention(*shards, None, "causal()"))
"""
    )
    for rank, out in enumerate(outputs):
        lines = [line for line in out.splitlines() if line not in ("fine", "soon")]
        assert "late" not in out.split(), out
        assert lines.count("after the last call") == 2 * rank, out
        assert sum("LookupError: after the last call" in line for line in lines) == 2, out


def test_a_first_forward_pass_knows_of_the_backward_pass_that_follows():
    """So that the kernels of both are compiled at once, as eager calls do."""
    outputs = run(
        ERRORS
        + """
context, wants = new(), []
from foveal.torch.context_ranks import Ranks
plan = Ranks.plan
def recorded(self, found, heads, q, v, params, want=()):
    wants.append([bool(w) for w in want])
    return plan(self, found, heads, q, v, params, want)
Ranks.plan = recorded
shards = [context.shard(t.detach()).requires_grad_(t is not k) for t in (q, k, v)]
bias = torch.zeros(64, requires_grad=True)
def attend(q, k, v):
    return ft.attention(q, k, v, lambda s, b, h, i, j: s + bias[i], "causal()")
with context:
    for fn in (attend, torch.compile(attend, backend="aot_eager")):
        fn(*shards).sum().backward()
    with torch.no_grad():
        torch.compile(attend, backend="aot_eager")(*shards)
print(wants)
"""
    )
    both = [True, False, True, True]
    assert outputs[0].strip() == str([both, [], both, [], [False] * 4]), outputs


def test_ranks_whose_captured_tensors_have_other_values_are_told():
    """Also values that give all ranks the same plan, and shards in place of whole tensors."""
    outputs = run(
        ERRORS
        + """
context = new()
shards = [context.shard(t.detach()) for t in (q, k, v)]
table, strided = torch.arange(64.0), torch.arange(128.0)[::2] / 2
with context:
    reads = lambda t: lambda: ft.attention(*shards, lambda s, b, h, i, j: s + t[i], "causal()")
    message(reads(table if rank == 1 else strided))  # the same values
    message(reads(table + rank))
    message(reads(table.index_fill(0, torch.tensor(63), float(rank))))
    message(lambda: ft.attention(*shards, None, "causal()", sink=torch.full((2,), float(rank))))
    message(lambda: ft.attention(*shards, None, lambda b, h, i, j: j < (30 + rank * torch.ones(64, dtype=torch.int64))[i]))
    message(reads(context.shard(table, 0)))
    trained = table.clone().requires_grad_()
    out = ft.attention(*shards, lambda s, b, h, i, j: s + trained[i] * j, "causal()")
    with torch.no_grad():
        trained.data += rank
    message(lambda: out.sum().backward())
    message(reads(table))
"""
    )
    for out in outputs:
        lines = out.splitlines()
        assert lines[0] == lines[7] == "fine" and "late" not in out, lines
        for line in lines[1:4] + lines[5:7]:
            assert "ranks 0 and 1 differ in values of parameters, which are those of the whole on every rank: rank 0 has " in line, line
        assert "differ in values that the mask reads" in lines[4], lines[4]


def test_what_autograd_and_compilers_do_in_a_context():
    run(
        """
        import torch.nn.attention.flex_attention as flex
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
        with torch.inference_mode():  # then used in training
            context = ft.context_parallel(dist.group.WORLD, 64, unit=8, threads=1, time_limit=30)
        whole, upstream = tensors(1, 64, 2, 16), torch.randn(1, 64, 2, 16)
        attend = lambda *qkv: ft.attention(*qkv, None, "causal()")
        compare(context, attend, whole, dim=1)

        # The gradient of unshard() in compiled code, and many upstream gradients at once.
        want = torch.autograd.grad(attend(*whole), whole, upstream)
        with context:
            shards = [context.shard(t.detach()).requires_grad_() for t in whole]
            compiled = torch.compile(lambda *qkv: context.unshard(attend(*qkv)), backend="aot_eager", fullgraph=True)
            for found, expected in zip(torch.autograd.grad(compiled(*shards), shards, upstream), want):
                torch.testing.assert_close(found, context.shard(expected))
            cotangents = torch.stack([context.shard(upstream), 2 * context.shard(upstream)])
            for found, expected in zip(torch.autograd.grad(attend(*shards), shards, cotangents, is_grads_batched=True), want):
                torch.testing.assert_close(found, torch.stack([context.shard(expected), 2 * context.shard(expected)]))
            try:
                ft.flex_attention(*[t.transpose(1, 2) for t in shards], return_aux=flex.AuxRequest(max_scores=True))
            except NotImplementedError as error:
                assert "max_scores under context_parallel()" in str(error), error
            else:
                raise AssertionError("the maxima of this rank's keys were given for those of all")

        # Heads by DTensor, tokens by a context, on a mesh of both.
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "cp"))
        slopes, sink = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        function = lambda q, k, v, slopes, sink: ft.attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i) * 0.1, "causal()", sink=sink)
        whole = [*tensors(2, 64, 4, 16), slopes, sink]
        expected = function(*whole)
        want = torch.autograd.grad(expected.square().sum(), whole)
        try:
            ft.context_parallel(mesh, 64)
        except ValueError as error:
            assert "a DeviceMesh of 2 dimensions ('tp', 'cp'); expected one of them, such as mesh['cp']" in str(error), error
        with ft.context_parallel(mesh["cp"], 64, unit=8, threads=1, time_limit=30) as context:
            local = [distribute_tensor(context.shard(t.detach()), mesh["tp"], [Shard(2)]).requires_grad_() for t in whole[:3]]
            local += [distribute_tensor(t.detach(), mesh["tp"], [Shard(0)]).requires_grad_() for t in whole[3:]]
            out = function(*local)
            torch.testing.assert_close(context.unshard(out.full_tensor()), expected.detach(), atol=2e-5, rtol=2e-5)
            found = [t.full_tensor() for t in torch.autograd.grad(out.square().sum(), local)]
            for a, b in zip([context.unshard(t) for t in found[:3]] + found[3:], want):
                torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
            try:
                attend(*[DTensor.from_local(t.to_local(), mesh["cp"], [Shard(1)]) for t in local[:3]])
            except NotImplementedError as error:
                assert "expected Replicate() or Shard() of the batch or the heads" in str(error), error
            else:
                raise AssertionError("a DTensor of the sequence was taken")
        """,
        ranks=4,
    )


def test_options_are_checked():
    (out,) = run(
        """
        for name, wrong in (
            ("time_limit", 0), ("time_limit", float("nan")), ("time_limit", float("inf")), ("time_limit", "60"), ("unit", 1.5), ("unit", 0), ("head_groups", 1.0),
            ("threads", -1), ("multiprocessors", -1), ("seq_dim", "1"), ("seqlen", torch.tensor([32, 32])), ("seqlen", 2**31), ("seqlen", 2.5),
        ):
            try:
                ft.context_parallel(None, **{"seqlen": 64, name: wrong})
            except ValueError as error:
                print(str(error).startswith(f"context_parallel: {name}: {wrong!r}; expected "), error)
            else:
                print(name, wrong)
        """,
        ranks=1,
    )
    assert all([line.startswith("True") for line in out.splitlines()]), out


def test_a_context_is_used_by_one_thread_at_a_time():
    run("""
    import threading
    context, other = [ft.context_parallel(dist.group.WORLD, 64, unit=8, threads=1, time_limit=30) for _ in range(2)]
    q, k, v = [context.shard(t.detach()) for t in tensors(1, 64, 2, 16)]
    errors = {}
    def attend(mask):
        try:
            for _ in range(100):
                context.unshard(ft.attention(q, k, v, None, mask))
        except RuntimeError as error:
            errors[mask] = str(error)
    with context:
        threads = [threading.Thread(target=attend, args=(mask,)) for mask in ("causal()", "window(5)")]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert errors and all(["a call while another one runs on another thread; expected one at a time" in e for e in errors.values()]), errors

    entered = []
    def enter():
        try:
            with other:
                entered.append("")
        except RuntimeError as error:
            entered.append(str(error))
    with context:
        thread = threading.Thread(target=enter)
        thread.start(), thread.join()
    assert entered == ["context_parallel: entered while another thread is in one; expected one thread at a time"], entered
    context.__enter__(), other.__enter__()
    try:
        context.__exit__()
    except RuntimeError as error:
        assert "left before a context that was entered later" in str(error), error
    else:
        raise AssertionError("contexts were left in the order in which they were entered")
    other.__exit__(), context.__exit__()
    assert ft.calls.context is None
    """)


def test_models_of_transformers():
    pytest.importorskip("transformers")
    run("""
    import foveal.transformers
    from transformers import MistralConfig, MistralForCausalLM
    foveal.transformers.register()
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, sliding_window=20,
            max_position_embeddings=128, attn_implementation="foveal",
        )
    )
    ids = torch.randint(0, 50, (2, 96))
    expected = model(ids, use_cache=False).logits.detach()
    with ft.context_parallel(dist.group.WORLD, 96, seq_dim=1, unit=8, threads=1, time_limit=30) as context:
        shard, positions, ones = context.shard(ids), context.shard(torch.arange(96)[None]), torch.ones(2, 48, dtype=torch.int64)
        out = model(shard, position_ids=positions, attention_mask=ones, use_cache=False).logits
        torch.testing.assert_close(context.unshard(out.detach()), expected)
        for mask, message in ((None, "expected one of ones"), (ones - torch.eye(2, 48, dtype=torch.int64), "expected ones, or packed sequences")):
            try:
                model(shard, position_ids=positions, attention_mask=mask, use_cache=False)
            except (NotImplementedError, ValueError) as error:
                assert message in str(error), error
            else:
                raise AssertionError("a mask of shards was taken")
        out = model(shard, position_ids=positions, attention_mask=ones, use_cache=False).logits
        torch.testing.assert_close(context.unshard(out.detach()), expected)
    """)
