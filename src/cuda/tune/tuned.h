#pragma once
// Configurations measured on the device at hand, which replace those of the tables: a file
// that `foveal tune` writes and FOVEAL_TUNED names.
//
// A line is `device | family | configuration | class`, such as
//   NVIDIA H200 | sm90.forward | block_kv=160 consumers=2 stages=2 ... | forward bf16 d128:128 q4096 kv4096 group=1 causal ...
// A device is named as the driver names it; a family is a kernel with tables of its own; a class is what configurations depend on.
#include <charconv>
#include <optional>
#include <string>

#include "base/check.h"
#include "problem/problem.h"

namespace foveal::cuda {

struct Tuned {
  std::string config;
  std::string source;  ///< "table.txt:3"
};
/// The configuration that replaces a table's choice: that of a Trial, or else the file's. Throws invalid_argument, naming file and line,
/// for a file that cannot be read.
std::optional<Tuned> tuned_config(const problem::Problem& problem, const std::string& device, const std::string& family);
/// A line for such a file.
std::string tuned_line(const problem::Problem& problem, const std::string& device, const std::string& family, const std::string& config);
/// Overrides FOVEAL_TUNED and reads the file; "" for none.
void set_tuned_file(const std::string& path);

/// While it lives, this thread's plans use this configuration of a family.
class Trial {
 public:
  Trial(std::string family, std::string config);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
};

// ---- configurations as text ----
//
// A configuration lists the fields that are chosen:
// `template <class Self, class Fn> static void chosen(Self& self, Fn fn) { fn("stages", self.stages); }`.

/// "block_kv=160 consumers=2 ..."
template <class Config>
std::string text_of(const Config& config) {
  std::string text;
  Config::chosen(config, [&](const char* name, const auto& value) {
    text += base::join(text.empty() ? "" : " ", name, "=", static_cast<int>(value));
  });
  return text;
}

/// Throws invalid_argument, naming `source`, for any other text.
template <class Config>
Config parse_config(const std::string& text, const std::string& source) {
  Config config;
  std::string rest = text + " ";
  const auto take = [&](const std::string& name) {
    const std::string head = name + "=";
    int value = 0;
    const char* const end = rest.data() + rest.size();
    if (rest.compare(0, head.size(), head) == 0) {
      const auto [after, error] = std::from_chars(rest.data() + head.size(), end, value);
      if (error == std::errc() && *after == ' ') {
        rest.erase(0, static_cast<std::size_t>(after + 1 - rest.data()));
        return value;
      }
    }
    base::fail(ErrorCode::invalid_argument, source, ": configuration \"", text, "\"; expected ", head, "a number at \"", rest, "\"");
  };
  Config::chosen(config, [&](const char* name, auto& value) { value = static_cast<std::remove_reference_t<decltype(value)>>(take(name)); });
  FOVEAL_CHECK(rest.empty(), source, ": configuration \"", text, "\" goes on with \"", rest, "\"; expected nothing more");
  return config;
}

}  // namespace foveal::cuda
