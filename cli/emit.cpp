// foveal emit: the GPU kernels of a problem as stand-alone files.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>

#include "base/check.h"
#include "command.h"
#include "cuda/arch.h"
#include "cuda/jit/compile.h"
#include "cuda/kernels_of.h"
#include "cuda/record/emit_c.h"
#include "cuda/record/recording.h"
#include "files/files.h"
#include "lines.h"
#include "problem/line_problem.h"
#include "validators.h"

namespace foveal::cli {
namespace {

struct Options {
  LineOptions lines;
  std::vector<std::string> archs, names;
  std::vector<int> multiprocessors;
  std::string folder, launcher;
  bool cubin = false;
};

void write(const std::filesystem::path& path, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  write_file({bytes.begin(), bytes.end()}, path.string());
  fmt::print("{}\n", path.string());
}

/// One source file per kernel; kernels that several lines or architectures share are written once.
void write_sources(const problem::Line& line, const Options& options, std::map<std::string, std::string>& stems) {
  const problem::Problem problem = problem::problem_of(line, {DeviceKind::cuda, 0});
  for (const std::string& arch : options.archs) {
    for (const auto& source : cuda::kernels_of(problem, arch, line.options.target)) {
      const std::string text = cuda::jit::assemble(source), key = source.arch + text;
      if (stems.contains(key)) continue;
      const std::string plain = options.archs.size() == 1 ? source.stem : base::join(source.stem, "_", source.arch);
      const auto is_taken = [&](const std::string& stem) {
        return std::any_of(stems.begin(), stems.end(), [&](const auto& other) { return other.second == stem; });
      };
      std::string stem = plain;
      for (int use = 2; is_taken(stem); ++use) stem = base::join(plain, "_", use);
      stems.emplace(key, stem);
      const std::filesystem::path folder = options.folder;
      write(folder / (stem + ".cu"), base::join("// ", problem::to_string(line), "\n// nvrtc: --gpu-architecture=", source.arch,
                                                " --std=c++20 -default-device; kernel ", source.stem, "\n", text));
      if (options.cubin) write(folder / (stem + "." + source.arch + ".cubin"), cuda::jit::compile(source)->bytes);
    }
  }
}

/// The name of each line's function: the given one, or its pass, numbered if several lines have the same.
std::vector<std::string> names_of(const std::vector<problem::Line>& lines, const std::vector<std::string>& given) {
  FOVEAL_CHECK(given.empty() || given.size() == lines.size(), "emit: ", given.size(), " names for ", lines.size(),
               " problem lines; expected one for each");
  if (!given.empty()) return given;
  std::vector<std::string> names;
  std::map<std::string, int> uses;
  for (const problem::Line& line : lines) {
    const std::string pass = line.pass == Pass::forward ? "forward" : "backward";
    const int use = ++uses[pass];
    names.push_back(use == 1 ? pass : base::join(pass, "_", use));
  }
  return names;
}

/// For every device of the architectures, in the order of lookup: the most specific first.
std::vector<cuda::Recording> record(const problem::Line& line, const Options& options) {
  const problem::Problem problem = problem::problem_of(line, {DeviceKind::cuda, 0});
  std::vector<cuda::Recording> recordings;
  for (const std::string& arch : options.archs) {
    for (const int count : options.multiprocessors.empty() ? cuda::multiprocessors_of(arch) : options.multiprocessors)
      recordings.push_back(cuda::record(problem, arch, line.options.target, count));
  }
  return recordings;
}

void run(Options options) {
  const std::vector<problem::Line> lines = gather_lines(options.lines, "emit");
  const std::vector<std::string> names = names_of(lines, options.names);
  const auto newest_first = [](const std::string& a, const std::string& b) { return std::stoi(a.substr(3)) > std::stoi(b.substr(3)); };
  for (const std::string& arch : options.archs) cuda::multiprocessors_of(arch);  // throws for an unknown one
  std::sort(options.archs.begin(), options.archs.end(), newest_first);
  std::sort(options.multiprocessors.rbegin(), options.multiprocessors.rend());
  for (const problem::Line& line : lines)
    FOVEAL_CHECK(line.options.backend.empty() || line.options.backend == "cuda", "emit: backend=", line.options.backend, "; expected cuda");
  cuda::EmittedC emitted;  // before anything is written, as it may be refused
  if (!options.launcher.empty()) {
    std::vector<cuda::EmittedPass> passes;
    for (std::size_t i = 0; i < lines.size(); ++i) passes.push_back({names[i], record(lines[i], options)});
    emitted = cuda::emit_c(passes, options.launcher);
  }
  make_folder(options.folder);
  std::map<std::string, std::string> stems;
  for (const problem::Line& line : lines) write_sources(line, options, stems);
  if (options.launcher.empty()) return;
  write(std::filesystem::path(options.folder) / (options.launcher + ".h"), emitted.header);
  write(std::filesystem::path(options.folder) / (options.launcher + ".c"), emitted.source);
}

}  // namespace

void add_emit(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("emit", "The GPU kernels of problems as CUDA sources, machine code, and C that runs them; needs no GPU");
  const auto options = std::make_shared<Options>();
  add_line_options(*command, options->lines);
  command->add_option("--arch", options->archs, "sm_80, sm_86, sm_89, sm_90a, ...; several: sm_80,sm_90")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false);  // what follows is a problem line
  command->add_option("-o,--out", options->folder, "Folder to write to")->required();
  command->add_flag("--cubin", options->cubin, "Machine code too (needs NVRTC)");
  CLI::Option* launcher = command->add_option(
      "--launcher", options->launcher,
      "NAME.h and NAME.c too: machine code and its launches as C for a program without foveal and NVRTC (needs NVRTC now)");
  command
      ->add_option("--names", options->names,
                   "The launcher's function of each line, NAME_forward, NAME_backward, NAME_forward_2, ... by default")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(launcher);
  command->add_option("--sms", options->multiprocessors, "Multiprocessors of the devices; default: those of each architecture's cards")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(launcher)
      ->check(whole_number(1, INT32_MAX));
  command->callback([options] { run(*options); });
}

}  // namespace foveal::cli
