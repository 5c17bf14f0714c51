#pragma once
// Problems of one random score and mask program each, through every operation of the language: for the kernels that are written for a program.
#include <array>
#include <random>
#include <string>

#include "problem/line.h"
#include "score/random_expr.h"

namespace foveal::test {

/// Sizes are small, so that the exact result is found in milliseconds. Some are invalid: a mask may read the score, an index be outside at every pair.
inline problem::Line random_program(unsigned seed) {
  RandomExpr make(seed);
  std::mt19937 random(7919 * seed + 13);
  const auto pick = [&random](unsigned count) { return static_cast<int>(random() % count); };
  const auto one_of = [&pick](const auto& values) { return values[static_cast<std::size_t>(pick(static_cast<unsigned>(values.size())))]; };
  problem::Line line;
  line.pass = pick(3) == 0 ? Pass::forward : Pass::backward;
  line.dtype = one_of(std::array{DType::bf16, DType::bf16, DType::bf16, DType::f16, DType::f32, DType::f64});
  line.batch = 1 + pick(2), line.heads_kv = 1 + pick(2), line.heads_q = line.heads_kv * (1 + pick(2));
  line.head_dim = line.head_dim_v = one_of(std::array{40, 64, 64, 128, 128, 256});
  line.seqlen_q = 1 + pick(pick(4) == 0 ? 8 : 220), line.seqlen_kv = pick(2) == 0 ? line.seqlen_q : 1 + pick(260);
  const Expr some = make.real(1 + pick(3)), score = symbols::score;
  line.attention.score_mod = pick(4) == 0 ? some : pick(2) == 0 ? score + some : score * 0.5 + tanh(some);
  std::string text = to_string(line.attention.score_mod);
  if (pick(2) == 0) {
    const Expr mask = make.boolean(1 + pick(2));
    line.attention.mask = mask, text += to_string(mask);
  }
  if (pick(5) == 0) line.attention.determinism = Determinism::reproducible;
  if (pick(6) == 0) line.attention.backward = pick(2) == 0 ? BackwardStrategy::split : BackwardStrategy::fused;
  if (pick(10) == 0) line.attention.dropout_p = 0.25;
  for (const Param& param : make.params()) {
    if (text.find(param.name() + "[") == std::string::npos) continue;
    problem::ParamLine added{.param = param, .dtype = problem::default_dtype(param.type(), line.dtype), .fill = {}};
    if (param.type() == Type::integer) added.fill = {"integers", {-4, 15}};
    added.grad = line.pass == Pass::backward && param.type() == Type::real && pick(4) != 0, added.grad_dtype = added.dtype;
    line.params.push_back(added);
  }
  line.seed = seed;
  return line;
}

}  // namespace foveal::test
