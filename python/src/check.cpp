// Checks of problem lines and of the caller's arrays against the fp64 reference.
#include "check/check.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "base/dtype.h"
#include "call.h"
#include "module.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

nb::dict to_dict(const check::Report& report) {
  nb::dict d;
  d["line"] = report.line;
  d["kernel"] = report.kernel;
  d["passed"] = report.pass;
  d["refused"] = report.refused;
  d["failure"] = report.failure;
  nb::list tensors;
  for (const check::TensorReport& t : report.tensors) {
    nb::dict row;
    row["name"] = t.name;
    row["passed"] = t.pass;
    row["max_error"] = t.max_error;
    row["max_bound"] = t.max_bound;
    row["rms_error"] = t.rms_error;
    row["rms_bound"] = t.rms_bound;
    row["naive_max_error"] = t.naive_max_error;
    row["failure"] = t.failure;
    tensors.append(row);
  }
  d["tensors"] = tensors;
  return d;
}

/// Lengths of the sequences of a packed or paged batch; empty for a plain batch.
std::vector<std::pair<std::int64_t, std::int64_t>> lengths_of(const problem::Line& line, const TensorView* of_call) {
  const auto at = [](const TensorView& view, std::int64_t i) { return base::load_integer(view.data, view.dtype, i * view.strides[0]); };
  const auto between = [&](const TensorView& cu, std::int64_t i) { return at(cu, i + 1) - at(cu, i); };
  using namespace slots::lengths;
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;
  for (std::int64_t i = 0; line.ragged() && i < line.batch; ++i)
    lengths.emplace_back(line.varlen ? between(of_call[cu_seqlens_q], i) : line.seqlen_q,
                         line.paged() ? at(of_call[seqlens_kv], i) : between(of_call[cu_seqlens_kv], i));
  return lengths;
}

/// Checks the call's problem with the caller's values: arrays by slot, in host memory wherever the call runs; outputs are not read.
check::Report check_call(const Call& call, const nb::list& arrays, const DropoutRng& rng, const PlanOptions& options) {
  std::vector<TensorView> tensors;
  for (const nb::handle array : arrays) tensors.push_back(array.is_none() ? TensorView{} : view_of_param(array, "check"));
  const std::size_t roles = slot_count(call.pass());
  problem::Line line = problem::parse_line(call.plan().explain().problem);
  line.device = call.tensors()[slots::q].device;
  line.options = options;
  line.rng = rng;
  line.lengths = lengths_of(line, tensors.data() + roles);

  problem::CaseData data(line);
  for (std::size_t slot = 0; slot < roles; ++slot)
    if (tensors[slot].present()) problem::set_values(data.view(slot_name(call.pass(), slot)), problem::values_of(tensors[slot]));
  if (line.paged())
    data.set_pages(problem::values_of(tensors[roles + slots::lengths::block_table]),
                   problem::values_of(tensors[roles + slots::lengths::seqlens_kv]));
  for (std::size_t i = 0; i < call.params().size(); ++i)
    for (std::size_t j = 0; j < line.params.size(); ++j)
      if (line.params[j].param.name() == call.params()[i].name())
        problem::set_values(data.param(j), problem::values_of(tensors[params_slot(call.pass()) + i]));
  return check::Checker(std::move(data))(options);
}

}  // namespace

void bind_check(nb::module_& m) {
  m.def(
      "check_line",
      [](const std::string& text) {
        const problem::Line line = problem::parse_line(text);
        check::Report report;
        {
          const nb::gil_scoped_release release;
          report = check::check_line(line);
        }
        return to_dict(report);
      },
      nb::arg("line"));
  m.def(
      "check_call",
      [](const Call& call, const nb::list& arrays, std::uint64_t seed, std::uint64_t offset, const std::string& backend,
         const std::string& target, int threads, const std::string& exclude) {
        return to_dict(check_call(call, arrays, {.seed = seed, .offset = offset},
                                  {.backend = backend, .target = target, .exclude = exclude, .threads = threads}));
      },
      nb::arg("call"), nb::arg("arrays"), nb::arg("seed"), nb::arg("offset"), nb::arg("backend") = "", nb::arg("target") = "",
      nb::arg("threads") = 0, nb::arg("exclude") = "");
}

}  // namespace foveal::python
