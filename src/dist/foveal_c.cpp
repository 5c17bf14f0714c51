// Context parallelism through the C interface.
#include "foveal/foveal_c.h"

#include <algorithm>
#include <string_view>

#include "api/c_values.h"
#include "base/check.h"
#include "base/dtype.h"
#include "dist/agreement.h"
#include "dist/plan.h"
#include "foveal/dist.h"
#include "problem/problem.h"

using namespace foveal;
using namespace foveal::c;

struct foveal_ranks {
  std::shared_ptr<dist::Transport> transport;
};

struct foveal_context {
  std::shared_ptr<dist::Transport> transport;
  dist::ContextAttention attention;
  std::vector<Param> params;
  bool accumulates;
  int threads;
};

namespace {

/// The caller's functions.
class Network final : public dist::Transport {
 public:
  explicit Network(const foveal_network& network) : network_(network) {}
  int rank() const override { return network_.rank; }
  int size() const override { return network_.size; }
  std::uint64_t start(const std::vector<dist::Message>& sends, const std::vector<dist::Message>& receives) override {
    if (sends.empty() && receives.empty()) return 0;
    const std::vector<foveal_message> to = messages(sends), from = messages(receives);
    std::uint64_t ticket = 0;
    check("start", network_.start(network_.user, to.data(), to.size(), from.data(), from.size(), &ticket));
    return ticket + 1;
  }
  void wait(std::uint64_t ticket) override {
    if (ticket != 0) check("wait", network_.wait(network_.user, ticket - 1));
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { all_gather_by_messages(*this, mine, bytes, all); }
  void fail(const std::string& why) noexcept override {
    if (network_.fail != nullptr) network_.fail(network_.user, why.c_str());
  }

 private:
  static std::vector<foveal_message> messages(const std::vector<dist::Message>& messages) {
    std::vector<foveal_message> list;
    list.reserve(messages.size());
    for (const dist::Message& m : messages) list.push_back({.peer = m.peer, .reserved = 0, .data = m.data, .bytes = m.bytes});
    return list;
  }
  static void check(const char* what, int code) {
    if (code != 0) base::fail(ErrorCode::communication, "context parallelism: network: ", what, " returned ", code);
  }
  foveal_network network_;
};

int make_ranks(foveal_ranks** ranks, const auto& make) {
  return guarded([&] {
    FOVEAL_CHECK(ranks != nullptr, "ranks: null; expected a place for the ranks");
    *ranks = nullptr;
    *ranks = new foveal_ranks{make()};
  });
}

/// fn(begun) of a collective call. Other ranks wait for this one: an error before it has begun is sent to them.
void telling_of_refusals(dist::Transport& transport, const auto& fn) {
  bool begun = false;
  try {
    fn(begun);
  } catch (...) {
    if (begun) throw;
    dist::Agreement agreement;
    agreement.refuse(std::current_exception());
    agreement.exchange(transport);
  }
}

double limit_of(double time_limit) {
  FOVEAL_CHECK(time_limit >= 0, "time_limit: ", time_limit, "; expected seconds, or 0 for 600");
  return time_limit == 0 ? 600 : time_limit;
}

/// Lengths of packed sequences.
std::vector<std::int64_t> lengths_of(const char* name, const TensorView& cu, std::int64_t total) {
  FOVEAL_CHECK(cu.present() && cu.rank == 1 && cu.sizes[0] >= 1 && (cu.dtype == DType::i32 || cu.dtype == DType::i64) &&
                   cu.data != nullptr && cu.device.kind == DeviceKind::cpu,
               name, ": ", cu.present() ? cu.describe() : "null", "; expected i32 or i64 [batch + 1] with data in host memory");
  problem::check_reach(name, cu);
  const auto at = [&](std::int64_t i) { return base::load_integer(cu.data, cu.dtype, i * cu.strides[0]); };
  FOVEAL_CHECK(at(0) == 0, name, ": begins with ", at(0), "; expected 0");
  FOVEAL_CHECK(at(cu.sizes[0] - 1) == total, name, ": ends with ", at(cu.sizes[0] - 1), "; expected the ", total, " tokens");
  FOVEAL_CHECK(total >= 1, name, ": no tokens; expected at least 1");  // else a stride of 0 could promise any number of sequences
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 1; i < cu.sizes[0]; ++i) {
    FOVEAL_CHECK(at(i) >= at(i - 1), name, ": ", at(i), " after ", at(i - 1), "; expected cumulative lengths");
    lengths.push_back(at(i) - at(i - 1));
  }
  return lengths;
}

dist::WholeShapes shapes_of(const foveal_call& whole) {
  const TensorView q = view_of({"q"}, whole.q), k = view_of({"k"}, whole.k), v = view_of({"v"}, whole.v);
  FOVEAL_CHECK(whole.block_table == nullptr && whole.seqlens_kv == nullptr,
               "block_table: keys in pages are not shared between ranks; expected contiguous or packed ones");
  const bool packed = whole.cu_seqlens_q != nullptr || whole.cu_seqlens_kv != nullptr;
  const int rank = packed ? 3 : 4;
  for (const auto& [name, view] : {std::pair("q", &q), std::pair("k", &k), std::pair("v", &v)})
    FOVEAL_CHECK(view->present() && view->rank == rank && view->dtype == q.dtype, name, ": ", view->present() ? view->describe() : "null",
                 "; expected rank ", rank, packed ? " for packed sequences" : "", " and the dtype of q");
  const auto of = [&](const TensorView& view, int from_the_end) { return view.sizes[static_cast<std::size_t>(rank - from_the_end)]; };
  FOVEAL_CHECK(of(k, 1) == of(q, 1), "k: head_dim ", of(k, 1), "; expected ", of(q, 1), ", q's");
  FOVEAL_CHECK(of(v, 2) == of(k, 2) && of(v, 3) == of(k, 3), "v: ", v.describe(), "; expected heads and tokens as k, ", k.describe());
  dist::WholeShapes shapes{.dtype = q.dtype,
                           .batch = packed ? 1 : q.sizes[0],
                           .heads_q = of(q, 2),
                           .heads_kv = of(k, 2),
                           .seqlen_q = of(q, 3),
                           .seqlen_kv = of(k, 3),
                           .head_dim = of(q, 1),
                           .head_dim_v = of(v, 1)};
  if (!packed) {
    FOVEAL_CHECK(k.sizes[0] == shapes.batch && v.sizes[0] == shapes.batch, "k, v: batches of ", k.sizes[0], " and ", v.sizes[0],
                 "; expected ", shapes.batch, ", q's");
    return shapes;
  }
  const std::vector<std::int64_t> of_q = lengths_of("cu_seqlens_q", view_of({"cu_seqlens_q"}, whole.cu_seqlens_q), shapes.seqlen_q);
  const std::vector<std::int64_t> of_kv = lengths_of("cu_seqlens_kv", view_of({"cu_seqlens_kv"}, whole.cu_seqlens_kv), shapes.seqlen_kv);
  FOVEAL_CHECK(of_q.size() == of_kv.size(), "cu_seqlens_kv: ", of_kv.size(), " sequences; expected ", of_q.size(), ", as cu_seqlens_q");
  for (std::size_t i = 0; i < of_q.size(); ++i) shapes.lengths.emplace_back(of_q[i], of_kv[i]);
  return shapes;
}

dist::ContextOptions context_options_of(const foveal_context_options* given) {
  dist::ContextOptions options;
  if (given == nullptr) return options;
  const foveal_context_options& o = of_this_version(given, "context_options");
  if (o.deal != nullptr) options.deal = o.deal;
  if (o.machine != nullptr) options.machine = o.machine;
  if (o.unit != 0) options.unit = o.unit;
  options.head_groups = o.head_groups, options.remote_steps = o.remote_steps;
  options.plan = options_of(o.compute);
  return options;
}

}  // namespace

extern "C" {

int foveal_ranks_mpi(int32_t fortran_communicator, double time_limit, foveal_ranks** ranks) {
  return make_ranks(ranks, [&] { return dist::mpi_ranks(fortran_communicator, limit_of(time_limit)); });
}

int foveal_ranks_mpi_world(double time_limit, foveal_ranks** ranks) {
  return make_ranks(ranks, [&] { return dist::mpi_world(limit_of(time_limit)); });
}

int foveal_ranks_of(const foveal_network* network, foveal_ranks** ranks) {
  return make_ranks(ranks, [&] {
    const foveal_network& own = of_this_version(network, "network");
    FOVEAL_CHECK(own.size >= 1 && own.size <= dist::most_ranks && own.rank >= 0 && own.rank < own.size, "network: rank ", own.rank, " of ",
                 own.size, "; expected a rank below a size of 1 to ", dist::most_ranks);
    FOVEAL_CHECK(own.size == 1 || (own.start != nullptr && own.wait != nullptr), "network: start or wait is null; expected functions");
    return std::make_shared<Network>(own);
  });
}

int32_t foveal_ranks_rank(const foveal_ranks* ranks) { return ranks == nullptr ? -1 : ranks->transport->rank(); }
int32_t foveal_ranks_size(const foveal_ranks* ranks) { return ranks == nullptr ? 0 : ranks->transport->size(); }
void foveal_ranks_destroy(foveal_ranks* ranks) { delete ranks; }

int foveal_context_create(const foveal_ranks* ranks, const foveal_attention* attention, const foveal_call* whole,
                          const foveal_context_options* options, foveal_context** context) {
  return guarded([&] {
    FOVEAL_CHECK(context != nullptr, "context: null; expected a place for the context");
    *context = nullptr;
    FOVEAL_CHECK(ranks != nullptr, "ranks: null; expected those of foveal_ranks_mpi() or another");
    telling_of_refusals(*ranks->transport, [&](bool& begun) {
      const foveal_call& own = of_this_version(whole, "call");
      enumerator("call: pass", own.pass, Pass::backward);
      const std::vector<Param> params = params_of(own);
      std::vector<ParamBinding> bound;
      for (std::size_t i = 0; i < params.size(); ++i)
        bound.push_back({params[i], view_of({params[i].name().c_str()}, own.params[i].tensor)});
      const Attention what = attention_of(attention, params);
      const bool accumulate = accumulates(attention);
      const dist::WholeShapes shapes = shapes_of(own);
      const dist::ContextOptions how = context_options_of(options);
      begun = true;
      *context = new foveal_context{ranks->transport, dist::ContextAttention(ranks->transport, what, shapes, bound, how), params,
                                    accumulate, how.plan.threads};
    });
  });
}

void foveal_context_destroy(foveal_context* context) { delete context; }

int64_t foveal_context_tokens(const foveal_context* context, int32_t rank, int32_t of_keys, int64_t* tokens) {
  int64_t count = -1;
  guarded([&] {
    FOVEAL_CHECK(context != nullptr, "context: null");
    const int32_t ranks = context->transport->size();
    FOVEAL_CHECK(rank >= -1 && rank < ranks, "rank: ", rank, "; expected 0 to ", ranks - 1, ", or -1 for this one");
    FOVEAL_CHECK(of_keys == 0 || of_keys == 1, "of_keys: ", of_keys, "; expected 0 or 1");
    const int32_t of = rank == -1 ? context->transport->rank() : rank;
    const std::vector<std::int64_t> found = of_keys == 1 ? context->attention.kv_tokens(of) : context->attention.q_tokens(of);
    if (tokens != nullptr) std::copy(found.begin(), found.end(), tokens);
    count = static_cast<int64_t>(found.size());
  });
  return count;
}

size_t foveal_context_explain(const foveal_context* context, char* text, size_t size) {
  std::string whole;
  guarded([&] {
    FOVEAL_CHECK(context != nullptr, "context: null");
    whole = context->attention.explain();
  });
  return write_text(whole, text, size);
}

int foveal_context_backward_follows(foveal_context* context, const char* const* trained, size_t trained_count, int32_t dlse) {
  return guarded([&] {
    FOVEAL_CHECK(context != nullptr, "context: null");
    FOVEAL_CHECK(trained != nullptr || trained_count == 0, "trained: null with a count of ", trained_count,
                 "; expected names of parameters");
    FOVEAL_CHECK(dlse == 0 || dlse == 1, "dlse: ", dlse, "; expected 0 or 1");
    std::vector<Param> named;
    for (size_t i = 0; i < trained_count; ++i) {
      const std::string_view name = trained[i] == nullptr ? "" : trained[i];
      const auto found = std::ranges::find(context->params, name, &Param::name);
      FOVEAL_CHECK(found != context->params.end(), "trained: '", name, "'; expected a parameter of the context");
      named.push_back(*found);
    }
    context->attention.backward_follows(named, dlse == 1);
  });
}

int foveal_context_run(foveal_context* context, const foveal_call* call, void* stream) {
  return guarded([&] {
    FOVEAL_CHECK(context != nullptr, "context: null");
    telling_of_refusals(*context->transport, [&](bool& begun) {
      dispatch(of_this_version(call, "call"), context->params, [&](const auto& inputs, const auto& outputs) {
        const auto run = [&]<class Inputs, class Outputs>(const Inputs& in, const Outputs& out) {
          begun = true;
          if constexpr (std::is_same_v<Inputs, ForwardInputs>)
            context->attention.forward(in, out, Stream{stream});
          else
            context->attention.backward(in, out, Stream{stream});
        };
        run_into(context->accumulates, inputs, outputs, Stream{stream}, context->threads, run);
      });
    });
  });
}

}  // extern "C"
