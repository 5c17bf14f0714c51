#pragma once
// The scores and masks that people use, as problem lines without pass and dtype: scores without learnable state, learnable scores, masks.
// Rows that need a vector-valued capture (a dot product of captured vectors inside the score) or a derivative of the user's own are not
// expressible and not here.
namespace foveal::catalogue {

struct Row {
  const char* name;
  const char* text;
};

inline constexpr Row scores[] = {
    {"identity", "b2 h4 q37 d16 score=\"score\""},
    {"times_two", "b2 h4 q37 d16 score=\"2 * score\""},
    {"squared", "b2 h4 q37 d16 score=\"score * score\""},
    {"causal_as_score", "b2 h4 q37 d16 score=\"where(q_idx >= kv_idx, score, -inf)\""},
    {"inverse_causal_as_score", "b2 h4 q37 d16 score=\"where(q_idx <= kv_idx, score, -inf)\""},
    {"rel_bias", "b2 h4 q37 d16 score=\"score + (q_idx - kv_idx)\""},
    {"rel_causal", "b2 h4 q37 d16 score=\"where(q_idx >= kv_idx, score + (q_idx - kv_idx), -inf)\""},
    {"windowed_offset", "b2 h4 q9:37 d16 score=\"where(q_idx + 28 >= kv_idx, score, -inf)\""},
    {"alibi_bias", "b2 h4 q37 d16 score=\"score + (kv_idx - q_idx) * exp2(-8 * (head + 1) / 4)\""},
    {"alibi_causal", "b2 h4:2 q53 d16 score=\"score + (kv_idx - q_idx) * exp2(-8 * (head + 1) / 4)\" mask=\"causal()\""},
    {"head_bias_constant", "b2 h4 q37 d16 score=\"score + 2 * head\""},
    {"head_offset", "b2 h4 q37 d16 score=\"score + o[head]\" param=\"o: real[4]\""},
    {"head_offset_times", "b2 h4 q37 d16 score=\"score * o[head]\" param=\"o: real[4]\""},
    {"trig", "b2 h4 q37 d16 score=\"sin(cos(score)) + tan(to_real(batch))\""},
    {"trig2", "b2 h4 q37 d16 score=\"cos(score) * sin(score) + tan(to_real(batch))\""},
    {"skip_odd_keys", "b2 h4 q37 d16 score=\"where(kv_idx % 2 == 0, score, -inf)\""},
    {"composition", "b2 h4 q37 d16 score=\"where(q_idx <= kv_idx, score + (q_idx - kv_idx), -inf)\""},
    {"captured_all_dims",
     "b2 h4 q37 d16 score=\"score + tok[q_idx] + bat[batch] + hd[head]\" param=\"tok: real[37]\" param=\"bat: real[2]\" param=\"hd: "
     "real[4]\""},
    {"captured_all_dims_decode",
     "b2 h4 q1:37 d16 score=\"score + kvt[kv_idx] + tok[q_idx] + bat[batch] + hd[head]\" param=\"kvt: real[37]\" param=\"tok: real[1]\" "
     "param=\"bat: real[2]\" param=\"hd: real[4]\""},
    {"seq_masking", "b2 h4 q37 d16 score=\"where(seq[q_idx] == seq[kv_idx], score, -inf)\" param=\"seq: integer[37] segments(4)\""},
    {"seq_masking_bool", "b2 h4 q37 d16 score=\"where(seq[q_idx] ^ ~seq[kv_idx], score, -inf)\" param=\"seq: boolean[37]\""},
    {"load_bias_2d", "b2 h4 q37 d16 score=\"score + bias[q_idx, kv_idx]\" param=\"bias: real[37, 37]\""},
    {"load_bias_3d", "b2 h4 q37 d16 score=\"score + bias[batch, q_idx, kv_idx]\" param=\"bias: real[2, 37, 37]\""},
    {"load_bias_4d", "b2 h4 q37:41 d16 score=\"score + bias[batch, head, q_idx, kv_idx]\" param=\"bias: real[2, 4, 37, 41]\""},
    {"load_rel_bias", "b2 h4 q37 d16 score=\"score + table[q_idx - kv_idx + 37]\" param=\"table: real[74]\""},
    {"dependent_causal_bidirectional",
     "b2 h4 q37 d16 score=\"where(q_idx >= kv_idx or (q_idx <= n[batch] and kv_idx <= n[batch]), score, -inf)\" param=\"n: integer[2] "
     "integers(5, 20)\""},
    {"natten_2d_test", "b2 h4 q36 d16 score=\"where(abs(q_idx / 6 - kv_idx / 6) <= 3 or abs(q_idx % 6 - kv_idx % 6) <= 3, score, -inf)\""},
    {"silu", "b2 h4 q37 d16 score=\"score * sigmoid(score)\""},
    {"padded_dense_causal",
     "b2 h4 q37 d16 score=\"where(q_idx >= kv_idx and score <= len[batch], score, -inf)\" param=\"len: integer[2] integers(1, 2)\""},
    {"jagged_causal",
     "b2 h4 q37 d16 score=\"where(q_idx - off[i[q_idx]] >= kv_idx - off[i[kv_idx]], score, -inf)\" param=\"off: integer[5] integers(0, "
     "20)\" "
     "param=\"i: integer[37] segments(4)\""},
    {"captured_scalar_added", "b2 h4 q37 d16 score=\"score + c[]\" param=\"c: real[]\""},
    {"captured_scalar_times", "b2 h4 q37 d16 score=\"score * c[]\" param=\"c: real[]\""},
    {"index_multiple", "b2 h4 q37 d16 score=\"score + bias[batch, q_idx]\" param=\"bias: real[2, 37]\""},
    {"weird1", "b2 h4 q37 d16 score=\"score + bias[0, batch, head, q_idx]\" param=\"bias: real[4, 2, 4, 37]\""},
    {"weird2",
     "b2 h4 q37 d16 score=\"score + bias[batch, head, which[], q_idx]\" param=\"bias: real[2, 4, 4, 37]\" param=\"which: integer[]\""},
    {"sam_decomposed",
     "b2 h4 q64 d16 score=\"score + relh[batch, head, q_idx, kv_idx // 8] + relw[batch, head, q_idx, kv_idx % 8]\" "
     "param=\"relh: real[2, 4, 64, 8] grad\" param=\"relw: real[2, 4, 64, 8] grad\""},
    {"floor_div", "b2 h4 q37 d16 score=\"score - q_idx // (1 + kv_idx)\""},
    {"modular_indexing", "b2 h4 q37 d16 score=\"score + bias[batch, head, q_idx, kv_idx]\" param=\"bias: real[2, 4, 37, 37] bf16\""},
    {"offset_q_and_kv", "b2 h4 q37 d16 score=\"score + oq[q_idx] + ok[kv_idx]\" param=\"oq: real[37]\" param=\"ok: real[37]\""},
    {"multiplicative_captured", "b2 h4 q37 d16 score=\"score * m[q_idx]\" param=\"m: real[37]\""},
    {"inverse_distance",
     "b2 h4 q37 d16 score=\"score * exp(-sqrt((x[q_idx, 0] - x[kv_idx, 0]) ** 2 + (x[q_idx, 1] - x[kv_idx, 1]) ** 2 + (x[q_idx, 2] - "
     "x[kv_idx, 2]) ** 2) / ls[head])\" param=\"x: real[37, 3]\" param=\"ls: real[4] uniform(1, 2)\""},
    {"symint", "b2 h4 q37 d16 score=\"score + 2\""},
    {"attn_mask_added",
     "b2 h4 q37 d16 score=\"score + m[batch, 0, q_idx, kv_idx]\" mask=\"m[batch, 0, q_idx, kv_idx]\" param=\"m: boolean[2, 1, 37, 37]\""},
    {"continuous_position_bias",
     "b2 h4 q18 d32 score=\"score + to_real(q_idx >= 2 and kv_idx >= 2) * sigmoid(g[head]) * (mq[batch, head, q_idx] + mk[batch, head, "
     "kv_idx]) * "
     "tab[idx[q_idx, kv_idx], head]\" param=\"g: real[4] grad\" param=\"mq: real[2, 4, 18] grad\" param=\"mk: real[2, 4, 18] grad\" "
     "param=\"tab: "
     "real[31, 4] grad\" param=\"idx: integer[18, 18] i64 integers(0, 30)\""},
    {"softcap_30", "b2 h4 q37 d16 score=\"30 * tanh(score / 30)\""},
    {"softcap_2", "b2 h4 q37 d16 score=\"softcap(2)\" mask=\"causal()\""},
    {"sandwich", "b2 h4 q37 d16 score=\"score + rel[q_idx - kv_idx + 36] * hs[head]\" param=\"rel: real[80]\" param=\"hs: real[4]\""},
    {"activation_gelu", "b2 h4 q37 d16 score=\"log(0.5 * score * (1 + erf(score / 1.4142135623730951)) + 1)\" dlse"},
    {"activation_relu", "b2 h4 q37 d16 score=\"log(max(score, 0) + 0.5)\" dlse"},
    {"activation_sigmoid", "b2 h4 q37 d16 score=\"log(sigmoid(score) + 0.25)\" dlse"},
    {"long_chain", "b2 h4 q37 d16 score=\"sin(exp(cos(tanh(sin(exp(cos(tanh(sin(exp(cos(tanh(sin(exp(cos(tanh(score / 2))))))))))))))))\""},
};

inline constexpr Row learnable[] = {
    {"relative_1d", "b2 h4 q37 d16 score=\"score + b[abs(q_idx - kv_idx)]\" param=\"b: real[74] grad\""},
    {"relative_1d_only_the_bias", "b2 h4 q37 d16 grads=none score=\"score + b[abs(q_idx - kv_idx)]\" param=\"b: real[74] grad\""},
    {"absolute_2d", "b2 h4 q37 d16 score=\"score + b[q_idx, kv_idx]\" param=\"b: real[37, 37] grad\""},
    {"head_specific", "b2 h4 q37 d16 score=\"score + b[head, q_idx, kv_idx]\" param=\"b: real[4, 37, 37] grad\""},
    {"batch_head", "b2 h4 q37:45 d16 score=\"score + b[batch, head, q_idx, kv_idx]\" param=\"b: real[2, 4, 37, 45] grad\""},
    {"multiplicative", "b2 h4 q37 d16 score=\"score * b[q_idx]\" param=\"b: real[37] grad\""},
    {"local_window", "b2 h4 q37 d16 score=\"score + b[clamp(q_idx - kv_idx + 8, 0, 16)]\" param=\"b: real[17] grad\""},
    {"local_window_causal",
     "b2 h4:2 q67 d16 score=\"score + b[head, clamp(q_idx - kv_idx + 8, 0, 16)]\" mask=\"causal()\" param=\"b: real[4, 17] grad\""},
    {"global_tokens", "b2 h4 q37 d16 score=\"score + b[kv_idx]\" param=\"b: real[37] grad\""},
    {"weird",
     "b2 h4 q37 d16 score=\"score + b[batch, head, which[], q_idx] * score\" param=\"b: real[2, 4, 4, 37] grad\" param=\"which: "
     "integer[]\""},
    {"weird_added",
     "b2 h4 q37 d16 score=\"score + b[batch, head, which[], q_idx]\" param=\"b: real[2, 4, 4, 37] grad\" param=\"which: integer[]\""},
    {"indirect",
     "b2 h4 q37 d16 score=\"score + b[off[q_idx]] * kv_idx / 37\" param=\"b: real[37] grad\" param=\"off: integer[37] integers(0, 36)\""},
    {"symmetric", "b2 h4 q37 d16 score=\"score + b[q_idx] + b[kv_idx]\" param=\"b: real[37] grad\""},
    {"symmetric_product", "b2 h4 q37 d16 score=\"score + b[q_idx] * b[kv_idx]\" param=\"b: real[37] grad\""},
    {"flipped", "b2 h4 q37 d16 score=\"score + b[kv_idx, q_idx]\" param=\"b: real[37, 37] grad\""},
    {"head_specific_gate", "b2 h4 q37 d16 score=\"score * sigmoid(g[head])\" param=\"g: real[4] grad\""},
    {"distinct_biases", "b2 h4 q37 d16 score=\"score + b1[q_idx] + b2[kv_idx]\" param=\"b1: real[37] grad\" param=\"b2: real[37] grad\""},
    {"head_bias", "b1 h4 q64 d64 score=\"score + b[head]\" param=\"b: real[4] grad\""},
    {"vs_sdpa_sum", "b1 h1 q64 d16 score=\"score + b[q_idx + kv_idx]\" param=\"b: real[128] grad\""},
    {"vs_sdpa_head_flipped", "b2 h8 q37 d16 score=\"score + b[head, kv_idx, q_idx]\" param=\"b: real[8, 37, 37] grad\""},
    {"scalar_added", "b2 h4 q37 d16 score=\"score + c[]\" param=\"c: real[] grad\" dlse"},
    {"scalar_times", "b2 h4 q37 d16 score=\"score * c[]\" param=\"c: real[] grad\""},
    {"head_scale", "b2 h4 q37 d16 score=\"score * c[head]\" param=\"c: real[4] grad\""},
    {"t5_table", "b2 h4 q37 d16 score=\"score + b[q_idx - kv_idx + 37]\" param=\"b: real[74] grad\""},
    {"t5_buckets",
     "b2 h4 q67 d16 score=\"score + b[min(7, where(q_idx - kv_idx < 4, max(q_idx - kv_idx, 0), 4 + to_integer(log(max(q_idx - kv_idx, 1) / "
     "4) / "
     "log(4.0) * 2))), head]\" mask=\"causal()\" param=\"b: real[8, 4] grad\""},
    {"swin_bucket_lookup",
     "b2 h4 q36 d16 score=\"score + b[bucket[q_idx, kv_idx], head]\" param=\"b: real[25, 4] grad\" param=\"bucket: integer[36, 36] "
     "integers(0, 24)\""},
    {"nested_index",
     "b2 h4 q37 d16 score=\"score + b[i[(q_idx + kv_idx) % 37], 0]\" param=\"b: real[20, 1] grad\" param=\"i: integer[37] integers(0, "
     "19)\""},
    {"graphormer_spatial",
     "b2 h4 q37 d16 score=\"score + b[head, dist[batch, q_idx, kv_idx]]\" param=\"b: real[4, 9] grad\" param=\"dist: integer[2, 37, 37] "
     "integers(0, 8)\""},
    {"graphormer_edge",
     "b2 h4 q21 d16 score=\"score + (where(len[batch, q_idx, kv_idx] > 0, t[head, 0, path[batch, q_idx, kv_idx, 0]], 0.0) + "
     "where(len[batch, q_idx, "
     "kv_idx] > 1, t[head, 1, path[batch, q_idx, kv_idx, 1]], 0.0) + where(len[batch, q_idx, kv_idx] > 2, t[head, 2, path[batch, q_idx, "
     "kv_idx, 2]], "
     "0.0)) / max(len[batch, q_idx, kv_idx], 1)\" param=\"t: real[4, 3, 12] grad\" param=\"path: integer[2, 21, 21, 3] integers(0, 11)\" "
     "param=\"len: "
     "integer[2, 21, 21] integers(0, 3)\""},
    {"graphormer_both",
     "b2 h4 q21 d16 score=\"score + b[head, dist[batch, q_idx, kv_idx]] + (where(dist[batch, q_idx, kv_idx] > 0, t[head, 0, path[batch, "
     "q_idx, kv_idx, "
     "0]], 0.0) + where(dist[batch, q_idx, kv_idx] > 1, t[head, 1, path[batch, q_idx, kv_idx, 1]], 0.0)) / max(dist[batch, q_idx, kv_idx], "
     "1)\" "
     "param=\"b: real[4, 4] grad\" param=\"t: real[4, 2, 12] grad\" param=\"path: integer[2, 21, 21, 2] integers(0, 11)\" param=\"dist: "
     "integer[2, 21, 21] "
     "integers(0, 3)\""},
    {"pair_bias",
     "b4 h4 q37 d16 score=\"score + b[0, head, q_idx, kv_idx]\" mask=\"m[batch, kv_idx]\" param=\"b: real[1, 4, 37, 37] grad\" param=\"m: "
     "boolean[4, 37]\""},
    {"trained_softcap", "b2 h4 q37 d16 score=\"c[head] * tanh(score / c[head])\" param=\"c: real[4] uniform(1, 2) grad\""},
    {"trained_alibi_slope",
     "b2 h4:2 q53 d16 score=\"score + m[head] * (kv_idx - q_idx)\" mask=\"causal()\" param=\"m: real[4] uniform(0, 0.2) grad\""},
};

inline constexpr Row masks[] = {
    {"noop", "b2 h4 q37 d16 mask=\"True\""},
    {"causal", "b2 h4 q37 d16 mask=\"q_idx >= kv_idx\""},
    {"causal_long_kv", "b2 h4:1 q37:150 d16 mask=\"causal_bottom_right()\""},
    {"inverse_causal", "b2 h4 q37 d16 mask=\"q_idx <= kv_idx\""},
    {"row_cut", "b2 h4 q37 d16 mask=\"q_idx < 20\""},
    {"sliding_window", "b2 h4 q137 d16 mask=\"0 <= q_idx - kv_idx and q_idx - kv_idx <= 32\""},
    {"band", "b2 h4 q137 d16 mask=\"q_idx >= kv_idx and q_idx <= kv_idx + 32\""},
    {"global_causal", "b2 h4 q137 d16 mask=\"q_idx >= kv_idx and q_idx - kv_idx > 64\""},
    {"dilated_window", "b2 h4 q67 d16 mask=\"abs(q_idx - kv_idx) <= 12 and abs(q_idx - kv_idx) % 3 == 0\""},
    {"longformer", "b2 h4 q67 d16 mask=\"abs(q_idx - kv_idx) <= 5 or g[q_idx] or g[kv_idx]\" param=\"g: boolean[67] bernoulli(0.1)\""},
    {"prefix_lm", "b2 h4 q67 d16 mask=\"kv_idx < 11 or q_idx >= kv_idx\""},
    {"document", "b2 h4 q67 d16 mask=\"d[q_idx] == d[kv_idx]\" param=\"d: integer[67] segments(5)\""},
    {"document_per_batch", "b2 h4 q67 d16 mask=\"d[batch, q_idx] == d[batch, kv_idx]\" param=\"d: integer[2, 67] segments(5)\""},
    {"document_inner_window",
     "b2 h4 q67 d16 mask=\"d[q_idx] == d[kv_idx] and abs((q_idx - o[d[q_idx]]) - (kv_idx - o[d[kv_idx]])) <= 4\" param=\"d: integer[67] "
     "segments(5)\" "
     "param=\"o: integer[6] integers(0, 40)\""},
    {"packed_causal_document",
     "b2 h4 q67 d16 mask=\"kv_idx >= o[d[q_idx]] and q_idx >= kv_idx\" param=\"d: integer[67] segments(5)\" param=\"o: integer[5] "
     "integers(0, 30)\""},
    {"shared_prefix",
     "b2 h4 q67 d16 mask=\"(kv_idx >= s[q_idx] and q_idx >= kv_idx) or (doc[q_idx] != pre[q_idx] and p0[pre[q_idx]] <= kv_idx and kv_idx < "
     "p1[pre[q_idx]])\" "
     "param=\"s: integer[67] integers(0, 60)\" param=\"doc: integer[67] segments(6)\" param=\"pre: integer[67] segments(3)\" param=\"p0: "
     "integer[6] "
     "integers(0, 10)\" param=\"p1: integer[6] integers(11, 25)\""},
    {"batchify", "b1 h4 q60 d16 mask=\"q_idx // 20 == kv_idx // 20 and q_idx % 20 >= kv_idx % 20\""},
    {"sequence_equality", "b1 h2 q127 d16 mask=\"seq[q_idx] == seq[kv_idx]\" param=\"seq: integer[127] segments(9)\""},
    {"two_ranges", "b2 h4 q37:150 d16 mask=\"kv_idx < 16 or kv_idx >= 128\""},
    {"symbolic_limit", "b2 h4 q37:41 d16 mask=\"q_idx < (seqlen_q // 8 + seqlen_kv // 8) * 3\""},
    {"padding", "b2 h4 q37 d16 mask=\"q_idx < len[batch] and kv_idx < len[batch]\" param=\"len: integer[2] integers(10, 37)\""},
    {"batch_flip", "b2 h4 q37 d16 mask=\"where(batch % 2 == 0, q_idx >= kv_idx, q_idx <= kv_idx)\""},
    {"random_rows", "b2 h4 q37 d16 mask=\"~r[batch, q_idx]\" param=\"r: boolean[2, 37]\""},
    {"random_pairs", "b2 h4 q37 d16 mask=\"m[batch, 0, q_idx, kv_idx]\" param=\"m: boolean[2, 1, 37, 37]\""},
    {"block_diffusion",
     "b1 h4 q64 d16 mask=\"(q_idx % 32 // 4 == kv_idx % 32 // 4 and (q_idx < 32) == (kv_idx < 32)) or (q_idx % 32 // 4 > kv_idx % 32 // 4 "
     "and q_idx < 32 and "
     "~(kv_idx < 32)) or (q_idx % 32 // 4 >= kv_idx % 32 // 4 and ~(q_idx < 32) and ~(kv_idx < 32))\""},
    {"vision_cross",
     "b2 h4 q67:33 d16 mask=\"iv[img[kv_idx], 0] <= q_idx and q_idx < iv[img[kv_idx], 1]\" param=\"img: integer[33] segments(4)\" "
     "param=\"iv: integer[4, 2] "
     "integers(0, 66)\""},
    {"tree_causal",
     "b1 h4 q16:40 d16 mask=\"kv_idx < 24 or (24 <= kv_idx and kv_idx < 40 and anc[q_idx, clamp(kv_idx - 24, 0, 15)])\" param=\"anc: "
     "boolean[16, 16]\""},
    {"tree_training", "b1 h4 q48:64 d16 mask=\"kv_idx < 16 or (q_idx // 12 == (kv_idx - 16) // 12 and (kv_idx - 16) % 12 <= q_idx % 12)\""},
    {"natten_2d",
     "b1 h4 q63 d16 mask=\"abs(clamp(q_idx // 9, 2, 4) - kv_idx // 9) <= 2 and abs(clamp(q_idx % 9, 2, 6) - kv_idx % 9) <= 2\""},
    {"natten_tiled",
     "b1 h2 q64 d16 mask=\"abs(clamp(y[q_idx], 1, 6) - y[kv_idx]) <= 1 and abs(clamp(x[q_idx], 1, 6) - x[kv_idx]) <= 1\" param=\"y: "
     "integer[64] integers(0, "
     "7)\" param=\"x: integer[64] integers(0, 7)\""},
    {"natten_morton",
     "b1 h2 q64 d16 mask=\"abs(clamp(q_idx % 2 + q_idx // 4 % 2 * 2 + q_idx // 16 % 2 * 4, 1, 6) - (kv_idx % 2 + kv_idx // 4 % 2 * 2 + "
     "kv_idx // 16 % 2 * 4)) "
     "<= 1 and abs(clamp(q_idx // 2 % 2 + q_idx // 8 % 2 * 2 + q_idx // 32 * 4, 1, 6) - (kv_idx // 2 % 2 + kv_idx // 8 % 2 * 2 + kv_idx // "
     "32 * 4)) <= 1\""},
    {"sliding_tile_2d",
     "b1 h2 q96 d16 mask=\"abs(clamp(q_idx // 12 // 2, 1, 2) - kv_idx // 12 // 2) <= 1 and clamp(q_idx % 12 // 3, 1, 3) - kv_idx % 12 // 3 "
     "<= 1 and kv_idx % 12 "
     "// 3 - clamp(q_idx % 12 // 3, 1, 3) <= 0\""},
    {"sliding_tile_3d_text",
     "b1 h2 q70 d16 mask=\"(q_idx < 64 and kv_idx < 64 and abs(clamp(q_idx // 16 // 2, 0, 1) - kv_idx // 16 // 2) <= 0 and abs(q_idx // 4 "
     "% 4 // 2 - kv_idx // 4 % "
     "4 // 2) <= 1 and abs(q_idx % 4 // 2 - kv_idx % 4 // 2) <= 0) or (q_idx < 64 and kv_idx >= 64) or q_idx >= 64\""},
    {"svg_spatial", "b1 h4 q90 d16 mask=\"q_idx < 10 or kv_idx < 18 or abs(q_idx - kv_idx) < floor(to_real(2 * 8) / 8) * 8\""},
    {"svg_temporal", "b1 h4 q90 d16 mask=\"q_idx < 10 or kv_idx < 10 or abs((q_idx - 10) % 8 - (kv_idx - 10) % 8) < 2\""},
    {"vsa_top_k",
     "b2 h4 q64 d16 mask=\"kv_idx // 8 == top[batch, head, q_idx // 8, 0] or kv_idx // 8 == top[batch, head, q_idx // 8, 1]\" param=\"top: "
     "integer[2, 4, 8, 2] "
     "integers(0, 7)\""},
    {"vsa_block_map", "b2 h4 q64 d16 mask=\"map[batch, head, q_idx // 8, kv_idx // 8]\" param=\"map: boolean[2, 4, 8, 8]\""},
    {"vsa_padding", "b2 h4 q64 d16 mask=\"kv_idx % 8 < size[kv_idx // 8]\" param=\"size: integer[8] integers(0, 8)\""},
    {"range_per_query",
     "b2 h4 q67 d16 mask=\"k0[head, q_idx] <= kv_idx and kv_idx < k1[head, q_idx] and q_idx >= kv_idx\" param=\"k0: integer[4, 67] "
     "integers(0, 20)\" param=\"k1: "
     "integer[4, 67] integers(15, 67)\""},
    {"range_per_key",
     "b2 h4 q67 d16 mask=\"q0[head, kv_idx] <= q_idx and q_idx < q1[head, kv_idx]\" param=\"q0: integer[4, 67] integers(0, 20)\" "
     "param=\"q1: integer[4, 67] "
     "integers(15, 67)\""},
    {"segment_ids",
     "b2 h4 q67:45 d16 mask=\"sq[batch, q_idx] == sk[batch, kv_idx]\" param=\"sq: integer[2, 67] segments(4)\" param=\"sk: integer[2, 45] "
     "segments(4)\""},
    {"composite_and", "b2 h4 q67 d16 mask=\"causal() and window(20) and d[q_idx] == d[kv_idx]\" param=\"d: integer[67] segments(3)\""},
    {"composite_or",
     "b2 h4 q67 d16 mask=\"(causal() and window(8)) or kv_idx < 3 or d[q_idx] == d[kv_idx]\" param=\"d: integer[67] segments(7)\""},
    {"decode_offset",
     "b2 h4:1 q3:67 d16 mask=\"q_idx + off[] >= kv_idx and q_idx + off[] - kv_idx < 40\" param=\"off: integer[] constant(64)\""},
    {"paged",
     "b2 h4 q5:64 d16 mask=\"page[batch, kv_idx // 16] >= 0 and page[batch, kv_idx // 16] * 16 + kv_idx % 16 <= q_idx + 50\" param=\"page: "
     "integer[2, 4] "
     "integers(-1, 3)\""},
};

}  // namespace foveal::catalogue
