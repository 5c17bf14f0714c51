// The text of an Explanation, one fact per line.
#include <cstdio>
#include <sstream>

#include "foveal/attention.h"

namespace foveal {
namespace {

std::string scaled(double value, const char* const* units, double step) {
  int unit = 0;
  while (value >= step && unit < 4) value /= step, ++unit;
  char text[48];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

std::string flops_text(double flops) {
  static constexpr const char* units[] = {"FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP"};
  return scaled(flops, units, 1000);
}

std::string bytes_text(std::size_t bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  return scaled(static_cast<double>(bytes), units, 1024);
}

}  // namespace

std::string Explanation::to_string() const {
  std::ostringstream out;
  const auto line = [&out](const std::string& name, const std::string& value) {
    out << name << std::string(name.size() < 16 ? 16 - name.size() : 1, ' ') << value << '\n';
  };
  line("problem", problem);
  line("backend", backend);
  line("kernel", kernel);
  if (!strategy.empty()) line("strategy", strategy);
  if (!reduction.empty()) line("reduction", reduction);
  line("flops", flops_text(flops) + " (nominal " + flops_text(flops_nominal) + ")");
  line("tiles",
       std::to_string(tiles_full) + " full, " + std::to_string(tiles_partial) + " partial, " + std::to_string(tiles_empty) + " empty");
  line("workspace", bytes_text(workspace_bytes));
  line("deterministic", deterministic ? "yes" : "no");
  for (const auto& [name, value] : details) line(name, value);
  for (const Refusal& refusal : refusals) line("refused", refusal.candidate + ": " + refusal.reason);
  return out.str();
}

}  // namespace foveal
