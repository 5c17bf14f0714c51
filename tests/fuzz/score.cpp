// Text of the score language: parsed or refused; what is parsed prints as text that means the same, and compiles, or is refused.
#include <cmath>

#include "bytes.h"
#include "foveal/error.h"
#include "score/evaluate.h"
#include "score/program.h"

using namespace foveal;

namespace {

class Numbers : public scoring::ParamReader {
 public:
  double read(std::int32_t param, const std::int64_t*) const override { return param; }
};

void compile(const Expr& expr, const std::vector<Param>& params) {
  const bool mask = expr.type() == Type::boolean;
  scoring::Request request{.params = params, .backward = !mask};
  (mask ? request.mask : request.score_mod) = expr;
  const scoring::ScoreProgram program = scoring::compile(request);
  for (const scoring::Program* part : {&program.forward, &program.backward, &program.mask}) {
    if (part->empty() || part->code.size() > 10000) continue;
    std::vector<scoring::Scalar> values(part->code.size());
    scoring::evaluate(*part, {.score = 0.5, .batch = 1, .head = 2, .q_idx = 3, .kv_idx = 4, .seqlen_q = 8, .seqlen_kv = 8}, Numbers(),
                      values.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Param> params{Param("bias", {4, 33}), Param("ids", {64}, Type::integer), Param("on", {}, Type::boolean)};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Expr expr;
  try {
    expr = parse(text, params);
  } catch (const Error&) {
    return 0;
  }
  std::string printed;
  try {
    printed = to_string(expr);
    compile(expr, params);
  } catch (const Error&) {  // a program that is too long, a division by the constant 0
    if (printed.empty()) return 0;
  }
  try {
    if (to_string(parse(printed, params)) != printed) fuzz::found(("printed otherwise the second time: " + printed).c_str());
  } catch (const Error& error) {
    fuzz::found((std::string("what was printed is not parsed: ") + error.what()).c_str());
  }
  return 0;
}
