#pragma once
// Paged keys and values for kernels that need those of a sequence contiguous: they are gathered before, and their gradients are scattered
// into the pages afterwards, summed over sequences that share a page in a fixed order, so that results do not depend on the number of
// threads.
#include <functional>
#include <memory>

#include "plan/backend.h"

namespace foveal::planning {

/// The problem with contiguous keys: k, v, dk, dv are [1, batch * seqlen_kv, heads_kv, dim], gradients in dtype `gradients`; seqlen_kv is
/// rounded up to rows_multiple.
problem::Problem gathered(const problem::Problem& problem, DType gradients, std::int64_t rows_multiple = 1);

/// Bytes of the gathered tensors, each aligned to 256.
std::size_t gathered_bytes(const problem::Problem& gathered);
/// Places them in `memory`, as keys, values and gradients of `buffers`.
void place_gathered(const problem::Problem& gathered, void* memory, problem::Buffers& buffers);
void describe_gathered(const problem::Problem& gathered, std::int64_t page_size, Explanation& explanation);

/// A copy of Buffers in memory that each thread keeps, so that repeated runs do not allocate.
class OwnBuffers {
 public:
  explicit OwnBuffers(const problem::Buffers& given);
  ~OwnBuffers();
  OwnBuffers(const OwnBuffers&) = delete;
  OwnBuffers& operator=(const OwnBuffers&) = delete;
  problem::Buffers* operator->() { return &buffers_; }
  problem::Buffers& operator*() { return buffers_; }

 private:
  static problem::Buffers& home();
  problem::Buffers buffers_;
};

/// Runs `inner`, which was made for gathered(problem, gradients), on the paged problem.
std::unique_ptr<Executable> with_gathered_pages(const problem::Problem& problem, DType gradients, const PlanOptions& options,
                                                std::unique_ptr<Executable> inner);

}  // namespace foveal::planning
