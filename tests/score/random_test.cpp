// Random expressions through the whole compiler: value, derivative, bounds and text must all agree with an evaluator that shares nothing
// with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "foveal/error.h"
#include "score/dual.h"
#include "score/evaluate.h"
#include "score/interval.h"
#include "score/op_table.h"
#include "score/program.h"
#include "score/random_expr.h"

namespace foveal {
namespace {

using scoring::Point;

/// Parameter data that is a fixed function of the place. Indices are clamped, as in unchecked runs.
double element(const std::string& name, const std::vector<std::int64_t>& shape, const std::int64_t* index) {
  std::int64_t place = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) place = place * shape[i] + std::clamp<std::int64_t>(index[i], 0, shape[i] - 1);
  const double noise = std::sin(static_cast<double>(place) * 12.9898 + static_cast<double>(name.size()) * 78.233) * 43758.5453;
  const double unit = noise - std::floor(noise);
  if (name == "ids") return std::floor(unit * 20) - 4;
  if (name == "flags") return unit < 0.5;
  return 4 * unit - 2;
}

class Data : public scoring::ParamReader {
 public:
  explicit Data(const std::vector<Param>& params) : params_(params) {}
  double read(std::int32_t param, const std::int64_t* index) const override {
    const Param& p = params_[static_cast<std::size_t>(param)];
    return element(p.name(), p.shape(), index);
  }

 private:
  const std::vector<Param>& params_;
};

test::DualEvaluator::Read reader(const std::string& seeded, const std::vector<std::int64_t>& place) {
  return [=](const Param::Info& info, const std::vector<std::int64_t>& index) {
    std::vector<std::int64_t> clamped;
    for (std::size_t i = 0; i < index.size(); ++i) clamped.push_back(std::clamp<std::int64_t>(index[i], 0, info.shape[i] - 1));
    return test::Dual{element(info.name, info.shape, index.data()), info.name == seeded && clamped == place ? 1.0 : 0.0};
  };
}

Point random_point(std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  return {.score = std::uniform_real_distribution<double>(-3, 3)(random),
          .batch = pick(0, 2),
          .head = pick(0, 3),
          .q_idx = pick(0, 31),
          .kv_idx = pick(0, 31),
          .seqlen_q = 32,
          .seqlen_kv = 29};
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)) || (std::isinf(a) && std::isinf(b)); }

/// Where the derivative is not finite, or beyond what double arithmetic can tell, there is nothing to compare.
bool close(double a, double b, double value) {
  if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(value) || std::abs(a) > 1e12) return true;
  return std::abs(a - b) <= 1e-7 * (1 + std::abs(a) + std::abs(b)) + 1e-12 * std::abs(value);
}

constexpr int expressions = 3000, points = 6;

/// Nothing for the few random expressions that divide an integer by the constant 0, which is an error.
std::optional<scoring::ScoreProgram> compiled(const scoring::Request& request) {
  try {
    return scoring::compile(request);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("divided by the constant 0"), std::string::npos) << error.what();
    return std::nullopt;
  }
}

TEST(RandomExpressions, KeepTheirValue) {
  for (unsigned seed = 0; seed < expressions; ++seed) {
    test::RandomExpr make(seed);
    const Expr expr = make.real(1 + static_cast<int>(seed % 5));
    const auto made = compiled({.score_mod = expr, .params = make.params()});
    if (!made) continue;
    const scoring::ScoreProgram& program = *made;
    std::mt19937 random(seed);
    const Data data(make.params());
    std::vector<scoring::Scalar> values(program.forward.code.size() + program.mask.code.size());
    for (int i = 0; i < points; ++i) {
      const Point point = random_point(random);
      test::DualEvaluator direct(point, 0, reader("", {}));
      const double expected = direct(expr).value;
      if (direct.divided_by_zero()) continue;
      const bool kept = program.mask.empty() || scoring::evaluate(program.mask, point, data, values.data()) != 0;
      const double found = !kept                     ? -INFINITY
                           : program.forward.empty() ? point.score
                                                     : scoring::evaluate(program.forward, point, data, values.data());
      ASSERT_TRUE(same(expected, found)) << "seed " << seed << ": " << expected << " became " << found << "\n" << to_string(expr);
    }
  }
}

TEST(RandomExpressions, HaveTheDerivativeOfDualNumbers) {
  int compared = 0;
  for (unsigned seed = 0; seed < expressions; ++seed) {
    test::RandomExpr make(seed);
    const Expr expr = make.real(1 + static_cast<int>(seed % 4)) + make.params()[0](symbols::q_idx) + make.params()[1](symbols::head, 3) +
                      make.params()[2]();
    const auto made = compiled({.score_mod = expr,
                                .params = make.params(),
                                .wants_gradient = {true, true, true, false, false},
                                .backward = true,
                                .row_constant_terms_matter = true});
    if (!made) continue;
    const scoring::ScoreProgram& program = *made;
    std::mt19937 random(seed);
    const Data data(make.params());
    std::vector<scoring::Scalar> values(program.backward.code.size());
    for (int i = 0; i < points; ++i) {
      const Point point = random_point(random);
      scoring::evaluate(program.backward, point, data, values.data());
      test::DualEvaluator direct(point, 1, reader("", {}));
      const auto [value, expected] = direct(expr);
      if (direct.divided_by_zero()) continue;
      const double dscore = values[static_cast<std::size_t>(program.dscore)].real;
      ASSERT_TRUE(close(expected, dscore, value)) << "seed " << seed << ": d/dscore " << expected << ", found " << dscore << "\n"
                                                  << to_string(expr);
      for (std::size_t p = 0; p < 3; ++p) {  // the gradient of one element: every read that falls on it
        const Param& param = make.params()[p];
        const std::vector<std::int64_t> place = p == 0   ? std::vector<std::int64_t>{point.q_idx}
                                                : p == 1 ? std::vector<std::int64_t>{point.head, 3}
                                                         : std::vector<std::int64_t>{};
        double found = 0;
        for (const scoring::TrainableRead& read : program.reads) {
          if (read.param != static_cast<std::int32_t>(p)) continue;
          bool here = true;
          for (std::size_t d = 0; d < place.size(); ++d) {
            const auto index = values[static_cast<std::size_t>(read.index[d])].integer;
            here &= std::clamp<std::int64_t>(index, 0, param.shape()[d] - 1) == place[d];
          }
          if (here) found += values[static_cast<std::size_t>(read.factor)].real;
        }
        const double wanted = test::DualEvaluator(point, 0, reader(param.name(), place))(expr).derivative;
        ASSERT_TRUE(close(wanted, found, value))
            << "seed " << seed << ": d/d" << param.name() << " " << wanted << ", found " << found << "\n"
            << to_string(expr);
        compared += std::isfinite(wanted) && wanted != 0;
      }
    }
  }
  EXPECT_GT(compared, expressions);
}

TEST(RandomExpressions, StayWithinTheirBounds) {
  int decided = 0;
  for (unsigned seed = 0; seed < expressions; ++seed) {
    test::RandomExpr make(seed);
    const Expr expr = make.boolean(1 + static_cast<int>(seed % 4));
    const auto made = compiled({.score_mod = where(expr, make.real(2), 1.5), .params = make.params()});
    if (!made) continue;
    const scoring::ScoreProgram& program = *made;
    if (program.forward.empty()) continue;
    std::mt19937 random(seed);
    const Data data(make.params());
    const auto range = [&](int top) {
      const auto a = std::uniform_int_distribution<int>(0, top)(random), b = std::uniform_int_distribution<int>(0, top)(random);
      return scoring::Interval{static_cast<double>(std::min(a, b)), static_cast<double>(std::max(a, b))};
    };
    for (int trial = 0; trial < 3; ++trial) {
      scoring::Box box{range(2), range(3), range(31), range(31), {32, 32}, {29, 29}};
      box.score = {-1.5, 2};
      const auto bounds = scoring::evaluate(program.forward, box, scoring::ReadRanges());
      std::vector<scoring::Scalar> values(program.forward.code.size());
      for (int i = 0; i < 20; ++i) {
        const auto inside = [&](const scoring::Interval& x) {
          return std::uniform_int_distribution<std::int64_t>(static_cast<std::int64_t>(x.low), static_cast<std::int64_t>(x.high))(random);
        };
        const Point point{.score = std::uniform_real_distribution<double>(-1.5, 2)(random),
                          .batch = inside(box.batch),
                          .head = inside(box.head),
                          .q_idx = inside(box.q_idx),
                          .kv_idx = inside(box.kv_idx),
                          .seqlen_q = 32,
                          .seqlen_kv = 29};
        for (const scoring::Precision precision : {scoring::Precision::f64, scoring::Precision::f32}) {
          scoring::evaluate(program.forward, point, data, values.data(), precision);
          for (scoring::ValueId id = 0; id < program.forward.size(); ++id) {
            const bool real = program.forward[id].type == Type::real;
            const scoring::Scalar found = values[static_cast<std::size_t>(id)];
            const double value = real ? found.real : static_cast<double>(found.integer);
            const bool holds = std::isnan(value) ? bounds[id].maybe_nan : bounds[id].low <= value && value <= bounds[id].high;
            ASSERT_TRUE(holds) << "seed " << seed << " value " << id << " (" << scoring::row(program.forward[id].op).text << ") is "
                               << value << ", bounds " << bounds[id].low << " to " << bounds[id].high << "\n"
                               << program.text;
          }
        }
      }
      decided += std::count_if(bounds.begin(), bounds.end(), [](const auto& x) { return std::isfinite(x.low) && std::isfinite(x.high); });
    }
  }
  EXPECT_GT(decided, 10 * expressions);
}

TEST(RandomExpressions, PrintWhatTheyParse) {
  for (unsigned seed = 0; seed < expressions; ++seed) {
    test::RandomExpr make(seed);
    const int depth = 1 + static_cast<int>(seed % 5);
    for (const Expr& expr : {make.real(depth), make.integer(depth), make.boolean(depth)}) {
      try {
        const std::string text = to_string(expr);
        ASSERT_EQ(to_string(parse(text, make.params())), text) << "seed " << seed;
      } catch (const Error& error) {
        ASSERT_NE(std::string(error.what()).find("divided by the constant 0"), std::string::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace foveal
