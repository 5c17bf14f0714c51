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
#include "dist/deal.h"
#include "dist/device_pass.h"

namespace foveal::dist {
namespace {

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

/// What ranks must have in common, as numbers by name, and a line to show where they do not.
struct Agreement {
  static constexpr std::size_t fields = 7, text_bytes = 256;
  static constexpr const char* names[fields] = {"version",
                                                "description (score, mask, scale, dropout)",
                                                "shapes and lengths",
                                                "parameters",
                                                "engine and options",
                                                "plan (tensors that the mask reads)",
                                                "ranks"};
  std::uint64_t values[fields] = {};
  char text[text_bytes] = {};
};

std::uint64_t digest(const std::string& text) { return base::hash64(text); }

Agreement agreement_of(const Context& c, const problem::Problem& problem, const std::vector<ParamBinding>& params) {
  Agreement a;
  const Attention& at = c.attention;
  std::string shapes = base::join(static_cast<int>(c.shapes.dtype), ' ', c.shapes.batch, ' ', c.shapes.heads_q, ' ', c.shapes.heads_kv, ' ',
                                  c.shapes.seqlen_q, ' ', c.shapes.seqlen_kv, ' ', c.shapes.head_dim, ' ', c.shapes.head_dim_v);
  for (const auto& [q, kv] : c.shapes.lengths) shapes += base::join(' ', q, ':', kv);
  std::string bound;
  for (const ParamBinding& p : params) bound += p.param.name() + p.tensor.describe();
  a.values[0] = 1;
  a.values[1] = digest(problem.score->text + (at.sink ? at.sink->name() : "") + std::to_string(problem.scale) + ' ' +
                       std::to_string(at.dropout_p) + base::join(' ', at.q_offset, ' ', at.kv_offset));
  a.values[2] = digest(shapes);
  a.values[3] = digest(bound);
  a.values[4] = digest(
      base::join(c.options.deal, ' ', c.options.head_groups, ' ', c.options.remote_steps, ' ', c.options.machine, ' ', c.options.unit));
  a.values[5] = c.plan.checksum;
  a.values[6] = static_cast<std::uint64_t>(c.plan.ranks);
  const std::string line = problem.line();
  std::memcpy(a.text, line.data(), std::min(line.size(), Agreement::text_bytes - 1));
  return a;
}

void agree(const Context& c, const Agreement& mine) {
  const auto size = static_cast<std::size_t>(c.transport->size());
  std::vector<Agreement> all(size);
  c.transport->all_gather(&mine, sizeof mine, all.data());
  for (std::size_t rank = 1; rank < size; ++rank)
    for (std::size_t f = 0; f < Agreement::fields; ++f)
      FOVEAL_CHECK(all[rank].values[f] == all[0].values[f], "context parallelism: ranks 0 and ", rank, " differ in ", Agreement::names[f],
                   ": rank 0 has ", static_cast<const char*>(all[0].text), "; rank ", rank, " has ",
                   static_cast<const char*>(all[rank].text));
}

/// Every rank must drop the same pairs. A state is read here, in host memory.
void agree_on(const Context& c, const DropoutRng& rng) {
  if (c.attention.dropout_p == 0) return;
  using Words = std::array<std::uint64_t, 2>;
  if (rng.state.present() && rng.state.device.kind == DeviceKind::cuda) return;  // to read it is to wait for the GPU
  Words mine{rng.seed, rng.offset};
  if (rng.state.present()) {
    FOVEAL_CHECK(
        rng.state.dtype == DType::i64 && rng.state.numel() == 2 && rng.state.data != nullptr && rng.state.device.kind == DeviceKind::cpu,
        "rng.state: ", rng.state.describe(), "; expected i64[2] in host memory");
    std::memcpy(mine.data(), rng.state.data, sizeof mine);
  }
  std::vector<Words> all(static_cast<std::size_t>(c.transport->size()));
  c.transport->all_gather(mine.data(), sizeof mine, all.data());
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    FOVEAL_CHECK(all[rank] == all[0], "rng: ranks 0 and ", rank, " differ in seed and offset: ", all[0][0], ", ", all[0][1], " and ",
                 all[rank][0], ", ", all[rank][1], "; expected the same on every rank");
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
  return digest(bytes);
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
  std::vector<std::int64_t> expected;
  if (!c.packed()) expected.push_back(c.shapes.batch);
  if (dim > 0) {
    expected.insert(expected.end(), {rows, heads, dim});
  } else {
    expected.insert(expected.end(), {heads, rows});
  }
  bool same = view.rank == static_cast<int>(expected.size()) && view.dtype == dtype;
  std::string wanted = std::string(to_string(dtype)) + "[";
  for (std::size_t d = 0; d < expected.size(); ++d) {
    same = same && view.sizes[d] == expected[d];
    wanted += (d > 0 ? ", " : "") + std::to_string(expected[d]);
  }
  FOVEAL_CHECK(same, name, ": ", view.present() ? view.describe() : "absent", "; rank ", c.rank(), " of ", c.plan.ranks, " holds ", wanted,
               "]");
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

/// Tells the other ranks when a pass ends by an exception.
class Failing {
 public:
  explicit Failing(Transport& transport) : transport_(transport) {}
  ~Failing() {
    if (std::uncaught_exceptions() > before_) transport_.fail("a pass ended by an error there");
  }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;

 private:
  Transport& transport_;
  int before_ = std::uncaught_exceptions();
};

}  // namespace

struct ContextAttention::State {
  Context context;
  std::size_t used = 0;
  DeviceBuffers device_forward{}, device_backward{};
  PartPlans plans_forward{}, plans_backward{};
};

ContextAttention::ContextAttention(std::shared_ptr<Transport> transport, const Attention& attention, const WholeShapes& shapes,
                                   const std::vector<ParamBinding>& params, const ContextOptions& options)
    : state_(std::make_unique<State>()) {
  FOVEAL_CHECK(transport != nullptr, "transport: null; expected one of thread_ranks(), mpi_world() or your own");
  Context& c = state_->context;
  c.transport = std::move(transport), c.attention = attention, c.shapes = shapes, c.options = options;
  Agreement mine;
  std::string failure;
  ErrorCode code = ErrorCode::invalid_argument;
  try {
    c.request = {.ranks = c.transport->size(),
                 .deal = deal_named(options.deal),
                 .head_groups = options.head_groups,
                 .remote_steps = options.remote_steps,
                 .machine = machine_named(options.machine)};
    const problem::Problem problem = whole_problem(attention, shapes, params);
    std::vector<TensorView> data;
    for (const ParamBinding& p : params) data.push_back(p.tensor);
    c.workload = make_workload(problem, shapes.lengths, data, options.unit);
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
    mine = agreement_of(c, problem, params);
  } catch (const Error& error) {  // the others wait for this rank to agree
    failure = error.what(), code = error.code();
    std::memcpy(mine.text, failure.data(), std::min(failure.size(), Agreement::text_bytes - 1));
  }
  const auto refuse = [&] { base::fail(code, failure); };
  try {
    agree(c, mine);
  } catch (const Error&) {
    if (!failure.empty()) refuse();
    throw;
  }
  if (!failure.empty()) refuse();
  std::vector<RankPlan> ranks;
  for (int rank = 0; rank < c.plan.ranks; ++rank) ranks.push_back(rank_plan(c.plan, rank));
  const int me = c.transport->rank();
  c.mine = ranks[static_cast<std::size_t>(me)];
  c.queries_to = sendings(c.plan, me, ranks, -1);
  for (std::size_t step = 0; step < c.mine.steps.size(); ++step) c.keys_to.push_back(sendings(c.plan, me, ranks, static_cast<int>(step)));
  c.q_tokens = c.plan.q.tokens_of(me), c.kv_tokens = c.plan.kv.tokens_of(me);
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
  return static_cast<std::size_t>(pass == Pass::forward ? load.forward_memory : load.backward_memory);
}

std::size_t ContextAttention::used_bytes() const { return state_->used; }

std::pair<std::int64_t, std::int64_t> ContextAttention::planned_bytes(Pass pass) const {
  const Context& c = state_->context;
  const RankLoad& load = c.plan.loads[static_cast<std::size_t>(c.rank())];
  return pass == Pass::forward ? std::pair(load.forward_in, load.forward_out) : std::pair(load.backward_in, load.backward_out);
}

void ContextAttention::forward(const ForwardInputs& in, const ForwardOutputs& out, Stream stream) {
  const Context& c = state_->context;
  const Failing failing(*c.transport);
  const std::int64_t q = c.plan.q.tokens(c.rank()), kv = c.plan.kv.tokens(c.rank());
  FOVEAL_CHECK(!in.varlen && !in.segments, "varlen: given; the plan of a context attention knows the lengths");
  check_rows("q", in.q, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim, c.shapes.dtype);
  check_rows("k", in.k, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim, c.shapes.dtype);
  check_rows("v", in.v, c, in.q.device, kv, c.shapes.heads_kv, c.shapes.head_dim_v, c.shapes.dtype);
  check_rows("out", out.out, c, in.q.device, q, c.shapes.heads_q, c.shapes.head_dim_v, c.shapes.dtype);
  if (out.lse.present()) check_rows("lse", out.lse, c, in.q.device, q, c.shapes.heads_q, 0, c.wide());
  agree_on(c, in.rng);
  check_mask_data(c, in.params);
  if (in.q.device.kind == DeviceKind::cuda) {
    state_->device_forward.begin(in.q.device, stream);
    run_forward(c, in, out, state_->device_forward, state_->plans_forward);
    state_->used = state_->device_forward.bytes();
    return;
  }
  Buffers buffers;
  run_forward(c, in, out, buffers);
  state_->used = buffers.bytes();
}

void ContextAttention::backward(const BackwardInputs& in, const BackwardOutputs& out, Stream stream) {
  const Context& c = state_->context;
  const Failing failing(*c.transport);
  const std::int64_t q = c.plan.q.tokens(c.rank()), kv = c.plan.kv.tokens(c.rank());
  FOVEAL_CHECK(!in.varlen && !in.segments, "varlen: given; the plan of a context attention knows the lengths");
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
  agree_on(c, in.rng);
  check_mask_data(c, in.params);
  if (in.q.device.kind == DeviceKind::cuda) {
    state_->device_backward.begin(in.q.device, stream);
    run_backward(c, in, out, state_->device_backward, state_->plans_backward);
    state_->used = state_->device_backward.bytes();
    return;
  }
  Buffers buffers;
  run_backward(c, in, out, buffers);
  state_->used = buffers.bytes();
}

}  // namespace foveal::dist
