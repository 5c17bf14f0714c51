#include "peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#if defined(__x86_64__)
#include "cpu/simd/amx.h"
#endif
#include "loops.h"

namespace foveal::micro {
namespace {

struct Row {
  UnitInfo info;
  Loop loop;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = [] {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    return std::vector<Row>{
        {{Unit::fma_scalar, "fma_scalar", "MULPS + ADDPS xmm", true}, loop_fma_scalar},
        {{Unit::fma_avx2, "fma_avx2", "VFMADD231PS ymm", avx2}, loop_fma_avx2},
        {{Unit::fma_avx512, "fma_avx512", "VFMADD231PS zmm", avx512}, loop_fma_avx512},
        {{Unit::bf16_ymm, "bf16_ymm", "VDPBF16PS ymm", bf16}, loop_bf16_ymm},
        {{Unit::bf16_zmm, "bf16_zmm", "VDPBF16PS zmm", bf16}, loop_bf16_zmm},
        {{Unit::bf16_amx, "bf16_amx", "TDPBF16PS", cpu::amx_bf16_available()}, loop_bf16_amx},
    };
#else
    return std::vector<Row>{
        {{Unit::fma_scalar, "fma_scalar", "multiply and add, 128 bits", true}, loop_fma_scalar},
        {{Unit::fma_avx2, "fma_avx2", "x86 only", false}, nullptr},
        {{Unit::fma_avx512, "fma_avx512", "x86 only", false}, nullptr},
        {{Unit::bf16_ymm, "bf16_ymm", "x86 only", false}, nullptr},
        {{Unit::bf16_zmm, "bf16_zmm", "x86 only", false}, nullptr},
        {{Unit::bf16_amx, "bf16_amx", "x86 only", false}, nullptr},
    };
#endif
  }();
  return table;
}

const Row& row(Unit unit) { return rows()[static_cast<std::size_t>(unit)]; }

/// Iterations that take about `seconds`.
std::int64_t iterations_for(Loop loop, double seconds) {
  for (std::int64_t count = 64;; count *= 2) {
    const double start = thread_seconds();
    loop(count);
    const double spent = thread_seconds() - start;
    if (spent >= 50e-6) return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(count) * seconds / spent));
  }
}

double rate(Loop loop, std::int64_t count) {
  const double start = thread_seconds();
  const double flops = loop(count);
  return flops / (thread_seconds() - start) * 1e-9;
}

}  // namespace

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<UnitInfo> units() {
  std::vector<UnitInfo> all;
  for (const Row& r : rows()) all.push_back(r.info);
  return all;
}

UnitInfo info(Unit unit) { return row(unit).info; }

Rate peak(Unit unit, double seconds) {
  const Row& r = row(unit);
  if (!r.info.available) return {};
  constexpr double kRepetition = 500e-6;
  rate(r.loop, iterations_for(r.loop, 1e-3));  // the clock settles
  const std::int64_t count = iterations_for(r.loop, kRepetition);
  std::vector<double> rates(std::max<std::size_t>(3, static_cast<std::size_t>(seconds / kRepetition)));
  for (double& x : rates) x = rate(r.loop, count);
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2], rates[rates.size() * 9 / 10]};
}

ThreadedRate peak_threads(Unit unit, int threads, double seconds) {
  const Row& r = row(unit);
  if (!r.info.available) return {};
  const std::int64_t count = iterations_for(r.loop, seconds);
  std::atomic<int> ready{0};
  std::vector<double> cpu(static_cast<std::size_t>(threads)), wall(cpu.size());
  std::vector<std::thread> pool;
  for (std::size_t t = 0; t < cpu.size(); ++t) {
    pool.emplace_back([&, t] {
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      const auto wall_start = std::chrono::steady_clock::now();
      const double cpu_start = thread_seconds();
      const double flops = r.loop(count);
      cpu[t] = flops / (thread_seconds() - cpu_start) * 1e-9;
      wall[t] = flops / std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start).count() * 1e-9;
    });
  }
  for (std::thread& thread : pool) thread.join();
  ThreadedRate sum;
  for (std::size_t t = 0; t < cpu.size(); ++t) sum.cpu += cpu[t], sum.wall += wall[t];
  return sum;
}

double calibrate() {
  static const auto [loop, count] = [] {
#if defined(__x86_64__)
    const Loop chosen = info(Unit::bf16_amx).available     ? load_loop_amx
                        : info(Unit::fma_avx512).available ? load_loop_avx512
                        : info(Unit::fma_avx2).available   ? load_loop_avx2
                                                           : load_loop_scalar;
#else
    const Loop chosen = load_loop_scalar;
#endif
    return std::pair{chosen, iterations_for(chosen, 300e-6)};
  }();
  return rate(loop, count);
}

std::optional<Unit> unit_of_kernel(const std::string& kernel) {
  const auto has = [&](const char* part) { return kernel.find(part) != std::string::npos; };
  if (has("cpu.amx.")) return Unit::bf16_amx;
  if (has("cpu.avx512bf16.")) return Unit::bf16_zmm;
  if (has("cpu.avx512.")) return Unit::fma_avx512;
  if (has("cpu.avx2.")) return Unit::fma_avx2;
  if (has("cpu.scalar.")) return Unit::fma_scalar;
  return std::nullopt;
}

}  // namespace foveal::micro
