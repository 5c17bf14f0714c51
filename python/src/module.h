#pragma once
#include <nanobind/nanobind.h>

#include "foveal/error.h"

namespace foveal::python {

/// Every rank has it, or was told of it: Python's error has the attribute of_all_ranks.
struct ErrorOfAllRanks : Error {
  explicit ErrorOfAllRanks(const Error& error) : Error(error) {}
};

void bind_score(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_check(nanobind::module_& m);
void bind_mask(nanobind::module_& m);
void bind_context(nanobind::module_& m);
void bind_jax(nanobind::module_& m);
}  // namespace foveal::python
