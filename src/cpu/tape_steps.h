#pragma once
// The tape step of each operation of the score language, found by name: `tape_steps` by operation and type of
// operands, `tape_steps64` for integers of 64 bits.
#include <array>
#include <string_view>

#include "cpu/tape_code.h"
#include "score/op_table.h"

namespace foveal::cpu {

using scoring::Op;

struct NamedStep {
  TapeOp op;
  std::string_view name;
};
constexpr NamedStep named_steps[] = {
#define FOVEAL_X(op, result) {TapeOp::op, #op},
    FOVEAL_TAPE_OPS(FOVEAL_X)
#undef FOVEAL_X
};

struct DeclaredOp {
  std::string_view name;
  int arity;
};
constexpr DeclaredOp declared_ops[] = {
#define FOVEAL_X(op, text, arity, signature) {#op, arity},
    FOVEAL_SCORE_OPS(FOVEAL_X)
#undef FOVEAL_X
};

constexpr int no_step = -1;

constexpr int find_step(std::string_view name, std::string_view suffix) {
  for (const NamedStep& step : named_steps)
    if (step.name.size() == name.size() + suffix.size() && step.name.starts_with(name) && step.name.ends_with(suffix))
      return static_cast<int>(step.op);
  return no_step;
}

/// The step of an operation on operands of a type. Booleans are words, so that integer steps serve them where the meaning is the same.
constexpr int step_of(Op op, Type operands) {
  const std::string_view name = declared_ops[static_cast<std::size_t>(op)].name;
  const auto first_of = [](int a, int b) { return a != no_step ? a : b; };
  switch (operands) {
    case Type::real:
      return first_of(find_step(name, "_r"), find_step(name, ""));
    case Type::integer:
      return find_step(name, "_i");
    case Type::boolean:
      return first_of(find_step(name, "_b"), find_step(name, "_i"));
  }
  return no_step;
}

constexpr std::size_t op_count = std::size(declared_ops);

constexpr auto make_steps() {
  std::array<std::array<int, 3>, op_count> steps{};
  for (std::size_t op = 0; op < op_count; ++op)
    for (Type type : {Type::real, Type::integer, Type::boolean})
      steps[op][static_cast<std::size_t>(type)] = step_of(static_cast<Op>(op), type);
  return steps;
}
constexpr auto tape_steps = make_steps();

/// The step of an operation on integers of 64 bits.
constexpr auto make_steps64() {
  std::array<int, op_count> steps{};
  for (std::size_t op = 0; op < op_count; ++op) steps[op] = find_step(declared_ops[op].name, "_l");
  return steps;
}
constexpr auto tape_steps64 = make_steps64();

constexpr bool every_operation_of_integers_has_a_step_of_64_bits() {
  for (std::size_t op = 0; op < op_count; ++op)
    if (find_step(declared_ops[op].name, "_i") != no_step && static_cast<Op>(op) != Op::read && tape_steps64[op] == no_step) return false;
  return true;
}
static_assert(every_operation_of_integers_has_a_step_of_64_bits(), "tape_code.h: a step NAME_l beside each NAME_i");

constexpr bool every_operation_has_a_step() {
  for (std::size_t op = 0; op < op_count; ++op) {
    if (declared_ops[op].arity == 0 || static_cast<Op>(op) == Op::stop_gradient) continue;  // which is in no program
    if (tape_steps[op] == std::array{no_step, no_step, no_step} && tape_steps64[op] == no_step) return false;
  }
  return true;
}
static_assert(every_operation_has_a_step(), "tape_code.h: a step NAME_r, NAME_i, NAME_l or NAME_b for each operation with operands");

}  // namespace foveal::cpu
