#include "reference/pair_score.h"

#include <algorithm>

#include "base/check.h"
#include "base/dtype.h"
#include "score/op_table.h"

namespace foveal::reference {

using scoring::Op;

std::int64_t PairScore::doubles(const problem::Problem& problem) {
  const scoring::ScoreProgram& score = *problem.score;
  return static_cast<std::int64_t>(std::max({score.mask.code.size(), score.forward.code.size(), score.backward.code.size()}));
}

bool PairScore::keeps(const Pair& pair) {
  if (problem_.score->mask.empty()) return true;
  evaluate(problem_.score->mask, pair, 0);
  const bool keep = values_[static_cast<std::size_t>(problem_.score->mask.outputs[0])] != 0;
  if (keep) refuse_out_of_range(pair);
  return keep;
}

double PairScore::modified(const Pair& pair, double raw) {
  if (problem_.score->forward.empty()) return raw;
  evaluate(problem_.score->forward, pair, raw);
  refuse_out_of_range(pair);
  return values_[static_cast<std::size_t>(problem_.score->forward.outputs[0])];
}

double PairScore::derivative(const Pair& pair, double raw) {
  if (problem_.score->backward.empty()) return 1;
  evaluate(problem_.score->backward, pair, raw);
  return values_[static_cast<std::size_t>(problem_.score->dscore)];
}

double PairScore::factor(std::size_t read) const { return values_[static_cast<std::size_t>(problem_.score->reads[read].factor)]; }

std::int64_t PairScore::element(std::size_t read) const {
  const scoring::TrainableRead& trainable = problem_.score->reads[read];
  const std::vector<std::int64_t>& shape = problem_.params[static_cast<std::size_t>(trainable.param)].param.shape();
  std::int64_t element = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const double index = values_[static_cast<std::size_t>(trainable.index[d])];
    element = element * shape[d] + static_cast<std::int64_t>(std::clamp(index, 0.0, static_cast<double>(shape[d] - 1)));
  }
  return element;
}

void PairScore::evaluate(const scoring::Program& program, const Pair& pair, double raw) {
  outside_ = false;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const scoring::Instr& instr = program.code[i];
    double& value = values_[i];
    switch (instr.op) {
      case Op::real_const: value = instr.real; break;
      case Op::integer_const:
      case Op::boolean_const: value = static_cast<double>(instr.integer); break;
      case Op::score: value = raw; break;
      case Op::batch: value = static_cast<double>(pair.batch); break;
      case Op::head: value = static_cast<double>(pair.head); break;
      case Op::q_idx: value = static_cast<double>(pair.q_idx); break;
      case Op::kv_idx: value = static_cast<double>(pair.kv_idx); break;
      case Op::seqlen_q: value = static_cast<double>(pair.seqlen_q); break;
      case Op::seqlen_kv: value = static_cast<double>(pair.seqlen_kv); break;
      case Op::read: value = read(instr); break;
      default: {
        const auto arg = [&](std::size_t n) { return instr.arg[n] < 0 ? 0.0 : values_[static_cast<std::size_t>(instr.arg[n])]; };
        value = scoring::row(instr.op).value(instr.type, arg(0), arg(1), arg(2));
      }
    }
  }
}

double PairScore::read(const scoring::Instr& instr) {
  const auto param = static_cast<std::size_t>(instr.param);
  const TensorView& tensor = buffers_.params[param];
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < instr.index.size(); ++d)
    offset += clamped(param, d, values_[static_cast<std::size_t>(instr.index[d])]) * tensor.strides[d];
  const double value = base::load(tensor.data, tensor.dtype, offset);
  return instr.type == Type::boolean ? value != 0 : value;
}

std::int64_t PairScore::clamped(std::size_t param, std::size_t dimension, double index) {
  const auto last = static_cast<double>(problem_.params[param].param.shape()[dimension] - 1);
  if (!outside_ && !(index >= 0 && index <= last)) {
    outside_ = true;
    outside_param_ = param, outside_dimension_ = dimension, outside_index_ = index;
  }
  return static_cast<std::int64_t>(std::clamp(index, 0.0, last));
}

void PairScore::refuse_out_of_range(const Pair& pair) const {
  if (!outside_ || !problem_.attention.checked) return;
  const Param& param = problem_.params[outside_param_].param;
  base::fail(ErrorCode::invalid_argument, "parameter ", param.name(), ": index ", outside_index_, " in dimension ", outside_dimension_,
             "; expected 0 to ", param.shape()[outside_dimension_] - 1, " (at batch ", pair.batch, ", head ", pair.head, ", q_idx ", pair.q_idx,
             ", kv_idx ", pair.kv_idx, ")");
}

}  // namespace foveal::reference
