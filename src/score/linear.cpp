#include "score/linear.h"

#include <numeric>

namespace foveal::scoring {

bool Linear::same_terms(const Linear& other) const {
  if (terms.size() != other.terms.size()) return false;
  for (std::size_t i = 0; i < terms.size(); ++i)
    if (terms[i].atom != other.terms[i].atom || terms[i].coefficient != other.terms[i].coefficient) return false;
  return true;
}

Linear combine(const Linear& a, const Linear& b, std::int64_t scale) {
  Linear sum;
  sum.constant = a.constant + scale * b.constant;
  auto left = a.terms.begin();
  auto right = b.terms.begin();
  while (left != a.terms.end() || right != b.terms.end()) {
    if (right == b.terms.end() || (left != a.terms.end() && left->atom < right->atom)) {
      sum.terms.push_back(*left++);
    } else if (left == a.terms.end() || right->atom < left->atom) {
      if (scale != 0) sum.terms.push_back({right->atom, scale * right->coefficient});
      ++right;
    } else {
      const std::int64_t coefficient = left->coefficient + scale * right->coefficient;
      if (coefficient != 0) sum.terms.push_back({left->atom, coefficient});
      ++left, ++right;
    }
  }
  return sum;
}

Linear scaled(const Linear& a, std::int64_t scale) { return combine(Linear{}, a, scale); }

std::int64_t content(const Linear& a) {
  std::int64_t divisor = 0;
  for (const Linear::Term& term : a.terms) divisor = std::gcd(divisor, term.coefficient);
  return divisor;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) { return a - floor_divide(a, b) * b; }

}  // namespace foveal::scoring
