// The public calls: arguments are checked, ranks agree once on one plan, and each pass follows it.
#include "dist/context.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <map>
#include <mutex>

#include "api/backends.h"
#include "base/check.h"
#include "base/strided.h"
#include "cuda/jit/load_together.h"
#include "dist/agreement.h"
#include "dist/context_checks.h"
#include "dist/deal.h"
#include "dist/device_pass.h"
#include "plan/choose.h"
#include "plan/signature.h"
#include "problem/call.h"

namespace foveal::dist {
namespace {

constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();

TensorView shape_only(DType dtype, std::initializer_list<std::int64_t> sizes, Device device) {
  return TensorView(nullptr, dtype, sizes, device);
}

/// The whole problem, of which no rank has the tensors; with wanted gradients that of a backward pass.
problem::Problem whole_problem(const Attention& attention, const WholeShapes& s, const std::vector<ParamBinding>& params,
                               Device device = {}, const std::vector<ParamBinding>* wanted = nullptr) {
  ForwardInputs inputs;
  ForwardOutputs outputs;
  const DType statistics = base::wide_type(s.dtype);
  if (s.lengths.empty()) {
    inputs.q = shape_only(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim}, device);
    inputs.k = shape_only(s.dtype, {s.batch, s.seqlen_kv, s.heads_kv, s.head_dim}, device);
    inputs.v = shape_only(s.dtype, {s.batch, s.seqlen_kv, s.heads_kv, s.head_dim_v}, device);
    outputs.out = shape_only(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v}, device);
    outputs.lse = shape_only(statistics, {s.batch, s.heads_q, s.seqlen_q}, device);
  } else {
    std::int64_t q = 0, kv = 0, longest_q = 0, longest_kv = 0;
    for (const auto& [of_q, of_kv] : s.lengths) {
      FOVEAL_CHECK(of_q >= 0 && of_kv >= 0, "lengths: ", of_q, " and ", of_kv, "; expected 0 or more");
      FOVEAL_CHECK(of_q <= most_tokens - q && of_kv <= most_tokens - kv, "lengths: more than 2^31 tokens");
      q += of_q, kv += of_kv, longest_q = std::max(longest_q, of_q), longest_kv = std::max(longest_kv, of_kv);
    }
    inputs.q = shape_only(s.dtype, {q, s.heads_q, s.head_dim}, device);
    inputs.k = shape_only(s.dtype, {kv, s.heads_kv, s.head_dim}, device);
    inputs.v = shape_only(s.dtype, {kv, s.heads_kv, s.head_dim_v}, device);
    outputs.out = shape_only(s.dtype, {q, s.heads_q, s.head_dim_v}, device);
    outputs.lse = shape_only(statistics, {s.heads_q, q}, device);
    const TensorView cu = shape_only(DType::i64, {static_cast<std::int64_t>(s.lengths.size()) + 1}, device);
    inputs.varlen = Varlen{cu, cu, longest_q, longest_kv};
  }
  inputs.params = params;
  if (wanted == nullptr) return problem::make_problem(attention, inputs, outputs);
  BackwardInputs backward{
      .q = inputs.q, .k = inputs.k, .v = inputs.v, .out = outputs.out, .lse = outputs.lse, .dout = outputs.out, .params = params};
  backward.varlen = inputs.varlen;
  return problem::make_problem(attention, backward, {.dq = inputs.q, .dparams = *wanted});
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

}  // namespace

std::vector<std::int64_t> tokens_of(std::int64_t seqlen, int ranks, int rank, const std::string& deal, std::int64_t unit, int head_groups) {
  FOVEAL_CHECK(seqlen >= 0 && seqlen <= most_tokens && ranks >= 1 && ranks <= most_ranks && rank >= 0 && rank < ranks && unit >= 1 &&
                   unit <= most_unit && head_groups >= 1 && ranks % head_groups == 0,
               "tokens_of: seqlen ", seqlen, ", rank ", rank, " of ", ranks, ", unit ", unit, ", head groups ", head_groups,
               "; expected a length below 2^31, a rank below ranks, of which there are at most ", most_ranks, ", a unit of 1 to ",
               most_unit, ", and head groups that divide the ranks");
  const Deal how = deal_named(deal);
  FOVEAL_CHECK(how == Deal::contiguous || how == Deal::zigzag, "deal: ", deal, "; expected contiguous or zigzag, which no mask decides");
  const int groups = ranks / head_groups;
  const Dealt dealt = how == Deal::contiguous ? deal_contiguous({seqlen}, unit, groups) : deal_zigzag({seqlen}, unit, groups);
  return Layout({seqlen}, cut_for_members({seqlen}, dealt.chunks, unit, groups, head_groups), ranks).tokens_of(rank);
}

namespace {

/// While messages are under way an error of this rank must reach the others, which would wait for it. An executor or a transport of the
/// caller's may throw anything.
template <class Fn>
void fail_together(Transport& transport, Fn&& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    transport.fail(error.what());
    throw;
  } catch (...) {
    transport.fail("an exception of another language or library");
    throw;
  }
}

/// An agreement that fails is known to all ranks, unless it could not be exchanged.
void agree(Transport& transport, Agreement& agreement) {
  std::exception_ptr known;
  fail_together(transport, [&] {
    try {
      agreement.exchange(transport);
    } catch (...) {
      if (!agreement.is_known_to_all()) throw;
      known = std::current_exception();
    }
  });
  if (known) std::rethrow_exception(known);
}

/// Ranks agree on what fill(agreement) adds. A rank where it throws refuses.
template <class Fill>
void agree_on(Transport& transport, Fill&& fill) {
  Agreement agreement;
  try {
    fill(agreement);
  } catch (...) {
    agreement.refuse(std::current_exception());
  }
  agree(transport, agreement);
}

/// Memory on the GPU for all passes on one transport: these follow each other, whichever attention they are of.
struct PassMemory {
  explicit PassMemory(const Transport& of) : transport(&of) {}
  ~PassMemory();
  PassMemory(const PassMemory&) = delete;
  PassMemory& operator=(const PassMemory&) = delete;

  const Transport* const transport;
  std::atomic_flag running;
  DeviceBuffers forward{false}, backward{true};
};

struct PassMemories {
  std::mutex mutex;
  std::map<const Transport*, std::weak_ptr<PassMemory>> known;
};
PassMemories& pass_memories() {
  static auto* const memories = new PassMemories;  // never freed: contexts may outlive static objects
  return *memories;
}

PassMemory::~PassMemory() {
  const std::lock_guard lock(pass_memories().mutex);
  const auto found = pass_memories().known.find(transport);
  if (found != pass_memories().known.end() && found->second.expired()) pass_memories().known.erase(found);
}

/// One call of a transport's contexts at a time: two would mix up their messages.
class Turn {
 public:
  explicit Turn(std::atomic_flag& taken) : taken_(taken) {
    FOVEAL_CHECK(!taken_.test_and_set(), "context: a call while another one runs on another thread; expected one at a time");
  }
  ~Turn() { taken_.clear(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic_flag& taken_;
};

/// That of the other attentions of the transport, while there are any.
std::shared_ptr<PassMemory> pass_memory(const Transport& transport) {
  auto made = std::make_shared<PassMemory>(transport);
  const std::lock_guard lock(pass_memories().mutex);
  std::weak_ptr<PassMemory>& known = pass_memories().known[&transport];
  if (auto found = known.lock()) return found;
  known = made;
  return made;
}

/// Runs fn in new buffers and returns their bytes. After an error they leak: messages under way may still read or write them.
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

/// This rank's part of the plan.
void plan_own_part(Context& c) {
  std::vector<RankPlan> ranks;
  ranks.reserve(static_cast<std::size_t>(c.plan.ranks));
  for (int rank = 0; rank < c.plan.ranks; ++rank) ranks.push_back(rank_plan(c.plan, rank));
  const int me = c.transport->rank();
  c.mine = ranks[static_cast<std::size_t>(me)];
  c.queries_to = sendings(c.plan, me, ranks, -1);
  // In rounds, the rank after this one first: so each receives from one other at a time.
  const auto round = [&](const Sending& sending) { return (sending.target - me + c.plan.ranks) % c.plan.ranks; };
  for (std::size_t step = 0; step < c.mine.steps.size(); ++step) {
    std::vector<Sending>& sent = c.keys_to.emplace_back(sendings(c.plan, me, ranks, static_cast<int>(step)));
    std::sort(sent.begin(), sent.end(), [&](const Sending& a, const Sending& b) { return round(a) < round(b); });
  }
  c.q_tokens = c.plan.q.tokens_of(me), c.kv_tokens = c.plan.kv.tokens_of(me);
}

}  // namespace

namespace {

/// What a layout or a context holds.
template <class State>
auto& held(const State& state) {
  FOVEAL_CHECK(state != nullptr, "context: empty, as it was moved to another; expected one that was made");
  return *state;
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

static std::vector<std::int64_t> tokens_of(const ContextPlan& plan, const Layout& layout, int rank) {
  FOVEAL_CHECK(rank >= 0 && rank < plan.ranks, "rank: ", rank, "; expected 0 to ", plan.ranks - 1);
  return layout.tokens_of(rank);
}

std::vector<std::int64_t> ContextLayout::q_tokens(int rank) const { return tokens_of(held(state_).plan, held(state_).plan.q, rank); }
std::vector<std::int64_t> ContextLayout::kv_tokens(int rank) const { return tokens_of(held(state_).plan, held(state_).plan.kv, rank); }
std::string ContextLayout::deal() const { return to_string(held(state_).layout->deal); }
int ContextLayout::head_groups() const { return held(state_).layout->head_groups; }
std::int64_t ContextLayout::unit() const { return held(state_).layout->unit; }

struct ContextAttention::State {
  /// What a pass keeps from call to call.
  struct OfPass {
    bool agreed = false;
    PartPlans plans{};
    std::string looks{};                                  ///< of its last call: parameters of such a call are known to be right
    std::vector<ParamBinding> looked_at{}, looked_for{};  ///< whose addresses the looks have
  };
  explicit State(std::shared_ptr<Transport> transport) : memory(pass_memory(*transport)) { context.transport = std::move(transport); }

  Context context;
  std::shared_ptr<PassMemory> memory;  ///< gives it back while the transport is there
  std::size_t used = 0;
  OfPass forward, backward;
  struct Follows {
    std::vector<Param> trained;
    bool dlse;
  };
  std::optional<Follows> follows;  ///< the backward passes to come

  /// Plans a pass and takes its memory, and loads its kernels.
  template <class Inputs, class Outputs>
  void warm_up(OfPass& pass, const Inputs& in, const Outputs& out, Stream stream);
  /// Kernels of the backward pass that is to follow a forward pass.
  std::vector<cuda::jit::KernelSource> kernels_that_follow(const ForwardInputs& in, const ForwardOutputs& out);
  template <class Inputs, class Outputs>
  void run(OfPass& pass, const char* name, const Inputs& in, const Outputs& out, const std::vector<ParamBinding>& wanted, Stream stream);
  /// Parameters and their gradients, as an ordinary call checks them.
  template <class Inputs, class Outputs>
  void check_bindings(OfPass& pass, const Inputs& in, const Outputs& out, const std::vector<ParamBinding>& wanted);
  /// Collective, before anything of a pass is under way: an error of one rank is one of all ranks, and they can go on afterwards.
  template <class Check>
  void agree_on_pass(OfPass& pass, const char* name, Device device, const std::vector<ParamBinding>& params, const DropoutRng& rng,
                     const std::vector<ParamBinding>& wanted, const TensorView& dlse, Stream stream, Check&& check);
};

ContextAttention::ContextAttention(std::shared_ptr<Transport> transport, const Attention& attention, const WholeShapes& shapes,
                                   const std::vector<ParamBinding>& params, const ContextOptions& options) {
  FOVEAL_CHECK(transport != nullptr, "transport: null; expected one of thread_ranks(), mpi_world() or your own");
  const int ranks = transport->size(), rank = transport->rank();
  FOVEAL_CHECK(ranks >= 1 && ranks <= most_ranks && rank >= 0 && rank < ranks, "transport: rank ", rank, " of ", ranks,
               "; expected a rank below a size of 1 to ", most_ranks);
  fail_together(*transport, [&] { state_ = std::make_unique<State>(transport); });
  const Turn turn(state_->memory->running);
  Context& c = state_->context;
  Agreement agreement;
  try {
    planning::check_options(options.plan, api::backends());
    c.attention = attention, c.shapes = shapes, c.options = options;
    c.request = {.ranks = c.transport->size(),
                 .deal = deal_named(options.deal),
                 .head_groups = options.head_groups,
                 .remote_steps = options.remote_steps,
                 .machine = machine_named(options.machine)};
    if (options.layout != nullptr) {
      c.request.layout = held(options.layout->state_).layout;
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

const std::vector<std::int64_t>& ContextAttention::q_tokens() const { return held(state_).context.q_tokens; }
const std::vector<std::int64_t>& ContextAttention::kv_tokens() const { return held(state_).context.kv_tokens; }
std::vector<std::int64_t> ContextAttention::q_tokens(int rank) const {
  return tokens_of(held(state_).context.plan, held(state_).context.plan.q, rank);
}
std::vector<std::int64_t> ContextAttention::kv_tokens(int rank) const {
  return tokens_of(held(state_).context.plan, held(state_).context.plan.kv, rank);
}

std::string ContextAttention::explain() const {
  const Context& c = held(state_).context;
  return dist::explain(c.plan, c.workload, c.request);
}

std::size_t ContextAttention::memory_bytes(Pass pass) const {
  const Context& c = held(state_).context;
  const RankLoad& load = c.plan.loads[static_cast<std::size_t>(c.rank())];
  if (c.transport->carries_device_memory() && c.plan.head_groups == 1)
    return static_cast<std::size_t>(pass == Pass::forward ? load.forward_device_memory : load.backward_device_memory);
  return static_cast<std::size_t>(pass == Pass::forward ? load.forward_memory : load.backward_memory);
}

std::size_t ContextAttention::used_bytes() const { return held(state_).used; }

std::pair<std::int64_t, std::int64_t> ContextAttention::planned_bytes(Pass pass) const {
  const Context& c = held(state_).context;
  const RankLoad& load = c.plan.loads[static_cast<std::size_t>(c.rank())];
  return pass == Pass::forward ? std::pair(load.forward_in, load.forward_out) : std::pair(load.backward_in, load.backward_out);
}

template <class Check>
void ContextAttention::State::agree_on_pass(OfPass& pass, const char* name, Device device, const std::vector<ParamBinding>& params,
                                            const DropoutRng& rng, const std::vector<ParamBinding>& wanted, const TensorView& dlse,
                                            Stream stream, Check&& check) {
  // Agreement costs a small message. Where that means waiting for the GPU, ranks agree once for all passes, unless seeds are the host's.
  const bool seeds = context.attention.dropout_p > 0 && !is_on_gpu(rng.state);
  const bool reads = std::none_of(params.begin(), params.end(), [](const ParamBinding& p) { return is_on_gpu(p.tensor); }) ||
                     !pass.agreed || context.attention.checked;  // values of a GPU only once, as that waits, unless all is to be checked
  if (pass.agreed && !seeds && !context.attention.checked && context.transport->carries_device_memory())
    return fail_together(*context.transport, check);
  const auto add_this_call = [&](Agreement& agreement) {
    add_call(agreement, base::join(name, device.kind == DeviceKind::cuda ? " on GPUs" : " on CPUs"), context.plan.text);
  };
  if (!pass.agreed && device.kind == DeviceKind::cuda)  // a warm-up waits for the GPU, whose work may wait for ranks that come later
    agree_on(*context.transport, add_this_call);
  agree_on(*context.transport, [&](Agreement& agreement) {
    add_this_call(agreement);
    agreement.add("plan", context.plan.checksum, context.plan.text);
    check();
    add_rng(agreement, context, rng);
    agreement.add("parameters", text_of(params));
    agreement.add("gradients that are asked for", text_of(wanted));
    if (reads) add_data(agreement, context, params, stream);
    if (context.plan.head_groups > 1) agreement.add("dlse", dlse.present() ? "given" : "absent");  // it travels with the queries
  });
  pass.agreed = true;
}

template <class Inputs, class Outputs>
void ContextAttention::State::check_bindings(OfPass& pass, const Inputs& in, const Outputs& out, const std::vector<ParamBinding>& wanted) {
  std::string looks;
  planning::write_signature(context.attention, problem::call_of(in, out), context.options.plan, looks);
  if (looks == pass.looks) return;
  constexpr bool is_forward = std::is_same_v<Inputs, ForwardInputs>;
  whole_problem(context.attention, context.shapes, in.params, in.q.device, is_forward ? nullptr : &wanted);
  pass.looks = std::move(looks), pass.looked_at = in.params, pass.looked_for = wanted;
}

std::vector<cuda::jit::KernelSource> ContextAttention::State::kernels_that_follow(const ForwardInputs& in, const ForwardOutputs& out) {
  if (!follows || backward.plans.is_made() || !out.lse.present()) return {};
  std::uintptr_t next = std::uintptr_t{1} << 44;  // addresses that nobody reads or writes
  const auto like = [&](TensorView view) {
    view.data = reinterpret_cast<void*>(next), next += std::uintptr_t{1} << 40;
    base::make_contiguous(view);
    return view;
  };
  BackwardInputs inputs{.q = in.q, .k = in.k, .v = in.v, .out = out.out, .lse = out.lse, .dout = like(out.out), .params = in.params};
  inputs.rng = in.rng;
  if (follows->dlse) inputs.dlse = like(out.lse);
  BackwardOutputs outputs{.dq = like(in.q), .dk = like(in.k), .dv = like(in.v)};
  for (const ParamBinding& p : in.params)
    if (std::any_of(follows->trained.begin(), follows->trained.end(), [&](const Param& t) { return t.name() == p.param.name(); }))
      outputs.dparams.push_back({p.param, like(p.tensor)});
  DeviceBuffers nowhere(false, DeviceBuffers::Memory::made_up);
  PartPlans plans;
  const cuda::jit::LoadTogether together;
  try {
    nowhere.begin(in.q.device, {}, *context.transport, true);
    run_pass(context, inputs, outputs, nowhere, plans);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): recurs in the backward pass
  }
  return together.sources();
}

template <class Inputs, class Outputs>
void ContextAttention::State::warm_up(OfPass& pass, const Inputs& in, const Outputs& out, Stream stream) {
  constexpr bool is_forward = std::is_same_v<Inputs, ForwardInputs>;
  DeviceBuffers& buffers = is_forward ? memory->forward : memory->backward;
  buffers.begin(in.q.device, stream, *context.transport, true);
  cuda::jit::LoadTogether together;
  run_pass(context, in, out, buffers, pass.plans);
  if (together.empty()) return;  // as the last time
  try {
    if constexpr (is_forward) {
      if (std::vector<cuda::jit::KernelSource> later = kernels_that_follow(in, out); !later.empty()) {
        std::vector<cuda::jit::KernelSource> all = together.sources();
        all.insert(all.end(), std::make_move_iterator(later.begin()), std::make_move_iterator(later.end()));
        try {
          cuda::jit::compile(all);
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): recurs where the kernel is loaded
        }
      }
    }
    together.load();
  } catch (...) {
    pass.plans = {};
    throw;
  }
}

template <class Inputs, class Outputs>
void ContextAttention::State::run(OfPass& pass, const char* name, const Inputs& in, const Outputs& out,
                                  const std::vector<ParamBinding>& wanted, Stream stream) {
  const Context& c = context;
  const bool on_gpu = in.q.device.kind == DeviceKind::cuda;
  constexpr bool is_forward = std::is_same_v<Inputs, ForwardInputs>;
  DeviceBuffers& buffers = is_forward ? memory->forward : memory->backward;
  TensorView dlse;
  if constexpr (!is_forward) dlse = in.dlse;
  agree_on_pass(pass, name, in.q.device, in.params, in.rng, wanted, dlse, stream, [&] {
    FOVEAL_CHECK(!in.varlen, "varlen: given; the plan of a context attention knows the lengths");
    FOVEAL_CHECK(!in.segments, "segments: given; the plan of a context attention has them");
    FOVEAL_CHECK(!in.part, "part: given; the plan of a context attention divides the work");
    FOVEAL_CHECK(!in.paged, "block_table: keys in pages are not shared between ranks; expected contiguous ones");
    check_shards(c, in, out);
    check_params(in.params, "parameter");
    check_params(wanted, "gradient of parameter");
    check_bindings(pass, in, out, wanted);
    check_mask_data(c, in.params);
    if (on_gpu) warm_up(pass, in, out, stream);
  });
  fail_together(*c.transport, [&] {
    if (on_gpu) {
      buffers.begin(in.q.device, stream, *c.transport);
      run_pass(c, in, out, buffers, pass.plans);
      used = buffers.bytes();
    } else {
      used = with_buffers([&](Buffers& host) { run_pass(c, in, out, host); });
    }
  });
}

void ContextAttention::backward_follows(const std::vector<Param>& trained, bool dlse) { held(state_).follows = {trained, dlse}; }

namespace {

/// Strides of dimensions of size 1, which may be anything, become those of a contiguous tensor.
void ignore_strides_of_ones(std::initializer_list<TensorView*> views) {
  for (TensorView* view : views)
    if (view->rank >= 0 && view->rank <= TensorView::max_rank) *view = problem::logical_view(*view, false);
}

}  // namespace

void ContextAttention::forward(const ForwardInputs& in, const ForwardOutputs& out, Stream stream) {
  const Turn turn(held(state_).memory->running);
  ForwardInputs inputs;
  ForwardOutputs outputs;
  fail_together(*state_->context.transport, [&] {
    inputs = in, outputs = out;
    ignore_strides_of_ones({&inputs.q, &inputs.k, &inputs.v, &outputs.out, &outputs.lse});
  });
  state_->run(state_->forward, "a forward pass", inputs, outputs, {}, stream);
}
void ContextAttention::backward(const BackwardInputs& in, const BackwardOutputs& out, Stream stream) {
  const Turn turn(held(state_).memory->running);
  BackwardInputs inputs;
  BackwardOutputs outputs;
  fail_together(*state_->context.transport, [&] {
    inputs = in, outputs = out;
    ignore_strides_of_ones(
        {&inputs.q, &inputs.k, &inputs.v, &inputs.out, &inputs.lse, &inputs.dout, &inputs.dlse, &outputs.dq, &outputs.dk, &outputs.dv});
  });
  state_->run(state_->backward, "a backward pass", inputs, outputs, outputs.dparams, stream);
}

}  // namespace foveal::dist
