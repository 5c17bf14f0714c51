#pragma once
// Plans made one after the other whose kernels are compiled all at once: a pass of many launches has many plans, and a kernel
// takes seconds.
#include <functional>
#include <utility>
#include <vector>

#include "cuda/jit/kernel_set.h"

namespace foveal::cuda::jit {

/// While it lives, what this thread plans is not loaded, until load(). Such a plan answers questions, and cannot run yet.
class LoadTogether {
 public:
  LoadTogether();
  ~LoadTogether();
  LoadTogether(const LoadTogether&) = delete;
  LoadTogether& operator=(const LoadTogether&) = delete;
  /// The innermost of this thread, or null.
  static LoadTogether* of_thread();

  void add(KernelSet kernels, int device) { sets_.push_back({std::move(kernels), device}); }
  /// load(): once the source is compiled.
  void add(KernelSource source, std::function<void()> load) { others_.push_back({std::move(source), std::move(load)}); }
  bool empty() const { return sets_.empty() && others_.empty(); }
  /// What load() will ask for, without plans that were dropped; kernels that take longest first.
  std::vector<KernelSource> sources() const;
  /// Compiles on several threads what is not compiled yet, and loads all on this one.
  void load();

 private:
  struct OfPlan {
    KernelSet kernels;
    int device;
  };
  std::vector<OfPlan> sets_;
  std::vector<std::pair<KernelSource, std::function<void()>>> others_;
  LoadTogether* const outer_;
};

}  // namespace foveal::cuda::jit
