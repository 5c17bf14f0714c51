// Text of the score language: parsed or refused; what is parsed prints as text that means the same, and compiles, or is refused. The text is mostly
// the same again, too, but a conjunction of more operands than are sorted may be printed in another order: then its values are compared.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

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

/// Of an expression at some pairs; none where it cannot be compiled.
std::vector<double> values_of(const Expr& expr, const std::vector<Param>& params) try {
  const Expr score = expr.type() == Type::boolean ? where(expr, 1.0, 0.0) : expr;
  const scoring::ScoreProgram program = scoring::compile({.score_mod = score, .params = params});
  std::vector<scoring::Scalar> scratch(std::max(program.forward.code.size(), program.mask.code.size()));
  std::vector<double> values;
  for (const auto& [raw, q, kv] : {std::tuple{0.5, 3, 4}, {-2.0, 0, 0}, {40.0, 7, 1}, {0.0, 100, 90}}) {
    const scoring::Point point{.score = raw, .batch = 1, .head = 2, .q_idx = q, .kv_idx = kv, .seqlen_q = 128, .seqlen_kv = 128};
    // `where(keep, x, -inf)` is x under a mask.
    const bool kept = program.mask.empty() || scoring::evaluate(program.mask, point, Numbers(), scratch.data()) != 0;
    const double score = program.forward.empty() ? raw : scoring::evaluate(program.forward, point, Numbers(), scratch.data());
    values.push_back(kept ? score : -std::numeric_limits<double>::infinity());
  }
  return values;
} catch (const Error&) {
  return {};
}

bool alike(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() != y.size()) return true;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!(x[i] == y[i]) && !(std::isnan(x[i]) && std::isnan(y[i])) && !(std::abs(x[i] - y[i]) <= 1e-9 * std::abs(x[i]))) return false;
  return true;
}

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
    const Expr again = parse(printed, params);
    if (to_string(again) != printed && !alike(values_of(expr, params), values_of(again, params)))
      fuzz::found(("printed as something else: " + printed).c_str());
  } catch (const Error& error) {
    fuzz::found((std::string("what was printed is not parsed: ") + error.what()).c_str());
  }
  return 0;
}
