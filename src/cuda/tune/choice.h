#pragma once
// What the tables of configurations of both passes share: rows that were measured, the choice
// among them, and what `foveal tune` found instead.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "cuda/tune/sm90.h"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {

/// A row of a table. The first row that applies and has a legal configuration is taken, with the first such configuration.
template <class Facts, class Given>
struct Row {
  bool (*applies)(const Facts&);
  std::vector<Given> configs;
  const char* why;
  const char* measured;  ///< where the figures are
};

inline constexpr const char* grid = "bench/results/h200-sm90.jsonl";
inline constexpr const char* notes = "docs/lab/gpu.md";

/// The configurations of the first row that has some. complete: from what a row has to an optional configuration.
template <class Facts, class Given, class Complete, class Illegal>
auto chosen_of(const std::vector<Row<Facts, Given>>& rows, const Facts& facts, const Complete& complete, const Illegal& illegal) {
  using Config = typename std::invoke_result_t<Complete, const Facts&, const Given&>::value_type;
  std::vector<Chosen<Config>> chosen;
  for (const Row<Facts, Given>& row : rows) {
    if (!row.applies(facts)) continue;
    for (const Given& config : row.configs)
      if (const auto whole = complete(facts, config); whole && !illegal(*whole))
        chosen.push_back({*whole, base::join(row.why, " (", row.measured, ")")});
    if (!chosen.empty()) break;
  }
  return chosen;
}

template <class Config>
std::vector<Config> configs_of(std::vector<Chosen<Config>> chosen) {
  std::vector<Config> configs;
  configs.reserve(chosen.size());
  for (Chosen<Config>& one : chosen) configs.push_back(std::move(one.config));
  return configs;
}

/// A tuned configuration where it is legal, and the reason why another is taken where not.
template <class Config, class Complete, class Illegal>
std::optional<Chosen<Config>> choice(const problem::Problem& p, const std::string& device, const char* family,
                                     std::vector<Chosen<Config>> chosen, const Complete& completed, const Illegal& illegal) {
  std::string unfit;
  if (const auto tuned = tuned_config(p, device, family)) {
    const auto config = completed(parse_config<Config>(tuned->config, tuned->source));
    const auto reason = config ? illegal(*config) : std::optional<std::string>("it does not fit shared memory");
    if (!reason) return Chosen<Config>{*config, base::join("tuned (", tuned->source, ")")};
    unfit = base::join("; not as tuned (", tuned->source, "): ", *reason);
  }
  if (chosen.empty()) return std::nullopt;
  chosen.front().why += unfit;
  return chosen.front();
}

/// Adds a configuration unless it is already there.
template <class Config>
void add_new(const Config& config, std::vector<Config>& space) {
  const std::string text = text_of(config);
  const auto same = [&](const Config& other) { return text_of(other) == text; };
  if (std::none_of(space.begin(), space.end(), same)) space.push_back(config);
}

}  // namespace foveal::cuda
