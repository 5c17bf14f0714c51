#include "problem/param_fill.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "score/bounds.h"

namespace foveal::problem {
namespace {

/// What a fill gives; `low > high` where its numbers mean nothing.
struct Values {
  double low, high;
  bool whole;
};

constexpr Values meaningless{1, 0, false};
constexpr double most_segments = 1 << 20, most_exact = 0x1p53;

bool is_whole(double x) { return std::abs(x) <= most_exact && x == std::floor(x); }

struct FillRow {
  std::string_view name;
  std::size_t args;
  Values (*values)(const std::vector<double>& args, double count);
};
using A = const std::vector<double>&;
constexpr FillRow fill_rows[] = {
    {"normal", 1,
     [](A a, double) {
       return std::isfinite(a[0]) ? Values{-a[0], a[0], false} : meaningless;
     }},
    {"uniform", 2,
     [](A a, double) {
       return std::isfinite(a[0]) && std::isfinite(a[1]) ? Values{a[0], a[1], false} : meaningless;
     }},
    {"integers", 2,
     [](A a, double) {
       return is_whole(a[0]) && is_whole(a[1]) ? Values{a[0], a[1], true} : meaningless;
     }},
    {"bernoulli", 1,
     [](A a, double) {
       return a[0] >= 0 && a[0] <= 1 ? Values{0, 1, true} : meaningless;
     }},
    {"constant", 1,
     [](A a, double) {
       return Values{a[0], a[0], is_whole(a[0])};
     }},
    {"arange", 0,
     [](A, double count) {
       return Values{0, count - 1, true};
     }},
    {"segments", 1,
     [](A a, double) {
       return is_whole(a[0]) && a[0] <= most_segments ? Values{0, a[0] - 1, true} : meaningless;
     }},
};

const FillRow* row_of(const ParamFill& fill) {
  const auto row = std::ranges::find_if(fill_rows, [&](const FillRow& r) { return r.name == fill.name && r.args == fill.args.size(); });
  return row == std::end(fill_rows) ? nullptr : row;
}

}  // namespace

bool is_known(const ParamFill& fill) { return row_of(fill) != nullptr; }

std::string known_fills() {
  std::string names;
  for (const FillRow& row : fill_rows) names += base::join(names.empty() ? "" : ", ", row.name, "/", row.args);
  return names;
}

std::string misfit(const ParamLine& line) {
  if (line.fill.name.empty()) return {};
  const std::vector<std::int64_t>& shape = line.param.shape();
  const double count =
      std::accumulate(shape.begin(), shape.end(), 1.0, [](double a, std::int64_t b) { return a * static_cast<double>(b); });
  const Values values = row_of(line.fill)->values(line.fill.args, count);
  if (values.low > values.high) return base::join(line.param.name(), ": the numbers of ", line.fill.name, " have no meaning");
  if (is_floating(line.dtype)) return {};
  const scoring::Interval held = scoring::range_of(line.dtype);
  if (values.whole && values.low >= held.low && values.high <= held.high) return {};
  return base::join(line.param.name(), ": ", line.fill.name, " gives ", values.whole ? "" : "reals, ", values.low, " to ", values.high,
                    "; ", to_string(line.dtype), " holds integers from ", held.low, " to ", held.high);
}

}  // namespace foveal::problem
