// attention.h, Calls and Programs.
#include "foveal/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "array.h"
#include "background_compile.h"
#include "base/check.h"
#include "base/strided.h"
#include "call.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/shipped.h"
#include "module.h"
#include "program.h"

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

std::vector<bool> flags(nb::handle sequence) {
  std::vector<bool> values;
  for (const nb::handle value : nb::iter(sequence)) values.push_back(PyObject_IsTrue(value.ptr()) == 1);
  return values;
}

/// The arrays by slots: `tensors`, then how tokens lie. of_q: cu_seqlens_q. of_kv: cu_seqlens_kv, or in its place a tuple of the lengths
/// that follow it in the table of roles.
std::vector<nb::handle> by_slot(std::initializer_list<nb::handle> tensors, nb::handle of_q, nb::handle of_kv) {
  std::vector<nb::handle> arrays(tensors.size() + slots::lengths::count, nb::handle(Py_None));
  std::copy(tensors.begin(), tensors.end(), arrays.begin());
  arrays[tensors.size() + slots::lengths::cu_seqlens_q] = of_q;
  std::size_t slot = tensors.size() + slots::lengths::cu_seqlens_kv;
  if (!PyTuple_Check(of_kv.ptr())) {
    arrays[slot] = of_kv;
    return arrays;
  }
  const auto given = static_cast<std::size_t>(PyTuple_Size(of_kv.ptr()));
  if (given != arrays.size() - slot - 1)
    throw Error(ErrorCode::invalid_argument,
                "cu_kv: a tuple of " + std::to_string(given) + "; expected " + std::to_string(arrays.size() - slot - 1));
  for (std::size_t i = 0; i < given; ++i) arrays[++slot] = PyTuple_GetItem(of_kv.ptr(), static_cast<Py_ssize_t>(i));
  return arrays;
}

/// state: None, or an array of the bits of seed and offset that counts instead of these.
DropoutRng rng_of(std::uint64_t seed, std::uint64_t offset, nb::handle state) {
  return {.seed = seed, .offset = offset, .state = state.is_none() ? TensorView{} : view_of(state, "rng_state")};
}

/// The caller's scratch memory, whose size, strides and device the library cannot see. None: null.
void* workspace_of(nb::handle workspace, const Call& call) {
  if (workspace.is_none()) return nullptr;
  const TensorView view = view_of(workspace, "workspace");
  FOVEAL_CHECK(base::is_contiguous(view), "workspace: strides ", base::shape_text(view.strides.data(), view.rank),
               "; expected contiguous memory");
  const std::size_t bytes = static_cast<std::size_t>(view.numel()) * size_of(view.dtype), wanted = call.plan().workspace_bytes();
  FOVEAL_CHECK(bytes >= wanted, "workspace: ", bytes, " bytes; expected ", wanted, " or more (Plan.workspace_bytes)");
  FOVEAL_CHECK(view.device == call.tensors()[slots::q].device, "workspace: on another device than q");
  return view.data;
}

void run_call(const Call& call, const nb::list& arrays, nb::handle workspace, std::uint64_t seed, std::uint64_t offset, nb::handle state) {
  std::vector<TensorView> tensors;
  for (const nb::handle array : arrays) {
    const std::size_t slot = tensors.size();
    if (array.is_none())
      tensors.emplace_back();
    else if (slot < params_slot(call.pass()))
      tensors.push_back(view_of(array, slot_name(call.pass(), slot)));
    else
      tensors.push_back(view_of_param(array, "params"));
  }
  void* const scratch = workspace_of(workspace, call);
  const Stream stream = tensors.empty() ? Stream{} : stream_of(arrays[0], tensors[0].device);
  const DropoutRng rng = rng_of(seed, offset, state);
  const nb::gil_scoped_release release;
  call.run(tensors, rng, scratch, stream);
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
             const std::optional<Param>& sink, double dropout_p, Determinism determinism, BackwardStrategy strategy, bool checked,
             std::int64_t q_offset, std::int64_t kv_offset) {
            new (self) Attention{.score_mod = score_mod.value_or(Expr()),
                                 .mask = mask.value_or(Expr()),
                                 .scale = scale,
                                 .sink = sink,
                                 .dropout_p = dropout_p,
                                 .determinism = determinism,
                                 .backward = strategy,
                                 .checked = checked,
                                 .q_offset = q_offset,
                                 .kv_offset = kv_offset};
          },
          nb::arg("score_mod").none() = nb::none(), nb::arg("mask").none() = nb::none(), nb::arg("scale").none() = nb::none(),
          nb::arg("sink").none() = nb::none(), nb::arg("dropout_p") = 0.0, nb::arg("determinism") = Determinism::fast,
          nb::arg("strategy") = BackwardStrategy::automatic, nb::arg("checked") = false, nb::arg("q_offset") = 0, nb::arg("kv_offset") = 0)
      .def_prop_ro("score_mod", [](const Attention& a) { return a.score_mod.present() ? std::optional(a.score_mod) : std::nullopt; })
      .def_prop_ro("mask", [](const Attention& a) { return a.mask.present() ? std::optional(a.mask) : std::nullopt; })
      .def_ro("scale", &Attention::scale)
      .def_ro("sink", &Attention::sink)
      .def_prop_ro("dropout_p", [](const Attention& a) { return a.dropout_p; })
      .def_ro("q_offset", &Attention::q_offset)
      .def_ro("kv_offset", &Attention::kv_offset);
  m.def(
      "on_plan", [](nb::object observer) { Program::observer() = std::move(observer); }, nb::arg("observer").none(),
      "Called with each new Call and the seconds that planning took; None: nobody is.");

  nb::class_<TensorView>(m, "TensorView", "A tensor without its data: what a call is planned for.")
      .def(nb::init<>(), "An absent tensor.")
      .def(
          "__init__",
          [](TensorView* self, DType dtype, bool cuda, int index, const std::vector<std::int64_t>& sizes) {
            new (self) TensorView(
                contiguous_view(dtype, {cuda ? DeviceKind::cuda : DeviceKind::cpu, index}, sizes.data(), static_cast<int>(sizes.size())));
          },
          nb::arg("dtype"), nb::arg("cuda"), nb::arg("index"), nb::arg("sizes"), "A contiguous tensor.");

  nb::class_<Call>(m, "Call", "One attention, planned for tensors of fixed shapes.")
      .def(
          "__init__",
          [](Call* self, const Attention& attention, Pass pass, const std::vector<Param>& params, const std::vector<TensorView>& tensors,
             const std::vector<bool>& trained, std::int64_t max_seqlen_q, std::int64_t max_seqlen_kv, const std::string& backend,
             const std::string& target, int threads, const std::string& exclude) {
            new (self) Call(attention, pass, params, tensors, trained, max_seqlen_q, max_seqlen_kv,
                            {.backend = backend, .target = target, .exclude = exclude, .threads = threads});
          },
          nb::arg("attention"), nb::arg("pass_"), nb::arg("params"), nb::arg("tensors"), nb::arg("trained"), nb::arg("max_seqlen_q"),
          nb::arg("max_seqlen_kv"), nb::arg("backend"), nb::arg("target"), nb::arg("threads"), nb::arg("exclude"))
      .def("run", &run_call, nb::arg("arrays"), nb::arg("workspace").none(), nb::arg("seed") = 0, nb::arg("offset") = 0,
           nb::arg("rng_state").none() = nb::none(),
           "Runs on arrays by slot (None: absent); throws when they are not what was planned. workspace None: the thread's own (CPU).")
      .def_prop_ro("workspace_bytes", [](const Call& c) { return c.plan().workspace_bytes(); })
      .def_prop_ro("kernel", [](const Call& c) { return c.plan().kernel(); })
      .def("explain", [](const Call& c) { return to_dict(c.plan().explain()); });

  nb::class_<Program>(m, "Program", "One attention with its parameters; finds or makes the planned call for the arrays it is given.")
      .def(
          "__init__",
          [](Program* self, std::string key, const Attention& attention, const std::vector<Param>& params, const std::string& backend,
             const std::string& target, int threads, const std::string& exclude, bool heads_first) {
            new (self) Program(std::move(key), attention, params,
                               {.backend = backend, .target = target, .exclude = exclude, .threads = threads}, heads_first);
          },
          nb::arg("key"), nb::arg("attention"), nb::arg("params"), nb::arg("backend") = "", nb::arg("target") = "", nb::arg("threads") = 0,
          nb::arg("exclude") = "", nb::arg("heads_first") = false)
      .def_prop_ro("key", &Program::key, "All that there is to it, as text: describe.program() makes it again of its key.")
      .def_prop_ro("heads_first", &Program::heads_first)
      .def_prop_ro("attention", &Program::attention)
      .def_prop_ro("params", &Program::params)
      .def_prop_ro("constants", &Program::constants, "Positions of parameters that no derivative leads to, as those of the mask.")
      .def_prop_ro("planned", &Program::planned, "How many calls it has planned.")
      .def(
          "forward",
          [](Program& program, nb::handle q, nb::handle k, nb::handle v, nb::handle params, bool want_lse, nb::handle cu_q,
             nb::handle cu_kv, std::int64_t max_q, std::int64_t max_kv, std::uint64_t seed, std::uint64_t offset, nb::handle rng_state,
             bool trains) {
            const nb::handle none = Py_None;
            return program.run({.pass = Pass::forward,
                                .arrays = by_slot({q, k, v, none, none}, cu_q, cu_kv),
                                .params = params,
                                .wanted = {want_lse},
                                .max_seqlen_q = max_q,
                                .max_seqlen_kv = max_kv,
                                .trains = trains,
                                .rng = rng_of(seed, offset, rng_state)});
          },
          nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("params"), nb::arg("want_lse"), nb::arg("cu_q").none() = nb::none(),
          nb::arg("cu_kv").none() = nb::none(), nb::arg("max_q") = 0, nb::arg("max_kv") = 0, nb::arg("seed") = 0, nb::arg("offset") = 0,
          nb::arg("rng_state").none() = nb::none(), nb::arg("trains") = false,
          "(out, lse), newly made; lse None when not wanted. trains: a backward pass for what requires gradients follows, whose kernels "
          "are compiled\n"
          "beside those of this one.")
      .def(
          "backward",
          [](Program& program, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout, nb::handle dlse,
             nb::handle params, nb::handle wanted, nb::handle cu_q, nb::handle cu_kv, std::int64_t max_q, std::int64_t max_kv,
             std::uint64_t seed, std::uint64_t offset, nb::handle rng_state, bool rounded) {
            const nb::handle none = Py_None;
            return program.run({.pass = Pass::backward,
                                .arrays = by_slot({q, k, v, out, lse, dout, dlse, none, none, none}, cu_q, cu_kv),
                                .params = params,
                                .wanted = flags(wanted),
                                .max_seqlen_q = max_q,
                                .max_seqlen_kv = max_kv,
                                .rounded = rounded,
                                .rng = rng_of(seed, offset, rng_state)});
          },
          nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("dout"), nb::arg("dlse").none(),
          nb::arg("params"), nb::arg("wanted"), nb::arg("cu_q").none() = nb::none(), nb::arg("cu_kv").none() = nb::none(),
          nb::arg("max_q") = 0, nb::arg("max_kv") = 0, nb::arg("seed") = 0, nb::arg("offset") = 0, nb::arg("rng_state").none() = nb::none(),
          nb::arg("rounded") = false,
          "(dq, dk, dv, gradient of each parameter...), newly made; None where `wanted`, one bool for each, says so. Gradients of\n"
          "parameters are float32 or wider; rounded: of the parameter's own dtype.")
      .def(
          "plan",
          [](Program& program, Pass pass, const nb::list& arrays, nb::handle params, nb::handle wanted, std::int64_t max_q,
             std::int64_t max_kv) {
            std::vector<nb::handle> handles(arrays.begin(), arrays.end());
            return program.plan({.pass = pass,
                                 .arrays = std::move(handles),
                                 .params = params,
                                 .wanted = flags(wanted),
                                 .max_seqlen_q = max_q,
                                 .max_seqlen_kv = max_kv});
          },
          nb::arg("pass_"), nb::arg("arrays"), nb::arg("params"), nb::arg("wanted"), nb::arg("max_q") = 0, nb::arg("max_kv") = 0,
          "The call for these arrays by slot (q, k, v, out, lse, then dout, dlse, dq, dk, dv in a backward pass; then the lengths: see "
          "roles()); "
          "None for\n"
          "absent ones, contiguous ones are planned for then.");

  m.def(
      "roles",
      [](Pass pass) {
        nb::list tensors, lengths;
        for (std::size_t slot = 0; slot < params_slot(pass); ++slot)
          (slot < slot_count(pass) ? tensors : lengths).append(slot_name(pass, slot));
        return nb::make_tuple(nb::tuple(tensors), nb::tuple(lengths));
      },
      nb::arg("pass_"), "Names of the tensors of a pass, and of the lengths that follow them, by slot.");
  m.def("finish_ahead", &finish_ahead, nb::call_guard<nb::gil_scoped_release>(),
        "Waits until no kernels are compiled ahead of their call.");
  m.def("set_num_threads", &set_num_threads, nb::arg("threads"), "Threads of the CPU backend; 0 = all that the process may use.");
  m.def("num_threads", &num_threads, "Threads of the CPU backend.");
  m.def(
      "targets",
      [] {
        nb::list rows;
        for (const TargetInfo& t : targets()) rows.append(nb::make_tuple(t.backend, t.target, t.available, t.detail));
        return rows;
      },
      "(backend, target, can it run here?, detail) for everything that this build knows.");
  m.def(
      "shipped_kernels",
      [] {
        const cuda::jit::ShippedKernels& shipped = cuda::jit::shipped_kernels();
        return nb::make_tuple(shipped.folder, shipped.count, shipped.compiler, shipped.unusable);
      },
      "(folder, how many, the NVRTC that compiled them, why they are not used or \"\"): GPU kernels that came with the library.");
  m.def("cache_folder", &cuda::jit::cache_folder, "Where compiled GPU kernels are kept, \"\": nowhere.");
  m.def("cache_unusable", &cuda::jit::cache_unusable, "Why that folder is not used, \"\": it is. Makes it where there is none.");
}

}  // namespace foveal::python
