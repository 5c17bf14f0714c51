#include "score/evaluate.h"

#include "foveal/tensor.h"
#include "score/op_table.h"

namespace foveal::scoring {
namespace {

bool is_exact(Op op) {
  switch (op) {
    case Op::neg:
    case Op::abs:
    case Op::min:
    case Op::max:
    case Op::floor:
    case Op::floor_div:
    case Op::stop_gradient:
    case Op::to_float32:
    case Op::to_bfloat16:
    case Op::to_float16:
      return true;
    default:
      return false;
  }
}

/// rounded(op, value): a real result after rounding.
template <class Rounded>
double evaluate_by(const Program& program, const Point& point, const ParamReader& reader, Scalar* values, Rounded rounded) {
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
      case Op::head:
      case Op::q_idx:
      case Op::kv_idx:
      case Op::seqlen_q:
      case Op::seqlen_kv:
        out->integer = position(point, instr.op);
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
    if (instr.type == Type::real) out->real = rounded(instr.op, out->real);
    ++out;
  }
  if (program.outputs.empty()) return 0;
  const ValueId output = program.outputs.front();
  return program[output].type == Type::real ? real(output) : static_cast<double>(integer(output));
}

}  // namespace

double evaluate(const Program& program, const Point& point, const ParamReader& reader, Scalar* values, Precision precision) {
  if (precision == Precision::f32)
    return evaluate_by(program, point, reader, values, [](Op, double value) { return static_cast<double>(static_cast<float>(value)); });
  return evaluate_by(program, point, reader, values, [](Op, double value) { return value; });
}

double evaluate_with_roundings(const Program& program, const Point& point, const ParamReader& reader, Scalar* values, double part,
                               std::uint64_t bits) {
  return evaluate_by(program, point, reader, values, [part, state = bits](Op op, double value) mutable {
    if (op <= Op::read || op == Op::select || op == Op::to_real || is_exact(op)) return value;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return value * (state >> 63 != 0 ? 1 + part : 1 - part);
  });
}

}  // namespace foveal::scoring
