#pragma once
// What a long run is started with: FIRST_SEED LIMIT [FILE], and --NAME VALUE between them.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "foveal/tensor.h"

namespace foveal::fuzz {

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string text = argv[i];
      if (text.starts_with("--") && i + 1 < argc)
        named_[text.substr(2)] = argv[++i];
      else
        places_.push_back(text);
    }
  }

  std::uint64_t first_seed() const { return places_.empty() ? 1 : std::strtoull(places_[0].c_str(), nullptr, 10); }
  /// Seconds or minutes.
  double limit(double otherwise) const { return places_.size() < 2 ? otherwise : std::atof(places_[1].c_str()); }
  /// Empty: standard output.
  std::string file() const { return places_.size() < 3 ? "" : places_[2]; }
  DeviceKind device() const {
    const auto found = named_.find("device");
    return found != named_.end() && found->second == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
  }
  std::uint64_t number(const std::string& name, std::uint64_t otherwise) const {
    const auto found = named_.find(name);
    return found == named_.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 10);
  }

 private:
  std::map<std::string, std::string> named_;
  std::vector<std::string> places_;
};

}  // namespace foveal::fuzz
