#include "score/evaluate.h"

#include "foveal/tensor.h"
#include "score/op_table.h"

namespace foveal::scoring {

double evaluate(const Program& program, const Point& point, const ParamReader& reader, Scalar* values, Precision precision) {
  const OpRow* const rows = op_rows().data();
  const auto real = [values](ValueId id) { return id < 0 ? 0.0 : values[id].real; };
  const auto integer = [values](ValueId id) { return id < 0 ? 0 : values[id].integer; };
  Scalar* out = values;
  for (const Instr& instr : program.code) {
    switch (instr.op) {
      case Op::real_const:
        out->real = instr.real;
        break;
      case Op::integer_const:
      case Op::boolean_const:
        out->integer = instr.integer;
        break;
      case Op::score:
        out->real = point.score;
        break;
      case Op::batch:
        out->integer = point.batch;
        break;
      case Op::head:
        out->integer = point.head;
        break;
      case Op::q_idx:
        out->integer = point.q_idx;
        break;
      case Op::kv_idx:
        out->integer = point.kv_idx;
        break;
      case Op::seqlen_q:
        out->integer = point.seqlen_q;
        break;
      case Op::seqlen_kv:
        out->integer = point.seqlen_kv;
        break;
      case Op::read: {
        std::int64_t index[TensorView::max_rank];
        for (std::size_t i = 0; i < instr.index.size(); ++i) index[i] = values[instr.index[i]].integer;
        if (instr.type == Type::real)
          out->real = reader.read(instr.param, index);
        else
          out->integer = reader.read_integer(instr.param, index);
        break;
      }
      case Op::select:
        *out = values[instr.arg[0]].integer != 0 ? values[instr.arg[1]] : values[instr.arg[2]];
        break;
      case Op::to_real:
        out->real = program[instr.arg[0]].type == Type::real ? real(instr.arg[0]) : static_cast<double>(integer(instr.arg[0]));
        break;
      case Op::to_integer:
        out->integer = program[instr.arg[0]].type == Type::real ? truncated(real(instr.arg[0])) : integer(instr.arg[0]);
        break;
      default: {
        const OpRow& row = rows[static_cast<std::size_t>(instr.op)];
        const auto [a, b, c] = instr.arg;
        if (program[a].type != Type::real)
          out->integer = row.of_integers(integer(a), integer(b));
        else if (instr.type == Type::real)
          out->real = row.value(Type::real, real(a), real(b), real(c));
        else
          out->integer = row.value(instr.type, real(a), real(b), real(c)) != 0;
        break;
      }
    }
    if (precision == Precision::f32 && instr.type == Type::real) out->real = static_cast<float>(out->real);
    ++out;
  }
  if (program.outputs.empty()) return 0;
  const ValueId output = program.outputs.front();
  return program[output].type == Type::real ? real(output) : static_cast<double>(integer(output));
}

}  // namespace foveal::scoring
