// Vectors by the compiler's vector extension, as wide as the target's registers. Target units define FOVEAL_VECTOR_BYTES and include this;
// as all of a target unit, it is in an anonymous namespace and uses no std templates.
#pragma once
#include <cstddef>
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace foveal::cpu {
namespace {

constexpr int kVectorBytes = FOVEAL_VECTOR_BYTES;

template <class T, int N>
struct VecOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T, int N>
using Vec = typename VecOf<T, N>::type;

/// The integer of this many bytes: what a comparison of reals gives.
template <int Bytes>
struct IntegerOf;
template <>
struct IntegerOf<4> {
  using type = std::int32_t;
};
template <>
struct IntegerOf<8> {
  using type = std::int64_t;
};

template <class V>
inline V load(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
template <class V>
inline void store(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

template <class V, class T>
inline V splat(T value) {
  return value - V{};  // keeps the sign of zero
}

template <class V>
inline V iota() {
  V v{};
  for (unsigned i = 0; i < sizeof(V) / sizeof(v[0]); ++i) v[i] = i;
  return v;
}

// Shuffles with constant indices, in the form that both GCC and Clang have.
template <int... I>
struct Indices {};
template <int N, int... I>
struct CountTo : CountTo<N - 1, N - 1, I...> {};
template <int... I>
struct CountTo<0, I...> {
  using type = Indices<I...>;
};
template <class V>
using Elements = typename CountTo<static_cast<int>(sizeof(V) / sizeof(V{}[0]))>::type;

template <class V, int... I>
inline V interleave_low(V a, V b, Indices<I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + I % 2 * static_cast<int>(sizeof...(I)))...);
}
template <class V, int... I>
inline V interleave_high(V a, V b, Indices<I...>) {
  constexpr int n = sizeof...(I);
  return __builtin_shufflevector(a, b, (I / 2 + n / 2 + I % 2 * n)...);
}
template <class V, int... I>
inline V shift_in(V below, V above, Indices<I...>) {
  return __builtin_shufflevector(below, above, (static_cast<int>(sizeof...(I)) - 1 + I)...);
}
/// a[0], b[0], a[1], b[1], ... of the lower halves, and of the upper halves.
template <class V>
inline V interleave_low(V a, V b) {
  return interleave_low(a, b, Elements<V>{});
}
template <class V>
inline V interleave_high(V a, V b) {
  return interleave_high(a, b, Elements<V>{});
}
/// `above` shifted up one element; the last of `below` enters at the bottom.
template <class V>
inline V shift_in(V below, V above) {
  return shift_in(below, above, Elements<V>{});
}

template <class To, class From>
inline To bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &v, sizeof to);
  return to;
}

/// Integers of programs wrap in two's complement; in signed arithmetic that would be undefined.
template <int Bytes>
struct UnsignedOf {
  using type = std::uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = std::uint64_t;
};
template <class V>
using UnsignedVec = Vec<typename UnsignedOf<sizeof(V{}[0])>::type, sizeof(V) / sizeof(V{}[0])>;
template <class V>
inline V wrapping_add(V a, V b) {
  return bits<V>(bits<UnsignedVec<V>>(a) + bits<UnsignedVec<V>>(b));
}
template <class V>
inline V wrapping_sub(V a, V b) {
  return bits<V>(bits<UnsignedVec<V>>(a) - bits<UnsignedVec<V>>(b));
}
template <class V>
inline V wrapping_shift(V a, V count) {
  return bits<V>(bits<UnsignedVec<V>>(a) << bits<UnsignedVec<V>>(count));
}
template <class V>
inline V wrapping_mul(V a, V b) {
  return bits<V>(bits<UnsignedVec<V>>(a) * bits<UnsignedVec<V>>(b));
}

/// Some element is not zero.
template <class I>
inline bool any(I v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(I) == 64) return _mm512_test_epi32_mask(bits<__m512i>(v), bits<__m512i>(v)) != 0;
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(I) == 32) return !_mm256_testz_si256(bits<__m256i>(v), bits<__m256i>(v));
#endif
  bool found = false;
  for (unsigned i = 0; i < sizeof(I) / sizeof(v[0]); ++i) found |= v[i] != 0;
  return found;
}

/// 64-bit products of the even 32-bit elements.
template <class U>
inline U multiply_even(U a, U b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(U) == 64) return bits<U>(_mm512_maskz_mul_epu32(-1, bits<__m512i>(a), bits<__m512i>(b)));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(U) == 32) return bits<U>(_mm256_mul_epu32(bits<__m256i>(a), bits<__m256i>(b)));
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(U) == 16) return bits<U>(_mm_mul_epu32(bits<__m128i>(a), bits<__m128i>(b)));
#endif
  using L = Vec<std::uint64_t, sizeof(U) / 8>;
  return bits<U>((bits<L>(a) & 0xFFFFFFFFu) * (bits<L>(b) & 0xFFFFFFFFu));
}

/// b < a ? b : a and a < b ? b : a for reals: one instruction each, where compilers emit a comparison and a blend.
template <class V>
inline V smaller(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(a[0]) == 4) return bits<V>(_mm512_maskz_min_ps(-1, bits<__m512>(b), bits<__m512>(a)));
  if constexpr (sizeof(V) == 64 && sizeof(a[0]) == 8) return bits<V>(_mm512_maskz_min_pd(-1, bits<__m512d>(b), bits<__m512d>(a)));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32 && sizeof(a[0]) == 4) return bits<V>(_mm256_min_ps(bits<__m256>(b), bits<__m256>(a)));
  if constexpr (sizeof(V) == 32 && sizeof(a[0]) == 8) return bits<V>(_mm256_min_pd(bits<__m256d>(b), bits<__m256d>(a)));
#endif
  return b < a ? b : a;
}
template <class V>
inline V larger(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(a[0]) == 4) return bits<V>(_mm512_maskz_max_ps(-1, bits<__m512>(b), bits<__m512>(a)));
  if constexpr (sizeof(V) == 64 && sizeof(a[0]) == 8) return bits<V>(_mm512_maskz_max_pd(-1, bits<__m512d>(b), bits<__m512d>(a)));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32 && sizeof(a[0]) == 4) return bits<V>(_mm256_max_ps(bits<__m256>(b), bits<__m256>(a)));
  if constexpr (sizeof(V) == 32 && sizeof(a[0]) == 8) return bits<V>(_mm256_max_pd(bits<__m256d>(b), bits<__m256d>(a)));
#endif
  return a < b ? b : a;
}

/// 1 / x to a unit in the last place, for normal x with a normal reciprocal.
template <class V>
inline V reciprocal(V x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    const V y = bits<V>(_mm512_maskz_rcp14_ps(-1, bits<__m512>(x)));
    return y + y * (1.0f - x * y);
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    const V y = bits<V>(_mm256_rcp_ps(bits<__m256>(x)));
    return y + y * (1.0f - x * y);
  }
#endif
  return 1.0f / x;
}

template <class V>
inline V square_root(V x) {
  using T = decltype(x[0] + 0);
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(T) == 4) return bits<V>(_mm512_maskz_sqrt_ps(-1, bits<__m512>(x)));
  if constexpr (sizeof(V) == 64 && sizeof(T) == 8) return bits<V>(_mm512_maskz_sqrt_pd(-1, bits<__m512d>(x)));
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32 && sizeof(T) == 4) return bits<V>(_mm256_sqrt_ps(bits<__m256>(x)));
  if constexpr (sizeof(V) == 32 && sizeof(T) == 8) return bits<V>(_mm256_sqrt_pd(bits<__m256d>(x)));
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16 && sizeof(T) == 4) return bits<V>(_mm_sqrt_ps(bits<__m128>(x)));
  if constexpr (sizeof(V) == 16 && sizeof(T) == 8) return bits<V>(_mm_sqrt_pd(bits<__m128d>(x)));
#endif
  for (unsigned i = 0; i < sizeof(V) / sizeof(T); ++i) x[i] = sizeof(T) == 4 ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]);
  return x;
}

}  // namespace
}  // namespace foveal::cpu
