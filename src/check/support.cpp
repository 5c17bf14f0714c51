#include "check/support.h"

#include "base/check.h"
#include "cuda/arch.h"
#include "cuda/kernels_of.h"
#include "problem/case_data.h"
#include "problem/line_problem.h"

namespace foveal::check {
namespace {

constexpr Feature rows[] = {
    {"plain", "b1 h2 q64 d64"},
    {"causal, window, prefix masks", "b1 h2 q64 d64 mask=\"causal() & window(9) | prefix_lm(3)\""},
    {"masks that read tensors (documents, padding)", "b1 h2 q64 d64 mask=\"document(d)\" param=\"d: integer[64] segments(3)\""},
    {"programmed score", "b1 h2 q64 d64 score=\"5 * tanh(score / 5) + head\""},
    {"trained relative bias", "b1 h2 q64 d64 score=\"score + r[head, clamp(kv_idx - q_idx, -8, 8) + 8]\" param=\"r: real[2, 17] grad\""},
    {"trained q x kv bias", "b1 h2 q64 d64 score=\"score + r[head, q_idx, kv_idx]\" param=\"r: real[2, 64, 64] grad\""},
    {"trained read at any index",
     "b1 h2 q64 d64 score=\"score + r[i[q_idx, kv_idx]]\" param=\"r: real[5] grad\" param=\"i: integer[64, 64]\""},
    {"a parameter read twice", "b1 h2 q64 d64 score=\"score + r[q_idx] * r[kv_idx]\" param=\"r: real[64] grad\""},
    {"grouped queries (GQA, MQA)", "b1 h6:2 q64 d64"},
    {"seqlen_q != seqlen_kv", "b1 h2 q5:64 d64 mask=\"causal_bottom_right()\""},
    {"packed sequences (varlen)", "h2 d64 layout=thd lengths=17,1,40"},
    {"keys and values in pages (block_table)", "b2 h6:2 q5 d64 pages=16 seqlens_kv=40,17"},
    {"head_dim 1", "b1 h2 q64 d1"},
    {"head_dim 80", "b1 h2 q64 d80"},
    {"head_dim 256", "b1 h2 q64 d256"},
    {"head_dim 512", "b1 h2 q64 d512"},
    {"head_dim 1024", "b1 h2 q64 d1024"},
    {"head_dim != head_dim_v", "b1 h2 q64 d192:128"},
    {"packed qkv, any strides", "b1 h2 q64 d64 layout=packed_qkv"},
    {"head_dim with a stride", "b1 h2 q64 d64 layout=dim_first"},
    {"attention sinks", "b1 h2 q64 d64 sink=s param=\"s: real[2] grad\""},
    {"dropout", "b1 h2 q64 d64 dropout=0.1:1"},
    {"gradient through lse", "b1 h2 q64 d64 dlse"},
    {"reproducible", "b1 h2 q64 d64 determinism=reproducible"},
    {"backward: fused", "b1 h2 q64 d64 strategy=fused"},
    {"backward: split", "b1 h2 q64 d64 strategy=split"},
    {"backward: two_scan", "b1 h2 q64 d64 strategy=two_scan"},
    {"together: bias, mask, GQA, sink, dropout, varlen",
     "h6:2 d64 layout=thd lengths=17,64 mask=\"causal()\" score=\"score + r[head]\" param=\"r: real[6] grad\" sink=s param=\"s: real[6] "
     "grad\" "
     "dropout=0.1:1"},
};
constexpr DType types[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

}  // namespace

std::span<const Feature> features() { return rows; }

problem::Line line_of(const Feature& feature, Pass pass, DType dtype, const TargetInfo& target) {
  problem::Line line = problem::parse_lines(base::join("both ", to_string(dtype), " ", feature.words))[pass == Pass::forward ? 0 : 1];
  line.options.backend = target.backend;
  if (target.backend != "reference") line.options.target = target.target;
  if (pass == Pass::forward) line.attention.backward = BackwardStrategy::automatic;
  return line;
}

bool plans(const problem::Line& line, const TargetInfo& target) {
  try {
    if (target.backend == "cuda") {  // generates the kernels without compiling them
      cuda::kernels_of(problem::problem_of(line, {DeviceKind::cuda, 0}), cuda::target_of(target.target).arch, target.target);
      return true;
    }
    problem::plan_of(line, problem::CaseData(line));
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return false;
  }
}

namespace {

// "all", "none", or the supported dtypes.
std::string cell(Pass pass, const Feature& feature, const TargetInfo& target) {
  std::string works;
  std::size_t count = 0;
  for (const DType dtype : types) {
    if (!plans(line_of(feature, pass, dtype, target), target)) continue;
    works += (works.empty() ? "" : " ") + std::string(to_string(dtype));
    ++count;
  }
  return count == std::size(types) ? "all" : count == 0 ? "none" : works;
}

}  // namespace

std::string support_table() {
  std::vector<TargetInfo> columns;
  for (const TargetInfo& target : targets()) {
    if (target.available || target.backend == "cuda") columns.push_back(target);
  }
  std::string text = "| forward / backward |", line = "|---|";
  for (const TargetInfo& target : columns) text += base::join(" ", target.backend, " ", target.target, " |"), line += "---|";
  text += "\n" + line + "\n";
  for (const Feature& feature : rows) {
    text += base::join("| ", feature.name, " |");
    for (const TargetInfo& target : columns) {
      const std::string forward = cell(Pass::forward, feature, target), backward = cell(Pass::backward, feature, target);
      text += base::join(" ", forward, forward == backward ? "" : " / " + backward, " |");
    }
    text += "\n";
  }
  return text;
}

}  // namespace foveal::check
