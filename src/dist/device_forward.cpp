#include <algorithm>

#include "base/check.h"
#include "dist/device_pass.h"

namespace foveal::dist {
namespace {

class DeviceForward : DevicePass {
 public:
  DeviceForward(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers,
                PartPlans& plans)
      : DevicePass(context, buffers, plans), inputs_(inputs), outputs_(outputs) {}

  void run() {
    run_or_warm_up({&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.rng.state, &outputs_.out, &outputs_.lse}, {&inputs_.params},
                   [&] { compute(); });
  }

 private:
  void compute() {
    q_ = rows_of(inputs_.q), out_ = rows_of(outputs_.out);
    if (outputs_.lse.present()) lse_ = statistics_of(outputs_.lse);
    if (!in_place()) {
      const Rows buffer = query_rows(c_.shapes.dtype, c_.shapes.head_dim, For::messages);
      finish(gather(c_.queries_to, c_.mine.queries, {{q_, buffer, false}}));
      q_ = buffer;
    }
    gather_keys(rows_of(inputs_.k), rows_of(inputs_.v), {.at_once = kernels_wait_for_all(), .in_slices = by_copy_engines()});
    const PartOrder& order = order_launches();
    if (!order.merged_q.empty()) {
      wide_ = query_rows(c_.wide(), c_.shapes.head_dim_v), sums_ = query_statistics(DType::f64);
      buffers_.clear_sums(sums_);
    }
    // Launches that wait for their keys themselves depend on no other: they fill what the last CTAs of others leave idle.
    const auto spread = std::count_if(order.launches.begin(), order.launches.end(), [](const PartLaunch& l) { return l.spread(); });
    const std::vector<Lane> sides =
        DeviceBuffers::side_lanes(order.launches.size() > 1 ? static_cast<int>(std::min<std::ptrdiff_t>(spread, DeviceBuffers::sides)) : 0);
    buffers_.fork(sides);
    for (std::size_t number = 0, on_sides = 0; number < order.launches.size(); ++number)
      run_launch(number, !sides.empty() && order.launches[number].spread() ? sides[on_sides++ % sides.size()] : Lane::caller);
    buffers_.join(sides);
    for (std::size_t step = 0; step < keys_.size(); ++step) arrive(step);  // of steps without work
    write_results(order.merged_q);
  }

  void run_launch(std::size_t number, Lane lane) {
    const PartLaunch& launch = plans_.order.launches[number];
    const Segment& s = launch.segment;
    if (!launch.closed.empty()) return run_closed(number);
    if (!launch.spread()) arrive(launch.step);
    const ForwardInputs in = inputs_of(number);
    const ForwardOutputs to =
        launch.whole ? whole_outputs(s) : ForwardOutputs{.out = tensor(wide_, s.rows()), .lse = statistics(sums_, s.rows())};
    if (lane != Lane::caller && (in.part->failed != nullptr || buffers_.warms_up())) {
      const DeviceBuffers::OnLane on(buffers_, lane);
      this->launch(number, in, to);
      if (!buffers_.warms_up()) return;  // a warm-up prepares both: a pass takes the caller's lane where kernels cannot see keys arrive
    }
    this->launch(number, in, to);
  }
  void run_closed(std::size_t number) {
    const Segment& s = plans_.order.launches[number].segment;
    ForwardInputs in{.q = packed(q_, s), .k = packed(rows_of(inputs_.k), s), .v = packed(rows_of(inputs_.v), s)};
    in.params = inputs_.params, in.rng = inputs_.rng, in.varlen = closed_sequences(number);
    ForwardOutputs to{.out = packed(out_, s)};
    if (outputs_.lse.present()) to.lse = packed_stats(lse_, s);
    launch(number, in, to);
  }
  ForwardOutputs whole_outputs(const Segment& s) const {
    ForwardOutputs to{.out = tensor(out_, s.rows())};
    if (outputs_.lse.present()) to.lse = statistics(lse_, s.rows());
    return to;
  }
  ForwardInputs inputs_of(std::size_t number) {
    const PartLaunch& launch = plans_.order.launches[number];
    const Keys& of_step = keys_[launch.spread() ? 0 : launch.step];
    const Range keys = launch.spread() ? Range{0, of_step.k.tokens} : launch.segment.keys();
    ForwardInputs in{.q = tensor(q_, launch.segment.rows()), .k = tensor(of_step.k, keys), .v = tensor(of_step.v, keys)};
    in.params = inputs_.params, in.rng = inputs_.rng, in.part = part_of(number);
    if (launch.spread()) spread_keys(*in.part, launch);
    return in;
  }

  /// Do kernels wait for all keys that are received? Then no launch gains if those of one step come before
  /// those of the next. (A warm-up sends nothing.)
  bool kernels_wait_for_all() const {
    const std::vector<PartLaunch>& launches = plans_.order.launches;
    return !buffers_.warms_up() && by_copy_engines() &&
           std::all_of(launches.begin(), launches.end(), [](const PartLaunch& l) { return l.step == 0 || l.spread(); });
  }
  /// The kernel itself waits for keys on their way, if it can see them arrive.
  void spread_keys(Part& part, const PartLaunch& launch) {
    part.k_received = tensor_of(k_received_, buffers_.device()), part.v_received = tensor_of(v_received_, buffers_.device());
    part.key_range_count = launch.key_ranges.size();
    for (std::size_t i = 0; i < launch.key_ranges.size(); ++i) {
      Part::KeyRange range = launch.key_ranges[i].place;
      const std::size_t step = launch.key_ranges[i].step;
      if (range.received) range.row += keys_[step].first_row;
      if (gather_of(step).waits && !buffers_.warms_up()) {
        const std::optional<ArrivalWord> word = c_.transport->arrival_word(gather_of(step).gather.ticket, launch.key_ranges[i].source);
        if (word && direct()) {
          range.word = word->word, range.arrived = word->value, part.failed = word->failed;
          range.slices = static_cast<std::uint32_t>(word->slices);
        } else {
          arrive(step);
        }
      }
      part.key_ranges[i] = range;
    }
  }

  /// Only Hopper's kernels read keys in ranges: elsewhere rows of queries meet their keys in several parts.
  const PartOrder& order_launches() {
    if (!buffers_.warms_up()) return plans_.order;
    OrderRequest request = request_for({.forward = true});
    const PartOrder& order = order_by(request);
    for (std::size_t number = 0; number < order.launches.size(); ++number) {
      if (!order.launches[number].spread()) continue;
      try {
        plan(number, inputs_of(number), whole_outputs(order.launches[number].segment));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        request.spread = false;
        return order_by(request);
      }
    }
    return order;
  }

  /// out and lse of rows that several parts met, to the ranks that own them.
  void write_results(const std::vector<Range>& merged) {
    const TensorView sink = sink_of(inputs_.params);
    if (in_place()) {
      for (const Range& r : merged)
        buffers_.finish(wide_.slice(r), sums_.slice(r), out_.slice(r), lse_.data ? lse_.slice(r) : Rows{}, sink, 0);
      return;
    }
    const Rows own_out = query_rows(c_.shapes.dtype, c_.shapes.head_dim_v), own_lse = query_statistics(c_.wide());
    buffers_.finish(wide_, sums_, own_out, own_lse, sink, heads(false).begin);
    const Rows lse_shard = lse_.data ? lse_ : memory_.statistics(c_.wide(), c_.batch(), out_.tokens, c_.shapes.heads_q);
    return_queries({{out_, own_out, false}, {lse_shard, own_lse, false}});
  }

  const ForwardInputs& inputs_;
  const ForwardOutputs& outputs_;
  Rows q_, out_, lse_;  ///< lse_ without data: unwanted
  Rows wide_, sums_;    ///< out and log sums of rows that several parts meet
};

}  // namespace

void run_pass(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, DeviceBuffers& buffers,
              PartPlans& plans) {
  DeviceForward(context, inputs, outputs, buffers, plans).run();
}

}  // namespace foveal::dist
