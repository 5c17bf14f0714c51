#pragma once
// Small calls of context parallelism, for what may fail in them.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foveal/dist.h"
#include "problem/case_data.h"

namespace foveal::test {

inline constexpr const char* context_lines[] = {
    "backward f32 b1 h2:1 q40 d8 mask=\"causal()\" score=\"score + rel[head, q_idx - kv_idx]\" param=\"rel: real[2, 40] grad\" dlse",
    "backward f32 h2 d8 lengths=20,9 mask=\"ids[q_idx] == ids[kv_idx]\" param=\"ids: integer[20] i32 integers(0, 2)\"",
};

/// One rank of a line, with memory for all tokens, whose values do not matter. After it is made, only the library allocates.
class Context {
 public:
  explicit Context(const problem::CaseData& data, Device device = {})
      : line_(data.line()), device_(device), params_(data.forward_inputs().params), options_{.unit = 8, .plan = {.threads = 1}} {
    shapes_.dtype = line_.dtype, shapes_.batch = line_.batch, shapes_.lengths = line_.lengths;
    shapes_.heads_q = line_.heads_q, shapes_.heads_kv = line_.heads_kv;
    shapes_.seqlen_q = line_.seqlen_q, shapes_.seqlen_kv = line_.seqlen_kv;
    shapes_.head_dim = line_.head_dim, shapes_.head_dim_v = line_.head_dim_v;
    const std::int64_t tokens =
        line_.lengths.empty() ? line_.batch * std::max(line_.seqlen_q, line_.seqlen_kv) : line_.total_q + line_.total_kv;
    for (const char* role : {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"})
      memory_[role].resize(static_cast<std::size_t>(tokens * line_.heads_q * line_.head_dim), 0.5f);
    in_.params = params_;
    for (ParamBinding& param : in_.params) param.tensor.device = device;
    backward_in_.params = in_.params;
    for (std::size_t i = 0; i < line_.params.size(); ++i) {
      if (!line_.params[i].grad) continue;
      backward_out_.dparams.push_back(in_.params[i]);
      backward_out_.dparams.back().tensor.data = sums_.emplace_back(static_cast<std::size_t>(params_[i].tensor.numel())).data();
    }
  }

  Context& begin(std::shared_ptr<dist::Transport> transport) {
    attention_.emplace(std::move(transport), line_.attention, shapes_, params_, options_);
    return *this;
  }

  void run() {
    in_.q = tensor("q"), in_.k = tensor("k"), in_.v = tensor("v");
    out_.out = tensor("out"), out_.lse = tensor("lse");
    attention_->forward(in_, out_);
    backward_in_.q = in_.q, backward_in_.k = in_.k, backward_in_.v = in_.v;
    backward_in_.out = out_.out, backward_in_.lse = out_.lse, backward_in_.dout = tensor("dout");
    backward_out_.dq = tensor("dq"), backward_out_.dk = tensor("dk"), backward_out_.dv = tensor("dv");
    attention_->backward(backward_in_, backward_out_);
  }

 private:
  TensorView tensor(const std::string& role) {
    const bool keys = role.find_first_of("kv") != std::string::npos, packed = !line_.lengths.empty();
    const auto rows = static_cast<std::int64_t>((keys ? attention_->kv_tokens() : attention_->q_tokens()).size());
    const std::int64_t batch = line_.batch, heads = keys ? line_.heads_kv : line_.heads_q, dim = line_.head_dim;
    void* data = memory_.at(role).data();
    if (role == "lse")
      return packed ? TensorView(data, DType::f32, {heads, rows}, device_) : TensorView(data, DType::f32, {batch, heads, rows}, device_);
    return packed ? TensorView(data, line_.dtype, {rows, heads, dim}, device_)
                  : TensorView(data, line_.dtype, {batch, rows, heads, dim}, device_);
  }

  const problem::Line& line_;
  Device device_;
  std::vector<ParamBinding> params_;
  dist::ContextOptions options_;
  dist::WholeShapes shapes_;
  std::map<std::string, std::vector<float>> memory_;
  std::vector<std::vector<float>> sums_;
  ForwardInputs in_;
  ForwardOutputs out_;
  BackwardInputs backward_in_;
  BackwardOutputs backward_out_;
  std::optional<dist::ContextAttention> attention_;
};

}  // namespace foveal::test
