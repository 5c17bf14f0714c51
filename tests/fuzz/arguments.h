#pragma once
// What a long run is started with: [FIRST_SEED [LIMIT [FILE]]], and --NAME VALUE between them. Anything else ends the program.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "foveal/tensor.h"

namespace foveal::fuzz {

class Arguments {
 public:
  /// names: of the options that there are.
  Arguments(int argc, char** argv, const std::vector<std::string>& names = {}) : program_(argv[0]) {
    for (int i = 1; i < argc; ++i) {
      const std::string text = argv[i];
      if (!text.starts_with("--")) {
        places_.push_back(text);
        continue;
      }
      const std::string name = text.substr(2);
      if (std::find(names.begin(), names.end(), name) == names.end()) refuse(text + ": there is no such option");
      if (++i == argc) refuse(text + ": no value");
      named_[name] = argv[i];
    }
    if (places_.size() > 3) refuse(places_[3] + ": expected at most FIRST_SEED, LIMIT and FILE");
  }

  std::uint64_t first_seed() const { return places_.empty() ? 1 : parse<std::uint64_t>("FIRST_SEED", places_[0]); }
  /// Seconds or minutes.
  double limit(double otherwise) const { return places_.size() < 2 ? otherwise : parse<double>("LIMIT", places_[1]); }
  /// Empty: standard output.
  std::string file() const { return places_.size() < 3 ? "" : places_[2]; }
  DeviceKind device() const {
    const auto found = named_.find("device");
    if (found == named_.end() || found->second == "cpu") return DeviceKind::cpu;
    if (found->second != "cuda") refuse("--device: " + found->second + "; expected cpu or cuda");
    return DeviceKind::cuda;
  }
  std::uint64_t number(const std::string& name, std::uint64_t otherwise) const {
    const auto found = named_.find(name);
    return found == named_.end() ? otherwise : parse<std::uint64_t>("--" + name, found->second);
  }

 private:
  template <class T>
  T parse(const std::string& what, const std::string& text) const {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) refuse(what + ": " + text + "; expected a number");
    return value;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    std::fprintf(stderr, "%s: %s\n", program_.c_str(), why.c_str());
    std::exit(2);
  }

  std::string program_;
  std::map<std::string, std::string> named_;
  std::vector<std::string> places_;
};

}  // namespace foveal::fuzz
