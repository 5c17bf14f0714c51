#include "check/naive.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/dtype.h"
#include "base/far_row.h"
#include "base/philox.h"
#include "base/strided.h"
#include "check/expected_error.h"
#include "problem/problem.h"
#include "reference/pair_score.h"
#include "score/evaluate.h"

namespace foveal::check {
namespace {

using problem::CaseData;
using problem::Line;

/// out[:] = sum over d of a[d] * matrix[d][:], with the long side innermost so that it vectorises.
template <class Real>
void row_times_matrix(const Real* a, std::int64_t depth, const Real* matrix, std::int64_t width, Real* out) {
  std::fill_n(out, width, Real(0));
  for (std::int64_t d = 0; d < depth; ++d)
    for (std::int64_t i = 0; i < width; ++i) out[i] += a[d] * matrix[d * width + i];
}

/// Real: the accumulation type.
template <class Real>
class Naive {
 public:
  explicit Naive(const CaseData& data)
      : data_(data),
        l_(data.line()),
        p_(l_.pass == Pass::forward ? problem::make_problem(l_.attention, data.forward_inputs(), data.forward_outputs())
                                    : problem::make_problem(l_.attention, data.backward_inputs(), data.backward_outputs())),
        sampled_(problem::sampled_queries(l_)),
        params_(params_of(data)),
        reader_(p_, params_) {
    for (const auto& [role, values] : {std::pair{"q", &q_}, {"k", &k_}, {"v", &v_}, {"dout", &dout_}, {"dlse", &dlse_}})
      if (data.view(role).present()) *values = to_real(problem::values_of(data.view(role)));
    for (const auto& [role, sum] : results()) {
      sum->resize(base::numel(problem::role_sizes(l_, role)));
    }
    for (const problem::ParamSpec& spec : p_.params) dparams_.emplace_back(spec.gradient.present ? base::numel(spec.param.shape()) : 0);
    const scoring::ScoreProgram& score = *p_.score;
    values_.resize(std::max({score.mask.code.size(), score.forward.code.size(), score.backward.code.size()}));
  }

  NaiveResults operator()() {
    std::int64_t first_q = 0, first_kv = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const bool packed = l_.varlen;
      const auto [len_q, len_kv] = l_.ragged() ? l_.lengths[static_cast<std::size_t>(b)] : std::pair{l_.seqlen_q, l_.seqlen_kv};
      for (std::int64_t head = 0; head < p_.heads_q; ++head)
        sequence(
            {.batch = b, .head = head, .row = packed ? 0 : b, .first_q = first_q, .first_kv = first_kv, .len_q = len_q, .len_kv = len_kv});
      if (packed) first_q += len_q, first_kv += len_kv;
    }
    NaiveResults results;
    for (const auto& [role, sum] : this->results()) {
      if ((p_.pass == Pass::forward) != (role[0] != 'd') || !data_.view(role).present()) continue;
      results.values[role] = rounded_to(data_.view(role).dtype, sum->value);
      results.expected_error[role] = sum->expected_error();
    }
    for (std::size_t i = 0; i < dparams_.size(); ++i) {
      if (!p_.params[i].gradient.present) continue;
      const std::string name = "d" + p_.params[i].param.name();
      results.values[name] = rounded_to(p_.params[i].gradient.dtype, dparams_[i].total());
      results.expected_error[name] = dparams_[i].expected_error();
    }
    return results;
  }

 private:
  using Gradient = ParamGradient<Real>;
  static constexpr Real minus_infinity = -std::numeric_limits<Real>::infinity();

  std::array<std::pair<const char*, Sum<Real>*>, 5> results() {
    return {{{"out", &out_}, {"lse", &lse_}, {"dq", &dq_}, {"dk", &dk_}, {"dv", &dv_}}};
  }

  struct Sequence {
    std::int64_t batch, head, row, first_q, first_kv, len_q, len_kv;
  };

  static std::vector<TensorView> params_of(const CaseData& data) {
    std::vector<TensorView> params;
    for (std::size_t i = 0; i < data.line().params.size(); ++i) params.push_back(data.param(i));
    return params;
  }
  static std::vector<Real> to_real(const std::vector<double>& values) { return {values.begin(), values.end()}; }

  static std::vector<double> rounded_to(DType dtype, const std::vector<Real>& values) {
    std::vector<double> rounded(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) rounded[i] = base::round_to(dtype, static_cast<double>(values[i]));
    return rounded;
  }

  Real round_to_input(Real value) const {
    return p_.dtype == DType::bf16 || p_.dtype == DType::f16 ? static_cast<Real>(base::round_to(p_.dtype, static_cast<double>(value)))
                                                             : value;
  }

  /// Element (row, token, head, 0) of row-major values.
  static std::size_t offset(std::int64_t row, std::int64_t token, std::int64_t tokens, std::int64_t head, std::int64_t heads,
                            std::int64_t dim) {
    return static_cast<std::size_t>(((row * tokens + token) * heads + head) * dim);
  }

  std::size_t key_offset(const Sequence& s, std::int64_t kv, std::int64_t dim) const {
    const std::int64_t head = s.head / p_.group_size;
    if (l_.paged()) return offset(0, data_.pool_row(s.batch, kv), 0, head, p_.heads_kv, dim);
    return offset(s.row, s.first_kv + kv, tokens_kv(), head, p_.heads_kv, dim);
  }

  /// [kv, dim] of one head, transposed to [dim, kv].
  std::vector<Real> transposed(const std::vector<Real>& values, const Sequence& s, std::int64_t dim) const {
    std::vector<Real> matrix(static_cast<std::size_t>(dim * s.len_kv));
    for (std::int64_t kv = 0; kv < s.len_kv; ++kv) {
      const Real* from = values.data() + key_offset(s, kv, dim);
      for (std::int64_t d = 0; d < dim; ++d) matrix[static_cast<std::size_t>(d * s.len_kv + kv)] = from[d];
    }
    return matrix;
  }

  /// One per key of a head.
  std::vector<Real> norms(const std::vector<Real>& values, const Sequence& s, std::int64_t dim) const {
    std::vector<Real> found(static_cast<std::size_t>(s.len_kv));
    for (std::int64_t kv = 0; kv < s.len_kv; ++kv) found[static_cast<std::size_t>(kv)] = norm(values.data() + key_offset(s, kv, dim), dim);
    return found;
  }
  static Real norm(const Real* from, std::int64_t size) {
    Real sum = 0;
    for (std::int64_t i = 0; i < size; ++i) sum += from[i] * from[i];
    return std::sqrt(sum);
  }

  std::int64_t tokens_q() const { return p_.varlen ? p_.total_q : p_.seqlen_q; }
  std::int64_t tokens_kv() const { return p_.varlen ? p_.total_kv : p_.seqlen_kv; }

  /// State of one (batch, head); per-key arrays have the length of the sequence.
  struct Head {
    Sequence s;
    std::vector<Real> k_columns, v_columns;
    Real sink, sink_weight;
    std::vector<Real> raw, modified, weight, dropped, dweight;
    std::vector<Real> k_norm, raw_error, modified_error;  ///< errors: of raw and modified scores
    std::vector<bool> kept;
  };

  void sequence(const Sequence& s) {
    const auto count = static_cast<std::size_t>(s.len_kv);
    const std::vector<Real> zeros(count);
    Head head{.s = s,
              .k_columns = transposed(k_, s, p_.head_dim),
              .v_columns = transposed(v_, s, p_.head_dim_v),
              .sink = p_.sink < 0 ? minus_infinity : static_cast<Real>(reader_.read(p_.sink, &s.head)),
              .sink_weight = 0,
              .raw = zeros,
              .modified = zeros,
              .weight = zeros,
              .dropped = zeros,
              .dweight = zeros,
              .k_norm = norms(k_, s, p_.head_dim),
              .raw_error = zeros,
              .modified_error = zeros,
              .kept = std::vector<bool>(count)};
    for (std::int64_t q = 0; q < s.len_q; ++q) {
      if (!sampled_.empty() && !sampled_[static_cast<std::size_t>(s.first_q + q)]) continue;
      score_row(head, q);
      const Real lse = softmax_row(head, q);
      output_row(head, q);
      if (p_.pass == Pass::backward && lse != minus_infinity) gradient_row(head, q, rounded_lse(lse, q));
    }
  }

  scoring::Point point_of(const Head& head, std::int64_t q, std::size_t kv) const {
    return {.score = static_cast<double>(head.raw[kv]),
            .batch = head.s.batch,
            .head = head.s.head,
            .q_idx = q + l_.attention.q_offset,
            .kv_idx = static_cast<std::int64_t>(kv) + l_.attention.kv_offset,
            .seqlen_q = head.s.len_q,
            .seqlen_kv = head.s.len_kv};
  }

  double evaluate(const scoring::Program& program, const scoring::Point& point) {
    constexpr auto precision = sizeof(Real) == sizeof(float) ? scoring::Precision::f32 : scoring::Precision::f64;
    return scoring::evaluate(program, point, reader_, values_.data(), precision);
  }

  std::size_t at_q(const Head& head, std::int64_t q, std::int64_t dim) const {
    return offset(head.s.row, head.s.first_q + q, tokens_q(), head.s.head, p_.heads_q, dim);
  }
  std::size_t at_kv(const Head& head, std::size_t kv, std::int64_t dim) const {
    return key_offset(head.s, static_cast<std::int64_t>(kv), dim);
  }
  std::size_t statistic(const Head& head, std::int64_t q) const {
    return static_cast<std::size_t>((head.s.row * p_.heads_q + head.s.head) * tokens_q() + head.s.first_q + q);
  }

  void score_row(Head& head, std::int64_t q) {
    const Real* query = q_.data() + at_q(head, q, p_.head_dim);
    row_times_matrix(query, p_.head_dim, head.k_columns.data(), head.s.len_kv, head.raw.data());
    // The rounding error of a dot product scales with the norms of its vectors, however small its result.
    const Real dot_error = epsilon / 4 * std::abs(static_cast<Real>(p_.scale)) * norm(query, p_.head_dim);
    for (std::size_t kv = 0; kv < head.raw.size(); ++kv) {
      head.raw[kv] *= static_cast<Real>(p_.scale);
      scoring::Point point = point_of(head, q, kv);
      head.kept[kv] = p_.score->mask.empty() || evaluate(p_.score->mask, point) != 0;
      if (!head.kept[kv]) continue;
      head.raw_error[kv] = head.modified_error[kv] = dot_error * head.k_norm[kv];
      head.modified[kv] = head.raw[kv];
      if (!p_.score->forward.empty()) {
        head.modified[kv] = static_cast<Real>(evaluate(p_.score->forward, point));
        point.score += static_cast<double>(head.raw_error[kv]);
        const Real off = std::abs(static_cast<Real>(evaluate(p_.score->forward, point)) - head.modified[kv]);
        head.modified_error[kv] = std::isfinite(off) ? off : Real(0);
      }
      head.modified_error[kv] += score_rounding(head.modified[kv]);
      head.kept[kv] = head.modified[kv] != minus_infinity;
    }
  }

  /// Weights that sum to one (with the sink), and lse.
  Real softmax_row(Head& head, std::int64_t q) {
    Real largest = head.sink;
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv)
      if (head.kept[kv]) largest = std::max(head.modified[kv], largest);
    Real sum = head.sink == minus_infinity ? Real(0) : std::exp(head.sink - largest);
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv)
      if (head.kept[kv]) sum += head.weight[kv] = std::exp(head.modified[kv] - largest);
    head.sink_weight = head.sink == minus_infinity ? Real(0) : std::exp(head.sink - largest) / sum;
    const double drop_p = l_.attention.dropout_p;
    const std::uint32_t threshold = base::dropout_threshold(drop_p);
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv) {
      if (!head.kept[kv]) continue;
      head.weight[kv] /= sum;
      head.dropped[kv] = 1;
      if (drop_p == 0) continue;
      const scoring::Point point = point_of(head, q, kv);
      const auto bits = base::dropout_bits(l_.rng.seed, l_.rng.offset, static_cast<std::uint32_t>(point.batch * p_.heads_q + point.head),
                                           static_cast<std::uint32_t>(point.q_idx), static_cast<std::uint32_t>(point.kv_idx));
      head.dropped[kv] = bits >= threshold ? Real(1) / static_cast<Real>(1 - drop_p) : Real(0);
    }
    const Real lse = sum == 0 ? minus_infinity : largest + std::log(sum);
    Real variance = score_rounding(lse) * score_rounding(lse);
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv)
      if (head.kept[kv]) variance += head.weight[kv] * head.modified_error[kv] * head.weight[kv] * head.modified_error[kv];
    lse_.value[statistic(head, q)] = lse;
    lse_.variance[statistic(head, q)] = sum == 0 ? Real(0) : variance;
    return lse;
  }

  void output_row(Head& head, std::int64_t q) {
    const std::size_t at = at_q(head, q, p_.head_dim_v);
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv) {
      if (!head.kept[kv] || head.dropped[kv] == 0) continue;
      const Real weight = head.weight[kv] * head.dropped[kv];
      out_.add(at, round_to_input(weight), error(weight, head.modified_error[kv]), v_.data() + at_kv(head, kv, p_.head_dim_v),
               p_.head_dim_v);
    }
  }

  /// The backward pass gets lse rounded to its type: simulated by a neighbour of the computed one, above or below. Far rows
  /// keep the weights of the forward pass instead.
  static Real rounded_lse(Real lse, std::int64_t q) {
    return base::is_far(static_cast<double>(lse)) ? lse : std::nextafter(lse, q % 2 == 0 ? minus_infinity : -minus_infinity);
  }

  void gradient_row(Head& head, std::int64_t q, Real lse) {
    const Real *dout = dout_.data() + at_q(head, q, p_.head_dim_v), *out = out_.value.data() + at_q(head, q, p_.head_dim_v);
    const Real dlse = p_.dlse.present ? dlse_[statistic(head, q)] : Real(0);
    Real delta = -dlse;
    Real delta_size = std::abs(dlse);
    if (std::find(head.kept.begin(), head.kept.end(), true) != head.kept.end())
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
        const Real term = dout[d] * round_to_input(out[d]);
        delta += term;
        delta_size += std::abs(term);
      }
    row_times_matrix(dout, p_.head_dim_v, head.v_columns.data(), head.s.len_kv, head.dweight.data());

    const bool far = base::is_far(static_cast<double>(lse));
    const std::size_t at = at_q(head, q, p_.head_dim);
    const Real scale = static_cast<Real>(p_.scale);
    Real delta_variance = 0;
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv) {
      if (!head.kept[kv]) continue;
      const Real dropped = head.dropped[kv], weight = far ? head.weight[kv] : std::exp(head.modified[kv] - lse);
      const Real dmodified = weight * ((dropped == 0 ? Real(0) : dropped * head.dweight[kv]) - delta);
      const Real size = weight * (std::abs(dropped * head.dweight[kv]) + delta_size), size_error = error(size, head.modified_error[kv]);
      delta_variance += size_error * size_error;
      const auto [derivative, derivative_error] = score_derivative(head, q, kv, dmodified, size_error);
      const Real draw = round_to_input(dmodified * derivative) * scale;
      const Real draw_error = (size_error * std::abs(derivative) + size * derivative_error) * std::abs(scale);
      const std::size_t at_k = at_kv(head, kv, p_.head_dim);
      dq_.add(at, draw, draw_error, k_.data() + at_k, p_.head_dim);
      dk_.add(at_k, draw, draw_error, q_.data() + at, p_.head_dim);
      dv_.add(at_kv(head, kv, p_.head_dim_v), round_to_input(weight * dropped), error(weight * dropped, head.modified_error[kv]), dout,
              p_.head_dim_v);
    }
    if (p_.sink >= 0) {
      const Real weight = far ? head.sink_weight : std::exp(head.sink - lse);
      const Real lse_error = std::sqrt(lse_.variance[statistic(head, q)]);
      dparams_[static_cast<std::size_t>(p_.sink)].add(head.s.head, -weight * delta,
                                                      error(weight * delta_size, lse_error) + weight * std::sqrt(delta_variance));
    }
    for (Gradient& gradient : dparams_) gradient.end_row();
  }

  static constexpr Real epsilon = std::numeric_limits<Real>::epsilon();

  /// The rounding error of a score of this size alone.
  static Real score_rounding(Real score) { return epsilon * (2 + std::abs(score)); }

  /// Expected error of a term: its rounding to the input type and the error of its score, at most the term itself because weights are at
  /// most 1.
  Real error(Real term, Real score_error) const {
    const Real input = sizeof(Real) == sizeof(float) && p_.dtype != DType::f32 ? static_cast<Real>(base::epsilon(p_.dtype) / 2) : Real(0);
    return std::abs(term) * (input + std::min(score_error, Real(1)));
  }

  /// d score_mod / d score and its error. Also adds the pair's contribution to every parameter gradient.
  std::pair<Real, Real> score_derivative(const Head& head, std::int64_t q, std::size_t kv, Real dmodified, Real error) {
    if (p_.score->backward.empty()) return {1, 0};
    const std::vector<scoring::TrainableRead>& reads = p_.score->reads;
    const auto dscore = static_cast<std::size_t>(p_.score->dscore);
    const scoring::Point point = point_of(head, q, kv);
    exact_values_.resize(values_.size()), near_values_.resize(values_.size());
    evaluate(p_.score->backward, point);
    scoring::evaluate(p_.score->backward, point, reader_, exact_values_.data());
    // Cancellation (tanh(x) - x tanh'(x) near 0, 1 - tanh(x)^2 far from it) has an error of
    // its own, which a single sample may hide by luck.
    off_.assign(values_.size(), 0);
    const auto compare_with = [&](std::size_t at, const std::vector<scoring::Scalar>& values) {
      const double off = std::abs(values[at].real - exact_values_[at].real);
      if (std::isfinite(off)) off_[at] = std::max(off_[at], off);
    };
    const auto compare_all = [&](const std::vector<scoring::Scalar>& values) {
      compare_with(dscore, values);
      for (const scoring::TrainableRead& read : reads) compare_with(static_cast<std::size_t>(read.factor), values);
    };
    for (const scoring::TrainableRead& read : reads) compare_with(static_cast<std::size_t>(read.factor), values_);
    scoring::Point nearby = point;
    nearby.score += static_cast<double>(head.raw_error[kv]);
    scoring::evaluate(p_.score->backward, nearby, reader_, near_values_.data());
    compare_with(dscore, near_values_);
    for (const std::uint64_t draw : {1, 2}) {
      const std::uint64_t bits = draw + 2 * static_cast<std::uint64_t>(point.kv_idx + 4096 * point.q_idx);
      scoring::evaluate_with_roundings(p_.score->backward, point, reader_, near_values_.data(), epsilon, bits);
      compare_all(near_values_);
    }
    for (const scoring::TrainableRead& read : reads) {
      const std::vector<std::int64_t>& shape = p_.score->params[static_cast<std::size_t>(read.param)].shape;
      std::int64_t element = 0;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        const auto index = values_[static_cast<std::size_t>(read.index[d])].integer;
        element = element * shape[d] + std::clamp<std::int64_t>(index, 0, shape[d] - 1);
      }
      const auto at = static_cast<std::size_t>(read.factor);
      const double factor = values_[at].real;
      dparams_[static_cast<std::size_t>(read.param)].add(
          element, dmodified * static_cast<Real>(factor),
          static_cast<double>(error) * std::abs(factor) + std::abs(static_cast<double>(dmodified)) * off_[at]);
    }
    return {static_cast<Real>(values_[dscore].real), static_cast<Real>(off_[dscore])};
  }

  const CaseData& data_;
  const Line& l_;
  const problem::Problem p_;
  const std::vector<bool> sampled_;
  std::vector<Real> q_, k_, v_, dout_, dlse_;
  Sum<Real> out_, lse_, dq_, dk_, dv_;
  std::vector<Gradient> dparams_;
  const std::vector<TensorView> params_;
  const reference::ParamValues reader_;
  std::vector<scoring::Scalar> values_, exact_values_, near_values_;
  std::vector<double> off_;
};

}  // namespace

NaiveResults naive(const CaseData& data) { return data.line().dtype == DType::f64 ? Naive<double>(data)() : Naive<float>(data)(); }

}  // namespace foveal::check
