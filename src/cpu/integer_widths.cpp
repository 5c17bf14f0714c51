#include "cpu/integer_widths.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "base/check.h"
#include "score/bounds.h"

namespace foveal::cpu {
namespace {

using scoring::Interval;
using scoring::WholeRanges;

struct Extremes {
  std::int64_t low = std::numeric_limits<std::int64_t>::max(), high = std::numeric_limits<std::int64_t>::min();
};

template <class T>
void include(Extremes& extremes, const T* data, const problem::TensorSpec& spec, std::size_t dimension) {
  const auto rank = static_cast<std::size_t>(spec.rank);
  if (dimension == rank) {
    extremes.low = std::min<std::int64_t>(extremes.low, *data);
    extremes.high = std::max<std::int64_t>(extremes.high, *data);
    return;
  }
  const std::int64_t stride = spec.strides[dimension],
                     count = stride == 0 ? std::min<std::int64_t>(spec.sizes[dimension], 1) : spec.sizes[dimension];
  if (dimension + 1 < rank) {
    for (std::int64_t i = 0; i < count; ++i) include(extremes, data + i * stride, spec, dimension + 1);
    return;
  }
  std::int64_t low = extremes.low, high = extremes.high;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = data[i * stride];  // NOLINT(bugprone-signed-char-misuse): a number of 8 bits
    low = std::min(low, value);
    high = std::max(high, value);
  }
  extremes = {low, high};
}

/// The extremes of the elements; nullopt for real and boolean types.
std::optional<Extremes> extremes_of(const problem::TensorSpec& spec, const void* data) {
  const auto of = [&]<class T>(T) {
    Extremes extremes;
    include(extremes, static_cast<const T*>(data), spec, 0);
    return extremes;
  };
  switch (spec.dtype) {
    case DType::i64:
      return of(std::int64_t{});
    case DType::i32:
      return of(std::int32_t{});
    case DType::i16:
      return of(std::int16_t{});
    case DType::i8:
      return of(std::int8_t{});
    case DType::u8:
      return of(std::uint8_t{});
    default:
      return std::nullopt;
  }
}

/// Calls fn(id) for each value that, by the bounds of all, may not fit in 32 bits.
template <class Fn>
void each_wide(const scoring::Program& program, const scoring::IntervalProgram& bounds, std::span<const Interval> values, Fn fn) {
  for (scoring::ValueId id = 0; id < program.size(); ++id) {
    const bool fits = program[id].type != Type::integer || scoring::fits_32_bits(values[static_cast<std::size_t>(id)]);
    if (!fits || bounds.reach(id, values) > 0x1p31 - 1) fn(id);
  }
}

}  // namespace

IntegerWidths::IntegerWidths(const problem::Problem& problem) : params_(problem.params), box_(problem::box_of(problem)) {
  add("score_mod", problem.pass == Pass::forward ? problem.score->forward : problem.score->backward);
  add("mask", problem.score->mask);
}

void IntegerWidths::add(const char* what, const scoring::Program& program) {
  const base::IdVector<char> flags = wide(program);
  if (std::find(flags.begin(), flags.end(), true) != flags.end()) programs_.push_back({what, program, scoring::IntervalProgram(program)});
}

base::IdVector<char> IntegerWidths::wide(const scoring::Program& program) const {
  std::vector<Interval> ranges, values(program.code.size());
  for (const problem::ParamSpec& param : params_) ranges.push_back(scoring::range_of(param.tensor.dtype));
  const scoring::IntervalProgram bounds(program);
  bounds.evaluate(box_, WholeRanges(ranges), values);
  base::IdVector<char> flags(program.size(), false);
  each_wide(program, bounds, values, [&](scoring::ValueId id) { flags[id] = true; });
  return flags;
}

std::size_t IntegerWidths::bytes() const {
  std::size_t most = 0;
  for (const Undecided& program : programs_) most = std::max(most, program.bounds.size());
  return programs_.empty() ? 0 : (params_.size() + most) * sizeof(Interval);
}

bool IntegerWidths::operator()(const std::vector<TensorView>& params, void* memory) const {
  if (programs_.empty()) return false;
  auto* const ranges = static_cast<Interval*>(memory);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const problem::TensorSpec& spec = params_[i].tensor;
    ranges[i] = scoring::range_of(spec.dtype);
    if (const auto extremes = extremes_of(spec, params[i].data))
      ranges[i] = {static_cast<double>(extremes->low), static_cast<double>(extremes->high)};
  }
  const std::span<Interval> values(ranges + params_.size(), bytes() / sizeof(Interval) - params_.size());
  bool wide = false;
  for (const Undecided& program : programs_) {
    program.bounds.evaluate(box_, WholeRanges({ranges, params_.size()}), values);
    each_wide(program.code, program.bounds, values, [&](scoring::ValueId) { wide = true; });
    const auto overflow = scoring::beyond_64_bits(program.code, values);
    FOVEAL_CHECK(!overflow, program.what, ": an integer may reach from ", overflow->low, " to ", overflow->high,
                 " with these parameters; expected integers of 64 bits (compute it in reals with to_real)");
  }
  return wide;
}

}  // namespace foveal::cpu
