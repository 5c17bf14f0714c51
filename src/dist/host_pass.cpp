// Forward and backward pass of one rank in host memory. A launch is one packed call over segments: rows of the queries' buffer against rows
// of a step's keys, with their global positions. Forward: launches are merged by their lse in f32 (f64 for f64), and the sink joins at the
// end. Backward: P = exp(s - lse) with the lse of all keys, so launches are independent. Gradients of keys are summed by their owner and
// those of parameters by every rank, in the order of ranks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"
#include "base/far_row.h"
#include "base/strided.h"
#include "dist/rank_pass.h"

namespace foveal::dist {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

class HostPass : protected RankPass {
 public:
  HostPass(const Context& context, Buffers& buffers) : RankPass(context, buffers), buffers_(buffers) {}

 protected:
  /// Each segment of a launch once per batch entry.
  Segments segments(const std::vector<Segment>& launch, const Step& step, std::vector<std::int64_t>& table) const {
    table.clear();
    for (std::int64_t b = 0; b < c_.batch(); ++b)
      for (const Segment& s : launch) {
        const auto of = static_cast<std::size_t>(s.sequence);
        table.insert(table.end(),
                     {b * c_.mine.q_rows + s.q_row, s.q_rows, b * step.rows + s.kv_row, s.kv_rows, c_.packed() ? s.sequence : b, s.q_first,
                      s.kv_first, c_.workload.lengths_q[of], c_.workload.lengths_kv[of]});
      }
    Segments result;
    result.table = TensorView(table.data(), DType::i64, {static_cast<std::int64_t>(table.size() / 9), 9});
    result.sequences = c_.packed() ? static_cast<std::int64_t>(c_.shapes.lengths.size()) : c_.shapes.batch;
    result.head_offset = heads(false).begin;
    result.heads_q = c_.shapes.heads_q;
    return result;
  }

  /// The sink's logit of a global head; -inf without a sink.
  double sink(const std::vector<ParamBinding>& params, std::int64_t head) const {
    const TensorView logits = sink_of(params);
    return logits.present() ? base::load(logits.data, logits.dtype, head * logits.strides[0]) : minus_infinity;
  }

  Buffers& buffers_;
};

class HostForward : HostPass {
 public:
  using HostPass::HostPass;

  void run(const ForwardInputs& inputs, const ForwardOutputs& outputs) {
    const Rows q = query_rows(c_.shapes.dtype, c_.shapes.head_dim);
    const Gather queries = gather(c_.queries_to, c_.mine.queries, {{rows_of(inputs.q), q, false}});
    std::vector<Rows> k, v;
    std::vector<Gather> keys;
    for (std::size_t i = 0; i < c_.mine.steps.size(); ++i) {
      const Step& step = c_.mine.steps[i];
      k.push_back(key_rows(step, c_.shapes.dtype, c_.shapes.head_dim));
      v.push_back(key_rows(step, c_.shapes.dtype, c_.shapes.head_dim_v));
      keys.push_back(gather(c_.keys_to[i], step.keys, {{rows_of(inputs.k), k[i], true}, {rows_of(inputs.v), v[i], true}}));
    }
    finish(queries);
    out_ = query_rows(c_.wide(), c_.shapes.head_dim_v), part_ = query_rows(c_.wide(), c_.shapes.head_dim_v);
    lse_ = query_statistics(c_.wide()), part_lse_ = query_statistics(c_.wide());
    each_lse([&](std::int64_t, std::int64_t, std::int64_t, std::byte* lse) { base::store(lse, lse_.dtype, 0, minus_infinity); });

    const Attention attention = without_sink();
    std::vector<std::int64_t> table;
    for (std::size_t i = 0; i < c_.mine.steps.size(); ++i) {
      const Step& step = c_.mine.steps[i];
      finish(keys[i]);
      for (const std::vector<Segment>& launch : step.launches) {
        ForwardInputs in{.q = packed_tensor(q), .k = packed_tensor(k[i]), .v = packed_tensor(v[i]), .params = inputs.params};
        in.rng = inputs.rng;
        in.segments = segments(launch, step, table);
        foveal::forward(attention, in, {.out = packed_tensor(part_), .lse = packed_statistics(part_lse_)}, {}, c_.options.plan);
        for (const Segment& s : launch) merge(s);
      }
    }
    if (c_.attention.sink) join_sink(inputs.params);

    const Rows out = query_rows(c_.shapes.dtype, c_.shapes.head_dim_v), shard = rows_of(outputs.out);
    buffers_.copy(out_, out);
    Buffers unwanted;
    const Rows lse =
        outputs.lse.present() ? statistics_of(outputs.lse) : unwanted.statistics(c_.wide(), c_.batch(), shard.tokens, c_.shapes.heads_q);
    return_queries({{shard, out, false}, {lse, lse_, false}});
    refuse_far_rows();
  }

 private:
  /// Both logarithms are so large that rounding hides which of two close ones is the larger.
  bool is_ambiguous(double a, double b) const {
    const double largest = std::max(a, b), lost = 4 * base::epsilon(lse_.dtype) * std::abs(largest);
    return base::is_far(largest) && lost > base::far_lse * 4 * base::epsilon(DType::f32) / 2 && std::abs(a - b) < 32 + lost;
  }

  /// Collective, so that every rank refuses.
  void refuse_far_rows() {
    std::vector<std::int64_t> all(static_cast<std::size_t>(c_.plan.ranks));
    c_.transport->all_gather(&far_rows_, sizeof far_rows_, all.data());
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] > 0)
        base::fail(ErrorCode::unsupported, "score_mod: ", all[rank], " rows of rank ", rank,
                   " have keys in several launches and scores that are all about one number of 4096 or more in size; ",
                   to_string(lse_.dtype), " cannot weigh these launches by lse. Expected a mask where a score is a large negative number");
  }

  template <class See>
  void each_lse(See&& see) const {
    for (std::int64_t b = 0; b < lse_.batch; ++b)
      for (std::int64_t h = 0; h < lse_.heads; ++h)
        for (std::int64_t t = 0; t < lse_.tokens; ++t) see(b, t, h, lse_.at(b, t, h));
  }

  /// out = out * weight + part * part_weight; exactly the part for weight 0, where out may be anything.
  void mix(std::int64_t b, std::int64_t t, std::int64_t h, double weight, double part_weight) const {
    std::byte *to = out_.at(b, t, h), *from = part_.at(b, t, h);
    for (std::int64_t d = 0; d < out_.dim; ++d) {
      const double mine = base::load(to, out_.dtype, d), other = base::load(from, out_.dtype, d);
      base::store(to, out_.dtype, d, weight == 0 ? other : mine * weight + other * part_weight);
    }
  }

  void merge(const Segment& s) {
    for (std::int64_t b = 0; b < lse_.batch; ++b)
      for (std::int64_t t = s.q_row; t < s.q_row + s.q_rows; ++t)
        for (std::int64_t h = 0; h < lse_.heads; ++h) {
          std::byte* sum = lse_.at(b, t, h);
          const double mine = base::load(sum, lse_.dtype, 0), other = base::load(part_lse_.at(b, t, h), lse_.dtype, 0);
          if (other == minus_infinity) continue;  // nothing to attend there
          if (mine == minus_infinity) {
            mix(b, t, h, 0, 1);
            base::store(sum, lse_.dtype, 0, other);
            continue;
          }
          if (is_ambiguous(mine, other)) ++far_rows_;
          const double largest = std::max(mine, other), a = std::exp(mine - largest), c = std::exp(other - largest);
          mix(b, t, h, a / (a + c), c / (a + c));
          base::store(sum, lse_.dtype, 0, largest + std::log(a + c));
        }
  }

  void join_sink(const std::vector<ParamBinding>& params) {
    each_lse([&](std::int64_t b, std::int64_t t, std::int64_t h, std::byte* place) {
      const double logit = sink(params, heads(false).begin + h), lse = base::load(place, lse_.dtype, 0);
      if (logit == minus_infinity) return;
      if (lse == minus_infinity) return base::store(place, lse_.dtype, 0, logit);
      if (is_ambiguous(lse, logit)) ++far_rows_;
      const double largest = std::max(lse, logit), sum = std::exp(lse - largest) + std::exp(logit - largest);
      const double keep = std::exp(lse - largest) / sum;
      std::byte* out = out_.at(b, t, h);
      for (std::int64_t d = 0; d < out_.dim; ++d) base::store(out, out_.dtype, d, base::load(out, out_.dtype, d) * keep);
      base::store(place, lse_.dtype, 0, largest + std::log(sum));
    });
  }

  Rows out_, part_, lse_, part_lse_;
  std::int64_t far_rows_ = 0;  ///< whose parts cannot be merged
};

class HostBackward : HostPass {
 public:
  using HostPass::HostPass;

  void run(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
    const std::int64_t dim = c_.shapes.head_dim, dim_v = c_.shapes.head_dim_v;
    const DType own = c_.shapes.dtype, wide = c_.wide();
    const Rows q = query_rows(own, dim), out = query_rows(own, dim_v), dout = query_rows(own, dim_v);
    const Rows lse = query_statistics(wide), dlse = query_statistics(wide);
    const Rows q_shard = rows_of(inputs.q), k_shard = rows_of(inputs.k), v_shard = rows_of(inputs.v);
    // dlse makes each launch keep the terms that cancel over all keys of a row: they do not over the keys of one launch.
    const bool has_dlse = inputs.dlse.present() || c_.attention.sink.has_value();
    const Rows dlse_shard = buffers_.statistics(wide, c_.batch(), q_shard.tokens, c_.shapes.heads_q);
    if (inputs.dlse.present()) buffers_.copy(statistics_of(inputs.dlse), dlse_shard);
    const Gather queries = gather(c_.queries_to, c_.mine.queries,
                                  {{q_shard, q, false},
                                   {rows_of(inputs.out), out, false},
                                   {rows_of(inputs.dout), dout, false},
                                   {statistics_of(inputs.lse), lse, false},
                                   {dlse_shard, dlse, false}});
    const std::size_t steps = c_.mine.steps.size();
    std::vector<Rows> k, v, dk, dv;
    std::vector<Gather> keys;
    for (std::size_t i = 0; i < steps; ++i) {
      const Step& step = c_.mine.steps[i];
      k.push_back(key_rows(step, own, dim)), v.push_back(key_rows(step, own, dim_v));
      dk.push_back(key_rows(step, wide, dim)), dv.push_back(key_rows(step, wide, dim_v));
      keys.push_back(gather(c_.keys_to[i], step.keys, {{k_shard, k[i], true}, {v_shard, v[i], true}}));
    }
    finish(queries);
    prepare_params(outputs.dparams);

    const Rows dq = query_rows(wide, dim), part_dq = query_rows(wide, dim);
    const Attention attention = without_sink();
    const Rows dk_sum = buffers_.rows(wide, c_.batch(), k_shard.tokens, c_.shapes.heads_kv, dim);
    const Rows dv_sum = buffers_.rows(wide, c_.batch(), k_shard.tokens, c_.shapes.heads_kv, dim_v);
    std::vector<std::int64_t> table;
    std::vector<Return> returns;
    const auto gradients = [&](std::size_t i) { return std::vector<Role>{{dk_sum, dk[i], true}, {dv_sum, dv[i], true}}; };
    for (std::size_t i = 0; i < steps; ++i) {
      const Step& step = c_.mine.steps[i];
      finish(keys[i]);
      const Rows part_dk = key_rows(step, wide, dim), part_dv = key_rows(step, wide, dim_v);
      for (const std::vector<Segment>& launch : step.launches) {
        BackwardInputs in{.q = packed_tensor(q),
                          .k = packed_tensor(k[i]),
                          .v = packed_tensor(v[i]),
                          .out = packed_tensor(out),
                          .lse = packed_statistics(lse),
                          .dout = packed_tensor(dout)};
        if (has_dlse) in.dlse = packed_statistics(dlse);
        in.params = inputs.params;
        in.rng = inputs.rng;
        in.segments = segments(launch, step, table);
        BackwardOutputs results{.dq = packed_tensor(part_dq), .dk = packed_tensor(part_dk), .dv = packed_tensor(part_dv)};
        results.dparams = parts_;
        foveal::backward(attention, in, results, {}, c_.options.plan);
        for (const Segment& s : launch) {
          buffers_.add(part_dq.slice(s.rows()), dq.slice(s.rows()));
          buffers_.add(part_dk.slice(s.keys()), dk[i].slice(s.keys())), buffers_.add(part_dv.slice(s.keys()), dv[i].slice(s.keys()));
        }
        for (std::size_t j = 0; j < part_values_.size(); ++j) sums_[j] += part_values_[j];
      }
      returns.push_back(send_back(step.keys, c_.keys_to[i], gradients(i)));
    }
    if (c_.attention.sink) add_dsink(inputs.params, outputs.dparams, out, dout, lse, dlse);

    return_dq(dq, q_shard.tokens, outputs);

    for (const Return& back : returns) wait(back);
    for (int rank = 0; rank < c_.plan.ranks; ++rank)  // in the order of ranks, whatever came first
      for (std::size_t i = 0; i < steps; ++i) {
        if (rank == c_.rank()) take_own(c_.mine.steps[i].keys, gradients(i), true);
        for (const Arrival& arrival : returns[i].arrivals)
          if (arrival.peer == rank) take_back(arrival, true);
      }
    if (outputs.dk.present()) buffers_.copy(dk_sum, rows_of(outputs.dk));
    if (outputs.dv.present()) buffers_.copy(dv_sum, rows_of(outputs.dv));
    sum_params(outputs.dparams);
  }

 private:
  void return_dq(const Rows& sum, std::int64_t shard_tokens, const BackwardOutputs& outputs) {
    const Rows dq = query_rows(c_.shapes.dtype, c_.shapes.head_dim);
    buffers_.copy(sum, dq);
    Buffers unwanted;
    const Rows shard = outputs.dq.present() ? rows_of(outputs.dq)
                                            : unwanted.rows(dq.dtype, c_.batch(), shard_tokens, c_.shapes.heads_q, c_.shapes.head_dim);
    return_queries({{shard, dq, false}});
  }

  /// f64 accumulators of all wanted gradients, one after the other, and what one launch adds to them.
  void prepare_params(const std::vector<ParamBinding>& wanted) {
    std::int64_t total = 0;
    for (const ParamBinding& w : wanted) first_.push_back(total), total += w.tensor.numel();
    sums_.assign(static_cast<std::size_t>(total), 0);
    part_values_.assign(static_cast<std::size_t>(total), 0);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (c_.is_sink(wanted[i])) continue;
      parts_.push_back({wanted[i].param, base::contiguous_like(wanted[i].tensor, part_values_.data() + first_[i], DType::f64)});
    }
  }

  /// d / d sink = - sum over rows of p(sink) * delta, delta = dout . out - dlse.
  void add_dsink(const std::vector<ParamBinding>& params, const std::vector<ParamBinding>& wanted, const Rows& out, const Rows& dout,
                 const Rows& lse, const Rows& dlse) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!c_.is_sink(wanted[i])) continue;
      for (std::int64_t h = 0; h < lse.heads; ++h) {
        const std::int64_t head = heads(false).begin + h;
        const double logit = sink(params, head);
        double sum = 0;
        for (std::int64_t b = 0; b < lse.batch; ++b)
          for (std::int64_t t = 0; t < lse.tokens; ++t) {
            const double of_row = base::load(lse.at(b, t, h), lse.dtype, 0), p = std::exp(logit - of_row);
            if (p == 0 || of_row == minus_infinity) continue;
            double delta = -base::load(dlse.at(b, t, h), dlse.dtype, 0);
            if (p != 1)  // 1: a row without keys, whose out is the constant 0
              for (std::int64_t d = 0; d < out.dim; ++d)
                delta += base::load(dout.at(b, t, h), dout.dtype, d) * base::load(out.at(b, t, h), out.dtype, d);
            sum -= p * delta;
          }
        sums_[static_cast<std::size_t>(first_[i] + head)] += sum;
      }
    }
  }

  void sum_params(const std::vector<ParamBinding>& wanted) {
    if (sums_.empty()) return;
    const std::size_t count = sums_.size();
    std::vector<double> all(count * static_cast<std::size_t>(c_.plan.ranks));
    c_.transport->all_gather(sums_.data(), count * sizeof(double), all.data());
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(c_.plan.ranks); ++rank)
      for (std::size_t i = 0; i < count; ++i) sums_[i] += all[rank * count + i];
    for (std::size_t i = 0; i < wanted.size(); ++i)
      base::each_element(wanted[i].tensor, [&](std::int64_t element, std::int64_t offset) {
        base::store(wanted[i].tensor.data, wanted[i].tensor.dtype, offset, sums_[static_cast<std::size_t>(first_[i] + element)]);
      });
  }

  std::vector<std::int64_t> first_;  ///< of each wanted gradient, in sums_
  std::vector<double> sums_, part_values_;
  std::vector<ParamBinding> parts_;
};

}  // namespace

void run_pass(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, Buffers& buffers) {
  HostForward(context, buffers).run(inputs, outputs);
}

void run_pass(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, Buffers& buffers) {
  HostBackward(context, buffers).run(inputs, outputs);
}

}  // namespace foveal::dist
