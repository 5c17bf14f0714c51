#pragma once
// Quotients and multiples rounded up, of numbers that are not negative.
#include <type_traits>

namespace foveal::base {

template <class A, class B>
constexpr std::common_type_t<A, B> divide_up(A a, B b) {
  return (a + b - 1) / b;
}

/// The least multiple of `step` that is not less than `value`.
template <class A, class B>
constexpr std::common_type_t<A, B> round_up(A value, B step) {
  return divide_up(value, step) * step;
}

}  // namespace foveal::base
