// Reals as numbers of a shorter type (score/rounding.h), on vectors.
#pragma once
#include "cpu/kernels/tape_math.h"

namespace foveal::cpu {
namespace {

/// fn of a vector of floats, for one of any reals.
template <class V, class Fn>
inline V as_floats(V x, Fn fn) {
  using F = Vec<float, static_cast<int>(sizeof(V) / sizeof(x[0]))>;
  return __builtin_convertvector(fn(__builtin_convertvector(x, F)), V);
}

template <class V>
inline V to_float32(V x) {
  return as_floats(x, [](auto f) { return f; });
}

/// Without the lowest `cut` bits of its significand, which round it; a NaN becomes anything.
template <int cut, class F>
inline F shortened(F f) {
  using U = UnsignedVec<IntegerVec<F>>;
  const U magnitude = bits<U>(absolute(f));
  const U rounded = (magnitude + ((1u << (cut - 1)) - 1) + ((magnitude >> cut) & 1u)) & ~((1u << cut) - 1);
  return with_sign_of(bits<F>(rounded), f);
}

template <class V>
inline V to_bfloat16(V x) {
  return as_floats(x, [](auto f) { return f == f ? shortened<16>(f) : f; });
}

template <class V>
inline V to_float16(V x) {
  return as_floats(x, []<class F>(F f) {
    const F near = shortened<13>(f), size = absolute(f);
    const F tiny = with_sign_of((size + 0.5f) - 0.5f, f);  // which rounds at 2^-24
    const F huge = with_sign_of(splat<F>(__builtin_inff()), f);
    const F finite = size < 0x1p-14f ? tiny : near;
    return f == f ? (size >= 65520.0f ? huge : finite) : f;
  });
}

}  // namespace
}  // namespace foveal::cpu
