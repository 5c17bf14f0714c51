#pragma once
// What every vector type of the kernels has in common. add, sub and mul are operators: the intrinsics of these names are defined by them.
//
// exp2: 2^x = 2^n * 2^r with n the nearest integer, and 2^r for r in [-1/2, 1/2] as 1 + r * (c[0] + r * (c[1] + ...)), exact at 0 and
// interpolated at nodes that level the relative error.
#include <cstdint>

namespace foveal::cpu {
namespace {

template <class Real>
struct Exp2;
template <>
struct Exp2<float> {
  using Int = std::int32_t;
  static constexpr float lowest = -126;     ///< below, results are zero
  static constexpr float magic = 12582912;  ///< 1.5 * 2^23: the low bits of a sum with it are the nearest integer
  static constexpr int mantissa = 23;
  /// Relative error 2e-9. (A degree less, 1.3e-7, would save one operation of ten but shows in sums of equal probabilities.)
  static constexpr float c[6] = {0.6931472067f, 0.2402265092f, 0.05550327227f, 0.009618056679f, 0.001340042818f, 0.000154614447f};
};
template <>
struct Exp2<double> {
  using Int = std::int64_t;
  static constexpr double lowest = -1022;
  static constexpr double magic = 6755399441055744;  ///< 1.5 * 2^52
  static constexpr int mantissa = 52;
  /// Relative error 8e-18.
  static constexpr double c[11] = {0.693147180559945286,    0.240226506959100972,    0.055504108664821597,    0.00961812910760688825,
                                   0.00133335581464169356,  0.000154035304417360499, 1.52527338298361192e-05, 1.32154425879216893e-06,
                                   1.01780624458457737e-07, 7.07258594926922339e-09, 4.45496059818651856e-10};
};

/// 1 + r * (c[0] + r * (c[1] + ...)), the coefficients of Exp2.
template <class V>
typename V::Vec exp2_polynomial(typename V::Vec r) {
  constexpr auto& c = Exp2<typename V::Real>::c;
  constexpr int degree = sizeof(c) / sizeof(c[0]);
  typename V::Vec p = V::set(c[degree - 1]);
  for (int i = degree - 2; i >= 0; --i) p = V::fma(p, r, V::set(c[i]));
  return V::fma(p, r, V::set(1));
}

/// 2^x: n goes into the exponent by integer addition. Zero below the normal numbers; NaN stays NaN.
template <class V>
typename V::Vec exp2_by_bits(typename V::Vec x) {
  using Vec = typename V::Vec;
  using E = Exp2<typename V::Real>;
  typedef typename E::Int Bits __attribute__((vector_size(sizeof(Vec))));
  const Vec lowest = V::set(E::lowest), magic = V::set(E::magic);
  const Vec clamped = V::max(lowest, x);
  const Vec shifted = V::add(clamped, magic);
  const Vec p = exp2_polynomial<V>(V::sub(clamped, V::sub(shifted, magic)));
  const Bits bits = reinterpret_cast<Bits>(p) + (reinterpret_cast<Bits>(shifted) << E::mantissa);
  const Bits underflow = x < lowest;
  return reinterpret_cast<Vec>(bits & ~underflow);
}

/// Registers: a Real, a vector type Vec of it.
template <class Registers>
struct VectorOps : Registers {
  using typename Registers::Real;
  using typename Registers::Vec;
  typedef Vec Unaligned __attribute__((aligned(alignof(Real))));
  static constexpr int width = sizeof(Vec) / sizeof(Real);

  static Vec zero() { return Vec{}; }
  static Vec set(Real x) { return x - Vec{}; }
  // By dereference, as the intrinsics do it: GCC 12 spills accumulators that are copied by memcpy.
  static Vec load(const Real* p) { return *reinterpret_cast<const Vec*>(p); }
  static Vec loadu(const Real* p) { return *reinterpret_cast<const Unaligned*>(p); }
  /// n elements; zeros in the others.
  static Vec load_first(const Real* p, int n) {
    Vec x{};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return x;
  }
  static void store(Real* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }
  static void storeu(Real* p, Vec x) { *reinterpret_cast<Unaligned*>(p) = x; }
  static void store_first(Real* p, Vec x, int n) {
    for (int i = 0; i < n; ++i) p[i] = x[i];
  }
  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec sub(Vec a, Vec b) { return a - b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
};

}  // namespace
}  // namespace foveal::cpu
