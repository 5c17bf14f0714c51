// foveal targets: what this machine has, and which backend would run.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "command.h"

namespace foveal::cli {
namespace {

void print(bool as_json) {
  const std::vector<TargetInfo> found = targets();
  if (as_json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const TargetInfo& t : found) {
      rows.push_back({{"backend", t.backend}, {"target", t.target}, {"available", t.available}, {"detail", t.detail}});
    }
    fmt::print("{}\n", rows.dump(2));
    return;
  }
  fmt::print("{:<10} {:<12} {:<9} {}\n", "backend", "target", "available", "detail");
  for (const TargetInfo& t : found) fmt::print("{:<10} {:<12} {:<9} {}\n", t.backend, t.target, t.available ? "yes" : "no", t.detail);
  fmt::print("\nwithout --backend and --target, a plain causal attention runs on:\n");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const Plan chosen =
        plan({.mask = causal()}, {.heads_q = 1, .heads_kv = 1, .seqlen_q = 1024, .seqlen_kv = 1024, .dtype = dtype}, Pass::forward);
    fmt::print("  {:<5} {}\n", to_string(dtype), chosen.kernel());
  }
}

}  // namespace

void add_targets(CLI::App& app) {
  CLI::App* command = app.add_subcommand("targets", "What this machine has, and which backend would run");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "as JSON");
  command->callback([as_json] { print(*as_json); });
}

}  // namespace foveal::cli
