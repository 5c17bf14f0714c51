#pragma once
#include <nanobind/nanobind.h>

namespace foveal::python {
void bind_score(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_check(nanobind::module_& m);
void bind_mask(nanobind::module_& m);
void bind_context(nanobind::module_& m);
void bind_jax(nanobind::module_& m);
}  // namespace foveal::python
