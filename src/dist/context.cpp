// The public calls: what a rank is told is checked, ranks agree once on one plan, and each pass follows it.
#include "dist/context.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

#include "base/check.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/strided.h"
#include "dist/agreement.h"
#include "dist/deal.h"
#include "dist/device_pass.h"

namespace foveal::dist {
namespace {

/// Names, types and shapes.
std::string text_of(const std::vector<ParamBinding>& params) {
  std::string text;
  for (const ParamBinding& p : params) text += base::join(text.empty() ? "" : ", ", p.param.name(), ": ", p.tensor.describe());
  return text.empty() ? "none" : text;
}

bool is_on_gpu(const TensorView& view) { return view.present() && view.device.kind == DeviceKind::cuda; }

TensorView shape_only(DType dtype, std::initializer_list<std::int64_t> sizes) { return TensorView(nullptr, dtype, sizes); }

/// The whole problem, of which no rank has the tensors.
problem::Problem whole_problem(const Attention& attention, const WholeShapes& s, const std::vector<ParamBinding>& params) {
  ForwardInputs inputs;
  ForwardOutputs outputs;
  const DType statistics = s.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (s.lengths.empty()) {
    inputs.q = shape_only(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim});
    inputs.k = shape_only(s.dtype, {s.batch, s.seqlen_kv, s.heads_kv, s.head_dim});
    inputs.v = shape_only(s.dtype, {s.batch, s.seqlen_kv, s.heads_kv, s.head_dim_v});
    outputs.out = shape_only(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
    outputs.lse = shape_only(statistics, {s.batch, s.heads_q, s.seqlen_q});
  } else {
    std::int64_t q = 0, kv = 0, longest_q = 0, longest_kv = 0;
    for (const auto& [of_q, of_kv] : s.lengths) {
      FOVEAL_CHECK(of_q >= 0 && of_kv >= 0, "lengths: ", of_q, " and ", of_kv, "; expected 0 or more");
      q += of_q, kv += of_kv, longest_q = std::max(longest_q, of_q), longest_kv = std::max(longest_kv, of_kv);
    }
    inputs.q = shape_only(s.dtype, {q, s.heads_q, s.head_dim});
    inputs.k = shape_only(s.dtype, {kv, s.heads_kv, s.head_dim});
    inputs.v = shape_only(s.dtype, {kv, s.heads_kv, s.head_dim_v});
    outputs.out = shape_only(s.dtype, {q, s.heads_q, s.head_dim_v});
    outputs.lse = shape_only(statistics, {s.heads_q, q});
    const TensorView cu = shape_only(DType::i64, {static_cast<std::int64_t>(s.lengths.size()) + 1});
    inputs.varlen = Varlen{cu, cu, longest_q, longest_kv};
  }
  inputs.params = params;
  return problem::make_problem(attention, inputs, outputs);
}

/// Only the kind of call is compared; the text says what it is about.
void add_call(Agreement& agreement, const std::string& kind, const std::string& text) {
  agreement.add("call", base::hash64(kind), kind + ": " + text);
}

/// Of the description and everything else that a plan is made from.
void add_plan(Agreement& agreement, const Context& c, const problem::Problem& problem, const std::vector<ParamBinding>& params) {
  const Attention& at = c.attention;
  std::string shapes =
      base::join(to_string(c.shapes.dtype), " batch ", c.shapes.batch, " heads ", c.shapes.heads_q, ':', c.shapes.heads_kv, " seqlen ",
                 c.shapes.seqlen_q, ':', c.shapes.seqlen_kv, " head_dim ", c.shapes.head_dim, ':', c.shapes.head_dim_v);
  if (c.packed()) shapes += " lengths";
  for (const auto& [q, kv] : c.shapes.lengths) shapes += base::join(' ', q, ':', kv);
  const std::string description = base::join(problem.score->text, at.sink ? " sink=" + at.sink->name() : "", " scale=", problem.scale,
                                             " dropout=", at.dropout_p, " offsets=", at.q_offset, ':', at.kv_offset);
  const std::uint64_t bits = base::hash64(description + std::to_string(problem.scale) + std::to_string(at.dropout_p));
  agreement.add("description (score, mask, scale, dropout)", bits, description);
  agreement.add("shapes and lengths", shapes);
  agreement.add("parameters", text_of(params));
  agreement.add("options", base::join("deal ", c.options.deal, " head_groups ", c.options.head_groups, " remote_steps ",
                                      c.options.remote_steps, " machine ", c.options.machine, " unit ", c.options.unit));
  agreement.add("plan (tensors that the mask reads)", c.plan.checksum, base::join("checksum ", base::to_hex({c.plan.checksum, 0})));
}

/// Every rank must drop the same pairs. A state is read here, in host memory; one on a GPU is not: to read it is to wait for the GPU.
void add_rng(Agreement& agreement, const Context& c, const DropoutRng& rng) {
  if (c.attention.dropout_p == 0 || is_on_gpu(rng.state)) return agreement.add("rng (seed and offset)", 0, "a state on a GPU");
  std::uint64_t words[2] = {rng.seed, rng.offset};
  if (rng.state.present()) {
    FOVEAL_CHECK(
        rng.state.dtype == DType::i64 && rng.state.numel() == 2 && rng.state.data != nullptr && rng.state.device.kind == DeviceKind::cpu,
        "rng.state: ", rng.state.describe(), "; expected i64[2] in host memory");
    std::memcpy(words, rng.state.data, sizeof words);
  }
  agreement.add("rng (seed and offset)", base::join("seed ", words[0], ", offset ", words[1]));
}

/// Of all values of the parameters that the mask reads: they decide who computes what.
std::uint64_t digest_of_mask(const Context& c, const std::vector<ParamBinding>& params) {
  std::string bytes;
  for (const std::string& name : c.mask_reads)
    for (const ParamBinding& p : params) {
      if (!p.param.present() || p.param.name() != name) continue;
      base::each_element(p.tensor, [&](std::int64_t, std::int64_t offset) {
        const double value = base::load(p.tensor.data, p.tensor.dtype, offset);
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      });
    }
  return base::hash64(bytes);
}

void check_mask_data(const Context& c, const std::vector<ParamBinding>& params) {
  for (const ParamBinding& p : params)
    if (p.tensor.device.kind == DeviceKind::cuda) return;  // to read them is to wait for the GPU
  FOVEAL_CHECK(c.mask_reads.empty() || digest_of_mask(c, params) == c.mask_digest, "params: the mask reads ", c.mask_reads.front(),
               ", whose data differ from those that the plan was made for; make a ContextAttention for these");
}

std::vector<Sending> sendings(const ContextPlan& plan, int mine, const std::vector<RankPlan>& ranks, int step) {
  std::vector<Sending> list;
  for (int target = 0; target < plan.ranks; ++target) {
    if (target == mine) continue;
    const RankPlan& theirs = ranks[static_cast<std::size_t>(target)];
    if (step >= static_cast<int>(theirs.steps.size())) continue;
    Sending sending{target, {}};
    for (const Transfer& t : step < 0 ? theirs.queries : theirs.steps[static_cast<std::size_t>(step)].keys)
      if (t.source == mine) sending.rows.push_back(t);
    if (!sending.rows.empty()) list.push_back(std::move(sending));
  }
  return list;
}

void check_rows(const char* name, const TensorView& view, const Context& c, Device device, std::int64_t rows, std::int64_t heads,
                std::int64_t dim, DType dtype) {
  std::array<std::int64_t, 4> expected{};
  int rank = 0;
  const auto add = [&](std::int64_t size) { expected[static_cast<std::size_t>(rank++)] = size; };
  if (!c.packed()) add(c.shapes.batch);
  if (dim > 0) {
    add(rows), add(heads), add(dim);
  } else {
    add(heads), add(rows);
  }
  bool same = view.rank == rank && view.dtype == dtype;
  for (int d = 0; same && d < rank; ++d) same = view.sizes[static_cast<std::size_t>(d)] == expected[static_cast<std::size_t>(d)];
  if (!same) {
    std::string wanted;
    for (int d = 0; d < rank; ++d) wanted += (d > 0 ? ", " : "") + std::to_string(expected[static_cast<std::size_t>(d)]);
    base::fail(ErrorCode::invalid_argument, name, ": ", view.present() ? view.describe() : "absent", "; rank ", c.rank(), " of ",
               c.plan.ranks, " holds ", to_string(dtype), "[", wanted, "]");
  }
  FOVEAL_CHECK(view.device == device, name, ": on another device than q");
  FOVEAL_CHECK(view.data != nullptr || view.numel() == 0, name, ": data is null");
}

}  // namespace

std::vector<std::int64_t> tokens_of(std::int64_t seqlen, int ranks, int rank, const std::string& deal, std::int64_t unit, int head_groups) {
  FOVEAL_CHECK(seqlen >= 0 && ranks >= 1 && rank >= 0 && rank < ranks && unit >= 1 && head_groups >= 1 && ranks % head_groups == 0,
               "tokens_of: seqlen ", seqlen, ", rank ", rank, " of ", ranks, ", unit ", unit, ", head groups ", head_groups,
               "; expected a length, a rank below ranks, a unit of 1 or more, and head groups that divide the ranks");
  const Deal how = deal_named(deal);
  FOVEAL_CHECK(how == Deal::contiguous || how == Deal::zigzag, "deal: ", deal, "; expected contiguous or zigzag, which no mask decides");
  const int groups = ranks / head_groups;
  const Dealt dealt = how == Deal::contiguous ? deal_contiguous({seqlen}, unit, groups) : deal_zigzag({seqlen}, unit, groups);
  return Layout({seqlen}, cut_for_members({seqlen}, dealt.chunks, unit, groups, head_groups), ranks).tokens_of(rank);
}

namespace {

/// What ends by an error while messages are under way is told to the other ranks.
template <class Fn>
void telling_others(Transport& transport, Fn&& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    transport.fail(error.what());
    throw;
  }
}

/// Until all ranks are here.
void wait_for_others(Transport& transport) {
  const char mine = 0;
  std::string all(static_cast<std::size_t>(transport.size()), 0);
  transport.all_gather(&mine, sizeof mine, all.data());
}

/// An agreement that fails is known to all ranks, unless it could not be exchanged.
void agree(Transport& transport, Agreement& agreement) {
  try {
    agreement.exchange(transport);
  } catch (const std::exception& error) {
    if (!agreement.is_known_to_all()) transport.fail(error.what());
    throw;
  }
}

/// Runs in buffers of its own and returns their bytes. After an error they stay for good: messages under way may still read or write them.
template <class Fn>
std::size_t with_buffers(Fn&& fn) {
  auto buffers = std::make_shared<Buffers>();
  try {
    fn(*buffers);
  } catch (...) {
    keep_for_good(buffers);
    throw;
  }
  return buffers->bytes();
}

/// What this rank does of the plan, and what it holds.
void plan_own_part(Context& c) {
  std::vector<RankPlan> ranks;
  ranks.reserve(static_cast<std::size_t>(c.plan.ranks));
  for (int rank = 0; rank < c.plan.ranks; ++rank) ranks.push_back(rank_plan(c.plan, rank));
  const int me = c.transport->rank();
  c.mine = ranks[static_cast<std::size_t>(me)];
  c.queries_to = sendings(c.plan, me, ranks, -1);
  for (std::size_t step = 0; step < c.mine.steps.size(); ++step) c.keys_to.push_back(sendings(c.plan, me, ranks, static_cast<int>(step)));
  c.q_tokens = c.plan.q.tokens_of(me), c.kv_tokens = c.plan.kv.tokens_of(me);
}

}  // namespace

struct ContextLayout::State {
  std::shared_ptr<const FixedLayout> layout;
  ContextPlan plan;  ///< for the first use
};

ContextLayout::ContextLayout(const std::vector<LayoutUse>& uses, const WholeShapes& shapes, int ranks, const ContextOptions& options) {
  FOVEAL_CHECK(!uses.empty(), "layout: no attention; expected one or more");
  PlanRequest request{.ranks = ranks,
                      .deal = deal_named(options.deal),
                      .head_groups = options.head_groups,
                      .remote_steps = options.remote_steps,
                      .machine = machine_named(options.machine)};
  std::vector<Workload> workloads;
  std::vector<const Workload*> pointers;
  for (const LayoutUse& use : uses) {
    std::vector<TensorView> data;
    data.reserve(use.params.size());
    for (const ParamBinding& p : use.params) data.push_back(p.tensor);
    workloads.push_back(make_workload(whole_problem(use.attention, shapes, use.params), shapes.lengths, data, options.unit));
  }
  pointers.reserve(workloads.size());
  for (const Workload& w : workloads) pointers.push_back(&w);
  const auto state = std::make_shared<State>();
  state->layout = request.layout = std::make_shared<const FixedLayout>(choose_layout(pointers, request));
  state->plan = make_plan(workloads.front(), request);
  state_ = state;
}

std::vector<std::int64_t> ContextLayout::q_tokens(int rank) const {
  FOVEAL_CHECK(rank >= 0 && rank < state_->plan.ranks, "rank: ", rank, "; expected less than ", state_->plan.ranks);
  return state_->plan.q.tokens_of(rank);
}
std::vector<std::int64_t> ContextLayout::kv_tokens(int rank) const {
  FOVEAL_CHECK(rank >= 0 && rank < state_->plan.ranks, "rank: ", rank, "; expected less than ", state_->plan.ranks);
  return state_->plan.kv.tokens_of(rank);
}
std::string ContextLayout::deal() const { return to_string(state_->layout->deal); }
int ContextLayout::head_groups() const { return state_->layout->head_groups; }
std::int64_t ContextLayout::unit() const { return state_->layout->unit; }

struct ContextAttention::State {
  Context context;
  std::size_t used = 0;
  bool agreed[2] = {false, false};  ///< on a forward, on a backward pass
  DeviceBuffers device_forward{false}, device_backward{true};
  PartPlans plans_forward{}, plans_backward{};

  /// Collective, before anything of a pass is under way: an error of one rank is one of all ranks, and they can go on afterwards.
  template <class Check>
  void agree_on_pass(Pass pass, Device device, const std::vector<ParamBinding>& params, const DropoutRng& rng,
                     const std::vector<ParamBinding>& wanted, Check&& check);
  /// Of a pass on a GPU, once for tensors like these.
  void rehearse(const ForwardInputs& in, const ForwardOutputs& out, Stream stream) {
    if (in.q.device.kind != DeviceKind::cuda) return;
    device_forward.begin(in.q.device, stream, *context.transport, true);
    rehearse_forward(context, in, out, device_forward, plans_forward);
  }
  void rehearse(const BackwardInputs& in, const BackwardOutputs& out, Stream stream) {
    if (in.q.device.kind != DeviceKind::cuda) return;
    device_backward.begin(in.q.device, stream, *context.transport, true);
    rehearse_backward(context, in, out, device_backward, plans_backward);
  }
};

ContextAttention::ContextAttention(std::shared_ptr<Transport> transport, const Attention& attention, const WholeShapes& shapes,
                                   const std::vector<ParamBinding>& params, const ContextOptions& options) {
  FOVEAL_CHECK(transport != nullptr, "transport: null; expected one of thread_ranks(), mpi_world() or your own");
  telling_others(*transport, [&] { state_ = std::make_unique<State>(); });
  Context& c = state_->context;
  c.transport = std::move(transport);
  Agreement agreement;
  try {
    c.attention = attention, c.shapes = shapes, c.options = options;
    c.request = {.ranks = c.transport->size(),
                 .deal = deal_named(options.deal),
                 .head_groups = options.head_groups,
                 .remote_steps = options.remote_steps,
                 .machine = machine_named(options.machine)};
    if (options.layout != nullptr) {
      c.request.layout = options.layout->state_->layout;
      c.options.unit = c.request.layout->unit;
    }
    const problem::Problem problem = whole_problem(attention, shapes, params);
    add_call(agreement, "a plan", problem.line());
    std::vector<TensorView> data;
    data.reserve(params.size());
    for (const ParamBinding& p : params) data.push_back(p.tensor);
    c.workload = make_workload(problem, shapes.lengths, data, c.options.unit);
    c.plan = make_plan(c.workload, c.request);
    for (const scoring::Instr& instr : problem.score->mask.code) {
      if (instr.op != scoring::Op::read) continue;
      const auto read = static_cast<std::size_t>(instr.param);
      FOVEAL_CHECK(data[read].data != nullptr && data[read].device.kind == DeviceKind::cpu, "params: the mask reads ",
                   problem.params[read].param.name(), ", which has no data in host memory");
      c.mask_reads.push_back(problem.params[read].param.name());
    }
    std::sort(c.mask_reads.begin(), c.mask_reads.end());
    c.mask_reads.erase(std::unique(c.mask_reads.begin(), c.mask_reads.end()), c.mask_reads.end());
    c.mask_digest = digest_of_mask(c, params);
    for (const scoring::Program* program : {&problem.score->forward, &problem.score->mask})
      for (const scoring::Instr& instr : program->code) c.reads_batch = c.reads_batch || instr.op == scoring::Op::batch;
    add_plan(agreement, c, problem, params);
    plan_own_part(c);
  } catch (...) {  // the others wait for this rank to agree
    agreement.refuse(std::current_exception());
  }
  agree(*c.transport, agreement);
}

ContextAttention::~ContextAttention() = default;
ContextAttention::ContextAttention(ContextAttention&&) noexcept = default;
ContextAttention& ContextAttention::operator=(ContextAttention&&) noexcept = default;

const std::vector<std::int64_t>& ContextAttention::q_tokens() const { return state_->context.q_tokens; }
const std::vector<std::int64_t>& ContextAttention::kv_tokens() const { return state_->context.kv_tokens; }
std::vector<std::int64_t> ContextAttention::q_tokens(int rank) const { return state_->context.plan.q.tokens_of(rank); }
std::vector<std::int64_t> ContextAttention::kv_tokens(int rank) const { return state_->context.plan.kv.tokens_of(rank); }

std::string ContextAttention::explain() const {
  const Context& c = state_->context;
  return dist::explain(c.plan, c.workload, c.request);
}

std::size_t ContextAttention::memory_bytes(Pass pass) const {
  const Context& c = state_->context;
  const RankLoad& load = c.plan.loads[static_cast<std::size_t>(c.rank())];
  if (c.transport->carries_device_memory() && c.plan.head_groups == 1)
    return static_cast<std::size_t>(pass == Pass::forward ? load.forward_device_memory : load.backward_device_memory);
  return static_cast<std::size_t>(pass == Pass::forward ? load.forward_memory : load.backward_memory);
}

std::size_t ContextAttention::used_bytes() const { return state_->used; }

std::pair<std::int64_t, std::int64_t> ContextAttention::planned_bytes(Pass pass) const {
  const Context& c = state_->context;
  const RankLoad& load = c.plan.loads[static_cast<std::size_t>(c.rank())];
  return pass == Pass::forward ? std::pair(load.forward_in, load.forward_out) : std::pair(load.backward_in, load.backward_out);
}

template <class Check>
void ContextAttention::State::agree_on_pass(Pass pass, Device device, const std::vector<ParamBinding>& params, const DropoutRng& rng,
                                            const std::vector<ParamBinding>& wanted, Check&& check) {
  // To agree costs a message of some bytes; where that would be to wait for a GPU, once for all passes, and where seeds are the host's.
  bool& known = agreed[pass == Pass::forward ? 0 : 1];
  const bool seeds = context.attention.dropout_p > 0 && !is_on_gpu(rng.state);
  if (known && !seeds && context.transport->carries_device_memory()) return telling_others(*context.transport, check);
  if (!known && device.kind == DeviceKind::cuda)  // a rehearsal waits for the GPU, which may have to do what others have not told it yet
    telling_others(*context.transport, [&] { wait_for_others(*context.transport); });
  Agreement agreement;
  try {
    add_call(agreement, pass == Pass::forward ? "a forward pass" : "a backward pass", context.plan.text);
    agreement.add("plan", context.plan.checksum, context.plan.text);
    check();
    add_rng(agreement, context, rng);
    agreement.add("parameters", text_of(params));
    agreement.add("gradients that are asked for", text_of(wanted));
  } catch (...) {
    agreement.refuse(std::current_exception());
  }
  agree(*context.transport, agreement);
  known = true;
}

void ContextAttention::forward(const ForwardInputs& in, const ForwardOutputs& out, Stream stream) {
  const Context& c = state_->context;
  const std::int64_t q = c.plan.q.tokens(c.rank()), kv = c.plan.kv.tokens(c.rank());
  state_->agree_on_pass(Pass::forward, in.q.device, in.params, in.rng, {}, [&] {
    FOVEAL_CHECK(!in.varlen && !in.segments, "varlen: given; the plan of a context attention knows the lengths");
    FOVEAL_CHECK(!in.paged, "block_table: keys in pages are not shared between ranks; expected contiguous ones");
    check_rows("q", in.q, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim, c.shapes.dtype);
    check_rows("k", in.k, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim, c.shapes.dtype);
    check_rows("v", in.v, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim_v, c.shapes.dtype);
    check_rows("out", out.out, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim_v, c.shapes.dtype);
    if (out.lse.present()) check_rows("lse", out.lse, c, in.q.device, q, c.shapes.heads_q, 0, c.wide());
    check_mask_data(c, in.params);
    state_->rehearse(in, out, stream);
  });
  telling_others(*c.transport, [&] {
    if (in.q.device.kind == DeviceKind::cuda) {
      state_->device_forward.begin(in.q.device, stream, *c.transport);
      run_forward(c, in, out, state_->device_forward, state_->plans_forward);
      state_->used = state_->device_forward.bytes();
      return;
    }
    state_->used = with_buffers([&](Buffers& buffers) { run_forward(c, in, out, buffers); });
  });
}

void ContextAttention::backward(const BackwardInputs& in, const BackwardOutputs& out, Stream stream) {
  const Context& c = state_->context;
  const std::int64_t q = c.plan.q.tokens(c.rank()), kv = c.plan.kv.tokens(c.rank());
  state_->agree_on_pass(Pass::backward, in.q.device, in.params, in.rng, out.dparams, [&] {
    FOVEAL_CHECK(!in.varlen && !in.segments, "varlen: given; the plan of a context attention knows the lengths");
    FOVEAL_CHECK(!in.paged, "block_table: keys in pages are not shared between ranks; expected contiguous ones");
    check_rows("q", in.q, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim, c.shapes.dtype);
    check_rows("k", in.k, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim, c.shapes.dtype);
    check_rows("v", in.v, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim_v, c.shapes.dtype);
    check_rows("out", in.out, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim_v, c.shapes.dtype);
    check_rows("dout", in.dout, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim_v, c.shapes.dtype);
    check_rows("lse", in.lse, c, in.q.device, q, c.shapes.heads_q, 0, c.wide());
    if (in.dlse.present()) check_rows("dlse", in.dlse, c, in.q.device, q, c.shapes.heads_q, 0, c.wide());
    if (out.dq.present()) check_rows("dq", out.dq, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim, c.shapes.dtype);
    if (out.dk.present()) check_rows("dk", out.dk, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim, c.shapes.dtype);
    if (out.dv.present()) check_rows("dv", out.dv, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim_v, c.shapes.dtype);
    check_mask_data(c, in.params);
    state_->rehearse(in, out, stream);
  });
  telling_others(*c.transport, [&] {
    if (in.q.device.kind == DeviceKind::cuda) {
      state_->device_backward.begin(in.q.device, stream, *c.transport);
      run_backward(c, in, out, state_->device_backward, state_->plans_backward);
      state_->used = state_->device_backward.bytes();
      return;
    }
    state_->used = with_buffers([&](Buffers& buffers) { run_backward(c, in, out, buffers); });
  });
}

}  // namespace foveal::dist
