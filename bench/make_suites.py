#!/usr/bin/env python3
"""Turns a list of attention configurations (suites.json) into problem lines that fit a CPU machine.

usage: make_suites.py SUITES_JSON [OUTPUT_FOLDER]

Lengths, head sizes, types, masks and scores stay; batch and heads are scaled down until one line is small enough to be checked against
the reference, the query heads of one group last. Lines that become equal are written once. One file for each family of sources.
"""
import json
import pathlib
import sys

# Multiply-adds of one q . k product that a line should not pass, while there is a batch or a head left to give up.
BUDGET = 2**28

FAMILIES = {
    "rocm": ("rocm_",),
    "triton": ("triton_", "hopper_peer_tritonbench"),
    "jax": ("jax_", "tokamax_", "axlearn_"),
    "flex": ("pytorch_", "attention_gym_", "proposed_"),
    "llmc": ("llmc_", "flashattention_c"),
}
TITLES = {
    "rocm": "ROCm flash-attention: split backward, its benchmark script, packed sequences and decoding",
    "triton": "Triton's tutorial 06 in its versions, and the Hopper benchmark of its peers",
    "jax": "JAX's Pallas and Mosaic kernels, Tokamax, axlearn",
    "flex": "FlexAttention: score functions, masks and trainable biases of PyTorch and attention-gym",
    "llmc": "llm.c and small C implementations",
}
DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
PASSES = {"fwd": ["forward"], "bwd": ["backward"], "fwd+bwd": ["forward", "backward"]}


def scale_down(row):
    """Batch, query heads and kv heads within the budget."""
    batch, heads_kv = row["batch"], row["heads_kv"]
    group = row["heads_q"] // heads_kv
    pairs = row["seq_q"] * row["seq_kv"] * row["head_dim_qk"]
    if row.get("varlen"):
        pairs //= batch  # the lengths are totals: the batch cuts them, and stays
        batch = 1

    def cost():
        return batch * heads_kv * group * pairs

    while cost() > BUDGET and batch > 1:
        batch //= 2
    while cost() > BUDGET and heads_kv > 1:
        heads_kv //= 2
    while cost() > BUDGET and group > 2:
        group //= 2
    return batch, heads_kv * group, heads_kv


def mask_and_score(row, batch, heads):
    """Words of the line for a row's variation: a catalogue, one entry for each name that the list uses."""
    s, s2 = row["seq_q"], row["seq_kv"]
    causal = "causal_bottom_right()" if row.get("causal_alignment") == "bottom-right" else "causal()"
    plain = [f'mask="{causal}"'] if row["causal"] else []
    name = row["score_mod"]
    real = f"real[{s}]"
    window = min(2048, s)

    def score(text, *params, mask=None):
        words = [f'mask="{mask}"'] if mask else list(plain)
        return words + [f'score="{text}"'] + [f'param="{p}"' for p in params]

    def trained(text, shape, *others):
        return score(text, f"b: real[{', '.join(map(str, shape))}] grad", *others)

    catalogue = {
        None: lambda: plain,
        "noop": lambda: plain,
        "causal": lambda: ['mask="causal()"'],
        "causal_as_score_mod": lambda: score("where(q_idx >= kv_idx, score, -inf)"),
        "rel_bias": lambda: score("score + (q_idx - kv_idx)"),
        "head_bias": lambda: score("score + 2 * head"),
        "alibi": lambda: score(f"alibi({heads})"),
        "alibi_16": lambda: score("alibi(16)"),
        "tanh_softcap_30": lambda: score("softcap(30)"),
        "tanh_softcap_30_approx": lambda: score("softcap(30)"),
        "sliding_window_2048": lambda: [f'mask="causal() & window({window})"'],
        "sliding_window_1024": lambda: ['mask="causal() & window(1024)"'],
        "prefix_lm_1024": lambda: ['mask="prefix_lm(1024)"'],
        "document_mask": lambda: ['mask="causal() & document(doc)"', f'param="doc: integer[{s}] segments(4)"'],
        "document_causal_12": lambda: ['mask="causal() & document(doc)"', f'param="doc: integer[{s}] segments(12)"'],
        "pair_bias+key_padding_mask": lambda: trained(
            "score + b[head, q_idx, kv_idx]", (heads, s, s2), f"keep: boolean[{batch}, {s2}] bernoulli(0.9)")
            + ['mask="keep[batch, kv_idx]"'],
        "pathological": lambda: score("sin(cos(score)) + tanh(score) * exp(-abs(score)) + sqrt(abs(score) + 1) - log(abs(score) + 2) / 3"),
        "learnable:relative_1d": lambda: trained("score + b[abs(q_idx - kv_idx)]", (2 * s,)),
        "learnable:absolute_2d": lambda: trained("score + b[q_idx, kv_idx]", (s, s2)),
        "learnable:head_specific": lambda: trained("score + b[head, q_idx, kv_idx]", (heads, s, s2)),
        "learnable:batch_head": lambda: trained("score + b[batch, head, q_idx, kv_idx]", (batch, heads, s, s2)),
        "learnable:multiplicative": lambda: trained("score * b[q_idx]", (s,)),
        "learnable:local_window": lambda: trained("score + b[clamp(q_idx - kv_idx + 8, 0, 16)]", (17,)),
        "learnable:global_tokens": lambda: trained("score + b[kv_idx]", (s2,)),
        "learnable:weird": lambda: trained("score + b[batch, head, which[], q_idx]", (batch, heads, 4, s), "which: integer[] constant(2)"),
        "learnable:indirect": lambda: trained("score + b[off[q_idx]]", (s,), f"off: integer[{s}] integers(0, {s - 1})"),
        "learnable:symmetric": lambda: trained("score + b[q_idx] + b[kv_idx]", (max(s, s2),)),
        "learnable:flipped": lambda: trained("score + b[kv_idx, q_idx]", (s2, s)),
        "learnable:head_specific_gate": lambda: trained("score * sigmoid(b[head])", (heads,)),
        "learnable:distinct_two_biases": lambda: score(
            "score + b1[q_idx] + b2[kv_idx]", f"b1: {real} grad", f"b2: real[{s2}] grad"),
        "learnable:head_bias_req_grad": lambda: trained("score + b[head]", (heads,)),
        "learnable:graphormer_spatial": lambda: trained(
            "score + b[head, dist[batch, q_idx, kv_idx]]", (heads, 22), f"dist: integer[{batch}, {s}, {s2}] integers(0, 21)"),
        "learnable:graphormer_edge": lambda: trained(
            "score + (" + " + ".join(f"where({i} < len[batch, q_idx, kv_idx], b[head, {i}, path[batch, q_idx, kv_idx, {i}]], 0)"
                                     for i in range(3)) + ") / max(len[batch, q_idx, kv_idx], 1)",
            (heads, 3, 64), f"path: integer[{batch}, {s}, {s2}, 3] integers(0, 63)", f"len: integer[{batch}, {s}, {s2}] integers(0, 3)"),
    }
    return catalogue[name]()


def pair(first, second):
    return f"{first}" if first == second else f"{first}:{second}"


def layout(row):
    text = row.get("layout") or ""
    if "bhsd" in text.split(" ")[0]:
        return ["layout=bhsd"]
    return ["layout=packed_qkv"] if text.startswith("packed") else []


def lines(row):
    batch, heads_q, heads_kv = scale_down(row)
    if row.get("varlen"):  # the sum of the lengths is the row's; the cut is even, so that the line says everything
        sizes = [f"b{row['batch']}", f"h{pair(heads_q, heads_kv)}", f"d{pair(row['head_dim_qk'], row['head_dim_v'])}",
                 f"total={pair(row['seq_q'], row['seq_kv'])}", "layout=thd"]
    else:
        sizes = [f"b{batch}", f"h{pair(heads_q, heads_kv)}", f"q{pair(row['seq_q'], row['seq_kv'])}",
                 f"d{pair(row['head_dim_qk'], row['head_dim_v'])}"] + layout(row)
    scale = ["scale=1.3"] if str(row.get("sm_scale")) == "1.3" else []
    for name in PASSES[row["pass"]]:
        words = mask_and_score(row, batch, heads_q)
        if name == "forward":
            words = [word.replace(" grad\"", "\"") for word in words]
        yield " ".join([name, DTYPES[row["dtype"]]] + sizes + words + scale)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    rows = json.loads(pathlib.Path(sys.argv[1]).read_text())
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else pathlib.Path(__file__).parent / "suites")
    folder.mkdir(parents=True, exist_ok=True)
    taken = 0
    for family, prefixes in FAMILIES.items():
        text, seen = [f"# {TITLES[family]}. Written by make_suites.py."], set()
        suite = None
        for row in (row for row in rows if row["suite"].startswith(prefixes)):
            taken += 1
            fresh = [line for line in lines(row) if line not in seen]
            seen.update(fresh)
            if fresh and row["suite"] != suite:
                suite = row["suite"]
                text.append(f"\n# {suite}")
            text += fresh
        (folder / f"{family}.txt").write_text("\n".join(text) + "\n")
        print(f"{family}.txt: {len(seen)} lines")
    if taken != len(rows):
        sys.exit(f"{len(rows) - taken} rows belong to no family")


if __name__ == "__main__":
    main()
