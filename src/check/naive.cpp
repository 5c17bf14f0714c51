#include "check/naive.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/dtype.h"
#include "base/philox.h"
#include "problem/problem.h"
#include "score/evaluate.h"

namespace foveal::check {
namespace {

using problem::CaseData;
using problem::Line;

/// The line's parameters; indices outside are clamped.
class Params : public scoring::ParamReader {
 public:
  explicit Params(const CaseData& data) {
    for (std::size_t i = 0; i < data.line().params.size(); ++i) tensors_.push_back(data.param(i));
  }
  double read(std::int32_t param, const std::int64_t* index) const override {
    const TensorView& tensor = tensors_[static_cast<std::size_t>(param)];
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d)
      offset += std::clamp<std::int64_t>(index[d], 0, tensor.sizes[d] - 1) * tensor.strides[d];
    return base::load(tensor.data, tensor.dtype, offset);
  }

 private:
  std::vector<TensorView> tensors_;
};

/// sum over d of a[d] * columns[d][:]: one row of a matrix product, the long side innermost so that it runs in vectors.
template <class Real>
void row_times_matrix(const Real* a, std::int64_t depth, const Real* matrix, std::int64_t width, Real* out) {
  std::fill_n(out, width, Real(0));
  for (std::int64_t d = 0; d < depth; ++d)
    for (std::int64_t i = 0; i < width; ++i) out[i] += a[d] * matrix[d * width + i];
}

template <class Real>
void add_scaled(Real* to, Real factor, const Real* from, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

/// The gradient of one parameter: summed row by row, then over rows, so that long sums do not lose what short ones keep.
template <class Real>
class ParamGradient {
 public:
  explicit ParamGradient(std::int64_t size) : total_(static_cast<std::size_t>(size)), row_(static_cast<std::size_t>(size)) {}
  void add(std::int64_t element, Real value) {
    const auto i = static_cast<std::size_t>(element);
    if (row_[i] == 0) touched_.push_back(i);
    row_[i] += value;
  }
  void add_total(std::int64_t element, Real value) {
    if (!total_.empty()) total_[static_cast<std::size_t>(element)] += value;
  }
  void end_row() {
    for (const std::size_t i : touched_) total_[i] += std::exchange(row_[i], Real(0));
    touched_.clear();
  }
  const std::vector<Real>& total() const { return total_; }

 private:
  std::vector<Real> total_, row_;
  std::vector<std::size_t> touched_;
};

/// Real: the type that is accumulated in.
template <class Real>
class Naive {
 public:
  explicit Naive(const CaseData& data)
      : data_(data),
        l_(data.line()),
        p_(l_.pass == Pass::forward ? problem::make_problem(l_.attention, data.forward_inputs(), data.forward_outputs())
                                    : problem::make_problem(l_.attention, data.backward_inputs(), data.backward_outputs())),
        reader_(data) {
    for (const char* role : {"q", "k", "v", "dout", "dlse"})
      if (data.view(role).present()) inputs_[role] = to_real(problem::values_of(data.view(role)));
    for (const char* role : {"out", "lse", "dq", "dk", "dv"}) {
      std::int64_t count = 1;
      for (const std::int64_t size : problem::role_sizes(l_, role)) count *= size;
      results_[role].assign(static_cast<std::size_t>(count), Real(0));
    }
    for (const problem::ParamSpec& spec : p_.params) {
      std::int64_t count = 1;
      for (const std::int64_t size : spec.param.shape()) count *= size;
      dparams_.emplace_back(spec.gradient.present ? count : 0);
    }
    const scoring::ScoreProgram& score = *p_.score;
    values_.resize(std::max({score.mask.code.size(), score.forward.code.size(), score.backward.code.size()}));
  }

  Results operator()() {
    std::int64_t first_q = 0, first_kv = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const bool packed = l_.varlen;
      const auto [len_q, len_kv] = packed ? l_.lengths[static_cast<std::size_t>(b)] : std::pair{l_.seqlen_q, l_.seqlen_kv};
      for (std::int64_t head = 0; head < p_.heads_q; ++head)
        sequence(
            {.batch = b, .head = head, .row = packed ? 0 : b, .first_q = first_q, .first_kv = first_kv, .len_q = len_q, .len_kv = len_kv});
      if (packed) first_q += len_q, first_kv += len_kv;
    }
    Results rounded;
    const bool forward = p_.pass == Pass::forward;
    for (const auto& [role, values] : results_) {
      if (forward != (role == "out" || role == "lse") || !data_.view(role).present()) continue;
      rounded[role] = rounded_to(data_.view(role).dtype, values);
    }
    for (std::size_t i = 0; i < dparams_.size(); ++i)
      if (p_.params[i].gradient.present)
        rounded["d" + p_.params[i].param.name()] = rounded_to(p_.params[i].gradient.dtype, dparams_[i].total());
    return rounded;
  }

 private:
  using Gradient = ParamGradient<Real>;
  static constexpr Real minus_infinity = -std::numeric_limits<Real>::infinity();

  struct Sequence {
    std::int64_t batch, head, row, first_q, first_kv, len_q, len_kv;
  };

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

  /// Element (row, token, head, 0) of a role's row-major values.
  template <class Values>
  static auto row_of(Values& values, std::int64_t row, std::int64_t token, std::int64_t tokens, std::int64_t head, std::int64_t heads,
                     std::int64_t dim) {
    return values.data() + ((row * tokens + token) * heads + head) * dim;
  }

  /// [kv, dim] of one head, transposed to [dim, kv].
  std::vector<Real> transposed(const char* role, const Sequence& s, std::int64_t dim) const {
    std::vector<Real> matrix(static_cast<std::size_t>(dim * s.len_kv));
    for (std::int64_t kv = 0; kv < s.len_kv; ++kv) {
      const Real* from = row_of(inputs_.at(role), s.row, s.first_kv + kv, tokens_kv(), s.head / p_.group_size, p_.heads_kv, dim);
      for (std::int64_t d = 0; d < dim; ++d) matrix[static_cast<std::size_t>(d * s.len_kv + kv)] = from[d];
    }
    return matrix;
  }

  std::int64_t tokens_q() const { return p_.varlen ? p_.total_q : p_.seqlen_q; }
  std::int64_t tokens_kv() const { return p_.varlen ? p_.total_kv : p_.seqlen_kv; }

  /// All that one (batch, head) needs more than once; per-key arrays are as long as the sequence.
  struct Head {
    Sequence s;
    std::int64_t head_kv;
    std::vector<Real> k_columns, v_columns;
    Real sink;
    std::vector<Real> raw, modified, weight, dropped, dweight, out;
    std::vector<bool> kept;
  };

  void sequence(const Sequence& s) {
    const auto count = static_cast<std::size_t>(s.len_kv);
    const std::vector<Real> zeros(count);
    Head head{.s = s,
              .head_kv = s.head / p_.group_size,
              .k_columns = transposed("k", s, p_.head_dim),
              .v_columns = transposed("v", s, p_.head_dim_v),
              .sink = p_.sink < 0 ? minus_infinity : static_cast<Real>(reader_.read(p_.sink, &s.head)),
              .raw = zeros,
              .modified = zeros,
              .weight = zeros,
              .dropped = zeros,
              .dweight = zeros,
              .out = std::vector<Real>(static_cast<std::size_t>(p_.head_dim_v)),
              .kept = std::vector<bool>(count)};
    for (std::int64_t q = 0; q < s.len_q; ++q) {
      score_row(head, q);
      const Real lse = softmax_row(head, q);
      output_row(head, q);
      if (p_.pass == Pass::backward && lse != minus_infinity) gradient_row(head, q, lse);
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

  Real* q_row(std::vector<Real>& values, const Head& head, std::int64_t q, std::int64_t dim) const {
    return row_of(values, head.s.row, head.s.first_q + q, tokens_q(), head.s.head, p_.heads_q, dim);
  }
  Real* kv_row(std::vector<Real>& values, const Head& head, std::size_t kv, std::int64_t dim) const {
    return row_of(values, head.s.row, head.s.first_kv + static_cast<std::int64_t>(kv), tokens_kv(), head.head_kv, p_.heads_kv, dim);
  }
  std::size_t statistic(const Head& head, std::int64_t q) const {
    return static_cast<std::size_t>((head.s.row * p_.heads_q + head.s.head) * tokens_q() + head.s.first_q + q);
  }

  void score_row(Head& head, std::int64_t q) {
    row_times_matrix(q_row(inputs_["q"], head, q, p_.head_dim), p_.head_dim, head.k_columns.data(), head.s.len_kv, head.raw.data());
    for (std::size_t kv = 0; kv < head.raw.size(); ++kv) {
      head.raw[kv] *= static_cast<Real>(p_.scale);
      const scoring::Point point = point_of(head, q, kv);
      head.kept[kv] = p_.score->mask.empty() || evaluate(p_.score->mask, point) != 0;
      if (!head.kept[kv]) continue;
      head.modified[kv] = p_.score->forward.empty() ? head.raw[kv] : static_cast<Real>(evaluate(p_.score->forward, point));
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
    const Dropout& dropout = l_.attention.dropout;
    const std::uint32_t threshold = base::dropout_threshold(dropout.p);
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv) {
      if (!head.kept[kv]) continue;
      head.weight[kv] /= sum;
      head.dropped[kv] = 1;
      if (dropout.p == 0) continue;
      const scoring::Point point = point_of(head, q, kv);
      const auto bits = base::dropout_bits(dropout.seed, dropout.offset, static_cast<std::uint32_t>(point.batch * p_.heads_q + point.head),
                                           static_cast<std::uint32_t>(point.q_idx), static_cast<std::uint32_t>(point.kv_idx));
      head.dropped[kv] = bits >= threshold ? Real(1) / static_cast<Real>(1 - dropout.p) : Real(0);
    }
    return results_["lse"][statistic(head, q)] = sum == 0 ? minus_infinity : largest + std::log(sum);
  }

  void output_row(Head& head, std::int64_t q) {
    std::fill(head.out.begin(), head.out.end(), Real(0));
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv)
      if (head.kept[kv] && head.dropped[kv] != 0)
        add_scaled(head.out.data(), round_to_input(head.weight[kv] * head.dropped[kv]), kv_row(inputs_["v"], head, kv, p_.head_dim_v),
                   p_.head_dim_v);
    std::copy(head.out.begin(), head.out.end(), q_row(results_["out"], head, q, p_.head_dim_v));
  }

  void gradient_row(Head& head, std::int64_t q, Real lse) {
    const Real* dout = q_row(inputs_["dout"], head, q, p_.head_dim_v);
    const Real dlse = p_.dlse.present ? inputs_["dlse"][statistic(head, q)] : Real(0);
    Real delta = -dlse;
    if (std::find(head.kept.begin(), head.kept.end(), true) != head.kept.end())
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) delta += dout[d] * round_to_input(head.out[static_cast<std::size_t>(d)]);
    row_times_matrix(dout, p_.head_dim_v, head.v_columns.data(), head.s.len_kv, head.dweight.data());

    const Real *query = q_row(inputs_["q"], head, q, p_.head_dim), scale = static_cast<Real>(p_.scale);
    Real* dq = q_row(results_["dq"], head, q, p_.head_dim);
    for (std::size_t kv = 0; kv < head.kept.size(); ++kv) {
      if (!head.kept[kv]) continue;
      const Real dropped = head.dropped[kv];
      const Real dmodified = head.weight[kv] * ((dropped == 0 ? Real(0) : dropped * head.dweight[kv]) - delta);
      const Real draw = round_to_input(dmodified * score_derivative(head, q, kv, dmodified)) * scale;
      add_scaled(dq, draw, kv_row(inputs_["k"], head, kv, p_.head_dim), p_.head_dim);
      add_scaled(kv_row(results_["dk"], head, kv, p_.head_dim), draw, query, p_.head_dim);
      add_scaled(kv_row(results_["dv"], head, kv, p_.head_dim_v), round_to_input(head.weight[kv] * dropped), dout, p_.head_dim_v);
    }
    for (Gradient& gradient : dparams_) gradient.end_row();
    if (p_.sink >= 0) dparams_[static_cast<std::size_t>(p_.sink)].add_total(head.s.head, -std::exp(head.sink - lse) * delta);
  }

  /// d score_mod / d score; adds what the pair gives to every parameter on the way.
  Real score_derivative(const Head& head, std::int64_t q, std::size_t kv, Real dmodified) {
    if (p_.score->backward.empty()) return 1;
    evaluate(p_.score->backward, point_of(head, q, kv));
    for (const scoring::TrainableRead& read : p_.score->reads) {
      const std::vector<std::int64_t>& shape = p_.score->params[static_cast<std::size_t>(read.param)].shape;
      std::int64_t element = 0;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        const auto index = static_cast<std::int64_t>(values_[static_cast<std::size_t>(read.index[d])]);
        element = element * shape[d] + std::clamp<std::int64_t>(index, 0, shape[d] - 1);
      }
      dparams_[static_cast<std::size_t>(read.param)].add(element,
                                                         dmodified * static_cast<Real>(values_[static_cast<std::size_t>(read.factor)]));
    }
    return static_cast<Real>(values_[static_cast<std::size_t>(p_.score->dscore)]);
  }

  const CaseData& data_;
  const Line& l_;
  const problem::Problem p_;
  std::map<std::string, std::vector<Real>> inputs_, results_;
  std::vector<Gradient> dparams_;
  Params reader_;
  std::vector<double> values_;
};

}  // namespace

Results naive(const CaseData& data) { return data.line().dtype == DType::f64 ? Naive<double>(data)() : Naive<float>(data)(); }

}  // namespace foveal::check
