#include "cuda/score/finite_factors.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cuda/device/layout/agreed.cuh"
#include "cuda/score/score_forms.h"

namespace foveal::cuda {
namespace {

constexpr double bounded = device::kTame, small = 16;
constexpr int most_degree = 3;        // 2^120, and a sum of some such terms, is finite
constexpr std::size_t most_keys = 6;  // a warp tests them when it takes new keys

/// The degree of a value as a polynomial in bounded ones.
class Degrees {
 public:
  Degrees(const Problem& p, const Program& program, const LineValues& lines)
      : program_(program), lines_(lines), forms_(p, program, {.lines = lines}) {}

  bool stays_finite(ValueId factor) {
    std::vector<ValueId> walk_before = walk, keys_before = keys;
    if (const auto sum = degree_of_factor(factor); sum && *sum <= most_degree && keys.size() <= most_keys) return true;
    walk = std::move(walk_before), keys = std::move(keys_before);
    return false;
  }

  std::vector<ValueId> walk, keys;  ///< that the degrees so far are of

 private:
  std::optional<int> degree_of_factor(ValueId factor) {
    int sum = 0;
    for (const ValueId part : of_walk(factor) ? std::vector{factor} : forms_.varying_factors(factor)) {
      const auto degree = this->degree(part);
      if (!degree) return {};
      sum += *degree;
    }
    return sum;
  }

  static void add(std::vector<ValueId>& values, ValueId id) {
    if (std::find(values.begin(), values.end(), id) == values.end()) values.push_back(id);
  }
  bool of_walk(ValueId id) const { return std::find(lines_.walk.begin(), lines_.walk.end(), id) != lines_.walk.end(); }

  std::optional<int> degree(ValueId id) {
    const Instr& instr = program_[id];
    if (instr.type != Type::real || program_.depends_on(id, scoring::depends_score)) return {};
    if (of_walk(id)) {
      add(walk, id);
      return 1;
    }
    const Interval& bounds = forms_.bounds(id);
    if (const double size = std::max(std::abs(bounds.low), std::abs(bounds.high)); size <= bounded && !bounds.maybe_nan)
      return size <= small ? 0 : 1;
    if (scoring::varies(program_, id) == Varies::column) {
      add(keys, id);
      return 1;
    }
    switch (instr.op) {
      case Op::add:
      case Op::sub: {
        const auto a = degree(instr.arg[0]), b = degree(instr.arg[1]);
        return a && b ? std::optional(std::max(*a, *b)) : std::nullopt;
      }
      case Op::mul: {
        const auto a = degree(instr.arg[0]), b = degree(instr.arg[1]);
        return a && b ? std::optional(*a + *b) : std::nullopt;
      }
      case Op::neg:
        return degree(instr.arg[0]);
      default:
        return {};
    }
  }

  const Program& program_;
  const LineValues& lines_;
  const ScoreForms forms_;
};

}  // namespace

FiniteFactors finite_factors(const Problem& p, const LineValues& lines) {
  FiniteFactors factors;
  if (p.pass != Pass::backward || p.score->reads.empty()) return factors;
  Degrees degrees(p, p.score->backward, lines);
  for (const scoring::TrainableRead& read : p.score->reads) factors.reads.push_back(degrees.stays_finite(read.factor));
  factors.keys = degrees.keys;
  factors.walk = degrees.walk;
  return factors;
}

}  // namespace foveal::cuda
