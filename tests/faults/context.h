#pragma once
// Small calls of context parallelism, for what may fail in them.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foveal/dist.h"
#include "problem/case_data.h"

namespace foveal::test {

inline constexpr const char* context_lines[] = {
    "backward f32 b1 h2:1 q40 d8 mask=\"causal()\" score=\"score + rel[head, q_idx - kv_idx]\" param=\"rel: real[2, 40] grad\" dlse",
    "backward f32 h2 d8 lengths=20,9 mask=\"ids[q_idx] == ids[kv_idx]\" param=\"ids: integer[20] i32 integers(0, 2)\"",
};

/// One rank of a line: both passes over rows of its own, whose values do not matter.
class Context {
 public:
  Context(const problem::CaseData& data, std::shared_ptr<dist::Transport> transport)
      : line_(data.line()),
        params_(data.forward_inputs().params),
        attention_(std::move(transport), line_.attention, shapes_of(line_), params_, {.unit = 8, .plan = {.threads = 1}}) {}

  void run() {
    ForwardInputs in{.q = tensor("q"), .k = tensor("k"), .v = tensor("v"), .params = params_};
    ForwardOutputs out{.out = tensor("out"), .lse = tensor("lse")};
    attention_.forward(in, out);
    BackwardInputs backward{.q = in.q, .k = in.k, .v = in.v, .out = out.out, .lse = out.lse, .dout = tensor("dout")};
    backward.params = params_;
    BackwardOutputs gradients{.dq = tensor("dq"), .dk = tensor("dk"), .dv = tensor("dv")};
    for (std::size_t i = 0; i < line_.params.size(); ++i) {
      if (!line_.params[i].grad) continue;
      TensorView gradient = params_[i].tensor;
      gradient.data = memory_["gradient"].emplace_back(static_cast<std::size_t>(gradient.numel())).data();
      gradients.dparams.push_back({params_[i].param, gradient});
    }
    attention_.backward(backward, gradients);
  }

 private:
  static dist::WholeShapes shapes_of(const problem::Line& line) {
    return {.dtype = line.dtype,
            .batch = line.batch,
            .heads_q = line.heads_q,
            .heads_kv = line.heads_kv,
            .seqlen_q = line.seqlen_q,
            .seqlen_kv = line.seqlen_kv,
            .head_dim = line.head_dim,
            .head_dim_v = line.head_dim_v,
            .lengths = line.lengths};
  }

  TensorView tensor(const std::string& role) {
    const bool packed = !line_.lengths.empty(), keys = role.find_first_of("kv") != std::string::npos, statistic = role == "lse";
    const auto rows = static_cast<std::int64_t>((keys ? attention_.kv_tokens() : attention_.q_tokens()).size());
    const std::int64_t heads = keys ? line_.heads_kv : line_.heads_q, dim = statistic ? 1 : line_.head_dim;
    float* data = memory_[role].emplace_back(static_cast<std::size_t>(line_.batch * rows * heads * dim) + 1, 0.5f).data();
    if (statistic) return packed ? TensorView(data, DType::f32, {heads, rows}) : TensorView(data, DType::f32, {line_.batch, heads, rows});
    return packed ? TensorView(data, DType::f32, {rows, heads, dim}) : TensorView(data, DType::f32, {line_.batch, rows, heads, dim});
  }

  const problem::Line& line_;
  std::vector<ParamBinding> params_;
  dist::ContextAttention attention_;
  std::map<std::string, std::vector<std::vector<float>>> memory_;
};

}  // namespace foveal::test
