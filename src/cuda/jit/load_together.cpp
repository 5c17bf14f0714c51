#include "cuda/jit/load_together.h"

#include "cuda/jit/compile.h"

namespace foveal::cuda::jit {
namespace {

thread_local LoadTogether* innermost = nullptr;

}  // namespace

LoadTogether::LoadTogether() : outer_(innermost) { innermost = this; }
LoadTogether::~LoadTogether() { innermost = outer_; }
LoadTogether* LoadTogether::of_thread() { return innermost; }

std::vector<KernelSource> LoadTogether::sources() const {
  std::vector<KernelSource> mains, rest;
  for (const OfPlan& plan : sets_) {
    const std::vector<KernelSource>& own = plan.kernels.sources();
    if (own.empty() || !plan.kernels.is_held()) continue;
    mains.push_back(own.front());
    rest.insert(rest.end(), own.begin() + 1, own.end());
  }
  for (const auto& [source, load] : others_) rest.push_back(source);
  mains.insert(mains.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  return mains;
}

void LoadTogether::load() {
  innermost = outer_;
  compile(sources());
  for (OfPlan& plan : sets_)
    if (plan.kernels.is_held()) plan.kernels.load(compile(plan.kernels.sources()), plan.device);
  for (const auto& [source, load] : others_) load();
  sets_.clear(), others_.clear();
}

}  // namespace foveal::cuda::jit
