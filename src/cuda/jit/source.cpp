#include "cuda/jit/source.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace foveal::cuda::jit {

extern const std::pair<std::string_view, std::string_view> embedded_table[];
extern const int embedded_count;

namespace {

/// Copies a file into `out`, replacing each #include "..." by the text it names, once.
class Assembler {
 public:
  explicit Assembler(const KernelSource& source) : source_(source) {}

  std::string run() {
#ifdef FOVEAL_EVERY_LANE_ARRIVES
    out_ += "#define FOVEAL_EVERY_LANE_ARRIVES\n";
#endif
    include("kernels/" + source_.stem + ".cuh");
    return std::move(out_);
  }

 private:
  void include(const std::string& path) {
    if (std::find(done_.begin(), done_.end(), path) != done_.end()) return;
    done_.push_back(path);
    std::string_view body;
    if (path == "config.cuh") {
      body = source_.constants.text();
    } else if (path == "emit.cuh") {
      body = source_.score;
    } else {
      body = embedded_file(path);
      FOVEAL_CHECK(!body.empty(), "kernel ", source_.stem, ": no embedded file \"", path, "\"");
    }
    copy(path, body);
  }

  void copy(const std::string& path, std::string_view body) {
    constexpr std::string_view directive = "#include \"";
    mark(path, 1);
    int line = 1;
    for (std::size_t at = 0; at < body.size(); ++line) {
      const std::size_t end = std::min(body.find('\n', at), body.size());
      const std::string_view text = body.substr(at, end - at);
      at = end + 1;
      if (text.substr(0, directive.size()) == directive) {
        const std::size_t close = text.find('"', directive.size());
        include(std::string(text.substr(directive.size(), close - directive.size())));
        mark(path, line + 1);
      } else if (text != "#pragma once") {
        out_.append(text);
        out_.push_back('\n');
      } else {
        out_.push_back('\n');
      }
    }
  }

  void mark(const std::string& path, int line) { out_ += base::join("#line ", line, " \"", path, "\"\n"); }

  const KernelSource& source_;
  std::vector<std::string> done_;
  std::string out_;
};

}  // namespace

Constants& Constants::set_shared_bytes(std::size_t bytes) {
  text_ += base::join("constexpr int kSharedBytes = ", bytes, ";\n");
  return *this;
}

Constants& Constants::set_type(const std::string& name, const std::string& type) {
  text_ += base::join("using ", name, " = ", type, ";\n");
  return *this;
}

Constants& Constants::include(const std::string& file) {
  text_ += base::join("#include \"", file, "\"\n");
  return *this;
}

const char* device_type(DType dtype) {
  static constexpr const char* names[] = {"double", "float", "foveal::device::bf16", "foveal::device::f16", "long long",
                                          "int",    "short", "signed char",          "unsigned char",       "unsigned char"};
  static_assert(std::size(names) == static_cast<std::size_t>(DType::boolean) + 1);
  return names[static_cast<std::size_t>(dtype)];
}

std::string assemble(const KernelSource& source) { return Assembler(source).run(); }

std::string_view embedded_file(std::string_view path) {
  for (int i = 0; i < embedded_count; ++i)
    if (embedded_table[i].first == path) return embedded_table[i].second;
  return {};
}

std::vector<std::string_view> embedded_files() {
  std::vector<std::string_view> paths;
  paths.reserve(static_cast<std::size_t>(embedded_count));
  for (int i = 0; i < embedded_count; ++i) paths.push_back(embedded_table[i].first);
  return paths;
}

}  // namespace foveal::cuda::jit
