#pragma once
// What the system sends to a thread that writes more to a file than the process may.
#include <csignal>
#include <ctime>

namespace foveal::base {

/// While it lives, a file that may not grow is an error of write(), as a full disk is, and does not end the process.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    const timespec at_once{};
    sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t signal_, before_;
};

}  // namespace foveal::base
