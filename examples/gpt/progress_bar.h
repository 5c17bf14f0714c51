#pragma once
// One line on standard error that fills up: redrawn in place on a terminal, a line now and then otherwise.
#include <chrono>
#include <cstdint>
#include <string>

namespace gpt {

class ProgressBar {
 public:
  ProgressBar(std::int64_t total, std::int64_t done);
  /// `facts` stands behind the bar.
  void update(std::int64_t done, const std::string& facts);
  double seconds() const;

 private:
  std::int64_t total_, last_line_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace gpt
