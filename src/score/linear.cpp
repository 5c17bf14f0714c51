#include "score/linear.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace foveal::scoring {

namespace {

/// a + scale * b, saturated.
std::int64_t sum(std::int64_t a, std::int64_t scale, std::int64_t b) {
  std::int64_t product = 0, total = 0;
  if (!__builtin_mul_overflow(scale, b, &product) && !__builtin_add_overflow(a, product, &total)) return total;
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

bool Linear::same_terms(const Linear& other) const {
  if (terms.size() != other.terms.size()) return false;
  for (std::size_t i = 0; i < terms.size(); ++i)
    if (terms[i].atom != other.terms[i].atom || terms[i].coefficient != other.terms[i].coefficient) return false;
  return true;
}

Linear combine(const Linear& a, const Linear& b, std::int64_t scale) {
  Linear total;
  total.constant = sum(a.constant, scale, b.constant);
  auto left = a.terms.begin();
  auto right = b.terms.begin();
  while (left != a.terms.end() || right != b.terms.end()) {
    if (right == b.terms.end() || (left != a.terms.end() && left->atom < right->atom)) {
      total.terms.push_back(*left++);
    } else if (left == a.terms.end() || right->atom < left->atom) {
      if (scale != 0) total.terms.push_back({right->atom, sum(0, scale, right->coefficient)});
      ++right;
    } else {
      const std::int64_t coefficient = sum(left->coefficient, scale, right->coefficient);
      if (coefficient != 0) total.terms.push_back({left->atom, coefficient});
      ++left, ++right;
    }
  }
  return total;
}

Linear scaled(const Linear& a, std::int64_t scale) { return combine(Linear{}, a, scale); }

bool is_small(const Linear& a) {
  constexpr std::int64_t limit = std::int64_t{1} << 40;
  const auto within = [](std::int64_t x) { return -limit < x && x < limit; };
  return within(a.constant) && a.terms.size() <= 32 &&
         std::all_of(a.terms.begin(), a.terms.end(), [&](const Linear::Term& term) { return within(term.coefficient); });
}

std::int64_t content(const Linear& a) {
  std::int64_t divisor = 0;
  for (const Linear::Term& term : a.terms) divisor = std::gcd(divisor, term.coefficient);
  return divisor;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) { return a - floor_divide(a, b) * b; }

}  // namespace foveal::scoring
