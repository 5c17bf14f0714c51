// foveal explain: what a plan would do, and why.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "api/backends.h"
#include "base/check.h"
#include "command.h"
#include "cuda/arch.h"
#include "cuda/record/recording.h"
#include "dist/plan.h"
#include "files/files.h"
#include "json.h"
#include "lines.h"
#include "mask_picture.h"
#include "plan/choose.h"
#include "problem/line_problem.h"
#include "validators.h"

namespace foveal::cli {
namespace {

struct Options {
  LineOptions lines;
  bool as_json = false;
  std::string arch;           ///< of a GPU that need not be here; "": this machine
  int multiprocessors = 0;    ///< of it; 0: the usual number
  dist::PlanRequest context;  ///< context parallelism
  std::string deal = "automatic", machine = "nvlink";
  std::int64_t unit = 128;
  bool draw = false;
  std::string png, tile;             ///< tile "": the plan's
  std::int64_t batch = 0, head = 0;  ///< to draw
  std::vector<CLI::Option*> of_drawing;
  CLI::Option* ranks = nullptr;
};

/// "128x64": tiles of 128 queries and 64 keys, not assigned to tasks.
TileSchedule tile_named(const std::string& text) {
  std::int32_t q = 0, kv = 0;
  const char *const end = text.data() + text.size(), *const x = std::find(text.data(), end, 'x');
  const auto is_number = [](const char* from, const char* to, std::int32_t& value) {
    const auto [rest, error] = std::from_chars(from, to, value);
    return error == std::errc{} && rest == to;
  };
  const bool read = is_number(text.data(), x, q) && x != end && is_number(x + 1, end, kv);
  FOVEAL_CHECK(read, "explain: --tile '", text, "'; expected queries and keys of a tile: 128x64");
  TileSchedule tiles;
  tiles.block_q = q, tiles.block_kv = kv;
  return tiles;
}

void draw(const problem::Line& line, const TileSchedule& planned, const Options& options) {
  if (!options.draw && options.png.empty()) return;
  const bool own = options.tile.empty() && planned.block_q > 0;
  const MaskPicture picture(line, own ? planned : tile_named(options.tile.empty() ? "128x128" : options.tile), options.batch, options.head);
  if (options.draw) fmt::print("{}", picture.text());
  if (!options.png.empty()) write_file(picture.png(), options.png);
}

/// Without the line's data, which may be larger than this machine's memory.
Explanation explain(const problem::Line& line, const Options& options) {
  if (!options.arch.empty())
    return cuda::explain(problem::problem_of(line, {DeviceKind::cuda, 0}), options.arch, line.options.target, options.multiprocessors);
  return Plan(planning::choose(problem::problem_of(line, line.device), line.options, api::backends())).explain();
}

// A plan for every backward strategy, so that those that were not chosen show why.
std::vector<Explanation> explain_strategies(problem::Line line, const Options& options) {
  std::vector<Explanation> found;
  for (const BackwardStrategy strategy : {BackwardStrategy::fused, BackwardStrategy::split, BackwardStrategy::two_scan}) {
    line.attention.backward = strategy;
    try {
      found.push_back(explain(line, options));
    } catch (const Error& error) {
      Explanation refused;
      refused.strategy = to_string(strategy);
      refused.refusals.push_back({to_string(strategy), error.what()});
      found.push_back(std::move(refused));
    }
  }
  return found;
}

void print_strategies(const std::vector<Explanation>& strategies, const std::string& chosen) {
  fmt::print("strategies\n");
  for (const Explanation& e : strategies) {
    if (e.kernel.empty()) {
      fmt::print("  {:<9} refused: {}\n", e.strategy, e.refusals.back().reason);
    } else {
      fmt::print("  {:<9} {} {}: {:.3g} FLOP, workspace {} bytes, {}\n", e.strategy, e.strategy == chosen ? "chosen" : "possible", e.kernel,
                 e.flops, e.workspace_bytes, e.deterministic ? "deterministic" : "not deterministic");
    }
  }
}

/// The context-parallel plan. Only parameters have data, since masks may read them.
std::string explain_context(const problem::Line& line, const Options& options) {
  dist::PlanRequest request = options.context;
  request.deal = dist::deal_named(options.deal), request.machine = dist::machine_named(options.machine);
  const problem::Problem problem = problem::problem_of(line, Device{});
  const ParamData params(line);
  const dist::Workload workload = dist::make_workload(problem, line.lengths, params.views(), options.unit);
  return problem.line() + "\n" + dist::explain(dist::make_plan(workload, request), workload, request);
}

void run(const Options& options) {
  const std::vector<problem::Line> lines = gather_lines(options.lines, "explain");
  const bool shared = options.ranks->count() > 0;
  FOVEAL_CHECK(!shared || !options.as_json, "explain: --json is not for --ranks");
  FOVEAL_CHECK(options.png.empty() || lines.size() == 1, "explain: --png for ", lines.size(), " problem lines; expected one");
  if (!options.png.empty()) check_output_file(options.png);
  FOVEAL_CHECK(!options.draw || !options.as_json, "explain: --json is not for --draw; --png is");
  for (const CLI::Option* option : options.of_drawing)
    FOVEAL_CHECK(option->count() == 0 || options.draw || !options.png.empty(), "explain: ", option->get_name(), " without --draw or --png");
  for (const problem::Line& line : lines)
    FOVEAL_CHECK(options.arch.empty() || line.options.backend.empty() || line.options.backend == "cuda",
                 "explain: --arch with backend=", line.options.backend, "; expected cuda");
  if (!options.arch.empty()) cuda::multiprocessors_of(options.arch);  // throws for an unknown one
  if (shared) {
    for (const problem::Line& line : lines) {
      const PlanOptions& how = line.options;
      FOVEAL_CHECK(how.backend.empty() && how.target.empty() && how.threads == 0,
                   "explain: --ranks with a backend, a target or threads; expected none, as the plan is the same for all");
    }
    for (const problem::Line& line : lines) fmt::print("{}\n", explain_context(line, options));
    return;
  }
  Json rows = Json::array();
  for (const problem::Line& line : lines) {
    const Explanation e = explain(line, options);
    const bool several = line.pass == Pass::backward && line.attention.backward == BackwardStrategy::automatic;
    const std::vector<Explanation> strategies = several ? explain_strategies(line, options) : std::vector<Explanation>{};
    if (options.as_json) {
      rows.push_back(to_json(e));
      for (const Explanation& strategy : strategies) rows.back()["strategies"].push_back(to_json(strategy));
    } else {
      fmt::print("{}\n", e.to_string());
      if (several) print_strategies(strategies, e.strategy);
      fmt::print("\n");
    }
    draw(line, e.schedule, options);
  }
  if (options.as_json) fmt::print("{}\n", rows.dump(2));
}

}  // namespace

void add_explain(CLI::App& app) {
  CLI::App* command = app.add_subcommand("explain", "What a plan would do: kernel, tiles, work, workspace, and why others declined");
  const auto options = std::make_shared<Options>();
  add_line_options(*command, options->lines);
  command->add_flag("--json", options->as_json, "as JSON");
  CLI::Option* ranks = options->ranks =
      command->add_option("--ranks", options->context.ranks, "how this many ranks would share the problem (context parallelism)")
          ->check(whole_number(1, INT32_MAX));
  command->add_option("--head-groups", options->context.head_groups, "with --ranks: shares of the heads; 0: picked")
      ->needs(ranks)
      ->check(whole_number(0, INT32_MAX));
  command->add_option("--deal", options->deal, "with --ranks: automatic, contiguous, zigzag or pieces")->needs(ranks);
  command->add_option("--machine", options->machine, "with --ranks: nvlink (hosts of 8) or network (hosts of 1)")->needs(ranks);
  command->add_option("--unit", options->unit, "with --ranks: tokens of a tile side")->needs(ranks)->check(whole_number(1, INT32_MAX));
  CLI::Option* arch = command->add_option("--arch", options->arch, "on a GPU that need not be here: sm_80, sm_90, ... (needs NVRTC)")
                          ->check(not_empty())
                          ->excludes(ranks);
  command->add_option("--sms", options->multiprocessors, "with --arch: its multiprocessors; default: those of the largest usual card")
      ->needs(arch)
      ->check(whole_number(1, INT32_MAX));
  command->add_flag("--draw", options->draw, "the mask as the plan's tiles, one character each, and which task takes them")
      ->excludes(ranks);
  command->add_option("--png", options->png, "the same as a picture, to this file")->excludes(ranks);
  for (CLI::Option* option : {
           command->add_option("--tile", options->tile, "with --draw and --png: queries x keys of a tile, instead of the plan's"),
           command->add_option("--batch", options->batch, "with --draw and --png: which batch")->check(whole_number(0, INT32_MAX)),
           command->add_option("--head", options->head, "with --draw and --png: which query head")->check(whole_number(0, INT32_MAX)),
       })
    options->of_drawing.push_back(option);
  command->callback([options] { run(*options); });
}

}  // namespace foveal::cli
