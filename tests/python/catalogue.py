"""The score_mods, mask_mods and learnable biases people write for FlexAttention, as they write them.

Each case is a function of (shape, tensor factory) returning (score_mod, mask_mod, learnable tensors). `real` makes a random floating tensor of
the dtype under test; learnables require a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch


@dataclass
class Shape:
    batch: int = 2
    heads: int = 4
    seqlen: int = 37
    head_dim: int = 16


class Make:
    """Random tensors of one dtype, reproducible, so that the fp64 golden run and the run under test see the same values."""

    def __init__(self, dtype: torch.dtype, seed: int = 0):
        self.dtype = dtype
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def real(self, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=self.generator, dtype=torch.float32, device="cpu").to(torch.bfloat16)  # exact in every dtype
        return values.to(device=torch.get_default_device(), dtype=self.dtype)

    def learn(self, *shape: int) -> torch.Tensor:
        return self.real(*shape).requires_grad_()

    def integer(self, low: int, high: int, *shape: int) -> torch.Tensor:
        values = torch.randint(low, high, shape, generator=self.generator, dtype=torch.int32, device="cpu")
        return values.to(torch.get_default_device())


Case = Callable[[Shape, Make], tuple[Any, Any, list[torch.Tensor]]]
SCORES: dict[str, Case] = {}
LEARNABLE: dict[str, Case] = {}
MASKS: dict[str, Case] = {}


def case(table: dict[str, Case]) -> Callable[[Case], Case]:
    def add(fn: Case) -> Case:
        table[fn.__name__.rstrip("_")] = fn
        return fn

    return add


def simple(name: str, score_mod: Any) -> None:
    SCORES[name] = lambda shape, make: (score_mod, None, [])


# Scores without learnable state.
simple("identity", lambda s, b, h, q, k: s)
simple("times_two", lambda s, b, h, q, k: s * 2)
simple("squared", lambda s, b, h, q, k: s * s)
simple("causal_score", lambda s, b, h, q, k: torch.where(q >= k, s, float("-inf")))
simple("inverse_causal", lambda s, b, h, q, k: torch.where(q <= k, s, float("-inf")))
simple("rel_bias", lambda s, b, h, q, k: s + (q - k))
simple("rel_causal", lambda s, b, h, q, k: torch.where(q >= k, s + (q - k), float("-inf")))
simple("head_bias", lambda s, b, h, q, k: s + 2 * h)
simple("trig", lambda s, b, h, q, k: torch.sin(torch.cos(s)) + torch.tan(b))
simple("trig2", lambda s, b, h, q, k: torch.cos(s) * torch.sin(s) + torch.tan(b))
simple("skip_odd_keys", lambda s, b, h, q, k: torch.where(k % 2 == 0, s, float("-inf")))
simple("composition", lambda s, b, h, q, k: torch.where(q <= k, s + (q - k), float("-inf")))
simple("silu", lambda s, b, h, q, k: torch.nn.functional.silu(s))
simple("floor_div", lambda s, b, h, q, k: s - (q // (1 + k)))
simple("softcap", lambda s, b, h, q, k: 30 * torch.tanh(s / 30))
simple("natten_or", lambda s, b, h, q, k: torch.where(((q / 8 - k / 8).abs() <= 3) | ((q % 8 - k % 8).abs() <= 3), s, float("-inf")))
simple("log_activation", lambda s, b, h, q, k: torch.log(torch.sigmoid(s) + 0.5))


@case(SCORES)
def alibi(shape, make):
    return lambda s, b, h, q, k: s + (k - q) * torch.exp2(-8.0 * (h + 1) / shape.heads), None, []


@case(SCORES)
def head_offset(shape, make):
    o = make.real(shape.heads)
    return lambda s, b, h, q, k: s * o[h] + o[h], None, []


@case(SCORES)
def captured_all_dims(shape, make):
    tok, bat, hd = make.real(shape.seqlen), make.real(shape.batch), make.real(shape.heads)
    return lambda s, b, h, q, k: s + tok[q] + tok[k] + bat[b] + hd[h], None, []


@case(SCORES)
def seq_masking(shape, make):
    seq = torch.arange(shape.seqlen) % 3 == 0
    return lambda s, b, h, q, k: torch.where(seq[q] == seq[k], s, float("-inf")), None, []


@case(SCORES)
def bias_2d(shape, make):
    m = make.real(shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + m[q, k], None, []


@case(SCORES)
def bias_3d(shape, make):
    m = make.real(shape.batch, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + m[b, q, k], None, []


@case(SCORES)
def bias_4d(shape, make):
    m = make.real(shape.batch, shape.heads, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + m[b, h, q, k], None, []


@case(SCORES)
def rel_table(shape, make):
    t = make.real(2 * shape.seqlen)
    return lambda s, b, h, q, k: s + t[(q - k) + shape.seqlen], None, []


@case(SCORES)
def dependent_causal_bidirectional(shape, make):
    n = make.integer(1, shape.seqlen, shape.batch)

    def score(s, b, h, q, k):
        return torch.where((q >= k) | ((q <= n[b]) & (k <= n[b])), s, float("-inf"))

    return score, None, []


@case(SCORES)
def padded_dense_causal(shape, make):
    n = torch.arange(shape.batch, dtype=torch.int32) + 1

    def score(s, b, h, q, k):
        s = torch.where(q >= k, s, float("-inf"))
        return torch.where(s <= n[b] + 5, s, float("-inf"))

    return score, None, []


@case(SCORES)
def jagged_causal(shape, make):
    index = (torch.arange(shape.seqlen) // 10).to(torch.int32)
    offset = (torch.arange(shape.seqlen // 10 + 2) * 10).to(torch.int32)

    def score(s, b, h, q, k):
        return torch.where(q - offset[index[q]] >= k - offset[index[k]], s, float("-inf"))

    return score, None, []


@case(SCORES)
def captured_scalar(shape, make):
    c = torch.tensor(2, dtype=torch.int32)
    return lambda s, b, h, q, k: s * c + c, None, []


@case(SCORES)
def index_multiple(shape, make):
    m = make.real(shape.batch, shape.seqlen)
    return lambda s, b, h, q, k: s + m[b][q], None, []


@case(SCORES)
def weird1(shape, make):
    m = make.real(4, shape.batch, shape.heads, shape.seqlen)
    return lambda s, b, h, q, k: s + m[0][b, h][q], None, []


@case(SCORES)
def weird2(shape, make):
    m = make.real(shape.batch, shape.heads, 4, shape.seqlen)
    which = torch.tensor(0)
    return lambda s, b, h, q, k: s + m[b][h][which, q], None, []


@case(SCORES)
def decomposed_relative(shape, make):
    rows = make.real(shape.batch, shape.heads, shape.seqlen, 8)
    cols = make.real(shape.batch, shape.heads, shape.seqlen, 8)
    return lambda s, b, h, q, k: s + rows[b, h, q, k // 8] + cols[b, h, q, k % 8], None, []


@case(SCORES)
def offsets(shape, make):
    a, c = make.real(shape.seqlen), make.real(shape.seqlen)
    return lambda s, b, h, q, k: s + a[q] + c[k], None, []


@case(SCORES)
def multiplicative_fixed(shape, make):
    m = make.real(shape.seqlen)
    return lambda s, b, h, q, k: s * m[q], None, []


@case(SCORES)
def inverse_distance(shape, make):
    x, ls = make.real(shape.seqlen, 3), make.real(shape.heads).abs() + 1
    return lambda s, b, h, q, k: s * torch.exp(-torch.norm(x[q] - x[k], dim=-1) / ls[h]), None, []


@case(SCORES)
def mask_added(shape, make):
    m = make.integer(0, 2, shape.batch, 1, shape.seqlen, shape.seqlen).bool()
    m = m | torch.eye(shape.seqlen, dtype=torch.bool)
    return lambda s, b, h, q, k: s + m[b, 0, q, k], lambda b, h, q, k: m[b, 0, q, k], []


@case(SCORES)
def continuous_position_bias(shape, make):
    g, mq, mk = make.real(shape.heads), make.real(shape.batch, shape.heads, shape.seqlen), make.real(shape.batch, shape.heads, shape.seqlen)
    table = make.real(11, shape.heads)
    index = make.integer(0, 11, shape.seqlen, shape.seqlen).long()
    r = 5

    def score(s, b, h, q, k):
        inside = (q >= r) & (k >= r)
        bias = torch.sigmoid(g[h]) * (mq[b, h, q] + mk[b, h, k]) * table[index[q, k], h]
        return s + torch.where(inside, bias, 0.0)

    return score, None, []


@case(SCORES)
def sandwich(shape, make):
    n = shape.seqlen
    distance = torch.arange(-n + 1, n).abs()[:, None]
    rel = torch.cos(distance * 10000 ** (-2 * torch.arange(64)[None] / 128)).sum(1).to(make.dtype)
    hs = (shape.heads / (8 * (torch.arange(shape.heads) + 1.0))).to(make.dtype)
    return lambda s, b, h, q, k: s + rel[q - k + n - 1] * hs[h] / 64, None, []


@case(SCORES)
def mla_rope(shape, make):
    qr, kr = make.real(shape.batch, shape.heads, shape.seqlen, 8), make.real(shape.batch, 1, shape.seqlen, 8)
    return lambda s, b, h, q, k: s + 0.1 * torch.dot(qr[b, h, q, :], kr[b, h // 128, k, :]), None, []


@case(SCORES)
def windowed(shape, make):
    offset = 5  # of a decode step, a Python number
    return lambda s, b, h, q, k: torch.where(q + offset >= k, s, float("-inf")), None, []


@case(SCORES)
def decode_offset(shape, make):
    offset = torch.tensor(7, dtype=torch.int32)
    table = make.real(2 * shape.seqlen + 8)
    return lambda s, b, h, q, k: s + table[(q + offset) - k + shape.seqlen], lambda b, h, q, k: q + offset >= k, []


@case(SCORES)
def reinterpreted_bias(shape, make):
    p = 2 * make.real(shape.batch, shape.seqlen, shape.seqlen, shape.heads)
    bias = p.reshape(shape.batch, shape.heads, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + bias[b, h, q, k], None, []


@case(SCORES)
def symint(shape, make):
    return lambda s, b, h, q, k: s + shape.batch, None, []


@case(SCORES)
def activation_attention(shape, make):
    return lambda s, b, h, q, k: torch.log(torch.nn.functional.relu(s) + 0.5), None, []


@case(SCORES)
def pathological(shape, make):
    def score(s, b, h, q, k):
        for _ in range(6):
            s = torch.sin(torch.exp(-s * s) + torch.tanh(s)) * 1.5 - torch.cos(s)
        return s

    return score, None, []


# Learnable captures.
@case(LEARNABLE)
def relative_1d(shape, make):
    t = make.learn(2 * shape.seqlen)
    return lambda s, b, h, q, k: s + t[torch.abs(q - k)], None, [t]


@case(LEARNABLE)
def absolute_2d(shape, make):
    t = make.learn(shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[q, k], None, [t]


@case(LEARNABLE)
def head_specific(shape, make):
    t = make.learn(shape.heads, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[h, q, k], None, [t]


@case(LEARNABLE)
def batch_head(shape, make):
    t = make.learn(shape.batch, shape.heads, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[b, h, q, k], None, [t]


@case(LEARNABLE)
def multiplicative(shape, make):
    t = make.learn(shape.seqlen)
    return lambda s, b, h, q, k: s * t[q], None, [t]


@case(LEARNABLE)
def local_window(shape, make):
    w = 8
    t = make.learn(2 * w + 1)
    return lambda s, b, h, q, k: s + t[torch.clamp(q - k + w, 0, 2 * w)], None, [t]


@case(LEARNABLE)
def global_tokens(shape, make):
    t = make.learn(shape.seqlen)
    return lambda s, b, h, q, k: s + t[k], None, [t]


@case(LEARNABLE)
def weird(shape, make):
    t = make.learn(shape.batch, shape.heads, 4, shape.seqlen)
    which = torch.tensor(2)
    return lambda s, b, h, q, k: s + t[b, h, which, q] * 0.5 + t[b, h, which, k], None, [t]


@case(LEARNABLE)
def indirect(shape, make):
    t = make.learn(shape.seqlen)
    off = make.integer(0, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[off[k]] + s * t[off[q]], None, [t]


@case(LEARNABLE)
def symmetric(shape, make):
    t = make.learn(shape.seqlen)
    return lambda s, b, h, q, k: s + t[q] + t[k], None, [t]


@case(LEARNABLE)
def flipped(shape, make):
    t = make.learn(shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[k, q], None, [t]


@case(LEARNABLE)
def head_specific_gate(shape, make):
    g = make.learn(shape.heads)
    return lambda s, b, h, q, k: s * torch.sigmoid(g[h].to(torch.float32)), None, [g]


@case(LEARNABLE)
def distinct_biases(shape, make):
    a, c = make.learn(shape.seqlen), make.learn(shape.seqlen)
    return lambda s, b, h, q, k: s + a[q] + c[k], None, [a, c]


@case(LEARNABLE)
def head_bias_learned(shape, make):
    t = make.learn(shape.heads)
    return lambda s, b, h, q, k: s + t[h], None, [t]


@case(LEARNABLE)
def sum_index(shape, make):
    t = make.learn(2 * shape.seqlen)
    return lambda s, b, h, q, k: s + t[q + k], None, [t]


@case(LEARNABLE)
def scalar_add_and_multiply(shape, make):
    c = make.learn()
    return lambda s, b, h, q, k: s * c + c, None, [c]


@case(LEARNABLE)
def t5_buckets(shape, make):
    t = make.learn(16, shape.heads)

    def bucket(relative):
        n = torch.clamp(relative, min=0)
        large = 8 + (torch.log(torch.clamp(n, min=1).float() / 8) / 2.7725887 * 8).to(torch.int32)
        return torch.where(n < 8, n, torch.clamp(large, max=15))

    return lambda s, b, h, q, k: s + t[bucket(q - k), h], lambda b, h, q, k: q >= k, [t]


@case(LEARNABLE)
def nested_index(shape, make):
    t = make.learn(20, 1)
    index = make.integer(0, 20, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[index[q, k]][0], None, [t]


@case(LEARNABLE)
def graphormer_spatial(shape, make):
    t = make.learn(shape.heads, 12)
    distance = make.integer(0, 12, shape.batch, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[h, distance[b, q, k]], None, [t]


@case(LEARNABLE)
def graphormer_edge(shape, make):
    hops = 3
    t = make.learn(shape.heads, hops, 9)
    path = make.integer(0, 9, shape.batch, shape.seqlen, shape.seqlen, hops)
    length = make.integer(0, hops + 1, shape.batch, shape.seqlen, shape.seqlen)

    def score(s, b, h, q, k):
        n = length[b, q, k]
        total = torch.zeros_like(s)
        for i in range(hops):
            total = total + torch.where(i < n, t[h, i, path[b, q, k, i]], 0.0)
        return s + total / torch.clamp(n, min=1)

    return score, None, [t]


@case(LEARNABLE)
def pair_bias(shape, make):
    t = make.learn(1, shape.heads, shape.seqlen, shape.seqlen)
    length = make.integer(shape.seqlen // 2, shape.seqlen, shape.batch)
    return lambda s, b, h, q, k: s + t[0, h, q, k], lambda b, h, q, k: k < length[b], [t]


@case(LEARNABLE)
def trained_slopes(shape, make):
    slopes = make.learn(shape.heads)
    return lambda s, b, h, q, k: s + slopes[h] * (k - q) * 0.1, lambda b, h, q, k: q >= k, [slopes]


@case(LEARNABLE)
def trained_softcap(shape, make):
    cap = make.learn()
    return lambda s, b, h, q, k: torch.tanh(s / (cap.abs() + 3)) * (cap.abs() + 3), None, [cap]


@case(LEARNABLE)
def relative_signed(shape, make):
    t = make.learn(2 * shape.seqlen)
    return lambda s, b, h, q, k: s + t[q - k + shape.seqlen], None, [t]


@case(LEARNABLE)
def head_scale(shape, make):
    c = make.learn(shape.heads)
    return lambda s, b, h, q, k: s * c[h], None, [c]


@case(LEARNABLE)
def rows_then_columns(shape, make):
    t = make.learn(shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[q][k], None, [t]


@case(LEARNABLE)
def flipped_heads(shape, make):
    t = make.learn(shape.heads, shape.seqlen, shape.seqlen)
    return lambda s, b, h, q, k: s + t[h, k, q], None, [t]


@case(LEARNABLE)
def graphormer_both(shape, make):
    hops = 3
    near, edge = make.learn(shape.heads, 12), make.learn(shape.heads, hops, 9)
    distance = make.integer(0, 12, shape.batch, shape.seqlen, shape.seqlen)
    path = make.integer(0, 9, shape.batch, shape.seqlen, shape.seqlen, hops)

    def score(s, b, h, q, k):
        total = sum(edge[h, i, path[b, q, k, i]] for i in range(hops))
        return s + near[h, distance[b, q, k]] + total / hops

    return score, None, [near, edge]


@case(LEARNABLE)
def mla_rope_trained(shape, make):
    qr, kr = make.learn(shape.batch, shape.heads, shape.seqlen, 8), make.learn(shape.batch, 1, shape.seqlen, 8)
    return lambda s, b, h, q, k: s + 0.1 * torch.dot(qr[b, h, q, :], kr[b, h // 128, k, :]), None, [qr, kr]


@case(LEARNABLE)
def decomposed_relative_trained(shape, make):
    rows, cols = (make.learn(shape.batch, shape.heads, shape.seqlen, 8) for _ in range(2))
    return lambda s, b, h, q, k: s + rows[b, h, q, k // 8] + cols[b, h, q, k % 8], None, [rows, cols]


@case(LEARNABLE)
def continuous_position_bias_trained(shape, make):
    g = make.learn(shape.heads)
    mq, mk = (make.learn(shape.batch, shape.heads, shape.seqlen) for _ in range(2))
    table = make.learn(11, shape.heads)
    index = make.integer(0, 11, shape.seqlen, shape.seqlen).long()
    r = 5

    def score(s, b, h, q, k):
        bias = torch.sigmoid(g[h]) * (mq[b, h, q] + mk[b, h, k]) * table[index[q, k], h]
        return s + torch.where((q >= r) & (k >= r), bias, 0.0)

    return score, None, [g, mq, mk, table]


@case(LEARNABLE)
def inverse_distance_trained(shape, make):
    ls = make.learn(shape.heads)
    x = make.real(shape.seqlen, 3)
    return lambda s, b, h, q, k: s * torch.exp(-torch.norm(x[q] - x[k], dim=-1) / (ls[h].abs() + 1)), None, [ls]


# Masks.
def mask(name: str, mask_mod: Any) -> None:
    MASKS[name] = lambda shape, make: (None, mask_mod, [])


mask("noop", lambda b, h, q, k: q.new_ones((), dtype=torch.bool))
mask("causal", lambda b, h, q, k: q >= k)
mask("inverse_causal", lambda b, h, q, k: q <= k)
mask("row_cut", lambda b, h, q, k: q < 20)
mask("sliding_window", lambda b, h, q, k: (q - k <= 5) & (q >= k))
mask("band", lambda b, h, q, k: (q >= k - 32) & (q >= k))
mask("global_causal", lambda b, h, q, k: (q >= k) & (q - k > 4))
mask("dilated", lambda b, h, q, k: (torch.abs(q - k) <= 9) & (torch.abs(q - k) % 3 == 0))
mask("prefix_lm", lambda b, h, q, k: (k < 11) | (q >= k))
mask("two_ranges", lambda b, h, q, k: (k < 7) | (k >= 29))
mask("batch_flip", lambda b, h, q, k: torch.where(b % 2 == 0, q >= k, q <= k))
mask("tree_training", lambda b, h, q, k: (k < 5) | ((q // 8 == (k - 5) // 8) & ((k - 5) % 8 <= q % 8)))


@case(MASKS)
def longformer(shape, make):
    g = torch.zeros(shape.seqlen, dtype=torch.bool)
    g[3] = g[17] = True
    return None, lambda b, h, q, k: (torch.abs(q - k) <= 4) | g[q] | g[k], []


@case(MASKS)
def document(shape, make):
    d = (torch.arange(shape.seqlen) // 13).to(torch.int32)
    return None, lambda b, h, q, k: (d[q] == d[k]) & (q >= k), []


@case(MASKS)
def document_batched(shape, make):
    d = torch.stack([torch.arange(shape.seqlen) // (7 + 3 * i) for i in range(shape.batch)]).to(torch.int32)
    return None, lambda b, h, q, k: d[b, q] == d[b, k], []


@case(MASKS)
def padding(shape, make):
    n = make.integer(1, shape.seqlen, shape.batch)
    return None, lambda b, h, q, k: (q < n[b]) & (k < n[b]), []


@case(MASKS)
def random_rows(shape, make):
    r = make.integer(0, 2, shape.batch, shape.seqlen).bool()
    return None, lambda b, h, q, k: ~r[b, q], []


@case(MASKS)
def block_diffusion(shape, make):
    n, half = 4, shape.seqlen // 2

    def mask_mod(b, h, q, k):
        nq, nk = q < half, k < half
        i, j = (q % half) // n, (k % half) // n
        return ((i == j) & (nq == nk)) | ((i > j) & nq & ~nk) | ((i >= j) & ~nq & ~nk)

    return None, mask_mod, []


@case(MASKS)
def natten_2d(shape, make):
    w, r = 6, 1

    def mask_mod(b, h, q, k):
        qx, qy, kx, ky = q // w, q % w, k // w, k % w
        cx, cy = torch.clamp(qx, r, 5 - r), torch.clamp(qy, r, w - 1 - r)
        return ((cx - kx).abs() <= r) & ((cy - ky).abs() <= r)

    return None, mask_mod, []


@case(MASKS)
def flamingo(shape, make):
    image = (torch.arange(shape.seqlen) // 10).to(torch.int32)
    spans = torch.tensor([[0, 12], [8, 20], [15, 30], [20, shape.seqlen]], dtype=torch.int32)
    return None, lambda b, h, q, k: (spans[image[k], 0] <= q) & (q < spans[image[k], 1]), []


@case(MASKS)
def block_map(shape, make):
    tiles = (shape.seqlen + 7) // 8
    chosen = make.integer(0, 2, shape.batch, shape.heads, tiles, tiles).bool()
    return None, lambda b, h, q, k: chosen[b, h, q // 8, k // 8], []


@case(MASKS)
def key_ranges(shape, make):
    start = make.integer(0, 10, shape.heads, shape.seqlen)
    end = make.integer(10, shape.seqlen, shape.heads, shape.seqlen)
    return None, lambda b, h, q, k: (k >= start[h, q]) & (k < end[h, q]), []


@case(MASKS)
def segment_ids(shape, make):
    a = make.integer(0, 3, shape.batch, shape.seqlen)
    c = make.integer(0, 3, shape.batch, shape.seqlen)
    return None, lambda b, h, q, k: a[b, q] == c[b, k], []

@case(MASKS)
def packed_causal_document(shape, make):
    ids = (torch.arange(shape.seqlen) // 9).to(torch.int32)
    offsets = (torch.arange(shape.seqlen // 9 + 2) * 9).to(torch.int32)
    return None, lambda b, h, q, k: (k >= offsets[ids[q]]) & (q >= k), []


@case(MASKS)
def document_inner_window(shape, make):
    """A mask of positions relative to the start of the document."""
    ids = (torch.arange(shape.seqlen) // 15).to(torch.int32)
    offsets = (torch.arange(shape.seqlen // 15 + 2) * 15).to(torch.int32)

    def mask_mod(b, h, q, k):
        i, j = q - offsets[ids[q]], k - offsets[ids[k]]
        return (ids[q] == ids[k]) & (i >= j) & ((i - j < 4) | (j < 2))

    return None, mask_mod, []


@case(MASKS)
def shared_prefix(shape, make):
    """Documents 1 and 2 share document 0 as their prefix."""
    ids = torch.clamp(torch.arange(shape.seqlen) // 13, max=2).to(torch.int32)
    starts, ends = torch.tensor([0, 13, 26], dtype=torch.int32), torch.tensor([13, 26, shape.seqlen], dtype=torch.int32)
    prefix = torch.tensor([0, 0, 0], dtype=torch.int32)

    def mask_mod(b, h, q, k):
        d = ids[q]
        own = (k >= starts[d]) & (q >= k)
        return own | ((d != prefix[d]) & (k >= starts[prefix[d]]) & (k < ends[prefix[d]]))

    return None, mask_mod, []


mask("batchify", lambda b, h, q, k: (q // 12 == k // 12) & (q % 12 >= k % 12))
mask("svg_spatial", lambda b, h, q, k: (q < 6) | (k < 6) | (torch.abs(q - k) < 2 * 10 // 4 * 2))
mask("svg_temporal", lambda b, h, q, k: (q < 6) | (k < 6) | (torch.abs((q - 6) % 10 - (k - 6) % 10) < 2))


@case(MASKS)
def sequence_equality(shape, make):
    seq = make.integer(0, 2, shape.seqlen).bool()
    return None, lambda b, h, q, k: seq[q] == seq[k], []


@case(MASKS)
def symbolic_limit(shape, make):
    sq = skv = shape.seqlen
    return None, lambda b, h, q, k: q < ((sq // 32) + (skv // 32)) * 16, []


@case(MASKS)
def random_pairs(shape, make):
    m = make.integer(0, 2, shape.batch, 1, shape.seqlen, shape.seqlen).bool()
    return None, lambda b, h, q, k: m[b, 0, q, k], []


@case(MASKS)
def tree_causal(shape, make):
    p, n = 9, 16
    ancestors = make.integer(0, 2, n, n).bool() | torch.eye(n, dtype=torch.bool)

    def mask_mod(b, h, q, k):
        inside = (k >= p) & (k < p + n)
        return (k < p) | (inside & ancestors[torch.clamp(q, 0, n - 1), torch.clamp(k - p, 0, n - 1)])

    return None, mask_mod, []


def tiles_of(i):
    """Tiles of 2 x 3 in rows of two tiles: (row, column) of a position."""
    tile, inner = i // 6, i % 6
    return tile // 2 * 2 + inner // 3, tile % 2 * 3 + inner % 3


@case(MASKS)
def natten_tiled(shape, make):
    def mask_mod(b, h, q, k):
        (qx, qy), (kx, ky) = tiles_of(q), tiles_of(k)
        cx, cy = torch.clamp(qx, 1, 4), torch.clamp(qy, 1, 4)
        return ((cx - kx).abs() <= 1) & ((cy - ky).abs() <= 1)

    return None, mask_mod, []


@case(MASKS)
def natten_morton(shape, make):
    def deinterleave(i):
        x = (i % 2) + (i // 4 % 2) * 2 + (i // 16 % 2) * 4
        y = (i // 2 % 2) + (i // 8 % 2) * 2 + (i // 32 % 2) * 4
        return x, y

    def mask_mod(b, h, q, k):
        (qx, qy), (kx, ky) = deinterleave(q), deinterleave(k)
        return ((torch.clamp(qx, 1, 6) - kx).abs() <= 1) & ((torch.clamp(qy, 1, 6) - ky).abs() <= 1)

    return None, mask_mod, []


def sliding_tile(image, kernel, text):
    """STA: tiles of the image attend to tiles near the (clamped) tile of the query; text and image see the text."""

    def mask_mod(b, h, q, k):
        near = (q < image) & (k < image)
        a, c = torch.clamp(q, max=image - 1) // 2, torch.clamp(k, max=image - 1) // 2  # tiles of two positions
        for extent, size in kernel:
            qt, kt = a % extent, c % extent
            a, c = a // extent, c // extent
            centre = torch.clamp(qt, size // 2, extent - 1 - size // 2)
            near = near & (kt - centre <= size // 2 - (1 - size % 2)) & (centre - kt <= size // 2)
        return near | ((q < image) & (k >= image) & (k < image + text)) | ((q >= image) & (k < image + text))

    return mask_mod


mask("sliding_tile_2d", sliding_tile(32, ((4, 3), (4, 3)), 5))
mask("sliding_tile_3d", sliding_tile(32, ((4, 3), (2, 1), (2, 1)), 5))


@case(MASKS)
def block_top_k(shape, make):
    tiles = (shape.seqlen + 7) // 8
    top = make.integer(0, tiles, shape.batch, shape.heads, tiles, 2)
    return None, lambda b, h, q, k: (top[b, h, q // 8, 0] == k // 8) | (top[b, h, q // 8, 1] == k // 8), []


@case(MASKS)
def block_padding(shape, make):
    size = make.integer(1, 9, (shape.seqlen + 7) // 8)
    return None, lambda b, h, q, k: k % 8 < size[k // 8], []


@case(MASKS)
def query_ranges(shape, make):
    start, end = make.integer(0, 10, shape.heads, shape.seqlen), make.integer(10, shape.seqlen, shape.heads, shape.seqlen)
    return None, lambda b, h, q, k: (q >= start[h, k]) & (q < end[h, k]) & (q >= k), []


@case(MASKS)
def composite(shape, make):
    from torch.nn.attention.flex_attention import and_masks, or_masks

    ids = (torch.arange(shape.seqlen) // 13).to(torch.int32)
    near = and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 9, lambda b, h, q, k: ids[q] == ids[k])
    return None, or_masks(near, lambda b, h, q, k: k < 2), []


@case(MASKS)
def decode(shape, make):
    offset = torch.tensor(11, dtype=torch.int32)
    return None, lambda b, h, q, k: q + offset >= k, []


@case(MASKS)
def paged(shape, make):
    """Keys lie in pages of 8 in some order: the mask sees the logical position of a physical slot."""
    pages = (shape.seqlen + 7) // 8
    logical = torch.randperm(pages, generator=make.generator, device="cpu").to(torch.get_default_device()).to(torch.int32)

    def mask_mod(b, h, q, k):
        position = logical[k // 8] * 8 + k % 8
        return (position <= q) & (position < shape.seqlen)

    return None, mask_mod, []



ALL: dict[str, Case] = {**{f"score:{n}": c for n, c in SCORES.items()}, **{f"learn:{n}": c for n, c in LEARNABLE.items()},
                        **{f"mask:{n}": c for n, c in MASKS.items()}}  # fmt: skip


def eager(q, k, v, score_mod, mask_mod, scale=None, enable_gqa=False):
    """The definition, materialised: [B, H, S, D] tensors, score_mod and mask_mod by vmap. Rows without keys give 0; returns (out, lse)."""
    if k.shape[1] != q.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q @ k.transpose(-1, -2)) * scale
    index = [torch.arange(extent) for extent in scores.shape]
    if score_mod is not None:
        mod = score_mod
        for position in range(3, -1, -1):
            dims = [None] * 4
            dims[position] = 0
            mod = torch.vmap(mod, in_dims=(0, *dims))
        scores = mod(scores, *index).to(scores.dtype)
    if mask_mod is not None:
        mod = mask_mod
        for position in range(3, -1, -1):
            dims = [None] * 4
            dims[position] = 0
            mod = torch.vmap(mod, in_dims=tuple(dims))
        keep = mod(*index).expand(scores.shape)
        scores = torch.where(keep, scores, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    p = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[..., None])
    p = torch.where(lse.isinf()[..., None], 0.0, p)
    return p.to(v.dtype) @ v, lse
