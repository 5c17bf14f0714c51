#pragma once
// Files that must not outlive a process that is interrupted.
#include <csignal>
#include <string>
#include <vector>

namespace foveal::cli {

/// While one lives, signals that would end the process (Ctrl-C, kill, the end of its terminal or of its CPU time) remove the named files
/// first. Signals that are ignored or handled stay so.
class RemovedOnSignal {
 public:
  RemovedOnSignal();
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

  /// Before the file is made, and only of a name that nobody else uses: also after it was removed or renamed, a signal removes what has it.
  static void name(const std::string& path);

 private:
  std::vector<int> taken_;
};

}  // namespace foveal::cli
