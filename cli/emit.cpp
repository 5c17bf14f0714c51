// foveal emit: the GPU kernels of a problem as stand-alone files.
#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/check.h"
#include "command.h"
#include "cuda/emit_c.h"
#include "cuda/jit/compile.h"
#include "cuda/kernels_of.h"
#include "cuda/recording.h"
#include "lines.h"
#include "problem/line_problem.h"

namespace foveal::cli {
namespace {

struct Options {
  LineOptions lines;
  std::string arch, folder, launcher;
  bool cubin = false;
};

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) base::fail(ErrorCode::device, "emit: cannot write ", path.string());
  fmt::print("{}\n", path.string());
}

void run(const Options& options) {
  const std::vector<problem::Line> lines = gather_lines(options.lines);
  FOVEAL_CHECK(lines.size() == 1, "emit: ", lines.size(), " problem lines given; expected one");
  const problem::Problem problem = problem::problem_of(lines[0], {DeviceKind::cuda, 0});
  const std::string& target = lines[0].options.target;
  const std::filesystem::path folder = options.folder;
  std::filesystem::create_directories(folder);
  std::map<std::string, int> uses;  // of a source: some kernels are specialised twice
  for (const auto& source : cuda::kernels_of(problem, options.arch, target)) {
    const int use = ++uses[source.stem];
    const std::string stem = use == 1 ? source.stem : base::join(source.stem, "_", use);
    write(folder / (stem + ".cu"), base::join("// ", problem::to_string(lines[0]), "\n// nvrtc: --gpu-architecture=", source.arch,
                                              " --std=c++20 -default-device; kernel ", source.entry, "\n", cuda::jit::assemble(source)));
    if (options.cubin) write(folder / (stem + "." + source.arch + ".cubin"), cuda::jit::compile(source)->bytes);
  }
  if (options.launcher.empty()) return;
  const cuda::EmittedC emitted = cuda::emit_c(cuda::record(problem, options.arch, target), options.launcher);
  write(folder / (options.launcher + ".h"), emitted.header);
  write(folder / (options.launcher + ".c"), emitted.source);
}

}  // namespace

void add_emit(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("emit", "The GPU kernels of a problem as CUDA sources, machine code, and C that runs them; needs no GPU");
  const auto options = std::make_shared<Options>();
  add_line_options(*command, options->lines);
  command->add_option("--arch", options->arch, "sm_80, sm_86, sm_89, sm_90a, ...")->required();
  command->add_option("-o,--out", options->folder, "Folder to write to")->required();
  command->add_flag("--cubin", options->cubin, "Machine code too (needs NVRTC)");
  command->add_option("--launcher", options->launcher,
                      "NAME.h and NAME.c too: machine code and its launches as C for a program without foveal and NVRTC (needs NVRTC now)");
  command->callback([options] { run(*options); });
}

}  // namespace foveal::cli
