#pragma once
// Keys and values in pages, for passes that want those of a sequence together: they are copied beforehand, and their gradients are summed
// into the pages afterwards. Where several sequences share a page, in the order of the sequences, so that results do not depend on threads.
#include <functional>
#include <memory>

#include "plan/backend.h"

namespace foveal::planning {

/// The problem with the keys of each sequence together: k and v are [1, batch * seqlen_kv, heads_kv, dim], dk and dv too, in `gradients`. seqlen_kv is
/// rounded up to rows_multiple.
problem::Problem with_gathered_keys(const problem::Problem& problem, DType gradients, std::int64_t rows_multiple = 1);

/// Of the tensors that are gathered, from memory aligned to 256 bytes on.
std::size_t gathered_bytes(const problem::Problem& gathered);
/// Makes them the keys, values and gradients of `buffers`.
void place_gathered(const problem::Problem& gathered, void* memory, problem::Buffers& buffers);
void describe_gathered(const problem::Problem& gathered, std::int64_t page_size, Explanation& explanation);

/// A thread's Buffers, lent for one run, so that a run allocates nothing once it has run.
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

/// inner: made for with_gathered_keys(problem, gradients). Its results are those of a paged problem.
std::unique_ptr<Executable> make_gather_pages(const problem::Problem& problem, DType gradients, const PlanOptions& options,
                                              std::unique_ptr<Executable> inner);

}  // namespace foveal::planning
