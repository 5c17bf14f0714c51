#include "files/removed_on_signal.h"

#include <unistd.h>

#include <atomic>

namespace foveal::cli {
namespace {

/// A list that only grows: a signal may arrive in any thread, while another adds to it.
struct Named {
  std::string path;
  const Named* next;
};
std::atomic<const Named*> named{nullptr};
static_assert(std::atomic<const Named*>::is_always_lock_free);

extern "C" void remove_and_end(int number) {  // nothing but what a handler may call
  for (const Named* file = named.load(); file != nullptr; file = file->next) unlink(file->path.c_str());
  raise(number);
}

}  // namespace

RemovedOnSignal::RemovedOnSignal() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXCPU}) {
    struct sigaction before {
    }, now{};
    if (sigaction(number, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) continue;
    now.sa_handler = remove_and_end;
    now.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);  // so that raise() ends the process as the signal would have
    if (sigaction(number, &now, nullptr) == 0) taken_.push_back(number);
  }
}

RemovedOnSignal::~RemovedOnSignal() {
  for (const int number : taken_) std::signal(number, SIG_DFL);
}

void RemovedOnSignal::name(const std::string& path) { named = new Named{path, named}; }

}  // namespace foveal::cli
