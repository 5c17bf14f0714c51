// A launch is one part: rows of queries against rows of keys with their global positions, merged by its kernels into what is there (out and
// lse; dq, dk and dv in f32). All work is in the order of the caller's stream; messages travel beside it.
#include "dist/device_pass.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/strided.h"
#include "cuda/jit/driver.h"
#include "dist/pass.h"
#include "plan/signature.h"

namespace foveal::dist {
namespace {

/// Pairs of tokens that a rank computes while its keys arrive: by what carries them, and by the rate of the plan's machine.
std::int64_t transfer_pairs(const Context& c, bool forward) {
  if (!c.transport->carries_device_memory()) return 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 1; i < c.mine.steps.size(); ++i) bytes += c.mine.steps[i].rows;
  if (bytes == 0) return 0;
  const std::int64_t dims = c.shapes.head_dim + c.shapes.head_dim_v;
  bytes *= c.batch() * c.heads_kv().size() * dims * static_cast<std::int64_t>(size_of(c.shapes.dtype));
  const Machine& machine = c.request.machine;
  constexpr std::int64_t bytes_per_us = 15'000;  // that NCCL carries for each multiprocessor it occupies
  const int occupied = c.transport->multiprocessors();
  const std::int64_t us =
      (occupied > 0 ? bytes / (bytes_per_us * occupied) : bytes / machine.host_mbytes + machine.host_latency_ns / 1000) + 1;
  const std::int64_t flops = (forward ? 2 : 5) * dims * c.heads_q().size() * c.batch();  // of a pair
  return us * (forward ? machine.forward_gflops : machine.backward_gflops) * 1000 / std::max<std::int64_t>(flops, 1);
}

/// What tensors look like to plans.
std::string signature_of(std::initializer_list<const TensorView*> tensors, const std::vector<ParamBinding>& params,
                         const std::vector<ParamBinding>& gradients) {
  std::string bytes;
  planning::Signature signature(bytes);
  for (const TensorView* t : tensors) signature.add(*t);
  for (const std::vector<ParamBinding>* list : {&params, &gradients})
    for (const ParamBinding& p : *list) signature.add(p.param.info().get()), signature.add(p.tensor);
  return bytes;
}

std::string signature_of(const ForwardInputs& in, const ForwardOutputs& out) {
  return signature_of({&in.q, &in.k, &in.v, &in.rng.state, &out.out, &out.lse}, in.params, {});
}
std::string signature_of(const BackwardInputs& in, const BackwardOutputs& out) {
  return signature_of({&in.q, &in.k, &in.v, &in.out, &in.lse, &in.dout, &in.dlse, &in.rng.state, &out.dq, &out.dk, &out.dv}, in.params,
                      out.dparams);
}

class DevicePass : protected Pass {
 public:
  DevicePass(const Context& context, DeviceBuffers& buffers, PartPlans& plans) : Pass(context, buffers), buffers_(buffers), plans_(plans) {}

 protected:
  using Lane = DeviceBuffers::Lane;
  using On = DeviceBuffers::On;

  /// All is planned anew.
  const PartOrder& order_by(const OrderRequest& request) {
    plans_.order = part_order(c_.plan, c_.workload, c_.mine, request);
    plans_.plans.assign(plans_.order.launches.size(), std::nullopt);
    plans_.cu_seqlens.clear();
    for (const PartLaunch& launch : plans_.order.launches) {
      std::vector<std::int32_t> begins{0};
      for (const std::int64_t length : launch.closed) begins.push_back(begins.back() + static_cast<std::int32_t>(length));
      plans_.cu_seqlens.emplace_back();
      if (!launch.closed.empty()) plans_.cu_seqlens.back() = {buffers_.device().index, begins.data(), begins.size() * sizeof begins[0]};
    }
    return plans_.order;
  }
  /// trains: gradients of parameters are wanted, which are not collected from sequences of their own lengths.
  OrderRequest request_for(bool forward, bool trains) const {
    return {.forward = forward,
            .whole_rows = in_place(),
            .spread = in_place() && c_.transport->carries_device_memory(),
            .closed_sequences =
                c_.packed() && in_place(0) && c_.workload.self_attention() && !c_.reads_batch && c_.attention.dropout_p == 0 && !trains,
            .transfer_pairs = transfer_pairs(c_, forward),
            .leaves_multiprocessors = c_.transport->multiprocessors() > 0,
            .returns_early = !forward && c_.transport->carries_device_memory() && c_.transport->multiprocessors() == 0};
  }
  /// Launches beside transfers leave multiprocessors to them: a CTA that waits for one of these would be late by the whole transfer.
  template <class Inputs, class Outputs>
  void launch(const PartLaunch& part, std::size_t number, const Inputs& inputs, const Outputs& outputs) {
    const Plan& plan = this->plan(part, number, inputs, outputs);
    void* workspace = buffers_.workspace(plan.workspace_bytes());
    if (!buffers_.rehearses()) plan.run(inputs, outputs, workspace, buffers_.stream());
  }
  template <class Inputs, class Outputs>
  const Plan& plan(const PartLaunch& part, std::size_t number, const Inputs& inputs, const Outputs& outputs) {
    std::optional<Plan>& plan = plans_.plans[number];
    if (!plan) {
      namespace driver = cuda::driver;
      driver::DeviceFacts facts = driver::device_facts(buffers_.device().index);
      if (part.beside_transfers) facts.multiprocessors = std::max(1, facts.multiprocessors - c_.transport->multiprocessors());
      const driver::Redirected fewer(driver::api(), facts);
      plan = foveal::plan(attention_of(part, std::is_same_v<Inputs, ForwardInputs>), inputs, outputs, c_.options.plan);
    }
    return *plan;
  }

  bool in_place() const { return c_.plan.head_groups == 1; }
  /// A shard's rows are the step's, in the same order.
  bool in_place(std::size_t step) const { return in_place() && step == 0 && c_.mine.steps[0].rows == c_.plan.kv.tokens(c_.rank()); }

  /// Some rows as a call takes them, [batch, count, heads, dim] or [batch, heads, count].
  TensorView view(const Rows& r, std::int64_t token, std::int64_t count) const {
    const auto size = static_cast<std::int64_t>(size_of(r.dtype));
    return TensorView(r.at(0, token, 0), r.dtype, {r.batch, count, r.heads, r.dim},
                      {r.batch_stride / size, r.token_stride / size, r.head_stride / size, r.dim_stride / size}, buffers_.device());
  }
  TensorView statistics_view(const Rows& r, std::int64_t token, std::int64_t count) const {
    const auto size = static_cast<std::int64_t>(size_of(r.dtype));
    return TensorView(r.at(0, token, 0), r.dtype, {r.batch, r.heads, count},
                      {r.batch_stride / size, r.head_stride / size, r.token_stride / size}, buffers_.device());
  }

  /// The same as packed calls take them, [count, heads, dim] or [heads, count].
  TensorView packed_view(const Rows& r, const Segment& s) const {
    const auto size = static_cast<std::int64_t>(size_of(r.dtype));
    return TensorView(r.at(0, s.q_row, 0), r.dtype, {s.q_rows, r.heads, r.dim},
                      {r.token_stride / size, r.head_stride / size, r.dim_stride / size}, buffers_.device());
  }
  TensorView packed_statistics(const Rows& r, const Segment& s) const {
    const auto size = static_cast<std::int64_t>(size_of(r.dtype));
    return TensorView(r.at(0, s.q_row, 0), r.dtype, {r.heads, s.q_rows}, {r.head_stride / size, r.token_stride / size}, buffers_.device());
  }
  Varlen closed_sequences(const PartLaunch& launch, std::size_t number) const {
    TensorView cu(plans_.cu_seqlens[number].data(), DType::i32, {static_cast<std::int64_t>(launch.closed.size()) + 1});
    cu.device = buffers_.device();
    const std::int64_t longest = *std::max_element(launch.closed.begin(), launch.closed.end());
    return {cu, cu, longest, longest};
  }

  Part part_of(const PartLaunch& launch, std::size_t number) const {
    FOVEAL_CHECK(number < std::numeric_limits<std::uint16_t>::max(), "context parallelism: more than 65534 parts on a rank");
    const Segment& s = launch.segment;
    const auto of = static_cast<std::size_t>(s.sequence);
    return {.batch_offset = c_.packed() ? s.sequence : 0,
            .head_offset = heads(false).begin,
            .heads_q = c_.shapes.heads_q,
            .seqlen_q = c_.workload.lengths_q[of],
            .seqlen_kv = c_.workload.lengths_kv[of],
            .whole_rows = launch.whole,
            .spread_keys = launch.spread() ? s.kv_rows : 0,
            .keeps_rows = launch.kept >= 0,
            .first_query = launch.kept >= 0 ? s.q_first : 0,
            .first_key = launch.kept >= 0 ? s.kv_first : 0,
            .whole_keys = launch.whole_keys,
            .adds_to_q = launch.adds_to_q,
            .adds_to_kv = launch.adds_to_kv,
            .number = static_cast<std::uint16_t>(number + 1)};
  }
  Attention attention_of(const PartLaunch& launch, bool forward) const {
    if (!launch.closed.empty()) return forward ? c_.attention : without_sink();
    Attention attention = launch.whole ? c_.attention : without_sink();
    attention.q_offset += launch.segment.q_first, attention.kv_offset += launch.segment.kv_first;
    return attention;
  }

  /// Keys and values of each step, on their way. Those of the steps after the first lie one after the other.
  struct Keys {
    Rows k, v;
    std::int64_t first_row = 0;  ///< of what was received
    Gather gather;
    bool waits = false;
  };
  std::vector<Keys> gather_keys(const Rows& k_shard, const Rows& v_shard) {
    std::int64_t received = 0;
    for (std::size_t i = 1; i < c_.mine.steps.size(); ++i) received += c_.mine.steps[i].rows;
    k_received_ = received_rows(k_shard, received), v_received_ = received_rows(v_shard, received);
    received = 0;
    std::vector<Keys> keys;
    for (std::size_t i = 0; i < c_.mine.steps.size(); ++i) {
      const Step& step = c_.mine.steps[i];
      Keys of_step;
      if (in_place(i)) {
        of_step.k = k_shard, of_step.v = v_shard;
      } else {
        of_step.first_row = i == 0 ? 0 : received;
        of_step.k = i == 0 ? key_rows(step, k_shard.dtype, k_shard.dim) : some_rows(k_received_, received, step.rows);
        of_step.v = i == 0 ? key_rows(step, v_shard.dtype, v_shard.dim) : some_rows(v_received_, received, step.rows);
        of_step.gather = gather(c_.keys_to[i], step.keys, {{k_shard, of_step.k, true}, {v_shard, of_step.v, true}});
        of_step.waits = true;
      }
      if (i > 0) received += step.rows;
      keys.push_back(std::move(of_step));
    }
    return keys;
  }
  Rows received_rows(const Rows& shard, std::int64_t tokens) {
    return memory_.rows(shard.dtype, c_.batch(), tokens, heads(true).size(), shard.dim);
  }
  static Rows some_rows(const Rows& rows, std::int64_t first, std::int64_t count) {
    Rows some = rows;
    some.data = rows.at(0, first, 0), some.tokens = count;
    return some;
  }
  void arrive(Keys& keys) {
    if (keys.waits) finish(keys.gather);
    keys.waits = false;
  }

  Rows k_received_, v_received_;
  DeviceBuffers& buffers_;
  PartPlans& plans_;
};

class ForwardPass : DevicePass {
 public:
  using DevicePass::DevicePass;

  void run(const ForwardInputs& inputs, const ForwardOutputs& outputs) {
    Rows q = rows_of(inputs.q);
    if (!in_place()) {
      const Rows buffer = query_rows(c_.shapes.dtype, c_.shapes.head_dim);
      finish(gather(c_.queries_to, c_.mine.queries, {{q, buffer, false}}));
      q = buffer;
    }
    std::vector<Keys> keys = gather_keys(rows_of(inputs.k), rows_of(inputs.v));
    const Rows out = rows_of(outputs.out), lse = outputs.lse.present() ? statistics_of(outputs.lse) : Rows{};
    const PartOrder& order = order_of(inputs, outputs, q, keys);
    const bool merges = !order.merged_q.empty();
    const Rows wide = merges ? query_rows(c_.wide(), c_.shapes.head_dim_v) : Rows{};
    const Rows sums = merges ? memory_.statistics(DType::f64, c_.batch(), c_.mine.q_rows, heads(false).size()) : Rows{};
    if (merges) buffers_.clear_sums(sums);

    // A launch that waits for its keys itself needs nothing of the others.
    const bool uses_side = order.launches.size() > 1 && order.launches.back().spread();
    if (uses_side) buffers_.fork();
    for (std::size_t number = 0; number < order.launches.size(); ++number) {
      const PartLaunch& launch = order.launches[number];
      if (!launch.closed.empty()) {
        run_closed(inputs, outputs, launch, number);
        continue;
      }
      if (!launch.spread()) arrive(keys[launch.step]);
      const ForwardInputs in = inputs_of(inputs, launch, number, q, keys);
      const Segment& s = launch.segment;
      const ForwardOutputs to = launch.whole
                                    ? whole_outputs(outputs, s)
                                    : ForwardOutputs{.out = view(wide, s.q_row, s.q_rows), .lse = statistics_view(sums, s.q_row, s.q_rows)};
      if (uses_side && launch.spread() && (in.part->failed != nullptr || buffers_.rehearses())) {
        const On on(buffers_, Lane::side);
        this->launch(launch, number, in, to);
        if (!buffers_.rehearses()) continue;  // else where keys turn out not to say when they are there
      }
      this->launch(launch, number, in, to);
    }
    if (uses_side) buffers_.join();
    for (Keys& of_step : keys) arrive(of_step);  // of steps without work

    const TensorView sink = sink_of(inputs.params);
    if (in_place()) {
      for (const Range& r : order.merged_q)
        buffers_.finish(some_rows(wide, r.begin, r.size()), some_rows(sums, r.begin, r.size()), some_rows(out, r.begin, r.size()),
                        lse.data ? some_rows(lse, r.begin, r.size()) : Rows{}, sink, 0, r.size());
      return;
    }
    const Rows own_out = query_rows(c_.shapes.dtype, c_.shapes.head_dim_v);
    const Rows own_lse = memory_.statistics(c_.wide(), c_.batch(), c_.mine.q_rows, heads(false).size());
    buffers_.finish(wide, sums, own_out, own_lse, sink, heads(false).begin, c_.mine.q_rows);
    const Rows unwanted = lse.data ? lse : memory_.statistics(c_.wide(), c_.batch(), out.tokens, c_.shapes.heads_q);
    const std::vector<Role> results{{out, own_out, false}, {unwanted, own_lse, false}};
    const Return back = send_back(c_.mine.queries, c_.queries_to, results);
    wait(back);
    take_own(c_.mine.queries, results, false);
    for (const Arrival& arrival : back.arrivals) take_back(arrival, false);
  }

 private:
  void run_closed(const ForwardInputs& inputs, const ForwardOutputs& outputs, const PartLaunch& launch, std::size_t number) {
    const Segment& s = launch.segment;
    ForwardInputs in{
        .q = packed_view(rows_of(inputs.q), s), .k = packed_view(rows_of(inputs.k), s), .v = packed_view(rows_of(inputs.v), s)};
    in.params = inputs.params, in.rng = inputs.rng, in.varlen = closed_sequences(launch, number);
    ForwardOutputs to{.out = packed_view(rows_of(outputs.out), s)};
    if (outputs.lse.present()) to.lse = packed_statistics(statistics_of(outputs.lse), s);
    this->launch(launch, number, in, to);
  }
  ForwardOutputs whole_outputs(const ForwardOutputs& outputs, const Segment& s) const {
    ForwardOutputs to{.out = view(rows_of(outputs.out), s.q_row, s.q_rows)};
    if (outputs.lse.present()) to.lse = statistics_view(statistics_of(outputs.lse), s.q_row, s.q_rows);
    return to;
  }
  ForwardInputs inputs_of(const ForwardInputs& inputs, const PartLaunch& launch, std::size_t number, const Rows& q,
                          std::vector<Keys>& keys) {
    const Segment& s = launch.segment;
    Keys& of_step = keys[launch.spread() ? 0 : launch.step];
    const std::int64_t first = launch.spread() ? 0 : s.kv_row, count = launch.spread() ? of_step.k.tokens : s.kv_rows;
    ForwardInputs in{.q = view(q, s.q_row, s.q_rows), .k = view(of_step.k, first, count), .v = view(of_step.v, first, count)};
    in.params = inputs.params, in.rng = inputs.rng, in.part = part_of(launch, number);
    if (launch.spread()) spread_keys(*in.part, launch, keys);
    return in;
  }

  /// Where the keys of a launch lie. Those that are on their way are waited for by the kernel, if it can see them arrive.
  void spread_keys(Part& part, const PartLaunch& launch, std::vector<Keys>& keys) {
    part.k_received = view(k_received_, 0, k_received_.tokens), part.v_received = view(v_received_, 0, v_received_.tokens);
    part.stretch_count = launch.stretches.size();
    for (std::size_t i = 0; i < launch.stretches.size(); ++i) {
      Part::Stretch stretch = launch.stretches[i].place;
      Keys& of_step = keys[launch.stretches[i].step];
      if (stretch.received) stretch.row += of_step.first_row;
      if (of_step.waits && !buffers_.rehearses()) {
        const std::optional<ArrivalWord> word = c_.transport->arrival_word(of_step.gather.ticket, launch.stretches[i].source);
        if (word && direct()) {
          stretch.word = word->word, stretch.arrived = word->value, part.failed = word->failed;
        } else {
          arrive(of_step);
        }
      }
      part.stretches[i] = stretch;
    }
  }

  /// Keys in stretches are read by kernels of Hopper alone: elsewhere rows of queries meet theirs in parts.
  const PartOrder& order_of(const ForwardInputs& inputs, const ForwardOutputs& outputs, const Rows& q, std::vector<Keys>& keys) {
    if (!buffers_.rehearses()) return plans_.order;
    OrderRequest request = request_for(true, false);
    const PartOrder& order = order_by(request);
    for (std::size_t number = 0; number < order.launches.size(); ++number) {
      const PartLaunch& launch = order.launches[number];
      if (!launch.spread()) continue;
      try {
        plan(launch, number, inputs_of(inputs, launch, number, q, keys), whole_outputs(outputs, launch.segment));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        request.spread = false;
        order_by(request);
        break;
      }
    }
    return order;
  }
};

class BackwardPass : DevicePass {
 public:
  using DevicePass::DevicePass;

  void run(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
    const bool trains = std::any_of(outputs.dparams.begin(), outputs.dparams.end(), [&](const ParamBinding& p) { return !is_sink(p); });
    const OrderRequest request = request_for(false, trains);
    const std::int64_t dim = c_.shapes.head_dim, dim_v = c_.shapes.head_dim_v;
    const DType wide = c_.wide();
    const Rows k_shard = rows_of(inputs.k), v_shard = rows_of(inputs.v);
    const Queries queries = gather_queries(inputs);
    std::vector<Keys> keys = gather_keys(k_shard, v_shard);
    const std::size_t steps = c_.mine.steps.size();
    std::vector<Rows> dk, dv;
    for (std::size_t i = 0; i < steps; ++i)
      dk.push_back(key_rows(c_.mine.steps[i], wide, dim)), dv.push_back(key_rows(c_.mine.steps[i], wide, dim_v));
    if (!in_place()) {
      dq_ = query_rows(c_.shapes.dtype, dim);
    } else if (outputs.dq.present()) {
      dq_ = rows_of(outputs.dq);
    }
    prepare_params(outputs.dparams, Lane::caller);
    const auto call_of = [&](std::size_t number) {
      const PartLaunch& launch = plans_.order.launches[number];
      const std::size_t step = launch.step;
      if (launch.whole_keys) return part_call(inputs, number, queries, keys[step], rows_of(outputs.dk), rows_of(outputs.dv));
      return part_call(inputs, number, queries, keys[step], dk[step], dv[step]);
    };
    const PartOrder& order = order_of(request, in_place(0) && outputs.dk.present() && outputs.dv.present(), call_of);
    for (std::size_t i = 0; i < steps; ++i)
      for (const Range& rows : order.clear_kv[i]) clear(dk[i], rows), clear(dv[i], rows);
    if (!order.merged_q.empty()) dq_sum_ = query_rows(wide, dim);
    for (const Range& rows : order.clear_q) clear(dq_sum_, rows);
    for (const KeptRange& kept : order.kept) kept_.push_back(memory_.take(plans_.plans[kept.whole]->kept_rows(kept.rows.size()).bytes));

    // dk and dv of own rows: where they are summed, unless some own keys are not needed here or heads are shared out.
    const bool sums_in_place = in_place(0);
    const Rows dk_sum = sums_in_place ? dk[0] : memory_.rows(wide, c_.batch(), k_shard.tokens, c_.shapes.heads_kv, dim);
    const Rows dv_sum = sums_in_place ? dv[0] : memory_.rows(wide, c_.batch(), k_shard.tokens, c_.shapes.heads_kv, dim_v);
    if (!sums_in_place) clear(dk_sum, {0, k_shard.tokens}), clear(dv_sum, {0, k_shard.tokens});
    const auto gradients = [&](std::size_t i) { return std::vector<Role>{{dk_sum, dk[i], true}, {dv_sum, dv[i], true}}; };

    std::vector<Return> returns(steps);
    if (request.returns_early)
      for (std::size_t i = 1; i < steps; ++i) returns[i] = expect_back(c_.keys_to[i], gradients(i));
    const auto give_back = [&](std::size_t i) {
      if (request.returns_early && i > 0) return send_back(c_.mine.steps[i].keys, gradients(i), returns[i]);
      if (!in_place() || i > 0) returns[i] = send_back(c_.mine.steps[i].keys, c_.keys_to[i], gradients(i));
    };
    const bool uses_side = runs_side_by_side(request);
    begin_launches(uses_side, outputs.dparams, call_of);
    // A transfer that waits for its peer may hold multiprocessors: then not before all is computed, for ranks come here at different times.
    std::vector<std::size_t> left(steps, 0);
    for (const PartLaunch& launch : order.launches) ++left[launch.step];
    std::vector<bool> is_given(steps, false);
    for (std::size_t number = 0; number < order.launches.size(); ++number) {
      const PartLaunch& launch = order.launches[number];
      const std::size_t step = launch.step;
      const On on(buffers_, uses_side && step > 0 ? Lane::side : Lane::caller);
      if (launch.closed.empty()) {
        arrive(keys[step]);
        run_part(number, call_of);
      } else {
        run_closed(inputs, outputs, launch, number, queries);
      }
      if (--left[step] == 0 && step > 0 && request.returns_early) give_back(step), is_given[step] = true;
    }
    end_launches(uses_side, call_of);
    for (std::size_t i = 0; i < steps; ++i) {
      arrive(keys[i]);  // of steps without work
      if (!is_given[i]) give_back(i);
    }
    add_dsink(inputs.params, outputs.dparams, queries);

    return_dq(order.merged_q, rows_of(inputs.q).tokens, outputs);
    if (!sums_in_place)
      for (std::size_t i = 0; i < steps; ++i) take_own(c_.mine.steps[i].keys, gradients(i), true);
    take_returns(returns, order.summed_kv, dk_sum, outputs.dk, dv_sum, outputs.dv);
    sum_params(outputs.dparams);
  }

 private:
  /// What belongs to queries; dlse without data: absent.
  struct Queries {
    Rows q, out, dout, lse, dlse;
  };
  Queries gather_queries(const BackwardInputs& inputs) {
    Queries own{rows_of(inputs.q), rows_of(inputs.out), rows_of(inputs.dout), statistics_of(inputs.lse), {}};
    const bool has_dlse = inputs.dlse.present() || c_.attention.sink.has_value();
    if (has_dlse) own.dlse = dlse_of(inputs, own.q.tokens);
    if (in_place()) return own;
    const std::int64_t share = heads(false).size();
    const auto statistics = [&] { return memory_.statistics(c_.wide(), c_.batch(), c_.mine.q_rows, share); };
    std::vector<Role> roles{{own.q, query_rows(c_.shapes.dtype, c_.shapes.head_dim), false},
                            {own.out, query_rows(c_.shapes.dtype, c_.shapes.head_dim_v), false},
                            {own.dout, query_rows(c_.shapes.dtype, c_.shapes.head_dim_v), false},
                            {own.lse, statistics(), false}};
    if (has_dlse) roles.push_back({own.dlse, statistics(), false});
    finish(gather(c_.queries_to, c_.mine.queries, roles));
    return {roles[0].buffer, roles[1].buffer, roles[2].buffer, roles[3].buffer, has_dlse ? roles[4].buffer : Rows{}};
  }

  /// Rows are kept by kernels of Hopper alone: elsewhere each launch adds to dq.
  template <class CallOf>
  const PartOrder& order_of(OrderRequest request, bool may_give_whole_keys, const CallOf& call_of) {
    if (!buffers_.rehearses()) return plans_.order;
    request.keeps_rows = !dq_.data || dq_.dtype == c_.shapes.dtype;
    for (const std::vector<Sending>& step : c_.keys_to)
      for (const Sending& sending : step)
        for (const Transfer& t : sending.rows) request.sent.push_back({t.place, t.place + t.tokens.size()});
    for (const bool whole_keys : {may_give_whole_keys, false}) {
      request.whole_keys = whole_keys;
      if (const PartOrder& order = order_by(request); keeps_rows_alike(order, call_of)) return order;
    }
    request.keeps_rows = false;
    return order_by(request);
  }
  template <class CallOf>
  bool keeps_rows_alike(const PartOrder& order, const CallOf& call_of) {
    try {
      for (std::size_t number = 0; number < order.launches.size(); ++number) {
        const PartLaunch& launch = order.launches[number];
        if (launch.kept < 0) continue;
        const KeptRange& range = order.kept[static_cast<std::size_t>(launch.kept)];
        const auto kept = [&](std::size_t of) {
          const auto [in, results] = call_of(of);
          return plan(order.launches[of], of, in, results).kept_rows(range.rows.size());
        };
        const KeptRows mine = kept(number);
        if (mine.bytes == 0 || mine != kept(range.whole)) return false;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      return false;
    }
    return true;
  }

  struct PartCall {
    BackwardInputs in;
    BackwardOutputs results;
  };
  template <class CallOf>
  void run_part(std::size_t number, const CallOf& call_of) {
    const PartLaunch& launch = plans_.order.launches[number];
    PartCall call = call_of(number);
    if (launch.kept >= 0) {
      Part::Kept& kept = call.in.part->kept;
      kept = kept_part(number);
      kept.lane = buffers_.lane() == Lane::side ? 1 : 0;
      kept.measures = !measured_with_rows(number), kept.multiplies = true;
      if (is_only(static_cast<std::size_t>(launch.kept))) kept.begins = kept.measures = kept.ends = true;
    }
    this->launch(launch, number, call.in, call.results);
    if (const ParamSums& of = param_sums(buffers_.lane()); !of.parts.empty()) memory_.add(of.part, 0, 0, of.values, 0, 0, 1, 1);
  }

  /// Own keys and those of others at the same time, for these add to dq in any order: what comes is computed first, as soon as it is there, and its dk and dv
  /// are on their way back while the rest of the own ones is.
  bool runs_side_by_side(const OrderRequest& request) const {
    const std::vector<PartLaunch>& launches = plans_.order.launches;
    const auto is_own = [](const PartLaunch& l) { return l.step == 0; };
    const auto meets_rows_alone = [&](const PartLaunch& l) { return !dq_.data || l.kept >= 0 || !l.closed.empty(); };
    return request.returns_early && !c_.transport->ranks_share_gpus() && c_.attention.determinism != Determinism::reproducible &&
           !std::all_of(launches.begin(), launches.end(), is_own) && std::all_of(launches.begin(), launches.end(), meets_rows_alone);
  }

  template <class CallOf>
  void begin_launches(bool uses_side, const std::vector<ParamBinding>& wanted, const CallOf& call_of) {
    for (std::size_t of = 0; of < plans_.order.kept.size(); ++of) begin_kept(of, call_of);
    if (!uses_side) return;
    prepare_params(wanted, Lane::side);
    buffers_.fork();
  }
  template <class CallOf>
  void end_launches(bool uses_side, const CallOf& call_of) {
    if (uses_side) {
      buffers_.join();
      if (count_ > 0) memory_.add(param_sums(Lane::side).values, 0, 0, param_sums(Lane::caller).values, 0, 0, 1, 1);
    }
    for (std::size_t of = 0; of < plans_.order.kept.size(); ++of) end_kept(of, call_of);
  }

  /// What a launch is told of the rows that it shares with others, without anything to do.
  Part::Kept kept_part(std::size_t number) const {
    const PartLaunch& launch = plans_.order.launches[number];
    const auto of = static_cast<std::size_t>(launch.kept);
    const KeptRange& range = plans_.order.kept[of];
    return {.memory = kept_[of],
            .rows = range.rows.size(),
            .first = launch.segment.q_row - range.rows.begin,
            .number = launch.kept_number,
            .count = plans_.order.launches[range.last].kept_number + 1,
            .begins = false,
            .measures = false,
            .multiplies = false,
            .ends = false};
  }
  /// Has one launch all of these rows to itself?
  bool is_only(std::size_t of) const { return plans_.order.kept[of].first == plans_.order.kept[of].last; }
  /// Is it the first of its rows, has all of them, and needs nothing of others? Then one kernel prepares and measures them.
  bool measured_with_rows(std::size_t number) const {
    const PartLaunch& launch = plans_.order.launches[number];
    const KeptRange& range = plans_.order.kept[static_cast<std::size_t>(launch.kept)];
    return number == range.first && launch.step == 0 && launch.segment.q_rows == range.rows.size();
  }
  template <class CallOf>
  void begin_kept(std::size_t of, const CallOf& call_of) {
    const KeptRange& range = plans_.order.kept[of];
    if (is_only(of)) return;
    const bool measures = measured_with_rows(range.first);
    const std::size_t number = measures ? range.first : range.whole;
    PartCall call = call_of(number);
    call.in.part->kept = kept_part(number);
    call.in.part->kept.begins = true, call.in.part->kept.measures = measures;
    this->launch(plans_.order.launches[number], number, call.in, call.results);
  }
  template <class CallOf>
  void end_kept(std::size_t of, const CallOf& call_of) {
    if (is_only(of)) return;
    const std::size_t number = plans_.order.kept[of].whole;
    PartCall call = call_of(number);
    call.in.part->kept = kept_part(number);
    call.in.part->kept.ends = true;
    this->launch(plans_.order.launches[number], number, call.in, call.results);
  }
  /// dk and dv: of the step's rows.
  PartCall part_call(const BackwardInputs& inputs, std::size_t number, const Queries& queries, const Keys& keys, const Rows& dk,
                     const Rows& dv) const {
    const PartLaunch& launch = plans_.order.launches[number];
    const Segment& s = launch.segment;
    BackwardInputs in{.q = view(queries.q, s.q_row, s.q_rows),
                      .k = view(keys.k, s.kv_row, s.kv_rows),
                      .v = view(keys.v, s.kv_row, s.kv_rows),
                      .out = view(queries.out, s.q_row, s.q_rows),
                      .lse = statistics_view(queries.lse, s.q_row, s.q_rows),
                      .dout = view(queries.dout, s.q_row, s.q_rows)};
    if (queries.dlse.data) in.dlse = statistics_view(queries.dlse, s.q_row, s.q_rows);
    in.params = inputs.params, in.rng = inputs.rng, in.part = part_of(launch, number);
    BackwardOutputs results{
        .dk = view(dk, s.kv_row, s.kv_rows), .dv = view(dv, s.kv_row, s.kv_rows), .dparams = param_sums(buffers_.lane()).parts};
    const Rows& dq = launch.kept < 0 ? dq_sum_ : dq_;
    if (dq.data) results.dq = view(dq, s.q_row, s.q_rows);
    return {in, results};
  }

  void run_closed(const BackwardInputs& inputs, const BackwardOutputs& outputs, const PartLaunch& launch, std::size_t number,
                  const Queries& queries) {
    const Segment& s = launch.segment;
    BackwardInputs in{.q = packed_view(queries.q, s),
                      .k = packed_view(rows_of(inputs.k), s),
                      .v = packed_view(rows_of(inputs.v), s),
                      .out = packed_view(queries.out, s),
                      .lse = packed_statistics(queries.lse, s),
                      .dout = packed_view(queries.dout, s)};
    if (queries.dlse.data) in.dlse = packed_statistics(queries.dlse, s);
    in.params = inputs.params, in.rng = inputs.rng, in.varlen = closed_sequences(launch, number);
    BackwardOutputs to;
    if (outputs.dq.present()) to.dq = packed_view(rows_of(outputs.dq), s);
    if (outputs.dk.present()) to.dk = packed_view(rows_of(outputs.dk), s);
    if (outputs.dv.present()) to.dv = packed_view(rows_of(outputs.dv), s);
    if (to.dq.present() || to.dk.present() || to.dv.present()) this->launch(launch, number, in, to);
  }

  /// Where terms that are the same for all keys of a row matter, they do in every launch: dlse says so, as zeros where none is given.
  Rows dlse_of(const BackwardInputs& inputs, std::int64_t tokens) {
    if (inputs.dlse.present()) return statistics_of(inputs.dlse);
    const Rows dlse = memory_.statistics(c_.wide(), c_.batch(), tokens, c_.shapes.heads_q);
    Rows flat = dlse;  // dense: its tokens are heads and batches too
    flat.batch = 1, flat.tokens = 1, flat.token_stride = dlse.heads * dlse.head_stride;
    buffers_.clear(flat, {0, 1});
    return dlse;
  }

  /// The gradients of the queries go to the ranks whose queries these are.
  void return_dq(const std::vector<Range>& merged, std::int64_t shard_tokens, const BackwardOutputs& outputs) {
    if (dq_.data)
      for (const Range& r : merged) memory_.convert(dq_sum_, r.begin, 0, dq_, r.begin, 0, r.size(), heads(false).size());
    if (in_place()) return;
    const Rows dq_shard = outputs.dq.present()
                              ? rows_of(outputs.dq)
                              : memory_.rows(c_.shapes.dtype, c_.batch(), shard_tokens, c_.shapes.heads_q, c_.shapes.head_dim);
    const std::vector<Role> role{{dq_shard, dq_, false}};
    const Return back = send_back(c_.mine.queries, c_.queries_to, role);
    wait(back);
    take_own(c_.mine.queries, role, false);
    for (const Arrival& arrival : back.arrivals) take_back(arrival, false);
  }

  /// What other ranks send back is added in the order of ranks, whatever came first; the last of it on the way to the caller's tensors.
  void take_returns(const std::vector<Return>& returns, const std::vector<Range>& summed, const Rows& dk_sum, const TensorView& dk,
                    const Rows& dv_sum, const TensorView& dv) {
    for (std::size_t i = 0; i < returns.size(); ++i)
      if (!in_place() || i > 0) wait(returns[i]);
    std::vector<const Arrival*> arrivals;
    for (int rank = 0; rank < c_.plan.ranks; ++rank)
      for (const Return& back : returns)
        for (const Arrival& arrival : back.arrivals)
          if (arrival.peer == rank) arrivals.push_back(&arrival);
    for (std::size_t i = 0; i + 1 < arrivals.size(); ++i) take_back(*arrivals[i], true);
    const Arrival none;
    const Arrival& last = arrivals.empty() ? none : *arrivals.back();
    finish_sum(dk_sum, dk, last, summed);
    finish_sum(dv_sum, dv, last, summed);
  }
  void finish_sum(const Rows& sum, const TensorView& gradient, const Arrival& last, const std::vector<Range>& summed) {
    if (!gradient.present()) return;
    const Rows to = rows_of(gradient);
    std::vector<std::pair<const Piece*, const Piece*>> pieces;  // of the last arrival, and its messages
    for (std::size_t i = 0; i < last.pieces.size(); ++i)
      if (last.pieces[i].rows.data == sum.data) pieces.emplace_back(&last.pieces[i], &last.messages[i]);
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.first->token < b.first->token; });
    const bool heads_together = std::all_of(pieces.begin(), pieces.end(), [&](const auto& p) { return p.first->heads == sum.heads; });
    if (!heads_together)
      for (const auto& [piece, message] : pieces)
        memory_.add(message->rows, 0, 0, sum, piece->token, piece->head, piece->count, piece->heads);
    for (const Range& range : summed) {
      std::int64_t at = range.begin;
      for (const auto& [piece, message] : pieces) {
        if (!heads_together || piece->token < range.begin || piece->token >= range.end) continue;
        memory_.convert(sum, at, 0, to, at, 0, piece->token - at, sum.heads);
        buffers_.convert_sum(some_rows(sum, piece->token, piece->count), message->rows, some_rows(to, piece->token, piece->count));
        at = piece->token + piece->count;
      }
      memory_.convert(sum, at, 0, to, at, 0, range.end - at, sum.heads);
    }
  }

  void clear(const Rows& rows, Range tokens) { buffers_.clear(rows, tokens); }

  /// So many f64 values as one row.
  Rows values(std::int64_t count) { return memory_.rows(DType::f64, 1, 1, 1, count); }

  /// Of the launches of a lane, f64 accumulators for the gradients that are wanted, one after the other.
  struct ParamSums {
    Rows values, part;                  ///< of all launches so far, and of one
    std::vector<ParamBinding> parts{};  ///< what a launch is to write
  };
  ParamSums& param_sums(Lane lane) { return param_sums_[static_cast<int>(lane)]; }
  const ParamSums& param_sums(Lane lane) const { return param_sums_[static_cast<int>(lane)]; }
  void prepare_params(const std::vector<ParamBinding>& wanted, Lane lane) {
    first_.clear(), count_ = 0;
    for (const ParamBinding& w : wanted) first_.push_back(count_), count_ += w.tensor.numel();
    if (count_ == 0) return;
    ParamSums& sums = param_sums(lane);
    sums.values = values(count_), sums.part = values(count_);
    clear(sums.values, {0, 1}), clear(sums.part, {0, 1});
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (is_sink(wanted[i])) continue;
      std::byte* to = sums.part.data + first_[i] * static_cast<std::int64_t>(sizeof(double));
      sums.parts.push_back({wanted[i].param, base::contiguous_like(wanted[i].tensor, to, DType::f64)});
    }
  }

  void add_dsink(const std::vector<ParamBinding>& params, const std::vector<ParamBinding>& wanted, const Queries& of) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!is_sink(wanted[i])) continue;
      auto* gradient = reinterpret_cast<double*>(param_sums(Lane::caller).values.data) + first_[i] + heads(false).begin;
      buffers_.sink_gradient(of.out, of.dout, of.lse, of.dlse, sink_of(params), heads(false).begin, gradient);
    }
  }

  /// In the order of ranks, on every rank.
  void sum_params(const std::vector<ParamBinding>& wanted) {
    if (count_ == 0) return;
    const Rows &sums = param_sums(Lane::caller).values, all = memory_.rows(DType::f64, 1, c_.plan.ranks, 1, count_);
    std::vector<Message> sends, receives;
    const auto bytes = static_cast<std::size_t>(count_) * sizeof(double);
    for (int rank = 0; rank < c_.plan.ranks; ++rank) {
      if (rank == c_.rank()) continue;
      sends.push_back({rank, sums.data, bytes});
      receives.push_back({rank, all.at(0, rank, 0), bytes});
    }
    const std::uint64_t ticket = memory_.start(*c_.transport, sends, receives);
    memory_.copy(sums, 0, 0, all, c_.rank(), 0, 1, 1);
    memory_.wait(*c_.transport, ticket);
    const Rows total = values(count_);
    memory_.copy(all, 0, 0, total, 0, 0, 1, 1);
    for (int rank = 1; rank < c_.plan.ranks; ++rank) memory_.add(all, rank, 0, total, 0, 0, 1, 1);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      Rows from = total;
      from.data += first_[i] * static_cast<std::int64_t>(sizeof(double));
      write_gradient(from, wanted[i].tensor);
    }
  }

  /// Contiguous f64 values to a tensor of up to four dimensions, or of any number where it is contiguous.
  void write_gradient(Rows from, const TensorView& to) {
    std::int64_t sizes[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 1};
    std::int64_t contiguous = 1;
    bool is_contiguous = true;
    for (int d = to.rank - 1; d >= 0; --d) {
      const auto at = static_cast<std::size_t>(d);
      is_contiguous = is_contiguous && (to.sizes[at] == 1 || to.strides[at] == contiguous);
      contiguous *= to.sizes[at];
    }
    if (is_contiguous) {
      sizes[3] = contiguous;
    } else {
      if (to.rank > 4)
        base::fail(ErrorCode::unsupported, "dparams: a gradient of rank ", to.rank,
                   " with gaps; expected it contiguous, or of rank 4 at most");
      for (int d = 0; d < to.rank; ++d) {
        sizes[4 - to.rank + d] = to.sizes[static_cast<std::size_t>(d)];
        strides[4 - to.rank + d] = to.strides[static_cast<std::size_t>(d)];
      }
    }
    const auto size = static_cast<std::int64_t>(size_of(to.dtype)), wide = static_cast<std::int64_t>(sizeof(double));
    from.batch = sizes[0], from.tokens = sizes[1], from.heads = sizes[2], from.dim = sizes[3];
    from.dim_stride = wide, from.head_stride = from.dim * wide, from.token_stride = from.heads * from.head_stride;
    from.batch_stride = from.tokens * from.token_stride;
    Rows rows = from;
    rows.data = static_cast<std::byte*>(to.data), rows.dtype = to.dtype;
    rows.batch_stride = strides[0] * size, rows.token_stride = strides[1] * size, rows.head_stride = strides[2] * size;
    rows.dim_stride = strides[3] * size;
    memory_.convert(from, 0, 0, rows, 0, 0, from.tokens, from.heads);
  }

  Rows dq_;                       ///< of the queries of this rank's group; no data: unwanted
  Rows dq_sum_;                   ///< f32, of rows that keep nothing
  std::vector<std::byte*> kept_;  ///< of PartOrder::kept
  std::int64_t count_ = 0;
  std::vector<std::int64_t> first_;  ///< of each wanted gradient, in the sums
  ParamSums param_sums_[2];          ///< of each lane
};

}  // namespace

namespace {

template <class PassOf, class Inputs, class Outputs>
void rehearse(const std::string& signature, const Context& context, const Inputs& inputs, const Outputs& outputs, DeviceBuffers& buffers,
              PartPlans& plans) {
  if (plans.signature == signature) return;
  plans.signature = signature;
  try {
    PassOf(context, buffers, plans).run(inputs, outputs);
  } catch (...) {
    plans.signature.clear();
    throw;
  }
}

}  // namespace

void rehearse_forward(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers,
                      PartPlans& plans) {
  rehearse<ForwardPass>(signature_of(inputs, outputs), context, inputs, outputs, buffers, plans);
}
void rehearse_backward(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
                       PartPlans& plans) {
  rehearse<BackwardPass>(signature_of(inputs, outputs), context, inputs, outputs, buffers, plans);
}

void run_forward(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers,
                 PartPlans& plans) {
  ForwardPass(context, buffers, plans).run(inputs, outputs);
}

void run_backward(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
                  PartPlans& plans) {
  BackwardPass(context, buffers, plans).run(inputs, outputs);
}

}  // namespace foveal::dist
