// Block masks, as interval evaluation finds them.
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>

#include "array.h"
#include "mask/block_mask.h"
#include "module.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

/// One byte for each tile, row by row: 0 none of its pairs is kept, 1 some may be, 2 all are. arrays: of the parameters; None: unknown.
nb::bytes tile_classes(const Expr& expr, const std::vector<Param>& params, const nb::list& arrays, std::int64_t seqlen_q,
                       std::int64_t seqlen_kv, std::int32_t block_q, std::int32_t block_kv, std::int64_t batch, std::int64_t head) {
  const scoring::ScoreProgram program =
      scoring::compile({.score_mod = {}, .mask = expr, .params = params, .wants_gradient = {}, .backward = false});
  std::vector<TensorView> tensors;
  for (const nb::handle array : arrays) tensors.push_back(array.is_none() ? TensorView{} : view_of_param(array, "params"));
  const scoring::DataReadRanges reads(program.params, tensors);
  const mask::Tiling tiling{.seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv, .block_q = block_q, .block_kv = block_kv};
  const mask::BlockMask found = mask::classify(program.mask, tiling, batch, head, reads);

  const auto columns = static_cast<std::size_t>((seqlen_kv + block_kv - 1) / block_kv);
  std::string classes((found.row_begin.size() - 1) * columns, '\0');
  for (std::size_t row = 0; row + 1 < found.row_begin.size(); ++row)
    for (std::int64_t i = found.row_begin[row]; i < found.row_begin[row + 1]; ++i) {
      const mask::Run& run = found.runs[static_cast<std::size_t>(i)];
      std::memset(classes.data() + row * columns + static_cast<std::size_t>(run.begin), run.full ? 2 : 1,
                  static_cast<std::size_t>(run.end - run.begin));
    }
  return nb::bytes(classes.data(), classes.size());
}

}  // namespace

void bind_mask(nb::module_& m) {
  m.def("tile_classes", &tile_classes, nb::arg("mask"), nb::arg("params"), nb::arg("arrays"), nb::arg("seqlen_q"), nb::arg("seqlen_kv"),
        nb::arg("block_q"), nb::arg("block_kv"), nb::arg("batch"), nb::arg("head"),
        "One byte for each tile, row by row: 0 no pair is kept, 1 some may be, 2 all are. arrays: of the parameters, on the CPU; None: "
        "unknown.");
}

}  // namespace foveal::python
