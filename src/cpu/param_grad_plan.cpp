#include "cpu/param_grad_plan.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/divide.h"
#include "base/dtype.h"
#include "base/enum_name.h"
#include "base/parallel.h"
#include "base/strided.h"
#include "score/index_forms.h"

namespace foveal::cpu {
namespace {

constexpr std::int64_t most_partitions = 64, enough_partitions = 8;
constexpr std::size_t large = 16u << 20;
constexpr std::size_t memory_budget = 64u << 20;  // bytes of accumulators, unless one copy of each needs more

/// Contiguous and of this type.
bool is_plain(const problem::TensorSpec& spec, DType dtype) {
  TensorView view;
  view.rank = spec.rank, view.sizes = spec.sizes, view.strides = spec.strides;
  return spec.dtype == dtype && base::is_contiguous(view);
}

}  // namespace

ParamGradPlan::ParamGradPlan(const problem::Problem& problem, std::int64_t shares)
    : batch_(problem.sequences), heads_kv_(problem.heads_kv), shares_(shares) {
  const scoring::ScoreProgram& score = *problem.score;
  std::optional<scoring::IndexForms> forms;
  if (!score.reads.empty()) forms.emplace(score.backward, score.params, problem::bounds_of(problem, score.backward));
  for (std::size_t param = 0; param < score.params.size(); ++param) {
    const scoring::ParamInfo& info = score.params[param];
    if (static_cast<int>(param) == problem.sink || !problem.params[param].gradient.present) continue;
    Accumulator accumulator{};
    accumulator.param = static_cast<int>(param);
    accumulator.numel = base::numel(info.shape);
    bool only_elements = true;
    std::string kinds;
    std::vector<scoring::Address> reads;
    for (const scoring::TrainableRead& read : score.reads) {
      if (read.param != accumulator.param) continue;
      reads.push_back(read);
      only_elements &= read.own_elements;
      kinds += std::string(kinds.empty() ? "" : "+") + read.kind();
    }
    if (reads.empty()) {
      zeros_.push_back(accumulator.param);
      texts_.push_back(info.name + ": zero");
      continue;
    }
    // One add per (batch, head) and element: float is wide enough, and such parameters are large.
    accumulator.wide = problem.dtype == DType::f64 || !only_elements;
    const auto own = [&](scoring::Op position, bool is_one) { return is_one || forms->separates(position, reads); };
    accumulator.per_batch = !own(scoring::Op::batch, problem.sequences == 1);
    accumulator.per_head = !own(scoring::Op::head, problem.heads_kv == 1);
    // Shares differ in queries or, in a group, in heads. Segments may have the same queries and other keys.
    accumulator.per_share = problem.segments || !own(scoring::Op::q_idx, false) || !own(scoring::Op::head, problem.group_size == 1);
    accumulator.plain = is_plain(problem.param(accumulator.param).gradient, accumulator.wide ? DType::f64 : DType::f32);
    accumulator.bytes = base::round_up(static_cast<std::size_t>(accumulator.numel) * (accumulator.wide ? 8 : 4), std::size_t{256});
    accumulators_.push_back(accumulator);
    texts_.push_back(info.name + ": " + kinds);
  }
  if (!accumulators_.empty()) choose_partitions();
}

std::size_t ParamGradPlan::place() {
  std::size_t sum = 0;
  for (Accumulator& a : accumulators_) {
    a.copies = (a.per_share ? share_parts_ : 1) * (a.per_batch ? batch_parts_ : 1) * (a.per_head ? head_parts_ : 1);
    a.direct = a.copies == 1 && a.plain;
    a.offset = sum;
    if (!a.direct) sum += a.bytes * static_cast<std::size_t>(a.copies);
  }
  return sum;
}

void ParamGradPlan::choose_partitions() {
  batch_parts_ = batch_;
  head_parts_ = heads_kv_;
  share_parts_ = shares_;
  std::size_t single = 0;
  for (const Accumulator& a : accumulators_) single += a.bytes;
  const std::size_t budget = std::max(memory_budget, 2 * single);
  while ((workspace_bytes_ = place()) > budget || (partitions() > most_partitions && workspace_bytes_ > single)) {
    // Join partitions where that saves accumulators.
    std::int64_t* parts[] = {&share_parts_, &batch_parts_, &head_parts_};
    std::int64_t* best = nullptr;
    std::size_t least = workspace_bytes_;
    for (std::int64_t* part : parts) {
      if (*part == 1) continue;
      const std::int64_t before = *part;
      *part = (before + 1) / 2;
      const std::size_t joined = place();
      *part = before;
      if (joined < least) {
        least = joined;
        best = part;
      }
    }
    if (!best) break;
    *best = (*best + 1) / 2;
  }
  // Large gradients accumulate in the caller's tensor where heads (and batches) alone keep the threads busy.
  const bool by_share = std::ranges::any_of(accumulators_, &Accumulator::per_share);
  if (by_share && single >= large && batch_parts_ * head_parts_ >= enough_partitions) share_parts_ = 1;
  workspace_bytes_ = place();
}

std::int64_t ParamGradPlan::partition(std::int64_t batch, std::int64_t kv_head, std::int64_t share) const {
  const std::int64_t b = batch * batch_parts_ / batch_, h = kv_head * head_parts_ / heads_kv_, s = share * share_parts_ / shares_;
  return (b * head_parts_ + h) * share_parts_ + s;
}

std::int64_t ParamGradPlan::copy_of(const Accumulator& accumulator, std::int64_t partition) const {
  const std::int64_t s = partition % share_parts_, h = partition / share_parts_ % head_parts_, b = partition / share_parts_ / head_parts_;
  std::int64_t copy = 0;
  if (accumulator.per_batch) copy = b;
  if (accumulator.per_head) copy = copy * head_parts_ + h;
  if (accumulator.per_share) copy = copy * share_parts_ + s;
  return copy;
}

std::string ParamGradPlan::reduction() const {
  std::string text;
  for (const std::string& part : texts_) text += (text.empty() ? "" : ", ") + part;
  if (!accumulators_.empty()) text += base::join("; ", partitions(), " partitions");
  return text;
}

namespace {

const char* text_of(Varies sum) {
  return base::enum_name(sum, {"over a tile", "along rows", "along columns", "along diagonals", "pair by pair"});
}

}  // namespace

void ParamGradPlan::describe(Explanation& explanation, const problem::Problem& problem, const Tape& tape) const {
  const auto& reads = problem.score->reads;
  for (const Accumulator& a : accumulators_)
    for (std::size_t r = 0; r < reads.size(); ++r) {
      if (reads[r].param != a.param) continue;
      const Varies of_head = tape.sums_of_reads(true)[r], of_any = tape.sums_of_reads(false)[r];
      explanation.details.emplace_back(
          base::join("gradient of ", problem.param(a.param).param.name()),
          base::join(text_of(of_head), of_any == of_head ? "" : base::join(", in tiles of several heads ", text_of(of_any)),
                     " (tape): ", reads[r].kind(), " read, in ", a.wide ? "fp64, " : "fp32, ",
                     a.direct ? "added to the caller's tensor" : base::join(a.copies, a.copies == 1 ? " copy" : " copies")));
    }
}

void ParamGradPlan::clear(void* workspace, const std::vector<TensorView>& dparams, const Executor& executor) const {
  const auto clear = [&](void* memory, std::size_t bytes) {
    constexpr std::size_t piece = 1 << 20;
    base::parallel_for(executor, static_cast<std::int64_t>(base::divide_up(bytes, piece)), [&](std::int64_t task, int) {
      const std::size_t begin = static_cast<std::size_t>(task) * piece;
      std::memset(static_cast<char*>(memory) + begin, 0, std::min(piece, bytes - begin));
    });
  };
  clear(workspace, workspace_bytes_);
  for (const Accumulator& a : accumulators_)
    if (a.direct) clear(dparams[static_cast<std::size_t>(a.param)].data, static_cast<std::size_t>(a.numel) * (a.wide ? 8 : 4));
}

TapeGrads ParamGradPlan::grads(void* workspace, const std::vector<TensorView>& dparams, std::int64_t partition) const {
  TapeGrads grads{};
  for (const Accumulator& a : accumulators_) {
    void* own = static_cast<char*>(workspace) + a.offset + a.bytes * static_cast<std::size_t>(copy_of(a, partition));
    grads.params[a.param] = {a.direct ? dparams[static_cast<std::size_t>(a.param)].data : own, a.wide};
  }
  return grads;
}

namespace {

/// out = value(0), value(1), ... in row-major order.
template <class Value>
void write(const TensorView& out, const Executor& executor, Value value) {
  base::parallel_runs(out, executor, [&](std::int64_t i, std::int64_t run, std::int64_t offset, std::int64_t stride) {
    switch (out.dtype) {
      case DType::f32:
        for (std::int64_t k = 0; k < run; ++k) static_cast<float*>(out.data)[offset + k * stride] = static_cast<float>(value(i + k));
        break;
      case DType::f64:
        for (std::int64_t k = 0; k < run; ++k) static_cast<double*>(out.data)[offset + k * stride] = value(i + k);
        break;
      default:
        for (std::int64_t k = 0; k < run; ++k) base::store(out.data, out.dtype, offset + k * stride, value(i + k));
    }
  });
}

}  // namespace

void ParamGradPlan::finish(const void* workspace, const std::vector<TensorView>& dparams, const Executor& executor) const {
  for (int param : zeros_) {
    const TensorView& out = dparams[static_cast<std::size_t>(param)];
    if (out.present()) write(out, executor, [](std::int64_t) { return 0.0; });
  }
  for (const Accumulator& a : accumulators_) {
    if (a.direct) continue;
    const char* first = static_cast<const char*>(workspace) + a.offset;
    const auto sum_of = [&]<class Sum>(Sum) {
      write(dparams[static_cast<std::size_t>(a.param)], executor, [&](std::int64_t i) {
        double sum = 0;
        for (std::int64_t copy = 0; copy < a.copies; ++copy)
          sum += static_cast<double>(reinterpret_cast<const Sum*>(first + a.bytes * static_cast<std::size_t>(copy))[i]);
        return sum;
      });
    };
    if (a.wide)
      sum_of(double{});
    else
      sum_of(float{});
  }
}

}  // namespace foveal::cpu
