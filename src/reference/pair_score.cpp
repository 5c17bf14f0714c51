#include "reference/pair_score.h"

#include <algorithm>

#include "base/check.h"
#include "base/dtype.h"
#include "problem/outside.h"
#include "score/bounds.h"
#include "score/op_table.h"

namespace foveal::reference {

using scoring::Point;

std::int64_t ParamValues::offset(const TensorView& tensor, std::int32_t param, const std::int64_t* index) const {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d) {
    const std::int64_t inside = std::clamp<std::int64_t>(index[d], 0, tensor.sizes[d] - 1);
    if (inside != index[d] && outside_param_ < 0) outside_param_ = param, outside_dimension_ = d, outside_index_ = index[d];
    offset += inside * tensor.strides[d];
  }
  return offset;
}

double ParamValues::read(std::int32_t param, const std::int64_t* index) const {
  const TensorView& tensor = tensors_[static_cast<std::size_t>(param)];
  return base::load(tensor.data, tensor.dtype, offset(tensor, param, index));
}

std::int64_t ParamValues::read_integer(std::int32_t param, const std::int64_t* index) const {
  const TensorView& tensor = tensors_[static_cast<std::size_t>(param)];
  const std::int64_t value = base::load_integer(tensor.data, tensor.dtype, offset(tensor, param, index));
  return problem_.score->params[static_cast<std::size_t>(param)].type == Type::boolean ? value != 0 : value;
}

void ParamValues::refuse_outside(const Point& point) const {
  if (outside_param_ < 0 || !problem_.attention.checked) return;
  const Param& param = problem_.param(outside_param_).param;
  const auto dimension = static_cast<std::int64_t>(outside_dimension_);
  base::fail(ErrorCode::invalid_argument, problem::describe({param.name(), outside_index_, dimension, param.shape()[outside_dimension_] - 1,
                                                             point.batch, point.head, point.q_idx, point.kv_idx}));
}

namespace {

/// What the types of parameters hold, whatever the index.
class TypeRanges : public scoring::ReadRanges {
 public:
  explicit TypeRanges(const problem::Problem& problem) : problem_(problem) {}
  scoring::Interval range(std::int32_t param, std::span<const scoring::Interval>) const override {
    return scoring::range_of(problem_.param(param).tensor.dtype);
  }

 private:
  const problem::Problem& problem_;
};

}  // namespace

CheckedPrograms::Checked::Checked(const problem::Problem& problem, const scoring::Program& checked) : program(checked) {
  if (program.empty()) return;
  auto bounds = scoring::evaluate(program, problem::box_of(problem), TypeRanges(problem));
  for (scoring::ValueId id = 0; id < program.size(); ++id)
    if (scoring::may_leave_64_bits(program, id, bounds.span())) may_overflow.push_back(id);
}

double PairScore::evaluate(const CheckedPrograms::Checked& checked, const Point& point) {
  const double result = scoring::evaluate(checked.program, point, params_, values_);
  for (const scoring::ValueId id : checked.may_overflow) {
    const scoring::Instr& instr = checked.program[id];
    const std::int64_t a = values_[instr.arg[0]].integer, b = instr.arg[1] < 0 ? 0 : values_[instr.arg[1]].integer;
    FOVEAL_CHECK(!scoring::overflows(instr.op, a, b), "score_mod or mask: an integer leaves 64 bits at batch ", point.batch, ", head ",
                 point.head, ", q_idx ", point.q_idx, ", kv_idx ", point.kv_idx, "; expected integers of 64 bits (compute it in reals ",
                 "with to_real)");
  }
  return result;
}

std::int64_t PairScore::scalars(const problem::Problem& problem) {
  const scoring::ScoreProgram& score = *problem.score;
  return static_cast<std::int64_t>(std::max({score.mask.code.size(), score.forward.code.size(), score.backward.code.size()}));
}

bool PairScore::keeps(const Point& point) {
  if (problem_.score->mask.empty()) return true;
  params_.forget();
  const bool keep = evaluate(programs_.mask, point) != 0;
  if (keep) params_.refuse_outside(point);
  return keep;
}

double PairScore::modified(const Point& point) {
  if (problem_.score->forward.empty()) return point.score;
  params_.forget();
  const double modified = evaluate(programs_.forward, point);
  params_.refuse_outside(point);
  return modified;
}

double PairScore::derivative(const Point& point) {
  if (problem_.score->backward.empty()) return 1;
  evaluate(programs_.backward, point);
  return values_[problem_.score->dscore].real;
}

double PairScore::factor(std::size_t read) const { return values_[problem_.score->reads[read].factor].real; }

std::int64_t PairScore::element(std::size_t read) const {
  const scoring::TrainableRead& trainable = problem_.score->reads[read];
  const std::vector<std::int64_t>& shape = problem_.score->params[static_cast<std::size_t>(trainable.param)].shape;
  std::int64_t element = 0;
  for (std::size_t d = 0; d < shape.size(); ++d)
    element = element * shape[d] + std::clamp<std::int64_t>(values_[trainable.index[d]].integer, 0, shape[d] - 1);
  return element;
}

}  // namespace foveal::reference
