#include "score/discrete.h"

namespace foveal::scoring {

bool rounds_to(Op op) { return op == Op::to_float32 || op == Op::to_bfloat16 || op == Op::to_float16; }

bool is_discrete(Op op, Type result, Type operand) {
  if (rounds_to(op)) return true;
  switch (op) {
    case Op::floor:
      return true;
    case Op::floor_div:
    case Op::mod:
      return result == Type::real;
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
    case Op::to_integer:
    case Op::to_boolean:
      return operand == Type::real;
    default:
      return false;
  }
}

namespace {

bool is_discrete(const Program& program, const Instr& instr) {
  return is_discrete(instr.op, instr.type, instr.arg[0] < 0 ? instr.type : program[instr.arg[0]].type);
}

}  // namespace

base::IdVector<char> deciding_reals(const Program& program, bool beside_score) {
  base::IdVector<char> decides(program.size(), false);
  const auto of_score = [&](ValueId id) { return program.depends_on(id, depends_score); };
  for (ValueId id = decides.size(); id-- > 0;) {
    const Instr& instr = program[id];
    if (of_score(id) && !beside_score) continue;
    const bool discrete = is_discrete(program, instr);
    if (discrete && instr.type == Type::real && !of_score(id)) decides[id] = true;
    if (!discrete && !decides[id]) continue;
    for (const ValueId arg : instr.arg)
      if (arg >= 0 && program[arg].type == Type::real && !of_score(arg)) decides[arg] = true;
  }
  return decides;
}

base::IdVector<char> deciding_quotients_of_scores(const Program& program) {
  base::IdVector<char> quotients(program.size(), false), decides(program.size(), false);
  const auto of_score = [&](ValueId id) { return id >= 0 && program[id].type == Type::real && program.depends_on(id, depends_score); };
  for (ValueId id = decides.size(); id-- > 0;) {
    const Instr& instr = program[id];
    if (!decides[id] && !is_discrete(program, instr)) continue;
    for (const ValueId arg : instr.arg)
      if (of_score(arg)) decides[arg] = true;
    quotients[id] = instr.op == Op::div && of_score(instr.arg[0]) && of_score(instr.arg[1]);
  }
  return quotients;
}

}  // namespace foveal::scoring
