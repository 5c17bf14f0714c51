#include "json.h"

#include <span>

#include "files/files.h"

namespace foveal::cli {

Json to_json(const Explanation& e) {
  Json json{{"problem", e.problem},
            {"backend", e.backend},
            {"kernel", e.kernel},
            {"strategy", e.strategy},
            {"reduction", e.reduction},
            {"flops", e.flops},
            {"flops_nominal", e.flops_nominal},
            {"tiles", {{"full", e.tiles_full}, {"partial", e.tiles_partial}, {"empty", e.tiles_empty}}},
            {"schedule",
             {{"block_q", e.schedule.block_q},
              {"block_kv", e.schedule.block_kv},
              {"rows_are_keys", e.schedule.rows_are_keys},
              {"team", e.schedule.team},
              {"teams", e.schedule.teams},
              {"rows", Json::array()}}},
            {"workspace_bytes", e.workspace_bytes},
            {"deterministic", e.deterministic},
            {"refusals", Json::array()},
            {"details", Json::object()}};
  for (const Refusal& refusal : e.refusals) json["refusals"].push_back({{"candidate", refusal.candidate}, {"reason", refusal.reason}});
  for (const TileSchedule::Row& row : e.schedule.rows)
    json["schedule"]["rows"].push_back({{"task", row.task},
                                        {"team", row.team},
                                        {"batch", row.batch},
                                        {"head", row.head},
                                        {"heads", row.heads},
                                        {"begin", row.begin},
                                        {"end", row.end}});
  for (const auto& [name, value] : e.details) json["details"][name] = value;
  return json;
}

void write_json(const Json& json, const std::string& path) {
  const std::string text = json.dump(2) + '\n';
  const auto bytes = std::as_bytes(std::span(text));
  write_file({bytes.begin(), bytes.end()}, path);
}

}  // namespace foveal::cli
