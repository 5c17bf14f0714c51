#pragma once
// Checks that ranks made the same call: where they differ, every rank throws the same error,
// which names the difference and shows both sides.
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "foveal/dist.h"

namespace foveal::dist {

class Agreement {
 public:
  /// Fields are compared in the order in which they are added, at most `most_fields` of them.
  void add(const char* name, const std::string& text);
  void add(const char* name, std::uint64_t value, const std::string& text);
  /// Exchanged instead of the fields: this rank cannot go on.
  void refuse(std::exception_ptr why) { refusal_ = std::move(why); }
  /// Collective. Throws on every rank: a rank's own refusal, else the first refusal of another, else the first difference from rank 0.
  void exchange(Transport& transport);
  /// Did the exchange complete, so that every rank knows its outcome?
  bool is_known_to_all() const { return known_to_all_; }

  static constexpr std::size_t most_fields = 8;

 private:
  struct Field {
    const char* name;
    std::uint64_t value;
    std::string text;
  };
  std::vector<Field> fields_;
  std::exception_ptr refusal_;
  bool known_to_all_ = false;
};

}  // namespace foveal::dist
