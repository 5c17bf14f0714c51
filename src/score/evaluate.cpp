#include "score/evaluate.h"

#include "foveal/tensor.h"
#include "score/op_table.h"

namespace foveal::scoring {

double evaluate(const Program& program, const Point& point, const ParamReader& reader, double* values, Precision precision) {
  const OpRow* const rows = op_rows().data();
  const auto operand = [values](ValueId id) { return id < 0 ? 0.0 : values[id]; };
  double* out = values;
  for (const Instr& instr : program.code) {
    switch (instr.op) {
      case Op::real_const:
        *out = instr.real;
        break;
      case Op::integer_const:
      case Op::boolean_const:
        *out = static_cast<double>(instr.integer);
        break;
      case Op::score:
        *out = point.score;
        break;
      case Op::batch:
        *out = static_cast<double>(point.batch);
        break;
      case Op::head:
        *out = static_cast<double>(point.head);
        break;
      case Op::q_idx:
        *out = static_cast<double>(point.q_idx);
        break;
      case Op::kv_idx:
        *out = static_cast<double>(point.kv_idx);
        break;
      case Op::seqlen_q:
        *out = static_cast<double>(point.seqlen_q);
        break;
      case Op::seqlen_kv:
        *out = static_cast<double>(point.seqlen_kv);
        break;
      case Op::read: {
        std::int64_t index[TensorView::max_rank];
        for (std::size_t i = 0; i < instr.index.size(); ++i) index[i] = static_cast<std::int64_t>(values[instr.index[i]]);
        *out = reader.read(instr.param, index);
        break;
      }
      case Op::add:
        *out = values[instr.arg[0]] + values[instr.arg[1]];
        break;
      case Op::sub:
        *out = values[instr.arg[0]] - values[instr.arg[1]];
        break;
      case Op::mul:
        *out = values[instr.arg[0]] * values[instr.arg[1]];
        break;
      default:
        *out =
            rows[static_cast<std::size_t>(instr.op)].value(instr.type, operand(instr.arg[0]), operand(instr.arg[1]), operand(instr.arg[2]));
        break;
    }
    if (precision == Precision::f32 && instr.type == Type::real) *out = static_cast<float>(*out);
    ++out;
  }
  return program.outputs.empty() ? 0 : values[program.outputs.front()];
}

}  // namespace foveal::scoring
