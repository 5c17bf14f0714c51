// foveal_micro: what this machine's matrix arithmetic can do, as a table or as JSON (--json).
#include <cstdio>
#include <cstring>
#include <thread>

#include "peaks.h"

namespace micro = foveal::micro;

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: foveal_micro [--json]\n");
    return 2;
  }
  const int threads = 2;
  double load = 0;
  for (int i = 0; i < 100; ++i) load = std::max(load, micro::calibrate());
  if (json) {
    std::printf("{\"load_heavy_gflops\": %.1f, \"threads\": %d, \"units\": [", load, threads);
  } else {
    std::printf("%-12s %-18s %10s %10s %14s %14s   GFLOP/s\n", "unit", "instruction", "median", "best", "2 threads cpu", "2 threads wall");
  }
  const char* separator = "";
  for (const micro::UnitInfo& unit : micro::units()) {
    const micro::Rate one = micro::peak(unit.unit);
    const micro::ThreadedRate two = micro::peak_threads(unit.unit, threads);
    if (json) {
      std::printf(
          "%s\n  {\"unit\": \"%s\", \"instruction\": \"%s\", \"available\": %s, \"median\": %.1f, \"best\": %.1f, \"threads_cpu\": %.1f, "
          "\"threads_wall\": %.1f}",
          separator, unit.name, unit.instruction, unit.available ? "true" : "false", one.median, one.best, two.cpu, two.wall);
      separator = ",";
    } else if (unit.available) {
      std::printf("%-12s %-18s %10.1f %10.1f %14.1f %14.1f\n", unit.name, unit.instruction, one.median, one.best, two.cpu, two.wall);
    } else {
      std::printf("%-12s %-18s %10s\n", unit.name, unit.instruction, "not here");
    }
  }
  if (json) {
    std::printf("]}\n");
  } else {
    std::printf("load-heavy calibration loop: %.1f\n", load);
  }
  return 0;
}
