#include "unfused.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "problem/problem.h"
#include "score/evaluate.h"

// Present in every build of OpenBLAS, but not in the cblas.h of others.
extern "C" void openblas_set_num_threads(int threads);

namespace foveal::cli {
namespace {

using Matrix = std::vector<float>;

constexpr std::int64_t memory_limit = std::int64_t{8} << 30;

struct NoParams : scoring::ParamReader {
  double read(std::int32_t, const std::int64_t*) const override { return 0; }
};

class BlasUnfused final : public Unfused {
 public:
  BlasUnfused(const problem::CaseData& data, problem::Problem problem, int threads)
      : data_(data), p_(std::move(problem)), executor_(base::default_executor(threads)) {
    openblas_set_num_threads(threads);
    const std::size_t pairs = static_cast<std::size_t>(p_.seqlen_q * p_.seqlen_kv);
    const bool backward = p_.pass == Pass::backward;
    scratch_.resize(static_cast<std::size_t>(executor_.concurrency));
    for (Matrix& matrix : scratch_) matrix.resize(pairs);
    if (p_.has_mask()) evaluate_mask(pairs);
    gather();
    if (!backward) return;
    probabilities_.resize(static_cast<std::size_t>(p_.batch * p_.heads_q));
    for (Matrix& matrix : probabilities_) matrix.resize(pairs);
    for_each_head([this](std::int64_t batch, std::int64_t head, int) { forward(batch, head, probabilities(batch, head).data()); });
  }

  void run() override {
    gather();
    if (p_.pass == Pass::forward) {
      for_each_head([this](std::int64_t batch, std::int64_t head, int slot) {
        forward(batch, head, scratch_[static_cast<std::size_t>(slot)].data());
      });
    } else {
      std::fill(dk_.begin(), dk_.end(), 0.0f);
      std::fill(dv_.begin(), dv_.end(), 0.0f);
      base::parallel_for(executor_, p_.batch * p_.heads_kv, [this](std::int64_t task, int slot) {  // one thread per kv head accumulates
        for (std::int64_t i = 0; i < p_.group_size; ++i) {
          backward(task / p_.heads_kv, task % p_.heads_kv * p_.group_size + i, scratch_[static_cast<std::size_t>(slot)].data());
        }
      });
    }
  }

 private:
  template <class Fn>
  void for_each_head(Fn&& fn) {
    base::parallel_for(executor_, p_.batch * p_.heads_q,
                       [&](std::int64_t task, int slot) { fn(task / p_.heads_q, task % p_.heads_q, slot); });
  }

  void evaluate_mask(std::size_t pairs) {
    const scoring::Program& mask = p_.score->mask;
    keep_.resize(pairs);
    const std::int64_t columns = p_.seqlen_kv;
    base::parallel_for(executor_, p_.seqlen_q, [&](std::int64_t q, int) {
      std::vector<scoring::Scalar> values(mask.code.size());
      for (std::int64_t kv = 0; kv < columns; ++kv) {
        const scoring::Point point{
            .q_idx = q + p_.attention.q_offset, .kv_idx = kv + p_.attention.kv_offset, .seqlen_q = p_.seqlen_q, .seqlen_kv = p_.seqlen_kv};
        keep_[static_cast<std::size_t>(q * columns + kv)] = scoring::evaluate(mask, point, NoParams{}, values.data()) != 0;
      }
    });
  }

  // Contiguous fp32 copies [batch, heads, seqlen, dim], as in a framework without 16-bit or strided kernels.
  Matrix contiguous(const char* role) const {
    const TensorView view = data_.view(role);
    Matrix result(static_cast<std::size_t>(view.numel()));
    const auto& n = view.sizes;
    base::parallel_for(executor_, n[0] * n[2], [&](std::int64_t task, int) {
      const std::int64_t batch = task / n[2], head = task % n[2];
      float* to = result.data() + task * n[1] * n[3];
      for (std::int64_t row = 0; row < n[1]; ++row) {
        const std::int64_t from = batch * view.strides[0] + row * view.strides[1] + head * view.strides[2];
        for (std::int64_t i = 0; i < n[3]; ++i) *to++ = static_cast<float>(base::load(view.data, view.dtype, from + i * view.strides[3]));
      }
    });
    return result;
  }
  void gather() {
    q_ = contiguous("q"), k_ = contiguous("k"), v_ = contiguous("v");
    out_.resize(static_cast<std::size_t>(p_.batch * p_.heads_q * p_.seqlen_q * p_.head_dim_v));
    if (p_.pass == Pass::forward) return;
    dout_ = contiguous("dout");
    dq_.resize(q_.size()), dk_.resize(k_.size()), dv_.resize(v_.size());
  }

  float* head_of(Matrix& matrix, std::int64_t batch, std::int64_t head, std::int64_t heads, std::int64_t length, std::int64_t dim) {
    return matrix.data() + (batch * heads + head) * length * dim;
  }
  float* q_head(Matrix& matrix, std::int64_t batch, std::int64_t head, std::int64_t dim) {
    return head_of(matrix, batch, head, p_.heads_q, p_.seqlen_q, dim);
  }
  float* kv_head(Matrix& matrix, std::int64_t batch, std::int64_t head, std::int64_t dim) {
    return head_of(matrix, batch, head / p_.group_size, p_.heads_kv, p_.seqlen_kv, dim);
  }
  Matrix& probabilities(std::int64_t batch, std::int64_t head) {
    return probabilities_[static_cast<std::size_t>(batch * p_.heads_q + head)];
  }

  void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::int64_t m, std::int64_t n, std::int64_t k, double alpha, const float* a,
            const float* b, double beta, float* c) const {
    const auto size = [](std::int64_t value) { return static_cast<blasint>(value); };
    cblas_sgemm(CblasRowMajor, ta, tb, size(m), size(n), size(k), static_cast<float>(alpha), a, size(ta == CblasTrans ? m : k), b,
                size(tb == CblasTrans ? k : n), static_cast<float>(beta), c, size(n));
  }

  void forward(std::int64_t batch, std::int64_t head, float* s) {
    const std::int64_t rows = p_.seqlen_q, columns = p_.seqlen_kv;
    gemm(CblasNoTrans, CblasTrans, rows, columns, p_.head_dim, p_.scale, q_head(q_, batch, head, p_.head_dim),
         kv_head(k_, batch, head, p_.head_dim), 0, s);
    for (std::int64_t row = 0; row < rows; ++row) {
      float* const x = s + row * columns;
      if (!keep_.empty()) {
        const char* const keep = keep_.data() + row * columns;
        for (std::int64_t i = 0; i < columns; ++i) x[i] = keep[i] != 0 ? x[i] : -std::numeric_limits<float>::infinity();
      }
      const float largest = std::max(*std::max_element(x, x + columns), std::numeric_limits<float>::lowest());
      float sum = 0;
      for (std::int64_t i = 0; i < columns; ++i) x[i] = std::exp(x[i] - largest);
      for (std::int64_t i = 0; i < columns; ++i) sum += x[i];
      const float scale = sum > 0 ? 1 / sum : 0;
      for (std::int64_t i = 0; i < columns; ++i) x[i] *= scale;
    }
    gemm(CblasNoTrans, CblasNoTrans, rows, p_.head_dim_v, columns, 1, s, kv_head(v_, batch, head, p_.head_dim_v), 0,
         q_head(out_, batch, head, p_.head_dim_v));
  }

  void backward(std::int64_t batch, std::int64_t head, float* ds) {
    const std::int64_t rows = p_.seqlen_q, columns = p_.seqlen_kv, dim = p_.head_dim_v;
    const float* p = probabilities(batch, head).data();
    const float* o = q_head(out_, batch, head, dim);
    const float* g = q_head(dout_, batch, head, dim);
    gemm(CblasTrans, CblasNoTrans, columns, dim, rows, 1, p, g, 1, kv_head(dv_, batch, head, dim));
    gemm(CblasNoTrans, CblasTrans, rows, columns, dim, 1, g, kv_head(v_, batch, head, dim), 0, ds);
    for (std::int64_t row = 0; row < rows; ++row) {
      float delta = 0;
      for (std::int64_t i = 0; i < dim; ++i) delta += o[row * dim + i] * g[row * dim + i];
      for (std::int64_t i = 0; i < columns; ++i) ds[row * columns + i] = p[row * columns + i] * (ds[row * columns + i] - delta);
    }
    gemm(CblasNoTrans, CblasNoTrans, rows, p_.head_dim, columns, p_.scale, ds, kv_head(k_, batch, head, p_.head_dim), 0,
         q_head(dq_, batch, head, p_.head_dim));
    gemm(CblasTrans, CblasNoTrans, columns, p_.head_dim, rows, p_.scale, ds, q_head(q_, batch, head, p_.head_dim), 1,
         kv_head(dk_, batch, head, p_.head_dim));
  }

  const problem::CaseData& data_;
  problem::Problem p_;
  Executor executor_;
  std::vector<char> keep_;  // of the mask, one byte a pair
  Matrix q_, k_, v_, out_, dout_, dq_, dk_, dv_;
  std::vector<Matrix> scratch_, probabilities_;
};

bool reads(const scoring::Program& program, std::uint8_t symbols) {
  return std::ranges::any_of(program.code, [](const scoring::Instr& i) { return i.op == scoring::Op::read; }) ||
         std::ranges::any_of(program.depends, [symbols](std::uint8_t depends) { return (depends & symbols) != 0; });
}

}  // namespace

std::unique_ptr<Unfused> make_unfused(const problem::CaseData& data, int threads, std::string& why_not) {
  const problem::Line& line = data.line();
  problem::Problem p = problem::problem_of(line, data);
  const std::int64_t matrices = p.pass == Pass::forward ? threads : p.batch * p.heads_q + threads;
  if (p.ragged_kv()) {
    why_not = "packed sequences, or keys in pages";
  } else if (p.has_score_mod() || line.attention.sink || line.attention.dropout_p > 0) {
    why_not = "a score, a sink or dropout";
  } else if (reads(p.score->mask, scoring::depends_head)) {
    why_not = "a mask that differs between heads or reads a parameter";
  } else if (matrices * p.seqlen_q * p.seqlen_kv * 4 > memory_limit) {
    why_not = base::join("would take ", matrices * p.seqlen_q * p.seqlen_kv * 4 >> 30, " GiB");
  } else {
    return std::make_unique<BlasUnfused>(data, std::move(p), threads);
  }
  return nullptr;
}

}  // namespace foveal::cli
