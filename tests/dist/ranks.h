#pragma once
// Runs a problem line on ranks that are threads: shards its tensors, runs, and puts the results together again.
#include <functional>
#include <mutex>
#include <thread>

#include "check/device_case.h"
#include "cuda/cuda_memory.h"
#include "dist/rows.h"
#include "foveal/dist.h"
#include "problem/case_data.h"

namespace foveal::dist::test {

inline WholeShapes whole_shapes(const problem::Line& line) {
  WholeShapes s;
  s.dtype = line.dtype, s.batch = line.batch, s.heads_q = line.heads_q, s.heads_kv = line.heads_kv;
  s.seqlen_q = line.seqlen_q, s.seqlen_kv = line.seqlen_kv, s.head_dim = line.head_dim, s.head_dim_v = line.head_dim_v;
  s.lengths = line.lengths;
  return s;
}

inline bool is_statistic(const std::string& role) { return role == "lse" || role == "dlse"; }

/// A copy of a host tensor on a device, with the same strides.
class OnDevice {
 public:
  OnDevice(const TensorView& host, Device device) : view(host), host_(host), memory_(cuda::cuda_memory(device.index)) {
    std::int64_t last = 0;
    for (int d = 0; d < host.rank; ++d) last += (host.sizes[static_cast<std::size_t>(d)] - 1) * host.strides[static_cast<std::size_t>(d)];
    bytes_ = host.numel() == 0 ? 0 : static_cast<std::size_t>(last + 1) * size_of(host.dtype);
    view.data = memory_.allocate(std::max<std::size_t>(bytes_, 16));
    view.device = device;
    if (bytes_ > 0) memory_.to_device(view.data, host_.data, bytes_);
  }
  ~OnDevice() { memory_.release(view.data); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  void download() {
    if (bytes_ > 0) memory_.to_host(host_.data, view.data, bytes_);
  }
  TensorView view;

 private:
  TensorView host_;
  planning::DeviceMemory& memory_;
  std::size_t bytes_ = 0;
};

/// A rank's rows of a tensor of the whole, in memory of their own.
class Shard {
 public:
  Shard(const TensorView& whole, const std::string& role, const std::vector<std::int64_t>& tokens)
      : tokens_(tokens), whole_(is_statistic(role) ? statistics_of(whole) : rows_of(whole)) {
    const std::int64_t count = static_cast<std::int64_t>(tokens.size());
    mine_ = is_statistic(role) ? Rows{} : memory_.rows(whole.dtype, whole_.batch, count, whole_.heads, whole_.dim);
    if (is_statistic(role)) {  // [batch, heads, tokens]
      view = whole.rank == 3 ? TensorView(nullptr, whole.dtype, {whole_.batch, whole_.heads, count})
                             : TensorView(nullptr, whole.dtype, {whole_.heads, count});
      view.data = memory_.take(static_cast<std::size_t>(view.numel()) * size_of(whole.dtype), RowMemory::For::work);
      mine_ = statistics_of(view);
    } else {
      view = whole.rank == 4 ? TensorView(mine_.data, whole.dtype, {whole_.batch, count, whole_.heads, whole_.dim})
                             : TensorView(mine_.data, whole.dtype, {count, whole_.heads, whole_.dim});
    }
  }
  void take() {
    each_token([&](const Rows& whole, const Rows& mine) { memory_.copy(whole, mine); });
  }
  void give() {
    each_token([&](const Rows& whole, const Rows& mine) { memory_.copy(mine, whole); });
  }
  TensorView view;

 private:
  template <class Fn>
  void each_token(Fn&& fn) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(tokens_.size()); ++i) {
      const std::int64_t token = tokens_[static_cast<std::size_t>(i)];
      fn(whole_.slice({token, token + 1}), mine_.slice({i, i + 1}));
    }
  }

  std::vector<std::int64_t> tokens_;
  Rows whole_, mine_;
  Buffers memory_;
};

/// Calls fn(rank) on so many threads; the first error is rethrown.
inline void on_threads(int ranks, const std::function<void(int)>& fn) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        fn(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// One rank's share of a line: the forward pass, and the backward pass where the line is one.
inline void run_rank(std::shared_ptr<Transport> transport, const problem::CaseData& data, ContextOptions options,
                     const std::function<void(const ContextAttention&)>& before_backward = {},
                     const std::function<void(const ContextAttention&)>& after = {}, Device device = {}, Stream stream = {},
                     const std::function<void(ContextAttention&)>& made = {}) {
  const problem::Line& line = data.line();
  options.plan.threads = 1;
  const ForwardInputs whole = data.forward_inputs();
  const bool on_gpu = device.kind == DeviceKind::cuda;
  std::map<std::string, std::unique_ptr<OnDevice>> copies;  // what a GPU sees of host tensors
  const auto there = [&](const std::string& name, const TensorView& host) {
    if (!on_gpu || !host.present()) return host;
    return copies.emplace(name, std::make_unique<OnDevice>(host, device)).first->second->view;
  };
  const int rank = transport->rank();
  const std::shared_ptr<Transport> ranks = transport;
  ContextAttention attention(std::move(transport), line.attention, whole_shapes(line), whole.params, options);
  if (made) made(attention);
  const auto shard = [&](const std::string& role) {
    const bool keys = role == "k" || role == "v" || role == "dk" || role == "dv";
    return Shard(data.view(role), role, keys ? attention.kv_tokens() : attention.q_tokens());
  };
  std::map<std::string, Shard> shards;
  const auto tensor = [&](const std::string& role, bool input) {
    if (!data.view(role).present()) return TensorView{};
    Shard& made = shards.emplace(role, shard(role)).first->second;
    if (input) made.take();
    return there(role, made.view);
  };
  std::vector<ParamBinding> params = whole.params;
  for (ParamBinding& p : params) p.tensor = there("param " + p.param.name(), p.tensor);
  const bool backward = line.pass == Pass::backward;
  std::vector<std::vector<double>> memory;  // of gradients that only rank 0's case keeps
  const ForwardInputs forward_in{
      .q = tensor("q", true), .k = tensor("k", true), .v = tensor("v", true), .params = params, .rng = whole.rng};
  const ForwardOutputs forward_out{.out = tensor("out", false), .lse = line.lse || backward ? tensor("lse", false) : TensorView{}};
  attention.forward(forward_in, forward_out, stream);
  if (before_backward) before_backward(attention);
  if (backward) {
    BackwardInputs in{.q = forward_in.q,
                      .k = forward_in.k,
                      .v = forward_in.v,
                      .out = forward_out.out,
                      .lse = forward_out.lse,
                      .dout = tensor("dout", true)};
    if (line.dlse) in.dlse = tensor("dlse", true);
    in.params = params;
    in.rng = whole.rng;
    BackwardOutputs out;
    if (line.dq) out.dq = tensor("dq", false);
    if (line.dk) out.dk = tensor("dk", false);
    if (line.dv) out.dv = tensor("dv", false);
    // Every rank has the gradients of parameters; rank 0's go into the case.
    for (std::size_t i = 0; i < line.params.size(); ++i) {
      if (!line.params[i].grad) continue;
      TensorView view = data.dparam(i);
      if (rank != 0) {
        memory.emplace_back(static_cast<std::size_t>(view.numel()) + 1);
        view.data = memory.back().data();
        std::int64_t stride = 1;
        for (int d = view.rank - 1; d >= 0; --d)
          view.strides[static_cast<std::size_t>(d)] = stride, stride *= view.sizes[static_cast<std::size_t>(d)];
      }
      out.dparams.push_back({line.params[i].param, there("gradient " + line.params[i].param.name(), view)});
    }
    attention.backward(in, out, stream);
  }
  if (on_gpu) {
    std::string all(static_cast<std::size_t>(ranks->size()), 0);
    ranks->all_gather(std::string(1, 0).data(), 1,
                      all.data());  // who gives memory back waits for the GPU, which others may have to tell something yet
    cuda::cuda_memory(device.index).synchronize(stream);
  }
  for (const auto& [name, copy] : copies) {
    if (name.rfind("param ", 0) != 0) copy->download();
  }
  for (const char* role : {"out", "lse", "dq", "dk", "dv"})
    if (const auto made = shards.find(role); made != shards.end()) made->second.give();
  if (after) after(attention);
}

inline std::string run_line(const problem::CaseData& data, int ranks, const ContextOptions& options, const ThreadOptions& threads = {}) {
  auto transports = thread_ranks(ranks, threads);
  on_threads(ranks, [&](int rank) {
    const auto mine = std::move(transports[static_cast<std::size_t>(rank)]);
    run_rank(mine, data, options);
  });
  return "dist." + std::to_string(ranks);
}

}  // namespace foveal::dist::test
