"""Shapes that nobody likes on one GPU, each beside the nearest round one; what reproducible gradients cost; few queries beside cuDNN, and with scores and
masks by programs beside FlexAttention.

    python bench/gpu_shapes.py run --library build/libfoveal.so --commit HASH --out bench/results/h200-shapes.json
    python bench/gpu_shapes.py tables bench/results/h200-shapes.json docs/lab/gpu.md    # between the marks of the page

Times are medians of CUDA-event timings with the L2 cache flushed between repeats. Speed counts the operations of pairs that exist (half of them where
causal); a shape's ratio is its speed over that of its round neighbour in the same run.
"""

import json
import sys

from gpu_grid import CAUSAL, Library, Plan, command_line, milliseconds, normal, write_between

# name -> batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim, head_dim_v, causal
SHAPES = {
    "S 384": (43, 16, 16, 384, 384, 128, 128, False),
    "S 328": (50, 16, 16, 328, 328, 128, 128, False),
    "S 4096": (4, 16, 16, 4096, 4096, 128, 128, False),
    "S 4096 causal": (4, 16, 16, 4096, 4096, 128, 128, True),
    "S 4072": (4, 16, 16, 4072, 4072, 128, 128, False),
    "S 2376": (7, 16, 16, 2376, 2376, 128, 128, False),
    "S 2376 causal": (7, 16, 16, 2376, 2376, 128, 128, True),
    "S 2048": (8, 16, 16, 2048, 2048, 128, 128, False),
    "S 2048 causal": (8, 16, 16, 2048, 2048, 128, 128, True),
    "D 64": (4, 32, 32, 4096, 4096, 64, 64, False),
    "D 72": (4, 32, 32, 4096, 4096, 72, 72, False),
    "D 80": (4, 32, 32, 4096, 4096, 80, 80, False),
    "D 64 causal": (4, 32, 32, 4096, 4096, 64, 64, True),
    "D 72 causal": (4, 32, 32, 4096, 4096, 72, 72, True),
    "D 80 causal": (4, 32, 32, 4096, 4096, 80, 80, True),
    "D 192": (4, 16, 16, 4096, 4096, 192, 192, False),
    "D 192:128": (4, 16, 16, 4096, 4096, 192, 128, False),
    "D 192 causal": (4, 16, 16, 4096, 4096, 192, 192, True),
    "D 192:128 causal": (4, 16, 16, 4096, 4096, 192, 128, True),
    "heads 32:32": (2, 32, 32, 4096, 4096, 128, 128, True),
    "heads 32:8": (2, 32, 8, 4096, 4096, 128, 128, True),
    "heads 64:64": (1, 64, 64, 4096, 4096, 128, 128, True),
    "heads 64:8": (1, 64, 8, 4096, 4096, 128, 128, True),
    **{f"SQ {n}": (64, 32, 8, n, 4096, 128, 128, False) for n in (1, 2, 3, 5, 7, 8)},
}
ROUND = {"S 328": "S 384", "S 4072": "S 4096", "S 2376": "S 2048", "S 2376 causal": "S 2048 causal", "D 72": "D 64", "D 80": "D 64",
         "D 72 causal": "D 64 causal", "D 80 causal": "D 64 causal", "D 192:128": "D 192", "D 192:128 causal": "D 192 causal",
         "heads 32:8": "heads 32:32", "heads 64:8": "heads 64:64", **{f"SQ {n}": "SQ 8" for n in (1, 2, 3, 5, 7)},
         "64 random lengths": "S 2048", "64 random lengths causal": "S 2048 causal"}
FEW_QUERIES = [(64, 32, 8, 1, 4096, 128), (64, 32, 8, 2, 4096, 128), (64, 32, 8, 8, 4096, 128), (64, 32, 32, 1, 2048, 128), (64, 28, 4, 1, 4096, 128),
               (64, 32, 8, 1, 4096, 64), (64, 8, 1, 1, 8192, 256), (8, 32, 8, 1, 8192, 128), (1, 64, 8, 1, 4096, 128), (1, 32, 8, 1, 32768, 128),
               (1, 32, 32, 1, 16384, 128), (4, 32, 8, 4, 16384, 128), (1, 8, 1, 1, 131072, 128)]  # batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim
FEW_QUERIES_SCORES = [(64, 32, 8, 1, 4096, 128), (16, 16, 8, 1, 8192, 256), (1, 32, 8, 1, 32768, 128)]
FEW_QUERIES_PROGRAMS = ("softcap", "slopes", "lengths", "softcap and lengths")
REPRODUCIBLE = [(16384 // length, 2048 // dim, 2048 // dim, length, length, dim, dim, causal)
                for dim in (64, 128, 256) for causal in (False, True) for length in (1024, 4096, 16384)]


def tensors(batch, heads, heads_kv, seqlen_q, seqlen_kv, dim, dim_v):
    import torch
    q, k, v = normal(batch, seqlen_q, heads, dim), normal(batch, seqlen_kv, heads_kv, dim), normal(batch, seqlen_kv, heads_kv, dim_v)
    dout = normal(batch, seqlen_q, heads, dim_v)
    return dict(q=q, k=k, v=v, out=torch.empty_like(dout), lse=torch.empty(batch, heads, seqlen_q, device="cuda")), dict(
        dout=dout, dq=torch.empty_like(q), dk=torch.empty_like(k), dv=torch.empty_like(v))


def timed(row, library, pairs, dim, dim_v, mask, forward, backward, **options):
    """Speeds of both passes; pairs: of all heads."""
    passes = [("forward", 1.0, Plan(library, False, mask, **options, **forward))]
    passes[0][2].run()
    if row["name"][:2] != "SQ":  # a decode step has no backward pass
        passes.append(("backward", 2.5, Plan(library, True, mask, **options, **forward, **backward)))
    for name, factor, plan in passes:
        row[f"{name}_kernel"], row[f"{name}_ms"] = plan.kernel, milliseconds(plan.run, 30)
        row[f"{name}_tflops"] = factor * 2 * pairs * (dim + dim_v) / row[f"{name}_ms"] * 1e-9
    return row


def dense_case(library, name, shape):
    batch, heads, heads_kv, seqlen_q, seqlen_kv, dim, dim_v, causal = shape
    pairs = batch * heads * seqlen_q * seqlen_kv / (2 if causal else 1)
    return timed(dict(name=name, shape=shape), library, pairs, dim, dim_v, CAUSAL if causal else None, *tensors(*shape[:7]))


def packed_case(library, causal):
    import torch
    generator = torch.Generator().manual_seed(64)
    lengths = torch.randint(1, 4096, (64,), generator=generator)
    total, longest = int(lengths.sum()), int(lengths.max())
    cumulative = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().cuda()
    forward, backward = tensors(1, 16, 16, total, total, 128, 128)
    forward, backward = ({name: t[0] for name, t in part.items()} for part in (forward, backward))
    pairs = 16 * int((lengths * lengths).sum()) / (2 if causal else 1)
    name = "64 random lengths" + (" causal" if causal else "")
    return timed(dict(name=name, lengths=lengths.tolist()), library, pairs, 128, 128, CAUSAL if causal else None, forward, backward,
                 lengths=(cumulative, longest))


def reproducible_case(library, shape):
    batch, heads, _, length, _, dim, _, causal = shape
    forward, backward = tensors(*shape[:7])
    mask = CAUSAL if causal else None
    Plan(library, False, mask, **forward).run()
    row = dict(head_dim=dim, causal=causal, length=length)
    for name, reproducible in (("fast", False), ("reproducible", True)):
        plan = Plan(library, True, mask, reproducible=reproducible, **forward, **backward)
        row[f"{name}_kernel"], row[f"{name}_ms"] = plan.kernel, milliseconds(plan.run, 30)
    return row


def beside(name, peer, plan, out):
    """Medians of a plan and a peer in turns, once their results agree; the peer returns (batch, head, query, dim)."""
    plan.run()
    expected = peer().transpose(1, 2).double()
    difference = ((out.double() - expected).norm() / expected.norm()).item()
    if not difference < 1e-2:
        raise RuntimeError(f"{tuple(out.shape)}: differs from {name} by {difference}")
    turns = [(milliseconds(plan.run, 30), milliseconds(peer, 30)) for _ in range(3)]
    ours, theirs = (sorted(times)[1] for times in zip(*turns))
    return {"kernel": plan.kernel, "difference": difference, "ms": ours, f"{name}_ms": theirs}


def few_queries_case(library, shape):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    batch, heads, heads_kv, seqlen_q, seqlen_kv, dim = shape
    forward, _ = tensors(*shape, dim)
    plan = Plan(library, False, **forward)
    q, k, v = (forward[name].transpose(1, 2) for name in "qkv")
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        sdpa = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=heads != heads_kv)
        measured = beside("cudnn", sdpa, plan, forward["out"])
    return dict(shape=shape, **measured, bytes_of_keys_and_values=2 * 2 * batch * heads_kv * seqlen_kv * dim)


def few_queries_scores_case(library, shape, name):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()
    batch, heads, heads_kv, seqlen_q, seqlen_kv, dim = shape
    forward, _ = tensors(*shape, dim)
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device="cuda", dtype=torch.float32) / heads)
    lengths = torch.randint(seqlen_kv // 4, seqlen_kv, (batch,), generator=torch.Generator().manual_seed(1), dtype=torch.int32).cuda()
    score = mask = score_mod = block_mask = None
    params, ahead = [], seqlen_kv - seqlen_q
    if "softcap" in name:
        score, score_mod = "tanh(score / 30) * 30", lambda s, b, h, q, k: torch.tanh(s / 30) * 30
    if name == "slopes":
        score, score_mod = f"score + slope[head] * (kv_idx - q_idx - {ahead})", lambda s, b, h, q, k: s + slopes[h] * (k - q - ahead)
        params.append((f"slope: real[{heads}]", slopes, None))
    if "lengths" in name:
        mask = "kv_idx < length[batch]"
        params.append((f"length: integer[{batch}]", lengths, None))
        block_mask = create_block_mask(lambda b, h, q, k: k < lengths[b], batch, None, seqlen_q, seqlen_kv, device="cuda")
    plan = Plan(library, False, mask, score, params, **forward)
    q, k, v = (forward[name].transpose(1, 2) for name in "qkv")
    compiled = torch.compile(flex_attention, dynamic=False)
    flex = lambda: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=heads != heads_kv)
    keys = int(lengths.sum()) if "lengths" in name else batch * seqlen_kv
    return dict(shape=shape, program=name, **beside("flex", flex, plan, forward["out"]), bytes_of_keys_and_values=2 * 2 * heads_kv * keys * dim)


def run(options):
    import torch
    library = Library(options.library)
    result = dict(device=torch.cuda.get_device_name(), commit=options.commit, command="python bench/gpu_shapes.py " + " ".join(sys.argv[1:]))
    result["shapes"] = [dense_case(library, *item) for item in SHAPES.items()] + [packed_case(library, causal) for causal in (False, True)]
    result["reproducible"] = [reproducible_case(library, shape) for shape in REPRODUCIBLE]
    result["few_queries"] = [few_queries_case(library, shape) for shape in FEW_QUERIES]
    result["few_queries_scores"] = [few_queries_scores_case(library, shape, name) for shape in FEW_QUERIES_SCORES for name in FEW_QUERIES_PROGRAMS]
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)


def tables(options):
    with open(options.results) as file:
        result = json.load(file)
    rows = {row["name"]: row for row in result["shapes"]}
    lines = [f"{result['device']}, commit `{result['commit']}`, bf16. TFLOP/s, and times the speed of the round neighbour:", "",
             "| shape | neighbour | forward | backward |", "|---|---|---|---|"]
    for name, neighbour in ROUND.items():
        cells = []
        for key in ("forward_tflops", "backward_tflops"):
            speed, other = rows[name].get(key), rows[neighbour].get(key)
            cells.append(f"{speed:.3g} ({speed / other:.2f})" if speed else "")
        lines.append(f"| {name} | {neighbour} | {' | '.join(cells)} |")
    lines += ["", "Reproducible backward, 16k tokens, hidden size 2048, bf16: times the duration of the fast one:", "",
              "| head dim, mask | 1024 | 4096 | 16384 |", "|---|---|---|---|"]
    for dim in (64, 128, 256):
        for causal in (False, True):
            ratios = [row["reproducible_ms"] / row["fast_ms"] for row in result["reproducible"] if (row["head_dim"], row["causal"]) == (dim, causal)]
            lines.append(f"| {dim} {'causal' if causal else 'full'} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    lines += ["", "Few queries, forward: time, keys and values read per time, and the speed over that of cuDNN in the same run:", "",
              "| batch, heads, queries, keys, head dim | \u00b5s | TB/s | over cuDNN |", "|---|---|---|---|"]
    for row in result["few_queries"]:
        batch, heads, heads_kv, seqlen_q, seqlen_kv, dim = row["shape"]
        lines.append(f"| {batch}, {heads}:{heads_kv}, {seqlen_q}, {seqlen_kv}, {dim} | {1e3 * row['ms']:.0f} | "
                     f"{row['bytes_of_keys_and_values'] / row['ms'] * 1e-9:.2f} | {row['cudnn_ms'] / row['ms']:.2f} |")
    lines += ["", "The same with programs (lengths: a mask that reads how many keys each sequence has, a quarter to all of them), beside FlexAttention:", "",
              "| batch, heads, queries, keys, head dim | program | \u00b5s | TB/s | over FlexAttention |", "|---|---|---|---|---|"]
    for row in result["few_queries_scores"]:
        batch, heads, heads_kv, seqlen_q, seqlen_kv, dim = row["shape"]
        lines.append(f"| {batch}, {heads}:{heads_kv}, {seqlen_q}, {seqlen_kv}, {dim} | {row['program']} | {1e3 * row['ms']:.0f} | "
                     f"{row['bytes_of_keys_and_values'] / row['ms'] * 1e-9:.2f} | {row['flex_ms'] / row['ms']:.2f} |")
    write_between(options.page, "shapes", lines)


if __name__ == "__main__":
    command_line(__doc__, run, tables)
