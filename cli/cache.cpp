// foveal cache: the compiled GPU kernels on disk.
#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "command.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/shipped.h"
#include "cuda/kernels_of.h"
#include "lines.h"
#include "problem/line_problem.h"

namespace foveal::cli {
namespace {

void list_shipped() {
  const cuda::jit::ShippedKernels& shipped = cuda::jit::shipped_kernels();
  if (shipped.usable()) {
    fmt::print("shipped: {}: {} kernels, compiled by NVRTC {}\n", shipped.folder, shipped.count, shipped.compiler);
  } else {
    fmt::print("shipped: {}\n", shipped.folder.empty() ? shipped.unusable : "not used, " + shipped.unusable + ": " + shipped.folder);
  }
}

void list() {
  fmt::print("{}\n", cuda::jit::cache_folder());
  if (const std::string why = cuda::jit::cache_unusable(); !why.empty()) fmt::print("not used: {}\n", why);
  const auto entries = cuda::jit::cache_list();
  std::size_t width = std::string_view("kernel").size(), bytes = 0;
  for (const auto& entry : entries) width = std::max(width, entry.stem.size());
  fmt::print("{:<{}} {:<9} {:>9} {:>9} {:>7}  {}\n", "kernel", width, "arch", "bytes", "registers", "spills", "key");
  for (const auto& entry : entries) {
    fmt::print("{:<{}} {:<9} {:>9} {:>9} {:>7}  {}\n", entry.stem, width, entry.arch, entry.bytes, entry.facts.registers,
               entry.facts.spill_bytes, entry.key.substr(0, 16));
    bytes += entry.bytes;
  }
  fmt::print("{} bytes\n", bytes);
  list_shipped();
}

void clear() {
  if (const std::string why = cuda::jit::cache_unusable(); !why.empty()) fmt::print("{} is not used: {}\n", cuda::jit::cache_folder(), why);
  fmt::print("{} files removed\n", cuda::jit::cache_clear());
}

struct Warm {
  LineOptions lines;
  std::string arch;
};

void warm(const Warm& options) {
  std::vector<cuda::jit::KernelSource> sources;
  for (const problem::Line& line : gather_lines(options.lines, "cache warm")) {
    const auto more = cuda::kernels_of(problem::problem_of(line, {DeviceKind::cuda, 0}), options.arch, line.options.target);
    sources.insert(sources.end(), more.begin(), more.end());
  }
  for (const auto& image : cuda::jit::compile(sources)) fmt::print("{} {} {}\n", image->stem, image->arch, image->key.substr(0, 16));
}

}  // namespace

void add_cache(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cache", "The compiled GPU kernels on disk");
  command->require_subcommand(1);
  command->add_subcommand("list", "What is there")->callback(list);
  command->add_subcommand("clear", "Remove everything")->callback(clear);
  CLI::App* warming = command->add_subcommand("warm", "Compile the kernels of problem lines; needs no GPU");
  const auto options = std::make_shared<Warm>();
  add_line_options(*warming, options->lines);
  warming->add_option("--arch", options->arch, "sm_80, sm_86, sm_89, sm_90a, ...")->required();
  warming->callback([options] { warm(*options); });
}

}  // namespace foveal::cli
