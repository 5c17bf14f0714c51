// Integer arithmetic of tape programs that vectors do not have as an operator: division, shifts, conversion from reals.
#pragma once
#include "cpu/kernels/tape_operands.h"

namespace foveal::cpu {
namespace {

/// Floor division of 32-bit integers, 0 for a divisor of 0. In double the quotient is on the right side of every integer.
template <class N>
N quotient(N a, N b) {
  using D = Vec<double, sizeof(N) / 4>;
  using L = Vec<std::int64_t, sizeof(N) / 4>;
  const N zero = b == 0;
  const N divisor = zero ? N{} + 1 : b;
  const D exact = __builtin_convertvector(a, D) / __builtin_convertvector(divisor, D);
  // INT_MIN / -1 leaves 32 bits and wraps.
  const D in_range = exact >= 2147483648.0 ? exact - 4294967296.0 : exact;
  const N towards_zero = __builtin_convertvector(in_range, N);
  const L above = __builtin_convertvector(towards_zero, D) > in_range;
  return zero ? N{} : towards_zero + __builtin_convertvector(above, N);
}

/// The same in 64 bits, one element at a time.
inline L quotient64(L a, L b) {
  Int64 x[kLongs], y[kLongs];
  store(x, a);
  store(y, b);
  for (int i = 0; i < kLongs; ++i) {
    if (y[i] == 0 || y[i] == -1) {
      x[i] = y[i] == 0 ? 0 : static_cast<Int64>(0 - static_cast<std::uint64_t>(x[i]));
    } else {
      const Int64 towards_zero = x[i] / y[i];
      x[i] = towards_zero - (x[i] % y[i] != 0 && (x[i] < 0) != (y[i] < 0));
    }
  }
  return load<L>(x);
}
inline L shift_count64(L b) { return b < 0 ? L{} : b > 63 ? splat<L>(63) : b; }

/// Real to 64-bit integer: towards zero, saturating, NaN to 0.
template <class A>
inline L truncate64(A x) {
  using D = Vec<double, kLongs>;
  const D given = __builtin_convertvector(x, D);
  const D number = given == given ? given : D{};
  const D low = number < -0x1p63 ? splat<D>(-0x1p63) : number;
  const L high = low >= 0x1p63;
  const L result = __builtin_convertvector(high ? D{} : low, L);
  return high ? splat<L>(INT64_MAX) : result;
}

/// Division by a positive uniform value through its reciprocal: the truncated product is at most one off, in double for all integers, in
/// float for those below 2^22, which positions mostly are.
struct Division {
  explicit Division(Int by) : divisor(by), reciprocal(1.0 / by), short_reciprocal(static_cast<float>(1.0 / by)) {}
  W quotient(W a) const {
    constexpr Int limit = 1 << 22;
    const W near = any((a > limit) | (a < -limit)) ? near_quotient<double>(a, reciprocal) : near_quotient<float>(a, short_reciprocal);
    const W rest = wrapping_sub(a, wrapping_mul(near, splat<W>(divisor)));
    return near + (rest < 0) - (rest >= divisor);  // comparisons are 0 or -1
  }
  template <class R>
  static W near_quotient(W a, R factor) {
    return __builtin_convertvector(__builtin_convertvector(a, Vec<R, kWords>) * factor, W);
  }
  Int divisor;
  double reciprocal;
  float short_reciprocal;
};

}  // namespace
}  // namespace foveal::cpu
