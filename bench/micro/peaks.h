#pragma once
// What this machine can do, measured now: the denominators of every "share of peak". Rates are per second of the thread's CPU time, so that
// other work on the machine disturbs them little; what still does (a busy sibling hyper-thread, a capped clock) shows in calibrate().
#include <optional>
#include <string>
#include <vector>

namespace foveal::micro {

/// A matrix arithmetic whose peak bounds some kernel.
enum class Unit { fma_scalar, fma_avx2, fma_avx512, bf16_ymm, bf16_zmm, bf16_amx };

struct UnitInfo {
  Unit unit;
  const char* name;         ///< "bf16_zmm"
  const char* instruction;  ///< "VDPBF16PS zmm"
  bool available;           ///< on this machine
};
std::vector<UnitInfo> units();
UnitInfo info(Unit unit);

/// GFLOP/s, a multiply and an add counting two.
struct Rate {
  double median = 0;
  double best = 0;  ///< the 90th percentile: the clock of CPU time itself jumps by a few microseconds
};

/// Register-only loops of 0.5 ms each for about `seconds` of CPU time. 0 when the unit is not available.
Rate peak(Unit unit, double seconds = 0.02);

/// The same on `threads` threads at once: the sum of their rates by their own CPU time, and by the wall clock. The first says whether
/// the cores slow each other down, the second what a program gets; they differ when something else runs.
struct ThreadedRate {
  double cpu = 0, wall = 0;
};
ThreadedRate peak_threads(Unit unit, int threads, double seconds = 0.1);

/// One pass (about 0.3 ms) of a load-heavy loop: a 6x4 register tile fed from L1, or tile loads and stores where there is AMX. GFLOP/s.
/// Bracket each repetition of a measurement with it and keep those whose brackets are near the best seen: a loop that stays in registers
/// does not notice a busy sibling.
double calibrate();

/// The unit that bounds a kernel, by the name a plan gives it ("cpu.avx512bf16.bf16.forward"); nothing for kernels that are not of the CPU.
std::optional<Unit> unit_of_kernel(const std::string& kernel);

/// CPU time of the calling thread in seconds.
double thread_seconds();

}  // namespace foveal::micro
