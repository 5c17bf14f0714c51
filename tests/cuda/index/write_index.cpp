// What the kernels of device/ include from their configuration, as files: one configuration of each kernel, as the library writes it for a
// problem of tests/cuda/lines, so that editors and clang-tidy read the kernels as they are compiled.
//
//   write_index OUT LINES... -- STEM...   writes OUT/STEM/config.cuh and OUT/STEM/emit.cuh; fails where no line has a kernel
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
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

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto end = std::find(words.begin(), words.end(), "--");
  if (words.empty() || end == words.end()) return 2;
  std::set<std::string> missing(end + 1, words.end());
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
  for (const std::string& stem : missing) std::fprintf(stderr, "%s: no line has this kernel\n", stem.c_str());
  return missing.empty() ? 0 : 1;
}
