#pragma once
// What explain() says about a CPU plan.
#include "cpu/setup.h"
#include "plan/flops.h"

namespace foveal::cpu {

/// Tiles, flops and threads. `products`: matmul flops of the pass in units of the forward's two products.
template <class Real>
void describe_work(const Setup<Real>& setup, Explanation& explanation, double products) {
  const problem::Problem& p = setup.problem;
  const Geometry geometry = setup.geometry;
  explanation.deterministic = true;
  const double nominal = planning::dense_flops(p);
  explanation.flops = explanation.flops_nominal = nominal;
  if (setup.work) {
    explanation.tiles_full = setup.work->full;
    explanation.tiles_partial = setup.work->partial;
    explanation.tiles_empty = setup.work->empty;
    const double visited = static_cast<double>(setup.work->full + setup.work->partial);
    explanation.flops = visited * geometry.lanes * geometry.block_kv * 2.0 * static_cast<double>(p.head_dim + p.head_dim_v) * products;
    const double all = visited + static_cast<double>(setup.work->empty);
    if (all > 0)
      explanation.flops_nominal = nominal * (static_cast<double>(setup.work->full) + 0.5 * static_cast<double>(setup.work->partial)) / all;
  }
  const auto detail = [&](const char* name, const std::string& value) { explanation.details.emplace_back(name, value); };
  detail("target", setup.target);
  detail("arithmetic", std::string(setup.ops.name));
  detail("tile", std::to_string(geometry.lanes) + " lanes (head, query) x " + std::to_string(geometry.block_kv) + " keys");
  detail("threads", std::to_string(setup.slots()));
  if (p.paged)
    detail("pages", geometry.block_kv <= p.page_size() && p.page_size() % geometry.block_kv == 0
                        ? "blocks of keys are read where they lie"
                        : "blocks of keys on several pages are put together");
  detail("block mask", setup.work ? "at planning" : "at run: it depends on the data");
}

}  // namespace foveal::cpu
