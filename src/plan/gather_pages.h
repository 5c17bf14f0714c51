#pragma once
// Keys and values in pages, for passes that want those of a sequence together: they are copied beforehand, and their gradients are summed
// into the pages afterwards. Where several sequences share a page, in the order of the sequences, so that results do not depend on threads.
#include <functional>
#include <memory>

#include "plan/backend.h"

namespace foveal::planning {

/// The problem with the keys of each sequence together: k and v are [1, batch * seqlen_kv, heads_kv, dim], dk and dv too, in `gradients`.
problem::Problem with_gathered_keys(const problem::Problem& problem, DType gradients);

/// inner: made for with_gathered_keys(problem, gradients). Its results are those of a paged problem.
std::unique_ptr<Executable> make_gather_pages(const problem::Problem& problem, DType gradients, const PlanOptions& options,
                                              std::unique_ptr<Executable> inner);

}  // namespace foveal::planning
