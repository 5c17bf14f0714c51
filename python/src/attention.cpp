// attention.h, and Calls.
#include "foveal/attention.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "call.h"
#include "module.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

nb::dict to_dict(const Explanation& e) {
  nb::dict d;
  d["problem"] = e.problem;
  d["backend"] = e.backend;
  d["kernel"] = e.kernel;
  d["strategy"] = e.strategy;
  d["reduction"] = e.reduction;
  d["flops"] = e.flops;
  d["flops_nominal"] = e.flops_nominal;
  d["tiles_full"] = e.tiles_full;
  d["tiles_partial"] = e.tiles_partial;
  d["tiles_empty"] = e.tiles_empty;
  d["workspace_bytes"] = e.workspace_bytes;
  d["deterministic"] = e.deterministic;
  nb::list refusals;
  for (const Refusal& r : e.refusals) refusals.append(nb::make_tuple(r.candidate, r.reason));
  d["refusals"] = refusals;
  nb::dict details;
  for (const auto& [name, value] : e.details) details[name.c_str()] = value;
  d["details"] = details;
  d["text"] = e.to_string();
  return d;
}

}  // namespace

void bind_attention(nb::module_& m) {
  nb::enum_<Pass>(m, "Pass").value("forward", Pass::forward).value("backward", Pass::backward);
  nb::enum_<Determinism>(m, "Determinism").value("fast", Determinism::fast).value("reproducible", Determinism::reproducible);
  nb::enum_<BackwardStrategy>(m, "BackwardStrategy")
      .value("automatic", BackwardStrategy::automatic)
      .value("fused", BackwardStrategy::fused)
      .value("split", BackwardStrategy::split)
      .value("two_scan", BackwardStrategy::two_scan);
  nb::enum_<DType>(m, "DType")
      .value("f64", DType::f64)
      .value("f32", DType::f32)
      .value("bf16", DType::bf16)
      .value("f16", DType::f16)
      .value("i64", DType::i64)
      .value("i32", DType::i32)
      .value("i16", DType::i16)
      .value("i8", DType::i8)
      .value("u8", DType::u8)
      .value("boolean", DType::boolean);

  nb::class_<Attention>(m, "Attention")
      .def(
          "__init__",
          [](Attention* self, const std::optional<Expr>& score_mod, const std::optional<Expr>& mask, std::optional<double> scale,
             const std::optional<Param>& sink, double dropout_p, std::uint64_t seed, std::uint64_t offset, Determinism determinism,
             BackwardStrategy strategy, bool checked, std::int64_t q_offset, std::int64_t kv_offset) {
            new (self) Attention{.score_mod = score_mod.value_or(Expr()),
                                 .mask = mask.value_or(Expr()),
                                 .scale = scale,
                                 .sink = sink,
                                 .dropout = {dropout_p, seed, offset},
                                 .determinism = determinism,
                                 .backward = strategy,
                                 .checked = checked,
                                 .q_offset = q_offset,
                                 .kv_offset = kv_offset};
          },
          nb::arg("score_mod").none() = nb::none(), nb::arg("mask").none() = nb::none(), nb::arg("scale").none() = nb::none(),
          nb::arg("sink").none() = nb::none(), nb::arg("dropout_p") = 0.0, nb::arg("seed") = 0, nb::arg("offset") = 0,
          nb::arg("determinism") = Determinism::fast, nb::arg("strategy") = BackwardStrategy::automatic, nb::arg("checked") = false,
          nb::arg("q_offset") = 0, nb::arg("kv_offset") = 0);

  nb::class_<Spec>(m, "Spec").def(
      "__init__",
      [](Spec* self, DType dtype, bool cuda, int index, std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
        new (self) Spec{dtype, {cuda ? DeviceKind::cuda : DeviceKind::cpu, index}, std::move(sizes), std::move(strides)};
      },
      nb::arg("dtype"), nb::arg("cuda"), nb::arg("index"), nb::arg("sizes"), nb::arg("strides"));

  nb::class_<Call>(m, "Call")
      .def(
          "__init__",
          [](Call* self, const Attention& attention, Pass pass, const Call::Specs& specs, const Call::Params& params,
             const Call::Params& dparams, std::int64_t max_seqlen_q, std::int64_t max_seqlen_kv, const std::string& backend,
             const std::string& target, int threads) {
            const PlanOptions options{.backend = backend, .target = target, .threads = threads};
            new (self) Call(attention, pass, specs, params, dparams, max_seqlen_q, max_seqlen_kv, options);
          },
          nb::arg("attention"), nb::arg("pass_"), nb::arg("specs"), nb::arg("params") = Call::Params{}, nb::arg("dparams") = Call::Params{},
          nb::arg("max_seqlen_q") = 0, nb::arg("max_seqlen_kv") = 0, nb::arg("backend") = "", nb::arg("target") = "",
          nb::arg("threads") = 0)
      .def(
          "run",
          [](const Call& call, const std::vector<std::uintptr_t>& pointers, std::uintptr_t workspace, std::uintptr_t stream) {
            nb::gil_scoped_release release;
            call.run(pointers, reinterpret_cast<void*>(workspace), Stream{reinterpret_cast<void*>(stream)});
          },
          nb::arg("pointers"), nb::arg("workspace") = 0, nb::arg("stream") = 0)
      .def_prop_ro("workspace_bytes", [](const Call& c) { return c.plan().workspace_bytes(); })
      .def_prop_ro("kernel", [](const Call& c) { return c.plan().kernel(); })
      .def("explain", [](const Call& c) { return to_dict(c.plan().explain()); });

  m.def("set_num_threads", &set_num_threads, nb::arg("threads"), "Threads of the CPU backend; 0 = all that the process may use.");
  m.def("num_threads", &num_threads);
  m.def("targets", [] {
    nb::list rows;
    for (const TargetInfo& t : targets()) rows.append(nb::make_tuple(t.backend, t.target, t.available, t.detail));
    return rows;
  });
}

}  // namespace foveal::python
