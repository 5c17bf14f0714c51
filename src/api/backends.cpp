// The only file that names all backends.
#include "api/backends.h"

#include "cpu/cpu_backend.h"
#include "cuda/cuda_backend.h"
#include "reference/reference_backend.h"

namespace foveal {
namespace api {

const planning::Backends& backends() {
  static const auto& all = *new planning::Backends([] {  // never destroyed: destructors of static objects may make calls
    planning::Backends list;
    list.push_back(cpu::make_cpu_backend());
    list.push_back(cuda::make_cuda_backend());
    list.push_back(reference::make_reference_backend());
    return list;
  }());
  return all;
}

}  // namespace api

std::vector<TargetInfo> targets() {
  std::vector<TargetInfo> all;
  for (const auto& backend : api::backends())
    for (TargetInfo& info : backend->targets()) all.push_back(std::move(info));
  return all;
}

}  // namespace foveal
