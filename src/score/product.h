#pragma once
// Values as products, whose uniform factors backends hoist out of their loops over pairs.
#include <vector>

#include "base/id_vector.h"
#include "score/program.h"

namespace foveal::scoring {

/// A constant, uniform factors, and the rest, a value or a product of values.
struct Product {
  struct Factor {
    ValueId id;
    bool divides;
  };
  double constant = 1;
  std::vector<Factor> factors{};
  std::vector<ValueId> rest{};

  std::vector<ValueId> factor_values() const;
  bool has_uniform_factor() const { return constant != 1 || !factors.empty(); }
  /// Is the constant positive and finite, so that it can be folded into an exponent and does not move a row's maximum?
  bool scales() const;
};

/// The products that the values of a program are.
class Products {
 public:
  /// regroups: may factors be reordered? That changes rounding, which only 16-bit inputs tolerate. Otherwise the rest is the value itself.
  /// known: values that need not be computed, and stay whole within other products.
  Products(const Program& program, bool regroups, base::IdVector<char> known);

  Product of(ValueId id) const;
  /// As a factor or summand of another value: whole if it is known.
  Product of_operand(ValueId id) const;

  const Program& program() const { return program_; }
  bool regroups() const { return regroups_; }
  bool is_known(ValueId id) const { return known_[id]; }
  /// Is it a real that decides something discrete, or part of one, or a quotient of scores that does (discrete.h)?
  bool decides(ValueId id) const { return decides_[id]; }
  /// Is the rest the raw score?
  bool is_score(const Product& product) const;

 private:
  void multiply(Product& product, ValueId id, bool whole = false) const;
  /// Cancels what is both multiplied and divided by.
  void multiply_uniform(Product& product, ValueId id, bool divides) const;

  const Program& program_;
  const bool regroups_;
  const base::IdVector<char> known_;
  base::IdVector<char> decides_;
};

}  // namespace foveal::scoring
