// dist.h: context attention, over transports of the library or of Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "dist/agreement.h"
#include "foveal/dist.h"
#include "module.h"
#include "program.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

/// Calls an object's start(sends, receives), wait(ticket) and fail(why). Messages are (rank, memoryview).
class PythonTransport final : public dist::Transport {
 public:
  PythonTransport(int rank, int size, nb::object group) : rank_(rank), size_(size), group_(std::move(group)) {}
  ~PythonTransport() override {
    const nb::gil_scoped_acquire gil;
    group_.reset();
  }
  int rank() const override { return rank_; }
  std::string name() const override { return "torch.distributed"; }
  int size() const override { return size_; }

  std::uint64_t start(const std::vector<dist::Message>& sends, const std::vector<dist::Message>& receives) override {
    const nb::gil_scoped_acquire gil;
    return guarded([&] { return nb::cast<std::uint64_t>(group_.attr("start")(messages(sends), messages(receives))); });
  }
  void wait(std::uint64_t ticket) override {
    const nb::gil_scoped_acquire gil;
    guarded([&] { group_.attr("wait")(ticket); });
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { dist::all_gather_by_messages(*this, mine, bytes, all); }
  void fail(const std::string& why) noexcept override {
    const nb::gil_scoped_acquire gil;
    try {
      group_.attr("fail")(why);
    } catch (nb::python_error& error) {  // other ranks fail at their time limit
      error.discard_as_unraisable("context parallelism: fail");
    } catch (...) {  // memory has run out
    }
  }

 private:
  static nb::list messages(const std::vector<dist::Message>& messages) {
    nb::list list;
    for (const dist::Message& m : messages) {
      const nb::object memory =
          nb::steal(PyMemoryView_FromMemory(static_cast<char*>(m.data), static_cast<Py_ssize_t>(m.bytes), PyBUF_WRITE));
      list.append(nb::make_tuple(m.peer, memory));
    }
    return list;
  }
  /// Turns exceptions of the group into errors of communication.
  template <class Fn>
  static auto guarded(Fn&& fn) -> decltype(fn()) {
    try {
      return fn();
    } catch (nb::python_error& error) {
      throw Error(ErrorCode::communication, std::string("context parallelism: ") + nb::str(error.value()).c_str());
    }
  }

  int rank_, size_;
  nb::object group_;
};

/// A call at which ranks meet. Its arguments are made before: what is wrong with them other ranks do not hear of.
template <class Fn>
void meet(Fn&& fn) {
  const nb::gil_scoped_release release;
  try {
    fn();
  } catch (const Error& error) {
    throw ErrorOfAllRanks(error);
  }
}

Stream stream_of_first(const nb::list& tensors) { return stream_of(tensors[0], view_of(tensors[0], "tensors").device); }

std::vector<ParamBinding> bindings(const std::vector<Param>& params, const nb::list& arrays) {
  std::vector<ParamBinding> bound;
  for (std::size_t i = 0; i < params.size(); ++i) bound.push_back({params[i], view_of_param(arrays[i], "params")});
  return bound;
}

using Lengths = std::vector<std::int64_t>;

/// batch, heads_q, heads_kv, seqlen, head_dim, head_dim_v of self attention; lengths: of packed sequences, which stand for batch and
/// seqlen.
dist::WholeShapes whole_shapes(DType dtype, const std::vector<std::int64_t>& sizes, const Lengths& lengths) {
  dist::WholeShapes shapes{.dtype = dtype,
                           .batch = sizes.at(0),
                           .heads_q = sizes.at(1),
                           .heads_kv = sizes.at(2),
                           .seqlen_q = sizes.at(3),
                           .seqlen_kv = sizes.at(3),
                           .head_dim = sizes.at(4),
                           .head_dim_v = sizes.at(5)};
  for (const std::int64_t length : lengths) shapes.lengths.emplace_back(length, length);
  return shapes;
}

/// An attention, its parameters and their arrays.
using Use = std::tuple<Attention, std::vector<Param>, nb::list>;

std::shared_ptr<dist::ContextLayout> make_layout(const std::vector<Use>& uses, DType dtype, const std::vector<std::int64_t>& sizes,
                                                 const Lengths& lengths, int ranks, const std::string& deal, int head_groups,
                                                 std::int64_t unit) {
  std::vector<dist::LayoutUse> of_uses;
  for (const auto& [attention, params, arrays] : uses) of_uses.push_back({attention, bindings(params, arrays)});
  dist::ContextOptions options;
  options.deal = deal, options.head_groups = head_groups, options.unit = unit;
  const nb::gil_scoped_release release;
  return std::make_shared<dist::ContextLayout>(of_uses, whole_shapes(dtype, sizes, lengths), ranks, options);
}

/// By slot; None is absent. heads_first: [batch, heads, seqlen, dim] becomes [batch, seqlen, heads, dim].
TensorView tensor(const nb::list& arrays, std::size_t slot, bool heads_first) {
  if (slot >= arrays.size() || arrays[slot].is_none()) return {};
  TensorView view = view_of(arrays[slot], "tensors");
  if (heads_first && view.rank == 4) std::swap(view.sizes[1], view.sizes[2]), std::swap(view.strides[1], view.strides[2]);
  return view;
}

}  // namespace

void bind_context(nb::module_& m) {
  using dist::ContextAttention;
  nb::class_<dist::Transport>(m, "Transport", "What carries messages between ranks.")
      .def_prop_ro("name", &dist::Transport::name)
      .def_prop_ro("failure", &dist::Transport::failure)
      .def("fail", &dist::Transport::fail, nb::arg("why"), "This rank cannot go on: every later call of every rank fails.");
  m.def(
      "python_transport",
      [](int rank, int size, nb::object group) -> std::shared_ptr<dist::Transport> {
        return std::make_shared<PythonTransport>(rank, size, std::move(group));
      },
      nb::arg("rank"), nb::arg("size"), nb::arg("group"),
      "A transport of start([(rank, memoryview)...], [...]) -> ticket, wait(ticket) and fail(why). Attentions on one of these share their "
      "memory.");
  m.def("peer_id", &dist::peer_id, "What ranks have in common whose GPUs copy to each other's memory, made by rank 0.");
  m.def("peer_reachable", &dist::peer_reachable, nb::arg("id"), "Is this process on the host of the rank that made it?");
  m.def(
      "peer_ranks",
      [](const std::string& id, int rank, int size, int device, double time_limit) {
        const nb::gil_scoped_release release;
        return dist::peer_ranks(id, rank, size, {DeviceKind::cuda, device}, {time_limit});
      },
      nb::arg("id"), nb::arg("rank"), nb::arg("size"), nb::arg("device"), nb::arg("time_limit"),
      "Collective. Raises NotImplementedError on all ranks where a GPU does not reach another's memory.");
  m.def(
      "nccl_id",
      [] {
        const std::string id = dist::nccl_id();
        return nb::bytes(id.data(), id.size());
      },
      "What the ranks of one communicator of NCCL have in common, made by rank 0.");
  m.def(
      "nccl_ranks",
      [](const nb::bytes& id, int rank, int size, int device, double time_limit, int multiprocessors) {
        const std::string copy(id.c_str(), id.size());
        const nb::gil_scoped_release release;
        return dist::nccl_ranks(copy, rank, size, {DeviceKind::cuda, device}, {time_limit, multiprocessors});
      },
      nb::arg("id"), nb::arg("rank"), nb::arg("size"), nb::arg("device"), nb::arg("time_limit"), nb::arg("multiprocessors"),
      "Collective. time_limit: seconds of a transfer. multiprocessors: at most this many carry transfers; 0: NCCL's choice.");
  nb::class_<dist::ContextLayout>(m, "ContextLayout", "Who holds which tokens, for several attentions over the same sequences.")
      .def("q_tokens", &dist::ContextLayout::q_tokens, nb::arg("rank"))
      .def("kv_tokens", &dist::ContextLayout::kv_tokens, nb::arg("rank"))
      .def_prop_ro("deal", &dist::ContextLayout::deal)
      .def_prop_ro("head_groups", &dist::ContextLayout::head_groups);
  m.def("context_layout", &make_layout, nb::arg("uses"), nb::arg("dtype"), nb::arg("sizes"), nb::arg("lengths"), nb::arg("ranks"),
        nb::arg("deal"), nb::arg("head_groups"), nb::arg("unit"),
        "The layout of least predicted time for all uses together: (attention, params, arrays) of each. sizes, lengths: as of "
        "ContextAttention.");
  nb::class_<ContextAttention>(m, "ContextAttention", "One attention over tensors whose tokens are dealt to ranks.")
      .def(
          "__init__",
          [](ContextAttention* self, std::shared_ptr<dist::Transport> transport, const Program& program, DType dtype,
             const std::vector<std::int64_t>& sizes, const Lengths& lengths, const nb::list& arrays, const std::string& deal,
             int head_groups, std::int64_t unit, std::shared_ptr<dist::ContextLayout> layout, int threads) {
            dist::ContextOptions options;
            options.deal = deal, options.head_groups = head_groups, options.unit = unit, options.plan = program.options();
            options.layout = std::move(layout);
            if (options.plan.threads == 0) options.plan.threads = threads;
            const std::vector<ParamBinding> bound = bindings(program.params(), arrays);
            const dist::WholeShapes shapes = whole_shapes(dtype, sizes, lengths);
            meet([&] { new (self) ContextAttention(std::move(transport), program.attention(), shapes, bound, options); });
          },
          nb::arg("transport"), nb::arg("program"), nb::arg("dtype"), nb::arg("sizes"), nb::arg("lengths"), nb::arg("arrays"),
          nb::arg("deal"), nb::arg("head_groups"), nb::arg("unit"), nb::arg("layout").none(), nb::arg("threads"),
          "Collective. sizes: of the whole: batch, heads_q, heads_kv, seqlen, head_dim, head_dim_v; lengths: of packed sequences. layout: "
          "with it deal,\nhead_groups and unit are its own. threads: where the program's options name none.")
      .def("q_tokens", [](const ContextAttention& c) { return c.q_tokens(); })
      .def("explain", &ContextAttention::explain)
      .def("backward_follows", &ContextAttention::backward_follows, nb::arg("trained"), nb::arg("dlse"),
           "Kernels of such backward passes are compiled beside those of the first forward pass.")
      .def(
          "forward",
          [](ContextAttention& c, const nb::list& tensors, const std::vector<Param>& params, const nb::list& arrays, bool heads_first,
             std::uint64_t seed, std::uint64_t offset, nb::handle state) {
            const auto at = [&](std::size_t slot) { return tensor(tensors, slot, heads_first); };
            ForwardInputs in{.q = at(0), .k = at(1), .v = at(2), .params = bindings(params, arrays)};
            in.rng = {seed, offset, state.is_none() ? TensorView{} : view_of(state, "rng_state")};
            const ForwardOutputs out{.out = at(3), .lse = tensor(tensors, 4, false)};
            const Stream stream = stream_of_first(tensors);
            meet([&] { c.forward(in, out, stream); });
          },
          nb::arg("tensors"), nb::arg("params"), nb::arg("arrays"), nb::arg("heads_first"), nb::arg("seed"), nb::arg("offset"),
          nb::arg("state").none(), "Collective. tensors: q, k, v, out, lse.")
      .def(
          "backward",
          [](ContextAttention& c, const nb::list& tensors, const std::vector<Param>& params, const nb::list& arrays,
             const std::vector<Param>& trained, const nb::list& gradients, bool heads_first, std::uint64_t seed, std::uint64_t offset,
             nb::handle state) {
            const auto at = [&](std::size_t slot) { return tensor(tensors, slot, heads_first); };
            BackwardInputs in{.q = at(0), .k = at(1), .v = at(2), .out = at(3), .lse = tensor(tensors, 4, false), .dout = at(5)};
            in.dlse = tensor(tensors, 6, false), in.params = bindings(params, arrays);
            in.rng = {seed, offset, state.is_none() ? TensorView{} : view_of(state, "rng_state")};
            const BackwardOutputs out{.dq = at(7), .dk = at(8), .dv = at(9), .dparams = bindings(trained, gradients)};
            const Stream stream = stream_of_first(tensors);
            meet([&] { c.backward(in, out, stream); });
          },
          nb::arg("tensors"), nb::arg("params"), nb::arg("arrays"), nb::arg("trained"), nb::arg("gradients"), nb::arg("heads_first"),
          nb::arg("seed"), nb::arg("offset"), nb::arg("state").none(),
          "Collective. tensors: q, k, v, out, lse, dout, dlse, dq, dk, dv; None: absent.");
  m.def(
      "context_agree",
      [](dist::Transport& transport, const std::vector<std::pair<std::string, std::string>>& fields,
         const std::optional<std::string>& refusal) {
        dist::Agreement agreement;
        for (const auto& [name, text] : fields) agreement.add(name.c_str(), text);
        if (refusal) agreement.refuse(std::make_exception_ptr(Error(ErrorCode::invalid_argument, *refusal)));
        meet([&] { agreement.exchange(transport); });
      },
      nb::arg("transport"), nb::arg("fields"), nb::arg("refusal").none(),
      "Collective. Throws on every rank where the texts of the fields differ, or one refuses.");
  m.def(
      "context_tokens",
      [](std::int64_t seqlen, int ranks, int rank, const std::string& deal, std::int64_t unit, int head_groups) {
        return dist::tokens_of(seqlen, ranks, rank, deal, unit, head_groups);
      },
      nb::arg("seqlen"), nb::arg("ranks"), nb::arg("rank"), nb::arg("deal"), nb::arg("unit"), nb::arg("head_groups"),
      "The tokens of one sequence that a rank holds, by a deal that does not look at the mask.");
}

}  // namespace foveal::python
