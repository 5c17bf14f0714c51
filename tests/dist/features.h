#pragma once
// Lines in which every feature of an attention appears, small enough to be judged by the reference for many numbers of ranks.
#include <cstring>
#include <string>

namespace foveal::dist::test {

struct Feature {
  const char* name;
  const char* line;
};

inline const Feature features[] = {
    {"plain", "f32 b2 h2 q70 d16"},
    {"causal", "f32 h4:2 q131 d32 mask=\"causal()\""},
    {"bf16", "bf16 h4:2 q100 d32 mask=\"causal()\""},
    {"f16", "f16 h2 q90 d16 mask=\"causal()\""},
    {"f64", "f64 h2 q75 d8 mask=\"causal()\""},
    {"window", "f32 b2 h2:1 q150 d16 mask=\"causal() & window(20)\""},
    {"gaps", "f32 h2 q160 d16 mask=\"(kv_idx < 10) | (abs(q_idx - kv_idx) <= 9)\""},
    {"cross", "f32 h2 q40:120 d16 mask=\"kv_idx <= q_idx + (seqlen_kv - seqlen_q)\""},
    {"sizes", "f32 h2 q60 d16:24 mask=\"causal()\""},
    {"packed", "f32 h4:2 d16 lengths=70,1,33,0,50 mask=\"causal()\""},
    {"packed_lengths", "bf16 h2 d16 lengths=40,60,17 mask=\"kv_idx < seqlen_kv - batch\" score=\"score + 0.01 * to_real(q_idx - kv_idx)\""},
    {"documents", "f32 h2 q96 d16 mask=\"(ids[q_idx] == ids[kv_idx]) & causal()\" param=\"ids: integer[96] i32 integers(0, 2)\""},
    {"table",
     "f32 b2 h3 q80 d16 mask=\"causal()\" score=\"score + rel[head, q_idx - kv_idx]\" param=\"rel: real[3, 80] f32 normal(0.5) grad\""},
    {"batch_table",
     "f32 h2 d16 lengths=40,31,20 score=\"score + rel[batch] * to_real(kv_idx - q_idx) * 0.01\" param=\"rel: real[3] f32 normal(0.5) "
     "grad\""},
    {"row_terms", "f32 h2 q60 d16 score=\"score + row[q_idx]\" param=\"row: real[60] f32 normal(0.5) grad\" dlse"},
    {"bias", "f32 h2 q64 d16 score=\"score + bias[q_idx, kv_idx]\" param=\"bias: real[64, 64] f32 normal(0.5) grad\""},
    {"softcap", "f32 h2 q64 d16 mask=\"causal()\" score=\"20 * tanh(score / 20)\""},
    {"sink", "f32 b2 h4:2 q66 d16 mask=\"causal()\" sink=s param=\"s: real[4] f32 normal(1) grad\""},
    {"sink_terms",
     "bf16 h2 q66 d16 mask=\"kv_idx + 30 <= q_idx\" score=\"score + row[q_idx]\" param=\"row: real[66] f32 normal(0.5) grad\" sink=s "
     "param=\"s: real[2] f32 normal(1) grad\""},
    {"sink_dlse", "f32 h4:2 d16 lengths=40,0,26 mask=\"causal()\" sink=s param=\"s: real[4] f32 normal(1) grad\" dlse"},
    {"dropout", "f32 b2 h4:2 q90 d16 mask=\"causal()\" dropout=0.3:42"},
    {"packed_dropout", "f32 h2 d16 lengths=50,30,9 mask=\"causal()\" dropout=0.2:7"},
    {"dlse", "f32 h2 q64 d16 mask=\"causal()\" dlse"},
    {"empty_rows", "f32 h2 q64 d16 mask=\"kv_idx > q_idx + 20\""},
    {"heads",
     "f32 h4:2 q70 d16 mask=\"kv_idx + 9 * head <= q_idx\" score=\"score + slope[head] * to_real(kv_idx - q_idx) * 0.1\" param=\"slope: "
     "real[4] f32 normal(1) grad\""},
    {"offsets", "f32 h2 q64 d16 mask=\"causal()\" score=\"score + 0.001 * to_real(q_idx + kv_idx)\" q_offset=100 kv_offset=90"},
    {"checked", "f32 h2 q64 d16 score=\"score + row[q_idx]\" param=\"row: real[64]\" checked"},
    {"strided", "f32 b2 h2 q64 d16 layout=bhsd mask=\"causal()\""},
    {"padding", "f32 b3 h2 q64 d16 mask=\"kv_idx < n[batch]\" param=\"n: integer[3] i32 integers(1, 64)\""},
};

/// The line as a pass.
inline std::string line_of(const Feature& feature, const char* pass) {
  std::string text = std::string(pass) + ' ' + feature.line;
  if (pass[0] == 'f')  // words of a backward line
    for (const char* word : {" dlse", " grad"})
      for (std::size_t at; (at = text.find(word)) != std::string::npos;) text.erase(at, std::strlen(word));
  return text;
}

}  // namespace foveal::dist::test
