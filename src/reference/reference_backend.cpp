#include "reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"
#include "base/far_row.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "base/strided.h"
#include "plan/flops.h"
#include "plan/gather_pages.h"
#include "reference/pair_score.h"

namespace foveal::reference {
namespace {

using problem::Buffers;
using problem::Problem;

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// Carves the workspace into arrays of double.
class Arena {
 public:
  explicit Arena(double* memory) : next_(memory) {}
  double* take(std::int64_t count) {
    double* piece = next_;
    next_ += count;
    return piece;
  }

 private:
  double* next_;
};

double dot(const double* a, const double* b, std::int64_t size) {
  constexpr std::int64_t lanes = 8;
  double sum[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= size; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  double total = 0;
  for (; i < size; ++i) total += a[i] * b[i];
  for (const double part : sum) total += part;
  return total;
}

void add_scaled(double* to, double factor, const double* from, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

/// One row (the last dimension) of a rank-4 tensor as doubles.
void load_row(const TensorView& t, std::int64_t batch, std::int64_t row, std::int64_t head, double* to) {
  const std::int64_t begin = batch * t.strides[0] + row * t.strides[1] + head * t.strides[2];
  for (std::int64_t d = 0; d < t.sizes[3]; ++d) to[d] = base::load(t.data, t.dtype, begin + d * t.strides[3]);
}

void store_row(const TensorView& t, std::int64_t batch, std::int64_t row, std::int64_t head, const double* from) {
  const std::int64_t begin = batch * t.strides[0] + row * t.strides[1] + head * t.strides[2];
  for (std::int64_t d = 0; d < t.sizes[3]; ++d) base::store(t.data, t.dtype, begin + d * t.strides[3], from[d]);
}

std::int64_t statistic_offset(const TensorView& t, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return batch * t.strides[0] + head * t.strides[1] + row * t.strides[2];
}

/// A sequence in the tensors: packed sequences are all in tensor row 0.
struct Sequence {
  std::int64_t batch;         ///< the symbol `batch`
  std::int64_t tensor_batch;  ///< the tensors' first index
  std::int64_t first_q, first_kv, seqlen_q, seqlen_kv;
  std::int64_t q_idx, kv_idx;      ///< positions of the first tokens
  std::int64_t whole_q, whole_kv;  ///< the symbols seqlen_q and seqlen_kv
};

Sequence sequence_of(const Problem& p, const Buffers& buffers, std::int64_t batch) {
  const std::int64_t q_idx = p.attention.q_offset, kv_idx = p.attention.kv_offset;
  if (p.segments) {
    const std::int64_t* row = static_cast<const std::int64_t*>(buffers.segments.data) + 9 * batch;
    return {row[4], 0, row[0], row[2], row[1], row[3], q_idx + row[5], kv_idx + row[6], row[7], row[8]};
  }
  const auto at = [](const TensorView& lengths, std::int64_t i) {
    return base::load_integer(lengths.data, lengths.dtype, i * lengths.strides[0]);
  };
  Sequence s{batch, batch, 0, 0, p.seqlen_q, p.seqlen_kv, q_idx, kv_idx, p.seqlen_q, p.seqlen_kv};
  if (p.varlen) {
    s.tensor_batch = 0;
    s.first_q = at(buffers.cu_seqlens_q, batch);
    s.whole_q = s.seqlen_q = at(buffers.cu_seqlens_q, batch + 1) - s.first_q;
  }
  if (p.gathered) {
    s.first_kv = batch * p.seqlen_kv;
    s.whole_kv = s.seqlen_kv = at(buffers.seqlens_kv, batch);
  } else if (p.varlen) {
    s.first_kv = at(buffers.cu_seqlens_kv, batch);
    s.whole_kv = s.seqlen_kv = at(buffers.cu_seqlens_kv, batch + 1) - s.first_kv;
  }
  return s;
}

/// A query row.
struct Row {
  Sequence sequence;
  std::int64_t head, q;  ///< q counts from the start of the sequence
};

/// Shared by both passes.
class Rows {
 public:
  /// queries: one flag per token of q; empty: all.
  Rows(const Problem& problem, const Buffers& buffers, const CheckedPrograms& programs, const std::vector<bool>& queries, Arena& arena)
      : p_(problem),
        buffers_(buffers),
        queries_(queries),
        score_(problem, buffers, programs, reinterpret_cast<scoring::Scalar*>(arena.take(PairScore::scalars(problem)))),
        drop_threshold_(base::dropout_threshold(problem.attention.dropout_p)),
        keep_scale_(1 / (1 - problem.attention.dropout_p)) {}

 protected:
  /// Calls fn(row) for the wanted queries of a kv head.
  template <class Fn>
  void each_row(const Sequence& sequence, std::int64_t head_kv, Fn&& fn) const {
    for (std::int64_t head = head_kv * p_.group_size; head < (head_kv + 1) * p_.group_size; ++head)
      for (std::int64_t q = 0; q < sequence.seqlen_q; ++q)
        if (queries_.empty() || queries_[static_cast<std::size_t>(sequence.first_q + q)]) fn(Row{sequence, head, q});
  }

  scoring::Point point_of(const Row& row, std::int64_t kv) const {
    return {.score = 0,
            .batch = row.sequence.batch,
            .head = row.head + p_.head_offset,
            .q_idx = row.q + row.sequence.q_idx,
            .kv_idx = kv + row.sequence.kv_idx,
            .seqlen_q = row.sequence.whole_q,
            .seqlen_kv = row.sequence.whole_kv};
  }

  /// 0 for a dropped pair, 1 / (1 - p) for one that stays.
  double dropout_factor(const scoring::Point& point) const {
    if (p_.attention.dropout_p == 0) return 1;
    const DropoutRng& rng = buffers_.rng;
    const auto bits = base::dropout_bits(rng.seed, rng.offset, static_cast<std::uint32_t>(point.batch * p_.heads_all + point.head),
                                         static_cast<std::uint32_t>(point.q_idx), static_cast<std::uint32_t>(point.kv_idx));
    return bits >= drop_threshold_ ? keep_scale_ : 0;
  }

  double sink(std::int64_t head) const {
    if (p_.sink < 0) return minus_infinity;
    const TensorView& tensor = buffers_.params[static_cast<std::size_t>(p_.sink)];
    return base::load(tensor.data, tensor.dtype, head * tensor.strides[0]);
  }

  /// The keys and values of a kv head, as doubles.
  void load_keys(const Sequence& sequence, std::int64_t head_kv, double* k, double* v) const {
    for (std::int64_t kv = 0; kv < sequence.seqlen_kv; ++kv) {
      load_row(buffers_.k, sequence.tensor_batch, sequence.first_kv + kv, head_kv, k + kv * p_.head_dim);
      load_row(buffers_.v, sequence.tensor_batch, sequence.first_kv + kv, head_kv, v + kv * p_.head_dim_v);
    }
  }

  const Problem& p_;
  const Buffers& buffers_;
  const std::vector<bool>& queries_;
  PairScore score_;
  std::uint32_t drop_threshold_;
  double keep_scale_;
};

class ForwardRows : Rows {
 public:
  ForwardRows(const Problem& problem, const Buffers& buffers, const CheckedPrograms& programs, const std::vector<bool>& queries,
              std::int64_t longest, Arena arena)
      : Rows(problem, buffers, programs, queries, arena) {
    k_ = arena.take(longest * p_.head_dim), v_ = arena.take(longest * p_.head_dim_v);
    q_ = arena.take(p_.head_dim), out_ = arena.take(p_.head_dim_v), scores_ = arena.take(longest);
  }

  static std::int64_t doubles(const Problem& p, std::int64_t longest) {
    return PairScore::scalars(p) + longest * (p.head_dim + p.head_dim_v + 1) + p.head_dim + p.head_dim_v;
  }

  void group(std::int64_t batch, std::int64_t head_kv) {
    const Sequence sequence = sequence_of(p_, buffers_, batch);
    load_keys(sequence, head_kv, k_, v_);
    each_row(sequence, head_kv, [this](const Row& r) { row(r); });
  }

 private:
  void row(const Row& row) {
    const Sequence& sequence = row.sequence;
    load_row(buffers_.q, sequence.tensor_batch, sequence.first_q + row.q, row.head, q_);
    const double sink = this->sink(row.head);
    double largest = sink;
    for (std::int64_t kv = 0; kv < sequence.seqlen_kv; ++kv) {
      scoring::Point point = point_of(row, kv);
      scores_[kv] = minus_infinity;  // a masked pair and one of score -inf are the same
      if (!score_.keeps(point)) continue;
      point.score = p_.scale * dot(q_, k_ + kv * p_.head_dim, p_.head_dim);
      scores_[kv] = score_.modified(point);
      largest = std::max(scores_[kv], largest);  // ignores a NaN, which then reaches the sum
    }
    // Wider than the terms: over 32768 weights, a double may lose 30 ulp, and so would lse and every gradient of the row.
    long double sum = sink == minus_infinity ? 0 : std::exp(sink - largest);
    std::fill_n(out_, p_.head_dim_v, 0.0);
    for (std::int64_t kv = 0; kv < sequence.seqlen_kv; ++kv) {
      if (scores_[kv] == minus_infinity) continue;
      const double weight = std::exp(scores_[kv] - largest);
      sum += weight;
      if (const double factor = dropout_factor(point_of(row, kv)); factor != 0)
        add_scaled(out_, weight * factor, v_ + kv * p_.head_dim_v, p_.head_dim_v);
    }
    if (sum != 0)
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) out_[d] /= static_cast<double>(sum);
    store_row(buffers_.out, sequence.tensor_batch, sequence.first_q + row.q, row.head, out_);
    if (!p_.lse.present) return;
    const std::int64_t at = statistic_offset(buffers_.lse, sequence.tensor_batch, row.head, sequence.first_q + row.q);
    base::store(buffers_.lse.data, buffers_.lse.dtype, at, sum == 0 ? minus_infinity : largest + std::log(static_cast<double>(sum)));
  }

  double *k_, *v_, *q_, *out_, *scores_;
};

class BackwardRows : Rows {
 public:
  BackwardRows(const Problem& problem, const Buffers& buffers, const CheckedPrograms& programs, const std::vector<bool>& queries,
               std::int64_t longest, Arena arena)
      : Rows(problem, buffers, programs, queries, arena) {
    k_ = arena.take(longest * p_.head_dim), v_ = arena.take(longest * p_.head_dim_v);
    dk_ = arena.take(longest * p_.head_dim), dv_ = arena.take(longest * p_.head_dim_v);
    q_ = arena.take(p_.head_dim), dq_ = arena.take(p_.head_dim);
    out_ = arena.take(p_.head_dim_v), dout_ = arena.take(p_.head_dim_v);
  }

  static std::int64_t doubles(const Problem& p, std::int64_t longest) {
    return PairScore::scalars(p) + 2 * (longest + 1) * (p.head_dim + p.head_dim_v);
  }

  /// dparams: one accumulator for each parameter, null where no gradient is wanted.
  void group(std::int64_t batch, std::int64_t head_kv, double* const* dparams) {
    dparams_ = dparams;
    const Sequence sequence = sequence_of(p_, buffers_, batch);
    load_keys(sequence, head_kv, k_, v_);
    std::fill_n(dk_, sequence.seqlen_kv * p_.head_dim, 0.0);
    std::fill_n(dv_, sequence.seqlen_kv * p_.head_dim_v, 0.0);
    each_row(sequence, head_kv, [this](const Row& r) { row(r); });
    for (std::int64_t kv = 0; kv < sequence.seqlen_kv; ++kv) {
      if (p_.dk.present) store_row(buffers_.dk, sequence.tensor_batch, sequence.first_kv + kv, head_kv, dk_ + kv * p_.head_dim);
      if (p_.dv.present) store_row(buffers_.dv, sequence.tensor_batch, sequence.first_kv + kv, head_kv, dv_ + kv * p_.head_dim_v);
    }
  }

 private:
  void row(const Row& row) {
    const std::int64_t batch = row.sequence.tensor_batch, token = row.sequence.first_q + row.q;
    std::fill_n(dq_, p_.head_dim, 0.0);
    const double lse = base::load(buffers_.lse.data, buffers_.lse.dtype, statistic_offset(buffers_.lse, batch, row.head, token));
    if (lse != minus_infinity) gradients(row, base::is_far(lse) ? measure(row, lse) : Shift{lse, 0});
    if (p_.dq.present) store_row(buffers_.dq, batch, token, row.head, dq_);
  }

  /// Probabilities are exp((score - largest) - log_sum).
  struct Shift {
    double largest, log_sum;
    double weight(double score) const { return std::exp((score - largest) - log_sum); }
  };

  /// The maximum and the sum of a far row.
  Shift measure(const Row& row, double lse) {
    const std::int64_t batch = row.sequence.tensor_batch, token = row.sequence.first_q + row.q;
    load_row(buffers_.q, batch, token, row.head, q_);
    const double sink = this->sink(row.head);
    const auto each_score = [&](const auto& fn) {
      for (std::int64_t kv = 0; kv < row.sequence.seqlen_kv; ++kv) {
        scoring::Point point = point_of(row, kv);
        if (!score_.keeps(point)) continue;
        point.score = p_.scale * dot(q_, k_ + kv * p_.head_dim, p_.head_dim);
        if (const double modified = score_.modified(point); modified != minus_infinity) fn(modified);
      }
    };
    double largest = sink;
    each_score([&](double score) { largest = std::max(score, largest); });
    long double sum = sink == minus_infinity ? 0 : std::exp(sink - largest);
    each_score([&](double score) { sum += std::exp(score - largest); });
    if (sum == 0) return {lse, 0};
    return {largest, base::far_log_sum(lse, largest, std::log(static_cast<double>(sum)), base::epsilon(buffers_.lse.dtype))};
  }

  void gradients(const Row& row, const Shift& shift) {
    const std::int64_t batch = row.sequence.tensor_batch, token = row.sequence.first_q + row.q;
    load_row(buffers_.q, batch, token, row.head, q_);
    load_row(buffers_.out, batch, token, row.head, out_);
    load_row(buffers_.dout, batch, token, row.head, dout_);
    const double dlse =
        p_.dlse.present ? base::load(buffers_.dlse.data, buffers_.dlse.dtype, statistic_offset(buffers_.dlse, batch, row.head, token)) : 0;
    const double delta = dot(dout_, out_, p_.head_dim_v) - dlse;
    bool attends = false;
    for (std::int64_t kv = 0; kv < row.sequence.seqlen_kv; ++kv) {
      scoring::Point point = point_of(row, kv);
      if (!score_.keeps(point)) continue;
      const double *k = k_ + kv * p_.head_dim, *v = v_ + kv * p_.head_dim_v;
      point.score = p_.scale * dot(q_, k, p_.head_dim);
      const double modified = score_.modified(point);
      if (modified == minus_infinity) continue;
      attends = true;
      const double weight = shift.weight(modified), factor = dropout_factor(point);
      const double dweight = factor == 0 ? 0 : factor * dot(dout_, v, p_.head_dim_v);
      const double dmodified = weight * (dweight - delta);
      const double draw = dmodified * score_.derivative(point) * p_.scale;
      add_scaled(dq_, draw, k, p_.head_dim);
      add_scaled(dk_ + kv * p_.head_dim, draw, q_, p_.head_dim);
      if (factor != 0) add_scaled(dv_ + kv * p_.head_dim_v, weight * factor, dout_, p_.head_dim_v);
      for (std::size_t read = 0; read < p_.score->reads.size(); ++read)
        dparams_[p_.score->reads[read].param][score_.element(read)] += dmodified * score_.factor(read);
    }
    if (p_.sink >= 0 && dparams_[p_.sink] != nullptr)  // without keys out is the constant 0, whatever dout holds
      dparams_[p_.sink][row.head] -= shift.weight(sink(row.head)) * (attends ? delta : -dlse);
  }

  double *k_, *v_, *dk_, *dv_, *q_, *dq_, *out_, *dout_;
  double* const* dparams_ = nullptr;
};

/// Tasks are (batch, kv head), in chunks with their own accumulators for the parameters, which are summed in order at the end. The number
/// of chunks depends on the problem alone, so the result does not depend on the number of threads.
class Reference : public planning::Executable {
 public:
  Reference(const Problem& problem, const PlanOptions& options, std::vector<bool> queries = {})
      : p_(problem),
        programs_(p_),
        queries_(std::move(queries)),
        executor_(options.executor ? *options.executor : base::default_executor(options.threads)) {
    longest_ = p_.seqlen_kv > 0 ? p_.seqlen_kv : p_.total_kv;
    slot_doubles_ = p_.pass == Pass::forward ? ForwardRows::doubles(p_, longest_) : BackwardRows::doubles(p_, longest_);
    for (const problem::ParamSpec& param : p_.params) {
      gradient_begin_.push_back(gradient_doubles_);
      if (!param.gradient.present) continue;
      gradient_doubles_ += base::numel(param.param.shape());
    }
    constexpr std::int64_t budget = 8 << 20;  // doubles
    tasks_ = p_.batch * p_.heads_kv;
    chunks_ = gradient_doubles_ == 0 ? tasks_ : std::clamp(budget / gradient_doubles_, std::int64_t{1}, std::min<std::int64_t>(tasks_, 64));
  }

  std::size_t workspace_bytes() const override {
    const std::int64_t pointers = static_cast<std::int64_t>(p_.params.size());
    return static_cast<std::size_t>(executor_.concurrency * (slot_doubles_ + pointers) + chunks_ * gradient_doubles_) * sizeof(double);
  }

  std::string kernel() const override { return std::string("reference.") + to_string(p_.dtype) + "." + to_string(p_.pass); }

  void describe(Explanation& explanation) const override {
    explanation.flops = explanation.flops_nominal = planning::dense_flops(p_);
    if (p_.pass == Pass::backward) explanation.strategy = "row by row";
    if (gradient_doubles_ > 0) explanation.reduction = "in double, in order";
    explanation.deterministic = true;
    explanation.details = {{"arithmetic", "f64"}, {"threads", std::to_string(executor_.concurrency)}};
  }

  void run(const Buffers& buffers, void* workspace, Stream) const override {
    auto* slots = static_cast<double*>(workspace);
    double* gradients = slots + executor_.concurrency * slot_doubles_;
    auto* pointers = reinterpret_cast<double**>(gradients + chunks_ * gradient_doubles_);
    std::fill_n(gradients, chunks_ * gradient_doubles_, 0.0);
    base::parallel_for(executor_, chunks_, [&](std::int64_t chunk, int slot) {
      double* memory = slots + slot * slot_doubles_;
      double** dparams = pointers + static_cast<std::size_t>(slot) * p_.params.size();
      for (std::size_t i = 0; i < p_.params.size(); ++i)
        dparams[i] = p_.params[i].gradient.present ? gradients + chunk * gradient_doubles_ + gradient_begin_[i] : nullptr;
      run_chunk(buffers, tasks_ * chunk / chunks_, tasks_ * (chunk + 1) / chunks_, memory, dparams);
    });
    for (std::int64_t chunk = 1; chunk < chunks_ && gradient_doubles_ > 0; ++chunk)
      for (std::int64_t i = 0; i < gradient_doubles_; ++i) gradients[i] += gradients[chunk * gradient_doubles_ + i];
    for (std::size_t i = 0; i < p_.params.size(); ++i)
      if (p_.params[i].gradient.present) store_gradient(buffers.dparams[i], gradients + gradient_begin_[i]);
  }

 private:
  static void store_gradient(const TensorView& tensor, const double* from) {
    base::each_element(tensor, [&](std::int64_t i, std::int64_t offset) { base::store(tensor.data, tensor.dtype, offset, from[i]); });
  }

  void run_chunk(const Buffers& buffers, std::int64_t begin, std::int64_t end, double* memory, double* const* dparams) const {
    if (p_.pass == Pass::forward) {
      ForwardRows rows(p_, buffers, programs_, queries_, longest_, Arena(memory));
      for (std::int64_t task = begin; task < end; ++task) rows.group(task / p_.heads_kv, task % p_.heads_kv);
    } else {
      BackwardRows rows(p_, buffers, programs_, queries_, longest_, Arena(memory));
      for (std::int64_t task = begin; task < end; ++task) rows.group(task / p_.heads_kv, task % p_.heads_kv, dparams);
    }
  }

  Problem p_;
  CheckedPrograms programs_;
  std::vector<bool> queries_;
  Executor executor_;
  std::int64_t longest_ = 0, slot_doubles_ = 0, gradient_doubles_ = 0, tasks_ = 0, chunks_ = 0;
  std::vector<std::int64_t> gradient_begin_;
};

/// Paged keys are gathered first.
std::unique_ptr<planning::Executable> make_reference(const Problem& problem, const PlanOptions& options, std::vector<bool> queries = {}) {
  if (!problem.paged) return std::make_unique<Reference>(problem, options, std::move(queries));
  auto inner = std::make_unique<Reference>(planning::gathered(problem, DType::f64), options, std::move(queries));
  return planning::with_gathered_pages(problem, DType::f64, options, std::move(inner));
}

class ReferenceBackend : public planning::Backend {
 public:
  std::string name() const override { return "reference"; }
  DeviceKind device_kind() const override { return DeviceKind::cpu; }
  std::vector<TargetInfo> targets() const override { return {{"reference", "f64", true, "exact, slow: the definition of correct"}}; }
  planning::Answer prepare(const Problem& problem, const PlanOptions& options) const override {
    if (options.backend != name()) return {.refusal = "exact and slow; it runs only when it is asked for by name"};
    return {.executable = make_reference(problem, options)};
  }
};

}  // namespace

void run_queries(const Problem& problem, const Buffers& buffers, std::vector<bool> queries) {
  const auto reference = make_reference(problem, {}, std::move(queries));
  std::vector<double> workspace(reference->workspace_bytes() / sizeof(double) + 1);
  reference->run(buffers, workspace.data(), {});
}

std::unique_ptr<planning::Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace foveal::reference
