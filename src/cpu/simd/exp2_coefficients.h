#pragma once
// 2^r for r in [-1/2, 1/2] is 1 + r * (c[0] + r * (c[1] + ...)): exact at 0, interpolated at nodes that level the relative error.

namespace foveal::cpu {

/// Relative error 2e-9. (A degree less, 1.3e-7, would save one operation of ten but shows in sums of equal probabilities.)
constexpr float exp2_f32[6] = {0.6931472067f, 0.2402265092f, 0.05550327227f, 0.009618056679f, 0.001340042818f, 0.000154614447f};
/// Relative error 8e-18.
constexpr double exp2_f64[11] = {0.693147180559945286,    0.240226506959100972,    0.055504108664821597,    0.00961812910760688825,
                                 0.00133335581464169356,  0.000154035304417360499, 1.52527338298361192e-05, 1.32154425879216893e-06,
                                 1.01780624458457737e-07, 7.07258594926922339e-09, 4.45496059818651856e-10};

}  // namespace foveal::cpu
