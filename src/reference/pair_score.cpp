#include "reference/pair_score.h"

#include <algorithm>

#include "base/check.h"
#include "base/dtype.h"
#include "problem/outside.h"

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

std::int64_t PairScore::scalars(const problem::Problem& problem) {
  const scoring::ScoreProgram& score = *problem.score;
  return static_cast<std::int64_t>(std::max({score.mask.code.size(), score.forward.code.size(), score.backward.code.size()}));
}

bool PairScore::keeps(const Point& point) {
  if (problem_.score->mask.empty()) return true;
  params_.forget();
  const bool keep = scoring::evaluate(problem_.score->mask, point, params_, values_) != 0;
  if (keep) params_.refuse_outside(point);
  return keep;
}

double PairScore::modified(const Point& point) {
  if (problem_.score->forward.empty()) return point.score;
  params_.forget();
  const double modified = scoring::evaluate(problem_.score->forward, point, params_, values_);
  params_.refuse_outside(point);
  return modified;
}

double PairScore::derivative(const Point& point) {
  if (problem_.score->backward.empty()) return 1;
  scoring::evaluate(problem_.score->backward, point, params_, values_);
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
