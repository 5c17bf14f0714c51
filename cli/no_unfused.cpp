#include "unfused.h"

namespace foveal::cli {

std::unique_ptr<Unfused> make_unfused(const problem::CaseData&, int, std::string& why_not) {
  why_not = "built without OpenBLAS";
  return nullptr;
}

}  // namespace foveal::cli
