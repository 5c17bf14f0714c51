#pragma once
// Architectures: the targets of this backend, and facts about GPUs, which need not be present, by the name of their architecture.
#include <optional>
#include <string>
#include <vector>

#include "cuda/candidate.h"
#include "cuda/jit/driver.h"

namespace foveal::cuda {

/// Kernels written for one architecture: what PlanOptions::target names.
struct Target {
  const char* name;  ///< "sm90"
  int capability;    ///< the lowest that its kernels run on
  bool later;        ///< do they also run on later ones?
  const char* arch;  ///< that kernels are compiled for if no device is given, with the suffix that their instructions need
  std::vector<const Candidate*> candidates;
  std::vector<const char*> families;  ///< of their configurations, in files of tuned ones

  bool runs_on(int device) const { return later ? device >= capability : device == capability; }
  /// Why it does not run on a device; nullopt if it does.
  std::optional<std::string> refuses(const driver::DeviceFacts& facts) const;
};
/// In order of preference.
const std::vector<Target>& targets();
/// Throws invalid_argument for another name.
const Target& target_of(const std::string& name);
/// "sm80, sm90": the oldest first.
std::string target_names(const std::string& separator);

/// Machine code for devices of this capability alone: "sm_80", "sm_90a".
std::string arch_of_device(int capability);

/// 86 of "sm_86", 90 of "sm_90a". Like the others, throws invalid_argument for an arch that is not known.
int capability_of(const std::string& arch);

/// How many multiprocessors the cards of an architecture have, the most first; the first is the usual number.
std::vector<int> multiprocessors_of(const std::string& arch);

/// Typical facts of an architecture; multiprocessors: 0 for the usual number.
driver::DeviceFacts facts_of_arch(const std::string& arch, int multiprocessors);

}  // namespace foveal::cuda
