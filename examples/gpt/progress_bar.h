#pragma once
// A progress bar on standard error: redrawn in place on a terminal, an occasional line otherwise.
#include <chrono>
#include <cstdint>
#include <string>

namespace gpt {

class ProgressBar {
 public:
  ProgressBar(std::int64_t total, std::int64_t done);
  /// `facts` is printed after the bar.
  void update(std::int64_t done, const std::string& facts);
  double seconds() const;

 private:
  std::int64_t total_, last_line_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace gpt
