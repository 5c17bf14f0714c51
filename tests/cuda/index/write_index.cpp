// What the kernels of device/ include from their configuration, as files: one configuration of each kernel, as the library writes it for a
// problem of tests/cuda/lines, so that editors and clang-tidy read the kernels as they are compiled. Each other file of device/ has that of a
// kernel which includes it.
//
//   write_index OUT LINES... -- STEM... -- HEADER...   writes config.cuh and emit.cuh into OUT/STEM for each kernel and into OUT/HEADER for
//                                                      each other file; fails where no line has a kernel, or no kernel a file
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/kernels_of.h"
#include "cuda/launch/move_rows.h"
#include "foveal/error.h"
#include "problem/line_problem.h"

namespace {

using namespace foveal;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << "#pragma once\n" << text;
  if (!file.flush()) throw std::filesystem::filesystem_error("cannot write", path, std::make_error_code(std::errc::io_error));
}

void write_kernels(const std::vector<cuda::jit::KernelSource>& sources, const std::filesystem::path& out, std::set<std::string>& missing) {
  for (const cuda::jit::KernelSource& source : sources) {
    if (missing.erase(source.stem) == 0) continue;
    std::filesystem::create_directories(out / source.stem);
    write(out / source.stem / "config.cuh", source.constants.text());
    write(out / source.stem / "emit.cuh", source.score);
  }
}

using Files = std::set<std::string>;

/// Adds the files that a file of device/ includes, and those that they include.
void add_includes(const std::string& path, Files& files) {
  std::istringstream text{std::string(cuda::jit::embedded_file(path))};
  constexpr std::string_view directive = "#include \"";
  for (std::string line; std::getline(text, line);) {
    if (line.rfind(directive, 0) != 0) continue;
    const std::string included = line.substr(directive.size(), line.rfind('"') - directive.size());
    if (files.insert(included).second) add_includes(included, files);
  }
}

/// Gives each header the configuration of the first kernel that includes it; those that none includes stay.
void write_headers(const std::filesystem::path& out, const Files& stems, Files& headers) {
  for (const std::string& stem : stems) {
    Files files;
    add_includes("kernels/" + stem + ".cuh", files);
    for (const std::string& header : files) {
      if (headers.erase(header) == 0) continue;
      std::filesystem::create_directories(out / header);
      for (const char* name : {"config.cuh", "emit.cuh"}) write(out / header / name, "#include \"" + (out / stem / name).string() + "\"\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto end = std::find(words.begin(), words.end(), "--");
  if (words.empty() || end == words.end()) return 2;
  const auto end_of_stems = std::find(end + 1, words.end(), "--");
  if (end_of_stems == words.end()) return 2;
  const Files stems(end + 1, end_of_stems);
  Files missing = stems, headers(end_of_stems + 1, words.end());
  write_kernels(cuda::row_kernel_sources(DType::bf16), words[0], missing);
  for (auto path = words.begin() + 1; path != end; ++path) {
    std::ifstream lines(*path);
    for (std::string line; !missing.empty() && std::getline(lines, line);) {
      if (line.empty() || line[0] == '#') continue;
      for (const char* arch : {"sm_80", "sm_90a"}) {
        try {
          write_kernels(cuda::kernels_of(problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0}), arch, ""), words[0],
                        missing);
        } catch (const Error& error) {
          if (error.code() != ErrorCode::unsupported) throw;  // not every card computes every line
        }
      }
    }
  }
  write_headers(words[0], stems, headers);
  for (const std::string& stem : missing) std::fprintf(stderr, "%s: no line has this kernel\n", stem.c_str());
  for (const std::string& header : headers) std::fprintf(stderr, "%s: no kernel includes this file\n", header.c_str());
  return missing.empty() && headers.empty() ? 0 : 1;
}
