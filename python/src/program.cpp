#include "program.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <set>

#include "array.h"
#include "background_compile.h"
#include "base/wide_type.h"
#include "expression.h"
#include "plan/signature.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

constexpr std::size_t first_gradient = 3;  // among the results of a backward pass: dq, dk, dv come before the parameters'

/// Equal for calls of a program that share a plan and the makers of their results.
void write_signature(std::int64_t program, const Program::Arguments& arguments, const std::vector<TensorView>& tensors, std::string& out) {
  planning::Signature signature(out);
  signature.add(program);
  signature.add(arguments.pass);
  signature.add(arguments.arrays[slots::q].type().ptr());
  signature.add(arguments.max_seqlen_q);
  signature.add(arguments.max_seqlen_kv);
  signature.add(arguments.rounded);
  for (const bool wanted : arguments.wanted) signature.add(wanted);
  for (const TensorView& tensor : tensors) signature.add(tensor);
}

TensorView contiguous_like(const TensorView& tensor, DType dtype) {
  return contiguous_view(dtype, tensor.device, tensor.sizes.data(), tensor.rank);
}

/// Without gaps, [batch, seqlen, heads, dim] in the order that `order` has in memory; where its elements repeat, or dim does not come
/// last there, as a contiguous [batch, heads, seqlen, dim].
TensorView dense_in_order_of(const TensorView& tensor, const TensorView& order) {
  TensorView dense = tensor;
  std::array<std::size_t, 3> dims{0, 2, 1};
  bool own = order.strides[3] == 1 || order.sizes[3] <= 1;
  for (const std::size_t d : dims) own = own && (order.strides[d] > 0 || order.sizes[d] <= 1);
  if (own)
    std::stable_sort(dims.begin(), dims.end(), [&order](std::size_t a, std::size_t b) { return order.strides[a] > order.strides[b]; });
  std::int64_t step = tensor.sizes[3];
  for (std::size_t at = dims.size(); at-- > 0; step *= tensor.sizes[dims[at]]) dense.strides[dims[at]] = step;
  dense.strides[3] = 1;
  return dense;
}

TensorView out_of(const TensorView& q, const TensorView& v, bool paged) {
  if ((q.rank != 3 && q.rank != 4) || v.rank != (paged ? 4 : q.rank))
    throw Error(ErrorCode::invalid_argument,
                "q: rank " + std::to_string(q.rank) + ", v: rank " + std::to_string(v.rank) +
                    (paged ? "; expected q [batch, seqlen, heads, dim] or packed [total, heads, dim], and v [pages, page_size, heads, dim]"
                           : "; expected both [batch, seqlen, heads, dim] or both packed [total, heads, dim]"));
  TensorView out = q;
  out.sizes[static_cast<std::size_t>(q.rank - 1)] = v.sizes[static_cast<std::size_t>(v.rank - 1)];
  return contiguous_like(out, q.dtype);
}

/// [batch, heads, seqlen], packed [heads, total].
TensorView lse_of(const TensorView& q) {
  const bool packed = q.rank == 3;
  const std::array<std::int64_t, 3> sizes =
      packed ? std::array{q.sizes[1], q.sizes[0], std::int64_t{1}} : std::array{q.sizes[0], q.sizes[2], q.sizes[1]};
  return contiguous_view(base::wide_type(q.dtype), q.device, sizes.data(), packed ? 2 : 3);
}

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.device == b.device && a.rank == b.rank && a.sizes == b.sizes && a.strides == b.strides;
}

bool has_heads(std::size_t slot) { return slot < slots::backward_count && slot != slots::lse && slot != slots::dlse; }

/// [batch, heads, seqlen, dim] to [batch, seqlen, heads, dim], and back.
void swap_heads(TensorView& view) {
  if (view.rank != 4) return;
  std::swap(view.sizes[1], view.sizes[2]);
  std::swap(view.strides[1], view.strides[2]);
}

nb::object maker(const TensorView& tensor, nb::handle like) {
  nb::list sizes, strides;
  for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d) {
    sizes.append(tensor.sizes[d]);
    strides.append(tensor.strides[d]);
  }
  return nb::module_::import_("foveal.arrays").attr("maker")(nb::tuple(sizes), nb::tuple(strides), tensor.dtype, like);
}

}  // namespace

/// A planned call, with allocators of its results and scratch memory in the arrays' framework.
struct Program::Site {
  struct Maker {
    std::size_t slot;
    TensorView look;
    nb::object make;
  };
  std::string signature;
  std::shared_ptr<Call> call;
  nb::object kind;  ///< the arrays' type
  std::vector<Maker> makers;
  nb::object scratch;  ///< null: the CPU call uses the pool

  /// The maker of results of this shape, or null. A growing KV cache leaves the shape of the results unchanged.
  nb::object maker_of(const TensorView& look, nb::handle like) const {
    if (kind.is(like.type()))
      for (const Maker& maker : makers)
        if (same_shape(maker.look, look)) return maker.make;
    return {};
  }
};

std::vector<std::size_t> Program::constants_of(const Attention& attention, const std::vector<Param>& params) {
  std::set<std::string> reached;
  if (attention.score_mod.present()) reached = differentiable_params(attention.score_mod);
  if (attention.sink) reached.insert(attention.sink->name());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < params.size(); ++i)
    if (!reached.contains(params[i].name())) found.push_back(i);
  return found;
}

std::int64_t Program::next_number() {
  static std::int64_t number = 0;
  return ++number;
}

/// Planned calls of all programs. Used with the GIL held, since makers are Python objects.
base::LruCache<Program::Site>& Program::sites() {
  static auto& sites = *new base::LruCache<Site>(2048);  // never destroyed: it outlives the interpreter
  return sites;
}

TensorView Program::view(nb::handle array, const char* name, std::size_t slot) const {
  TensorView view = view_of(array, name);
  if (heads_first_ && has_heads(slot)) swap_heads(view);
  return view;
}

std::vector<TensorView> Program::read(const Arguments& arguments) const {
  const std::size_t roles = slot_count(arguments.pass), params = params_slot(arguments.pass);
  const std::size_t gradients = arguments.pass == Pass::backward ? params_.size() : 0;
  if (nb::len(arguments.params) != params_.size())
    throw Error(ErrorCode::invalid_argument,
                "params: found " + std::to_string(nb::len(arguments.params)) + "; expected " + std::to_string(params_.size()));
  std::vector<TensorView> tensors(params + params_.size() + gradients);
  for (std::size_t slot = 0; slot < params; ++slot) {
    const nb::handle array = arguments.arrays[slot];
    if (array.is_none()) continue;
    const char* name = slot_name(arguments.pass, slot);
    tensors[slot] = slot < roles ? view(array, name, slot) : view_of(array, name);
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const nb::object array = nb::steal(PySequence_GetItem(arguments.params.ptr(), static_cast<Py_ssize_t>(i)));
    if (!array.is_valid()) throw nb::python_error();
    tensors[params + i] = view_of_param(array, params_[i].name().c_str());
  }
  return tensors;
}

/// Tensors for the slots of wanted results that are absent: contiguous, or, heads first, in the order of their tensors (out: of q).
void Program::add_results(const Arguments& arguments, std::vector<TensorView>& tensors) const {
  const auto fill = [&tensors](std::size_t slot, const TensorView& view) {
    if (!tensors[slot].present()) tensors[slot] = view;
  };
  const auto fill_like = [&](std::size_t slot, const TensorView& view, const TensorView& order) {
    fill(slot, heads_first_ && order.rank == 4 ? dense_in_order_of(view, order) : view);
  };
  const TensorView &q = tensors[slots::q], &v = tensors[slots::v];
  const bool paged = tensors[slot_count(arguments.pass) + slots::lengths::block_table].present();
  fill_like(slots::out, out_of(q, v, paged), q);
  if (arguments.pass == Pass::forward) {
    if (arguments.wanted[0]) fill(slots::lse, lse_of(q));
    return;
  }
  fill(slots::lse, lse_of(q));
  fill_like(slots::dout, out_of(q, v, paged), q);
  for (std::size_t i = 0; i < first_gradient; ++i)
    if (const TensorView& own = tensors[slots::q + i]; arguments.wanted[i]) fill_like(slots::dq + i, contiguous_like(own, own.dtype), own);
  const std::size_t params = params_slot(Pass::backward), dparams = params + params_.size();
  for (std::size_t i = 0; i < params_.size(); ++i)
    if (const DType own = tensors[params + i].dtype; arguments.wanted[first_gradient + i])
      fill(dparams + i, contiguous_like(tensors[params + i], arguments.rounded ? own : base::wide_type(own)));
}

std::shared_ptr<Call> Program::plan(const Arguments& arguments) { return plan(arguments, read(arguments)); }

std::shared_ptr<Call> Program::plan(const Arguments& arguments, std::vector<TensorView> tensors) {
  add_results(arguments, tensors);
  std::vector<bool> trained;
  if (arguments.pass == Pass::backward) trained.assign(arguments.wanted.begin() + first_gradient, arguments.wanted.end());
  const auto begin = std::chrono::steady_clock::now();
  auto call = std::make_shared<Call>(attention_, arguments.pass, params_, std::move(tensors), std::move(trained), arguments.max_seqlen_q,
                                     arguments.max_seqlen_kv, options_);
  if (observer().is_valid() && !observer().is_none())
    observer()(call, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return call;
}

/// Plans the backward pass that will follow a forward pass on another thread, so that its kernels are compiled when they are needed. Its
/// own tensors are assumed to lie as results do; most kernels do not depend on their strides.
void Program::plan_gradients_ahead(const Arguments& forward, const std::vector<TensorView>& tensors) const {
  const std::size_t given = params_.size();
  Arguments backward{.pass = Pass::backward, .arrays = {}, .params = forward.params, .wanted = {}, .rounded = true};
  std::vector<TensorView> planned(params_slot(Pass::backward) + 2 * given);
  std::copy_n(tensors.begin(), slots::out, planned.begin());
  std::copy_n(tensors.begin() + slots::forward_count, slots::lengths::count + given, planned.begin() + slots::backward_count);
  const auto requires_gradient = [](nb::handle array) { return nb::cast<bool>(nb::getattr(array, "requires_grad", nb::bool_(false))); };
  for (std::size_t slot = slots::q; slot < first_gradient; ++slot) backward.wanted.push_back(requires_gradient(forward.arrays[slot]));
  for (std::size_t i = 0; i < given; ++i) backward.wanted.push_back(requires_gradient(forward.params[i]));
  add_results(backward, planned);
  begin_ahead([attention = attention_, params = params_, options = options_, tensors = std::move(planned),
               trained = std::vector<bool>(backward.wanted.begin() + first_gradient, backward.wanted.end()), max_q = forward.max_seqlen_q,
               max_kv = forward.max_seqlen_kv] { Call(attention, Pass::backward, params, tensors, trained, max_q, max_kv, options); });
}

nb::object& Program::observer() {
  static auto& observer = *new nb::object;  // never destroyed: it outlives the interpreter
  return observer;
}

std::shared_ptr<const Program::Site> Program::find(const Arguments& arguments, const std::vector<TensorView>& tensors) {
  thread_local std::string looked_up;
  write_signature(number_, arguments, tensors, looked_up);
  std::shared_ptr<const Site>& last = last_[static_cast<std::size_t>(arguments.pass)];
  if (last && last->signature == looked_up) return last;
  if (auto found = sites().find(looked_up)) return last = std::move(found);

  const std::string signature = looked_up;  // what follows runs Python code, which may call foveal again
  if (arguments.trains && tensors[slots::q].device.kind != DeviceKind::cpu) plan_gradients_ahead(arguments, tensors);
  auto site = std::make_shared<Site>();
  site->call = plan(arguments, tensors);
  const nb::handle like = arguments.arrays[slots::q];
  const std::vector<TensorView>& planned = site->call->tensors();
  const std::size_t roles = slot_count(arguments.pass), dparams = params_slot(arguments.pass) + params_.size();
  for (std::size_t slot = 0; slot < planned.size(); ++slot) {
    const bool result =
        slot < roles ? planned[slot].present() && !tensors[slot].present() : slot >= dparams && site->call->trained(slot - dparams);
    if (!result) continue;
    TensorView made = planned[slot];
    if (heads_first_ && slot < roles && has_heads(slot)) swap_heads(made);
    nb::object make = last ? last->maker_of(made, like) : nb::object();
    site->makers.push_back({slot, made, make.is_valid() ? std::move(make) : maker(made, like)});
  }
  const auto scratch_bytes = static_cast<std::int64_t>(site->call->plan().workspace_bytes());
  const Device device = planned[slots::q].device;
  if (device.kind != DeviceKind::cpu && scratch_bytes > 0)
    site->scratch = maker(contiguous_view(DType::u8, device, &scratch_bytes, 1), like);
  site->signature = signature, site->kind = nb::borrow(like.type());
  sites().insert(signature, site);
  ++planned_;
  return last = site;
}

nb::tuple Program::run(const Arguments& arguments) {
  std::vector<TensorView> tensors = read(arguments);
  const std::shared_ptr<const Site> site = find(arguments, tensors);
  const std::size_t roles = slot_count(arguments.pass), dparams = params_slot(arguments.pass) + params_.size();
  const std::size_t first = arguments.pass == Pass::forward ? slots::out : slots::dq;
  const std::size_t count = arguments.pass == Pass::forward ? 2 : first_gradient + params_.size();
  std::vector<nb::object> results(count, nb::none());
  for (const auto& [slot, look, make] : site->makers) {
    nb::object& result = results[slot < roles ? slot - first : first_gradient + slot - dparams];
    result = make();
    tensors[slot] = slot < roles ? view(result, slot_name(arguments.pass, slot), slot) : view_of(result, "gradient");
  }
  nb::object scratch;  // freed once the call is enqueued: stream order protects it from later work
  void* workspace = nullptr;
  if (site->scratch.is_valid()) {
    scratch = site->scratch();
    workspace = view_of(scratch, "workspace").data;
  }
  const Stream stream = stream_of(arguments.arrays[slots::q], tensors[slots::q].device);
  {
    const nb::gil_scoped_release release;
    site->call->run(tensors, arguments.rng, workspace, stream);
  }
  nb::tuple tuple = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), results[i].release().ptr());
  return tuple;
}

}  // namespace foveal::python
