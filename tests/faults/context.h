#pragma once
// Small calls of context parallelism, for what may fail in them.
#include <algorithm>
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
  Context(const problem::CaseData& data, std::shared_ptr<dist::Transport> transport, Device device = {})
      : line_(data.line()),
        params_(data.forward_inputs().params),
        device_(device),
        attention_(std::move(transport), line_.attention, shapes_of(line_), params_, {.unit = 8, .plan = {.threads = 1}}) {}

  void run() {
    for (ParamBinding& param : params_) param.tensor.device = device_;
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
    TensorView view;
    view.data = memory_[role].emplace_back(static_cast<std::size_t>(line_.batch * rows * heads * dim) + 1, 0.5f).data();
    view.dtype = statistic ? DType::f32 : line_.dtype, view.device = device_;
    for (const std::int64_t size : statistic ? std::vector{line_.batch, heads, rows} : std::vector{line_.batch, rows, heads, dim})
      view.sizes[static_cast<std::size_t>(view.rank++)] = size;
    if (packed) std::rotate(view.sizes.begin(), view.sizes.begin() + 1, view.sizes.begin() + view.rank--);
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d)
      view.strides[static_cast<std::size_t>(d)] = stride, stride *= view.sizes[static_cast<std::size_t>(d)];
    return view;
  }

  const problem::Line& line_;
  std::vector<ParamBinding> params_;
  Device device_;
  dist::ContextAttention attention_;
  std::map<std::string, std::vector<std::vector<float>>> memory_;
};

}  // namespace foveal::test
