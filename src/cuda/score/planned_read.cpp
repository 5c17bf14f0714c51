#include "cuda/score/planned_read.h"

#include <iterator>

#include "base/check.h"

namespace foveal::cuda {

const char* to_string(Collector collector) {
  static constexpr const char* names[] = {"from dk",
                                          "in registers",
                                          "along lines of a tile",
                                          "bins in shared memory",
                                          "a window of bins in shared memory",
                                          "exact sums in L2",
                                          "stored",
                                          "a table for each query in shared memory",
                                          "pairs",
                                          "beside dq",
                                          "a portable pass",
                                          "portable pairs"};
  static_assert(std::size(names) == static_cast<std::size_t>(Collector::any_pairs) + 1);
  return names[static_cast<std::size_t>(collector)];
}

std::string PlannedRead::text() const { return base::join(to_string(collector), " (", kernel, "): ", why); }

std::vector<PlannedRead> walked_reads(const problem::Problem& p) {
  std::vector<PlannedRead> reads;
  for (const ReadFacts& facts : read_facts(p)) reads.push_back({static_cast<int>(reads.size()), facts, Collector::walk, "", ""});
  return reads;
}

}  // namespace foveal::cuda
