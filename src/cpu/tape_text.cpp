// A tape program as text, for tests and explain().
#include <sstream>

#include "cpu/tape_compile.h"

namespace foveal::cpu {

std::string CompiledTape::text() const {
  static constexpr const char* ops[] = {
#define FOVEAL_X(op, result) #op,
      FOVEAL_TAPE_OPS(FOVEAL_X)
#undef FOVEAL_X
  };
  static constexpr const char* spaces[] = {"",         "constant", "uniform", "lane", "key",   "broadcast",
                                           "diagonal", "strip",    "q_idx",   "head", "input", "output"};
  static constexpr const char* ranks[] = {"uniform", "lane", "key", "diagonal", "full"};
  std::ostringstream out;
  const auto print = [&](TapeOperand operand) {
    if (operand.space == Space::constant) {
      out << ' ' << constants[static_cast<std::size_t>(operand.slot)].value;
      return;
    }
    out << ' ' << spaces[static_cast<std::size_t>(operand.space)];
    if (operand.space >= Space::uniform && operand.space <= Space::strip) out << operand.slot;
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TapeStep& step = steps[i];
    const int at = static_cast<int>(i);
    out << (at < program.strip_begin ? "before "
            : at < program.strip_end ? "strip "
                                     : "after ")
        << ranks[static_cast<std::size_t>(step.rank)] << ' ' << ops[static_cast<std::size_t>(step.op)] << (step.wide ? " wide" : "");
    print(step.out);
    out << " =";
    for (TapeOperand operand : {step.a, step.b, step.c})
      if (operand.space != Space::none) print(operand);
    if (step.op == TapeOp::read_r || step.op == TapeOp::read_i || step.op == TapeOp::read_l || step.op == TapeOp::read_b ||
        step.op == TapeOp::accumulate) {
      const TapePlace& place = places[static_cast<std::size_t>(step.place)];
      out << " param" << place.param << " at";
      for (int d = 0; d < place.rank; ++d) print(place.dims[d].index);
    }
    out << '\n';
  }
  return out.str();
}

}  // namespace foveal::cpu
