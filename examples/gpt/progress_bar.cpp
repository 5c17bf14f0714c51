#include "progress_bar.h"

#include <fmt/core.h>
#include <unistd.h>

namespace gpt {

ProgressBar::ProgressBar(std::int64_t total, std::int64_t done)
    : total_(total), last_line_(done), terminal_(isatty(STDERR_FILENO) != 0), begin_(std::chrono::steady_clock::now()) {}

double ProgressBar::seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

void ProgressBar::update(std::int64_t done, const std::string& facts) {
  const bool last = done == total_;
  if (!terminal_ && !last && (done - last_line_) * 10 < total_) return;
  last_line_ = done;
  constexpr std::int64_t width = 30;
  const auto filled = static_cast<std::size_t>(done * width / total_);
  fmt::print(stderr, "{}[{}{}] {}/{} {}{}", terminal_ ? "\r" : "", std::string(filled, '#'), std::string(width - filled, '.'), done, total_,
             facts, terminal_ && !last ? "\033[K" : "\n");
  std::fflush(stderr);
}

}  // namespace gpt
