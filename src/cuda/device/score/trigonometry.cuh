#pragma once
// Sine, cosine and tangent for scores of 16-bit problems: about 25 instructions, no branch and no call. The CUDA
// library's reduce large angles by a loop over words in local memory, which, inlined for each pair of a thread, took 26 s
// to compile and 15 times the plain pass to run.
//
// The angle less its nearest multiple of pi / 2 (Cody and Waite: pi / 2 in two parts, whose products with small
// integers are exact in a fused multiply-add), then a minimax polynomial on [-pi / 4, pi / 4]. Error: 2^-23, or what
// half a unit in the last place of the angle makes.
#include "base.cuh"

namespace foveal::device {

struct ReducedAngle {
  float rest;   ///< in [-pi / 4, pi / 4], but for rounding
  int quarter;  ///< of a turn, modulo 4: the angle is rest + quarter * pi / 2
};

/// Takes the nearest multiple of `unit` * pi / 2 from the angle, and leaves its number of units, modulo 4, in the low
/// bits. unit: a power of two; |angle| < 2^22 * unit.
FOVEAL_DEVICE float take_multiple(float angle, float unit, int& bits) {
  const float round = 0x1.8p23f * unit;  // its sum with a smaller number is that number, rounded to a multiple of the unit
  const float shifted = fmaf(angle, 0.6366197466850281f, round), multiple = shifted - round;
  bits = __float_as_int(shifted);
  return fmaf(multiple, 4.371138828673793e-08f, fmaf(multiple, -1.5707963705062866f, angle));
}

FOVEAL_DEVICE ReducedAngle reduce_angle(float angle) {
  // fp32 numbers beyond are 64 and more apart, so that nothing is known of the angle: 0 stands for it, and NaN for infinity.
  constexpr float kLargest = 0x1p30f;
  int bits;
  const float known = fabsf(angle) <= kLargest ? angle : 0 * angle;
  const float small = take_multiple(known, 256, bits);  // whole turns: at most 202 is left
  const float rest = take_multiple(small, 1, bits);
  return {rest, bits};
}

FOVEAL_DEVICE float sine_of_rest(float x) {
  const float z = x * x;
  return fmaf(x * z, fmaf(z, fmaf(z, -0.0001954626786755398f, 0.008332539349794388f), -0.166666641831398f), x);
}
FOVEAL_DEVICE float cosine_of_rest(float x) {
  const float z = x * x;
  return fmaf(z * z, fmaf(z, fmaf(z, 2.4506223780917935e-05f, -0.001388809410855174f), 0.0416666641831398f), fmaf(z, -0.5f, 1.0f));
}

/// Of the angle and this many quarters of a turn.
FOVEAL_DEVICE float sine(float angle, int quarters = 0) {
  const ReducedAngle reduced = reduce_angle(angle);
  const int quarter = reduced.quarter + quarters;
  const float value = quarter & 1 ? cosine_of_rest(reduced.rest) : sine_of_rest(reduced.rest);
  return quarter & 2 ? -value : value;
}
FOVEAL_DEVICE float cosine(float angle) { return sine(angle, 1); }

}  // namespace foveal::device
