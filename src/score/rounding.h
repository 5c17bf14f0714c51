#pragma once
// Reals as numbers of a shorter type, as a conversion rounds them: to the nearest one, ties to even, infinite beyond the largest.

namespace foveal::scoring {

// Not inlined, in groups of files neither: GCC 12 makes one vector of two neighbours that are
// rounded to float, and then leaves the rounding out.
[[gnu::noinline]] double to_float32(double x);
[[gnu::noinline]] double to_bfloat16(double x);
[[gnu::noinline]] double to_float16(double x);

}  // namespace foveal::scoring
