#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "dist/device_param_sums.h"
#include "dist/device_pass.h"

namespace foveal::dist {
namespace {

class DeviceBackward : DevicePass {
 public:
  DeviceBackward(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
                 PartPlans& plans)
      : DevicePass(context, buffers, plans), inputs_(inputs), outputs_(outputs), params_(context, buffers, outputs.dparams) {}

  void run() {
    run_or_warm_up({&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.out, &inputs_.lse, &inputs_.dout, &inputs_.dlse, &inputs_.rng.state,
                    &outputs_.dq, &outputs_.dk, &outputs_.dv},
                   {&inputs_.params, &outputs_.dparams}, [&] { compute(); });
  }

 private:
  /// Of a step's keys. returned: to the ranks that own them.
  struct KeyGradients {
    Rows dk, dv;
    std::size_t launches_left = 0;
    Return returned{};
    bool is_returned = false;
  };
  struct PartCall {
    BackwardInputs in;
    BackwardOutputs results;
  };

  void compute() {
    const bool trains = std::any_of(outputs_.dparams.begin(), outputs_.dparams.end(), [&](const auto& p) { return !c_.is_sink(p); });
    request_ = request_for({.trains = trains});
    gather_queries();
    const Rows k_shard = rows_of(inputs_.k), v_shard = rows_of(inputs_.v);
    gather_keys(k_shard, v_shard, {});
    for (const Step& step : c_.mine.steps)
      gradients_.push_back({key_rows(step, c_.wide(), c_.shapes.head_dim), key_rows(step, c_.wide(), c_.shapes.head_dim_v)});
    if (!in_place()) {
      dq_ = query_rows(c_.shapes.dtype, c_.shapes.head_dim);
    } else if (outputs_.dq.present()) {
      dq_ = rows_of(outputs_.dq);
    }
    params_.prepare(Lane::caller);
    const PartOrder& order = order_launches();
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      for (const Range& rows : order.clear_kv[i])
        buffers_.clear(gradients_[i].dk.slice(rows)), buffers_.clear(gradients_[i].dv.slice(rows));
    if (!order.merged_q.empty()) dq_sum_ = query_rows(c_.wide(), c_.shapes.head_dim);
    for (const Range& rows : order.clear_q) buffers_.clear(dq_sum_.slice(rows));
    for (const KeptRange& kept : order.kept)
      kept_.push_back(memory_.take(plans_.plans[kept.whole]->kept_rows(kept.rows.size()).bytes, For::work));

    // dk and dv of own rows are summed in place, unless some own keys are not needed here or heads are shared out.
    dk_sum_ = in_place(0) ? gradients_[0].dk : memory_.rows(c_.wide(), c_.batch(), k_shard.tokens, c_.shapes.heads_kv, k_shard.dim);
    dv_sum_ = in_place(0) ? gradients_[0].dv : memory_.rows(c_.wide(), c_.batch(), v_shard.tokens, c_.shapes.heads_kv, v_shard.dim);
    if (!in_place(0)) buffers_.clear(dk_sum_), buffers_.clear(dv_sum_);

    run_launches();
    add_dsink();
    return_dq(order.merged_q);
    if (!in_place(0))
      for (std::size_t i = 0; i < gradients_.size(); ++i) take_own(c_.mine.steps[i].keys, key_roles(i), true);
    take_key_gradients(order.summed_kv);
    params_.reduce_and_write();
  }

  void gather_queries() {
    q_ = rows_of(inputs_.q), out_ = rows_of(inputs_.out), dout_ = rows_of(inputs_.dout), lse_ = statistics_of(inputs_.lse);
    const bool has_dlse = inputs_.dlse.present() || c_.attention.sink.has_value();
    if (has_dlse) dlse_ = dlse_of_all();
    if (in_place()) return;
    std::vector<Role> roles{{q_, query_rows(c_.shapes.dtype, c_.shapes.head_dim, For::messages), false},
                            {out_, query_rows(c_.shapes.dtype, c_.shapes.head_dim_v, For::messages), false},
                            {dout_, query_rows(c_.shapes.dtype, c_.shapes.head_dim_v, For::messages), false},
                            {lse_, query_statistics(c_.wide(), For::messages), false}};
    if (has_dlse) roles.push_back({dlse_, query_statistics(c_.wide(), For::messages), false});
    finish(gather(c_.queries_to, c_.mine.queries, roles));
    q_ = roles[0].buffer, out_ = roles[1].buffer, dout_ = roles[2].buffer, lse_ = roles[3].buffer;
    if (has_dlse) dlse_ = roles[4].buffer;
  }
  /// dlse makes each launch keep the terms that cancel over all keys of a row: zeros where none is given.
  Rows dlse_of_all() {
    if (inputs_.dlse.present()) return statistics_of(inputs_.dlse);
    const Rows dlse = memory_.statistics(c_.wide(), c_.batch(), q_.tokens, c_.shapes.heads_q);
    Rows flat = dlse;
    flat.batch = 1, flat.tokens = 1, flat.token_stride = dlse.heads * dlse.head_stride;
    buffers_.clear(flat);
    return dlse;
  }

  /// Only Hopper's kernels keep rows from launch to launch: elsewhere each launch adds to dq.
  const PartOrder& order_launches() {
    if (!buffers_.warms_up()) return plans_.order;
    OrderRequest request = request_;
    request.keeps_rows = !dq_.data || dq_.dtype == c_.shapes.dtype;
    for (const std::vector<Sending>& step : c_.keys_to)
      for (const Sending& sending : step)
        for (const Transfer& t : sending.rows) request.sent.push_back({t.place, t.place + t.tokens.size()});
    for (const bool whole_keys : {in_place(0) && outputs_.dk.present() && outputs_.dv.present(), false}) {
      request.whole_keys = whole_keys;
      if (const PartOrder& order = order_by(request); keeps_rows_alike(order)) return order;
    }
    request.keeps_rows = false;
    return order_by(request);
  }
  bool keeps_rows_alike(const PartOrder& order) {
    try {
      for (std::size_t number = 0; number < order.launches.size(); ++number) {
        if (order.launches[number].kept < 0) continue;
        const KeptRange& range = order.kept[static_cast<std::size_t>(order.launches[number].kept)];
        const auto kept = [&](std::size_t of) {
          const auto [in, results] = part_call(of);
          return plan(of, in, results).kept_rows(range.rows.size());
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

  void run_launches() {
    const std::vector<PartLaunch>& launches = plans_.order.launches;
    if (request_.returns_early)
      for (std::size_t i = 1; i < gradients_.size(); ++i) gradients_[i].returned = expect_back(c_.keys_to[i], key_roles(i));
    side_lanes_ = find_side_lanes();
    for (const Lane lane : side_lanes_) params_.prepare(lane);
    in_turns(plans_.order.kept.size(), [&](std::size_t of) { begin_kept(of); });
    if (!side_lanes_.empty()) arrive(0);  // own keys that are copied first: for the launches of every lane
    buffers_.fork(side_lanes_);
    for (const PartLaunch& launch : launches) ++gradients_[launch.step].launches_left;
    const std::size_t last_received = side_lanes_.empty() ? launches.size() : long_received_launch();
    for (std::size_t number = 0; number < launches.size(); ++number) {
      const std::size_t step = launches[number].step;
      // Own keys that are left wait for it to begin: no priority takes a multiprocessor from their
      // CTAs, and they hide the return of its dk and dv.
      if (number == last_received) own_launches_wait();
      const DeviceBuffers::OnLane on(buffers_, lane_of(launches[number]));
      for (std::size_t queue = 0; queue < own_queues && !side_lanes_.empty(); ++queue)
        if (launches[number].follows[queue]) buffers_.follow(lane_of_queue[queue]);
      if (launches[number].closed.empty()) {
        arrive(step);
        run_part(number);
      } else {
        run_closed(number);
      }
      // A transfer that waits for its peer may hold multiprocessors, and ranks come here at different times: then only after all launches.
      if (--gradients_[step].launches_left == 0 && step > 0 && request_.returns_early) return_gradients(step);
    }
    buffers_.join(side_lanes_), params_.join(side_lanes_);
    in_turns(plans_.order.kept.size(), [&](std::size_t of) { end_kept(of); });
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      arrive(i);  // of steps without work
      if (!gradients_[i].is_returned) return_gradients(i);
    }
  }

  /// Lanes beside the caller's. Received keys have one: their sums of dq do not depend on the order, and dk and dv of
  /// the received ones are on their way back while the rest of the own ones is computed. Own keys have one for each
  /// queue: short launches fill what others leave idle.
  std::vector<Lane> find_side_lanes() const {
    std::vector<Lane> lanes;
    if (!runs_side_by_side()) return lanes;
    for (const Lane lane : DeviceBuffers::side_lanes(DeviceBuffers::sides))
      if (std::any_of(plans_.order.launches.begin(), plans_.order.launches.end(),
                      [&](const PartLaunch& launch) { return side_lane_of(launch) == lane; }))
        lanes.push_back(lane);
    return lanes;
  }
  static constexpr Lane lane_of_queue[own_queues] = {Lane::caller, Lane::second_side, Lane::third_side};
  static Lane side_lane_of(const PartLaunch& launch) { return launch.step > 0 ? Lane::side : lane_of_queue[launch.queue]; }
  Lane lane_of(const PartLaunch& launch) const { return side_lanes_.empty() ? Lane::caller : side_lane_of(launch); }
  /// Own launches that come now, for the received ones that came before.
  void own_launches_wait() {
    buffers_.join({Lane::side});
    std::vector<Lane> others = side_lanes_;
    others.erase(std::remove(others.begin(), others.end(), Lane::side), others.end());
    buffers_.fork(others);
  }
  /// fn(0) to fn(count - 1), which do not depend on each other, on all lanes by turns.
  template <class Fn>
  void in_turns(std::size_t count, Fn&& fn) {
    std::vector<Lane> lanes{Lane::caller};
    if (count > 1) lanes.insert(lanes.end(), side_lanes_.begin(), side_lanes_.end());
    const std::vector<Lane> sides(lanes.begin() + 1, lanes.end());
    buffers_.fork(sides);
    for (std::size_t i = 0; i < count; ++i) {
      const DeviceBuffers::OnLane on(buffers_, lanes[i % lanes.size()]);
      fn(i);
    }
    buffers_.join(sides);
  }

  /// Not where the rows of a head are many: tasks of two launches walk at different places, and
  /// what they read and add to would not stay in L2.
  bool runs_side_by_side() const {
    constexpr std::size_t share_of_l2 = 4;
    const std::vector<PartLaunch>& launches = plans_.order.launches;
    const std::int64_t row_bytes = static_cast<std::int64_t>(size_of(c_.shapes.dtype)) * (c_.shapes.head_dim + c_.shapes.head_dim_v) +
                                   static_cast<std::int64_t>(size_of(c_.wide())) * c_.shapes.head_dim;  // q, dout, and the sum of dq
    for (const PartLaunch& launch : launches)
      if (static_cast<std::size_t>(launch.segment.q_rows * row_bytes) >
          cuda::driver::device_facts(buffers_.device().index).l2_bytes / share_of_l2)
        return false;
    const auto meets_rows_alone = [&](const PartLaunch& l) { return !dq_.data || l.kept >= 0 || !l.closed.empty(); };
    return request_.returns_early && !c_.transport->ranks_share_gpus() && c_.attention.determinism != Determinism::reproducible &&
           std::all_of(launches.begin(), launches.end(), meets_rows_alone);
  }

  /// The last launch of received keys, if the last rounds of their tasks leave less than an
  /// eighth of the GPU idle; else own launches fill it.
  std::size_t long_received_launch() const {
    constexpr std::int64_t task_keys = 128;
    const std::int64_t at_once = cuda::driver::device_facts(buffers_.device().index).multiprocessors;
    const std::vector<PartLaunch>& launches = plans_.order.launches;
    std::size_t last = launches.size();
    std::int64_t tasks = 0, places = 0;
    for (std::size_t number = 0; number < launches.size(); ++number) {
      if (launches[number].step == 0) continue;
      const std::int64_t of_one = base::divide_up(launches[number].segment.kv_rows, task_keys) * heads(true).size() * c_.batch();
      tasks += of_one, places += base::round_up(of_one, at_once);
      last = number;
    }
    return 8 * tasks > 7 * places ? last : launches.size();
  }

  PartCall part_call(std::size_t number) const {
    const PartLaunch& launch = plans_.order.launches[number];
    const Range rows = launch.segment.rows(), keys = launch.segment.keys();
    BackwardInputs in{.q = tensor(q_, rows),
                      .k = tensor(keys_[launch.step].k, keys),
                      .v = tensor(keys_[launch.step].v, keys),
                      .out = tensor(out_, rows),
                      .lse = statistics(lse_, rows),
                      .dout = tensor(dout_, rows)};
    if (dlse_.data) in.dlse = statistics(dlse_, rows);
    in.params = inputs_.params, in.rng = inputs_.rng, in.part = part_of(number);
    const KeyGradients& of_step = gradients_[launch.step];
    BackwardOutputs results{.dk = tensor(launch.whole_keys ? rows_of(outputs_.dk) : of_step.dk, keys),
                            .dv = tensor(launch.whole_keys ? rows_of(outputs_.dv) : of_step.dv, keys),
                            .dparams = params_.parts(buffers_.lane())};
    const Rows& dq = launch.kept < 0 ? dq_sum_ : dq_;
    if (dq.data) results.dq = tensor(dq, rows);
    return {in, results};
  }
  void run_part(std::size_t number) {
    const PartLaunch& launch = plans_.order.launches[number];
    PartCall call = part_call(number);
    if (launch.kept >= 0) {
      Part::Kept& kept = call.in.part->kept;
      kept = kept_part(number);
      kept.stream = buffers_.lane() == Lane::side ? 1 : 0;
      kept.measures = !is_measured_with_rows(number), kept.multiplies = true;
      if (is_only(static_cast<std::size_t>(launch.kept))) kept.begins = kept.measures = kept.ends = true;
    }
    this->launch(number, call.in, call.results);
    params_.add_part(buffers_.lane());
  }
  void run_closed(std::size_t number) {
    const Segment& s = plans_.order.launches[number].segment;
    BackwardInputs in{.q = packed(q_, s),
                      .k = packed(rows_of(inputs_.k), s),
                      .v = packed(rows_of(inputs_.v), s),
                      .out = packed(out_, s),
                      .lse = packed_stats(lse_, s),
                      .dout = packed(dout_, s)};
    if (dlse_.data) in.dlse = packed_stats(dlse_, s);
    in.params = inputs_.params, in.rng = inputs_.rng, in.varlen = closed_sequences(number);
    BackwardOutputs to;
    if (outputs_.dq.present()) to.dq = packed(rows_of(outputs_.dq), s);
    if (outputs_.dk.present()) to.dk = packed(rows_of(outputs_.dk), s);
    if (outputs_.dv.present()) to.dv = packed(rows_of(outputs_.dv), s);
    if (to.dq.present() || to.dk.present() || to.dv.present()) launch(number, in, to);
  }

  /// The rows that a launch shares with others, and nothing to do with them yet.
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
  /// One kernel prepares and measures rows whose first launch has all of them and needs no other rank's keys.
  bool is_measured_with_rows(std::size_t number) const {
    const PartLaunch& launch = plans_.order.launches[number];
    const KeptRange& range = plans_.order.kept[static_cast<std::size_t>(launch.kept)];
    return number == range.first && launch.step == 0 && launch.segment.q_rows == range.rows.size();
  }
  void begin_kept(std::size_t of) {
    if (is_only(of)) return;
    const KeptRange& range = plans_.order.kept[of];
    const bool measures = is_measured_with_rows(range.first);
    const std::size_t number = measures ? range.first : range.whole;
    PartCall call = part_call(number);
    call.in.part->kept = kept_part(number);
    call.in.part->kept.begins = true, call.in.part->kept.measures = measures;
    launch(number, call.in, call.results);
  }
  void end_kept(std::size_t of) {
    if (is_only(of)) return;
    const std::size_t number = plans_.order.kept[of].whole;
    PartCall call = part_call(number);
    call.in.part->kept = kept_part(number);
    call.in.part->kept.ends = true;
    launch(number, call.in, call.results);
  }

  std::vector<Role> key_roles(std::size_t step) const {
    return {{dk_sum_, gradients_[step].dk, true}, {dv_sum_, gradients_[step].dv, true}};
  }
  void return_gradients(std::size_t step) {
    KeyGradients& of_step = gradients_[step];
    of_step.is_returned = true;
    if (request_.returns_early && step > 0) {
      send_back(c_.mine.steps[step].keys, key_roles(step), of_step.returned);
    } else if (!in_place() || step > 0) {
      of_step.returned = send_back(c_.mine.steps[step].keys, c_.keys_to[step], key_roles(step));
    }
  }

  void return_dq(const std::vector<Range>& merged) {
    if (dq_.data)
      for (const Range& r : merged) memory_.copy(dq_sum_.slice(r), dq_.slice(r));
    if (in_place()) return;
    const Rows shard = outputs_.dq.present()
                           ? rows_of(outputs_.dq)
                           : memory_.rows(c_.shapes.dtype, c_.batch(), rows_of(inputs_.q).tokens, c_.shapes.heads_q, c_.shapes.head_dim);
    return_queries({{shard, dq_, false}});
  }

  /// Added in the order of ranks, whatever came first, on the way to the caller's tensors.
  void take_key_gradients(const std::vector<Range>& summed) {
    for (const KeyGradients& of_step : gradients_) wait(of_step.returned);
    std::vector<const Arrival*> arrivals;
    for (int rank = 0; rank < c_.plan.ranks; ++rank)
      for (const KeyGradients& of_step : gradients_)
        for (const Arrival& arrival : of_step.returned.arrivals)
          if (arrival.peer == rank) arrivals.push_back(&arrival);
    finish_sum(dk_sum_, outputs_.dk, arrivals, 0, summed);
    finish_sum(dv_sum_, outputs_.dv, arrivals, 1, summed);
  }

  /// What one rank adds to consecutive rows of the shard.
  struct Addend {
    Range tokens;
    const Rows* message;
  };
  void finish_sum(const Rows& sum, const TensorView& gradient, const std::vector<const Arrival*>& arrivals, std::size_t role,
                  const std::vector<Range>& summed) {
    if (!gradient.present()) return;
    std::vector<Addend> addends;
    const auto of_role = [&](auto&& fn) {
      for (const Arrival* arrival : arrivals)
        for (std::size_t i = 0; i < arrival->pieces.size(); ++i)
          if (arrival->pieces[i].role == role) fn(arrival->pieces[i], arrival->messages[i]);
    };
    bool all_heads = true;
    of_role([&](const Piece& piece, const Rows&) { all_heads = all_heads && piece.rows.heads == sum.heads; });
    of_role([&](const Piece& piece, const Rows& message) {
      if (all_heads) {
        addends.push_back({{piece.token, piece.token + piece.rows.tokens}, &message});
      } else {
        memory_.add(message, piece.rows);
      }
    });
    const Rows to = rows_of(gradient);
    std::vector<Range> ranges;
    for (const Range& range : summed) {
      std::vector<std::int64_t> borders{range.begin, range.end};
      for (const Addend& addend : addends)
        for (const std::int64_t border : {addend.tokens.begin, addend.tokens.end})
          if (range.begin < border && border < range.end) borders.push_back(border);
      std::sort(borders.begin(), borders.end());
      borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
      for (std::size_t i = 0; i + 1 < borders.size(); ++i) ranges.push_back({borders[i], borders[i + 1]});
    }
    in_turns(ranges.size(), [&](std::size_t i) { finish_rows(sum, to, addends, ranges[i]); });
  }
  /// Rows to which the same ranks add.
  void finish_rows(const Rows& sum, const Rows& to, const std::vector<Addend>& addends, Range rows) {
    std::vector<Rows> more;
    for (const Addend& addend : addends) {
      if (!addend.tokens.meets(rows)) continue;
      more.push_back(addend.message->slice({rows.begin - addend.tokens.begin, rows.end - addend.tokens.begin}));
      if (more.size() < cuda::RowKernels::most_sums) continue;
      buffers_.convert_sum(sum.slice(rows), more, sum.slice(rows));
      more.clear();
    }
    if (more.empty()) {
      memory_.copy(sum.slice(rows), to.slice(rows));
    } else {
      buffers_.convert_sum(sum.slice(rows), more, to.slice(rows));
    }
  }

  /// d / d sink: of the heads that this rank computes.
  void add_dsink() {
    for (std::size_t i = 0; i < outputs_.dparams.size(); ++i)
      if (c_.is_sink(outputs_.dparams[i]))
        buffers_.sink_gradient(out_, dout_, lse_, dlse_, sink_of(inputs_.params), heads(false).begin, params_.sum(i) + heads(false).begin);
  }

  const BackwardInputs& inputs_;
  const BackwardOutputs& outputs_;
  OrderRequest request_;
  Rows q_, out_, dout_, lse_, dlse_;     ///< dlse_ without data: absent
  std::vector<KeyGradients> gradients_;  ///< of each step
  Rows dk_sum_, dv_sum_;                 ///< of the shard
  Rows dq_;                              ///< of the queries of this rank's group; no data: unwanted
  Rows dq_sum_;                          ///< f32, of rows that keep nothing
  std::vector<std::byte*> kept_;         ///< of PartOrder::kept
  std::vector<Lane> side_lanes_;         ///< where launches run at once
  DeviceParamSums params_;
};

}  // namespace

void run_pass(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, DeviceBuffers& buffers,
              PartPlans& plans) {
  DeviceBackward(context, inputs, outputs, buffers, plans).run();
}

}  // namespace foveal::dist
