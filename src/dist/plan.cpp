#include "dist/plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/divide.h"
#include "base/hash.h"
#include "dist/deal.h"
#include "dist/steps.h"

namespace foveal::dist {
namespace {

using base::divide_up;

/// Nanoseconds for this many bytes at this many MB a second.
std::int64_t transfer_ns(std::int64_t bytes, std::int64_t mbytes) { return bytes / std::max<std::int64_t>(mbytes, 1) * 1000 + 1; }

/// Nanoseconds for work in Cost units, of tiles with these sides.
std::int64_t work_ns(std::int64_t work, const Workload& w, std::int64_t gflops, bool backward) {
  const std::int64_t tile_flops = 2 * w.unit * w.unit * (backward ? 3 * w.head_dim + 2 * w.head_dim_v : w.head_dim + w.head_dim_v);
  const std::int64_t tile_ps = std::max<std::int64_t>(tile_flops * 1000 / std::max<std::int64_t>(gflops, 1), 1);
  return work / 10 * tile_ps / 1000;
}

Layout layout_of_keys(const Workload& w, const Layout& q, const ContextPlan& plan) {
  if (w.self_attention()) return q;
  const Dealt dealt = deal_contiguous(w.lengths_kv, w.unit, plan.groups());
  return Layout(w.lengths_kv, cut_for_members(w.lengths_kv, dealt.chunks, w.unit, plan.groups(), plan.head_groups), plan.ranks);
}

/// Chunks of a group's queries, across its members' borders.
std::vector<Chunk> chunks_of_group(const ContextPlan& plan, const Layout& by_group, int group) {
  return plan.head_groups == 1 ? plan.q.shard(group) : by_group.shard(group);
}

/// Elements of one token, in the share of heads of one member of a group.
struct RowSizes {
  std::int64_t kv, q, out, lse_bytes;
};

RowSizes row_sizes(const Workload& w, int members) {
  const std::int64_t heads_q = w.batch * w.heads_q / members, heads_kv = w.batch * w.heads_kv / members;
  return {.kv = heads_kv * (w.head_dim + w.head_dim_v),
          .q = heads_q * w.head_dim,
          .out = heads_q * w.head_dim_v,
          .lse_bytes = heads_q * w.statistic_bytes};
}

/// Of gradients that are summed.
std::int64_t wide_bytes(const Workload& w) { return std::max<std::int64_t>(w.element_bytes, 4); }

std::int64_t work_of(const Workload& w, const std::vector<Block>& blocks) {
  std::int64_t work = 0;
  std::int32_t sequence = -1;
  Range before{-1, -1};
  for (const Block& block : blocks) {  // blocks of one run of queries stand together
    if (block.sequence == sequence && block.q == before) continue;
    sequence = block.sequence, before = block.q;
    work += w.work(sequence, before);
  }
  return work;
}

/// Of a backward pass beside its products: rows of queries are prepared, and their dq made of its sum, which is cleared before. Where keys
/// arrive, dk and dv of own keys are sums, of which these are made.
std::int64_t rows_ns(const Workload& w, const Machine& machine, const RankLoad& load, int members) {
  const RowSizes row = row_sizes(w, members);
  const std::int64_t wide = wide_bytes(w), own = w.element_bytes;
  const std::int64_t received = load.forward_in / std::max<std::int64_t>(row.kv * own, 1), merged = std::min(received, load.tokens_kv);
  const std::int64_t prepare = 2 * row.out * own;
  return transfer_ns(members * load.tokens_q * (prepare + row.q * (2 * wide + own)) + merged * row.kv * (2 * wide + own),
                     machine.memory_mbytes);
}

/// Of a chunk of the first rank.
std::int64_t slices_of_keys(const Workload& w, const ContextPlan& plan) {
  const std::vector<Chunk>& chunks = plan.kv.shard(0);
  if (chunks.empty()) return 1;
  const std::int64_t of_key = w.heads_kv * w.head_dim * w.element_bytes, of_value = w.heads_kv * w.head_dim_v * w.element_bytes;
  return slices_of(w.heads_kv, std::min(of_key, of_value), chunks.front().tokens.size() * (of_key + of_value) / 2);
}

/// What a rank sends of its keys, as tokens times ranks that need them, and the times that follow from all that is known of it now.
void add_sends(const Workload& w, const Machine& machine, ContextPlan& plan, int rank, std::int64_t near, std::int64_t far) {
  RankLoad& load = plan.loads[static_cast<std::size_t>(rank)];
  const int members = plan.head_groups;
  const RowSizes row = row_sizes(w, members);
  load.forward_out += (near + far) * row.kv * w.element_bytes;
  load.backward_out += (near + far) * row.kv * w.element_bytes;
  load.backward_in += (near + far) * row.kv * wide_bytes(w);
  load.forward_memory += load.forward_in + load.forward_out;
  load.backward_memory += load.backward_in + load.backward_out;
  load.backward_device_memory += (near + far) * row.kv * wide_bytes(w);  // what comes back
  const std::int64_t send_ns = transfer_ns(near * row.kv * w.element_bytes, machine.host_mbytes) +
                               transfer_ns(far * row.kv * w.element_bytes, machine.network_mbytes);
  // The exchange of heads hides behind nothing.
  const std::int64_t exchange =
      members == 1 ? 0
                   : transfer_ns(plan.q.tokens(rank) * (members - 1) * (row.q + row.out) * w.element_bytes, machine.host_mbytes) +
                         machine.exchange_ns;
  // The first rows that are computed need all keys of the first heads, and wait for the last of them.
  const std::int64_t forward_work = work_ns(load.work, w, machine.forward_gflops, false);
  const std::int64_t rows = std::max<std::int64_t>(load.tokens_q * members * w.batch * w.heads_q / members, 1);
  const std::int64_t of_first_rows = forward_work / rows * std::min(machine.rows_at_a_time, rows);
  const bool network = plan.ranks > machine.ranks_per_host;
  const std::int64_t slices = network || members > 1 || w.batch > 1 ? 1 : slices_of_keys(w, plan);
  const std::int64_t first_rows_ns =
      std::max<std::int64_t>(0, (std::min(std::max(load.forward_ns, send_ns), forward_work) >> (slices - 1)) - of_first_rows);
  const std::int64_t latency = load.peers == 0 ? 0 : network ? machine.network_latency_ns : machine.host_latency_ns;
  const std::int64_t steps = load.peers == 0 ? 0 : plan.remote_steps * machine.step_ns;
  const std::int64_t launches = (load.launches - 1) * machine.launch_ns;  // a backward pass makes one for own keys and one for others'
  load.forward_ns = std::max({forward_work, load.forward_ns, send_ns}) + latency + steps + exchange + launches;
  load.backward_ns = std::max({work_ns(load.work, w, w.heads_q > w.heads_kv ? machine.grouped_gflops : machine.backward_gflops, true),
                               load.backward_ns, 3 * send_ns}) +
                     latency + steps + 2 * exchange + 2 * launches;
  load.forward_beside_ns = load.backward_beside_ns = load.peers > 0 ? machine.begin_ns : 0;
  load.forward_beside_ns += first_rows_ns;
  load.backward_beside_ns += rows_ns(w, machine, load, members);
}

/// Of a shard: one for each chunk, but for neighbours that are whole sequences.
std::int64_t launches_of(const Workload& w, const ContextPlan& plan, int rank) {
  std::int64_t launches = 0;
  bool before_is_whole = false;
  for (const Chunk& chunk : plan.q.shard(rank)) {
    const bool is_whole = chunk.tokens == Range{0, w.lengths_q[static_cast<std::size_t>(chunk.sequence)]};
    if (!is_whole || !before_is_whole) ++launches;
    before_is_whole = is_whole;
  }
  return std::max<std::int64_t>(launches, 1);
}

void fill_loads(const Workload& w, const PlanRequest& request, ContextPlan& plan) {
  const int ranks = plan.ranks, members = plan.head_groups;
  const auto host = [&](int rank) { return rank / std::max<std::int64_t>(request.machine.ranks_per_host, 1); };
  plan.loads.assign(static_cast<std::size_t>(ranks), {});
  std::vector<std::int64_t> out_near(static_cast<std::size_t>(ranks), 0), out_far = out_near;
  const auto [kv_row, q_row, out_row, lse_row] = row_sizes(w, members);
  const std::int64_t wide = wide_bytes(w);
  std::vector<std::int64_t> from(static_cast<std::size_t>(ranks));
  for (int group = 0; group < plan.groups(); ++group) {
    const std::vector<Block>& blocks = plan.blocks[static_cast<std::size_t>(group)];
    std::fill(from.begin(), from.end(), 0);
    std::int64_t gathered = 0;
    for (const Need& need : needs_of(blocks))
      for (const Chunk& piece : plan.kv.owners(need.sequence, need.kv)) {
        from[static_cast<std::size_t>(piece.owner)] += piece.tokens.size();
        gathered += piece.tokens.size();
      }
    std::int64_t q_rows = 0;
    for (int member = 0; member < members; ++member) q_rows += plan.q.tokens(group * members + member);
    for (int member = 0; member < members; ++member) {
      const int rank = group * members + member;
      RankLoad& load = plan.loads[static_cast<std::size_t>(rank)];
      std::int64_t near = 0, far = 0;
      for (int owner = 0; owner < ranks; ++owner) {
        const std::int64_t tokens = from[static_cast<std::size_t>(owner)];
        if (tokens == 0 || owner == rank) continue;
        ++load.peers;
        const bool same = host(owner) == host(rank);
        (same ? near : far) += tokens;
        (same ? out_near : out_far)[static_cast<std::size_t>(owner)] += tokens;
      }
      const std::int64_t own = plan.q.tokens(rank), others = q_rows - own;  // queries of the group's other members, for this share of heads
      const std::int64_t mine_elsewhere = own * (members - 1);
      load.tokens_q = own, load.tokens_kv = plan.kv.tokens(rank);
      load.chunks = static_cast<std::int64_t>(plan.q.shard(rank).size());
      load.launches = launches_of(w, plan, rank);
      const std::int64_t key_bytes = (near + far) * kv_row * w.element_bytes, sum_bytes = (near + far) * kv_row * wide;
      const std::int64_t results = out_row * w.element_bytes + lse_row;
      // Forward: queries in, results out. Backward: queries, out, dout and statistics in, dq out.
      const std::int64_t down = (q_row + 2 * out_row) * w.element_bytes + 2 * lse_row;
      load.forward_in = key_bytes + others * q_row * w.element_bytes + mine_elsewhere * results;
      load.backward_in = key_bytes + others * down + mine_elsewhere * q_row * w.element_bytes;
      load.forward_out += others * results + mine_elsewhere * q_row * w.element_bytes;
      load.backward_out += sum_bytes + others * q_row * w.element_bytes + mine_elsewhere * down;
      load.forward_ns = transfer_ns(near * kv_row * w.element_bytes, request.machine.host_mbytes) +
                        transfer_ns(far * kv_row * w.element_bytes, request.machine.network_mbytes);
      load.backward_ns = load.forward_ns + transfer_ns(near * kv_row * wide, request.machine.host_mbytes) +
                         transfer_ns(far * kv_row * wide, request.machine.network_mbytes);
      // Whole rows merge nothing. Backward: dk and dv in f32, of received keys too; and the sum of dq.
      load.forward_device_memory = far == 0 && double_buffers_keys(key_bytes) ? 2 * key_bytes : key_bytes;
      load.backward_device_memory = key_bytes + sum_bytes + load.tokens_kv * kv_row * wide + own * q_row * wide;
      // Buffers of queries, gathered keys, results and their parts; messages are added below.
      load.forward_memory =
          gathered * kv_row * w.element_bytes + q_rows * (q_row * w.element_bytes + out_row * (w.element_bytes + 2 * wide) + 2 * lse_row);
      load.backward_memory = gathered * kv_row * (w.element_bytes + 2 * wide) + plan.kv.tokens(rank) * members * kv_row * wide +
                             q_rows * (q_row * (2 * w.element_bytes + 2 * wide) + 2 * out_row * w.element_bytes + 2 * lse_row) +
                             own * members * lse_row;
    }
  }
  for (int group = 0; group < plan.groups(); ++group) {
    const std::int64_t work = work_of(w, plan.blocks[static_cast<std::size_t>(group)]);
    for (int rank = group * members; rank < (group + 1) * members; ++rank) {
      plan.loads[static_cast<std::size_t>(rank)].work = work / members;
      add_sends(w, request.machine, plan, rank, out_near[static_cast<std::size_t>(rank)], out_far[static_cast<std::size_t>(rank)]);
    }
  }
}

Dealt dealt_by(Deal deal, const std::vector<const Workload*>& workloads, int groups, int fraction) {
  const Workload& w = *workloads.front();
  if (deal == Deal::contiguous) return deal_contiguous(w.lengths_q, w.unit, groups);
  return deal == Deal::zigzag ? deal_zigzag(w.lengths_q, w.unit, groups) : deal_pieces(workloads, groups, fraction);
}

ContextPlan planned(const Workload& w, const PlanRequest& request, Deal deal, const Dealt& dealt, int head_groups) {
  ContextPlan plan;
  plan.ranks = request.ranks, plan.head_groups = head_groups, plan.deal = deal;
  const int groups = plan.groups();
  plan.remote_steps = request.remote_steps > 0 ? request.remote_steps : 2;
  plan.remote_steps = std::max(1, std::min(plan.remote_steps, groups - 1));
  plan.largest_piece = dealt.largest_piece;
  plan.q = Layout(w.lengths_q, cut_for_members(w.lengths_q, dealt.chunks, w.unit, groups, head_groups), plan.ranks);
  plan.kv = layout_of_keys(w, plan.q, plan);
  const Layout by_group = head_groups == 1 ? Layout() : Layout(w.lengths_q, dealt.chunks, groups);
  for (int group = 0; group < groups; ++group) {
    std::vector<Block>& blocks = plan.blocks.emplace_back();
    for (const Chunk& chunk : chunks_of_group(plan, by_group, group))
      for (const KeyRun& run : w.sequences[static_cast<std::size_t>(chunk.sequence)]->keys(chunk.tokens))
        blocks.push_back({chunk.sequence, chunk.tokens, run.kv, run.full});
  }
  fill_loads(w, request, plan);
  return plan;
}

void check(const Workload& w, const PlanRequest& request) {
  FOVEAL_CHECK(request.ranks >= 1 && request.ranks <= most_ranks, "ranks: ", request.ranks, "; expected 1 to ", most_ranks);
  FOVEAL_CHECK(request.remote_steps >= 0, "remote_steps: ", request.remote_steps, "; expected 0 (picked) or more");
  const int groups = request.head_groups;
  FOVEAL_CHECK(groups >= 0, "head_groups: ", groups, "; expected 0 (picked) or more");
  if (groups == 0) return;
  FOVEAL_CHECK(request.ranks % groups == 0, "head_groups: ", groups, " does not divide the ", request.ranks,
               " ranks; expected a divisor of these");
  FOVEAL_CHECK(w.heads_kv % groups == 0, "head_groups: ", groups, " does not divide the ", w.heads_kv,
               " kv heads; expected a divisor of these");
}

class Digest {
 public:
  template <class... Numbers>
  void add(Numbers... numbers) {
    (bytes_.append(std::to_string(numbers) + ' '), ...);
    if (bytes_.size() > (1 << 20)) fold();
  }
  void add(const std::string& text) { bytes_ += text; }
  std::uint64_t value() {
    fold();
    return base::hash64(bytes_);
  }

 private:
  void fold() { bytes_ = base::to_hex(base::hash128(bytes_)) + ' '; }
  std::string bytes_;
};

}  // namespace

Machine machine_named(std::string_view name) {
  if (name == "nvlink") return {};
  if (name == "network") {
    Machine machine;
    machine.name = "network", machine.ranks_per_host = 1;
    return machine;
  }
  base::fail(ErrorCode::invalid_argument, "machine: ", name, "; expected nvlink or network");
}

const char* to_string(Deal deal) {
  switch (deal) {
    case Deal::automatic:
      return "automatic";
    case Deal::contiguous:
      return "contiguous";
    case Deal::zigzag:
      return "zigzag";
    case Deal::pieces:
      return "pieces";
  }
  return "";
}

Deal deal_named(std::string_view name) {
  for (const Deal deal : {Deal::automatic, Deal::contiguous, Deal::zigzag, Deal::pieces})
    if (name == to_string(deal)) return deal;
  base::fail(ErrorCode::invalid_argument, "deal: ", name, "; expected automatic, contiguous, zigzag or pieces");
}

std::int64_t ContextPlan::imbalance() const {
  std::int64_t most = 0, total = 0;
  for (const RankLoad& load : loads) most = std::max(most, load.work), total += load.work;
  if (total == 0) return 0;
  const std::int64_t mean = divide_up(total, ranks);
  return static_cast<std::int64_t>(static_cast<double>(most - std::min(most, mean)) / static_cast<double>(mean) * 1e6);
}

std::int64_t ContextPlan::forward_ns() const {
  std::int64_t ns = 0;
  for (const RankLoad& load : loads) ns = std::max(ns, load.forward_ns + load.forward_beside_ns);
  return ns;
}

std::int64_t ContextPlan::backward_ns() const {
  std::int64_t ns = 0;
  for (const RankLoad& load : loads) ns = std::max(ns, load.backward_ns + load.backward_beside_ns);
  return ns;
}

namespace {

/// A deal, and its plan for each workload.
struct Candidate {
  FixedLayout layout;
  std::vector<ContextPlan> plans;
};

/// By which deals are compared: without what all of them take alike.
std::int64_t decisive_ns(const ContextPlan& plan) {
  std::int64_t forward = 0, backward = 0;
  for (const RankLoad& load : plan.loads) forward = std::max(forward, load.forward_ns), backward = std::max(backward, load.backward_ns);
  return forward + backward;
}

/// Of least predicted time for all of them together.
Candidate least(const std::vector<const Workload*>& workloads, const PlanRequest& request) {
  FOVEAL_CHECK(!workloads.empty(), "layout: no attention; expected one or more");
  const Workload& first = *workloads.front();
  for (const Workload* w : workloads) {
    FOVEAL_CHECK(w->lengths_q == first.lengths_q && w->lengths_kv == first.lengths_kv && w->unit == first.unit,
                 "layout: attentions over sequences of different lengths; expected the same");
    check(*w, request);
  }
  Candidate best;
  std::int64_t least = -1;
  constexpr int most_head_groups = 8, fractions[] = {4, 8, 16};
  for (int head_groups = 1; head_groups <= std::max(most_head_groups, request.head_groups); ++head_groups) {
    if (request.head_groups > 0 && head_groups != request.head_groups) continue;
    if (request.ranks % head_groups != 0) continue;
    if (std::any_of(workloads.begin(), workloads.end(), [&](const Workload* w) { return w->heads_kv % head_groups != 0; })) continue;
    for (const Deal deal : {Deal::contiguous, Deal::zigzag, Deal::pieces}) {
      if (request.deal != Deal::automatic && request.deal != deal) continue;
      for (const int fraction : fractions) {
        if (deal != Deal::pieces && fraction != fractions[0]) continue;
        Candidate made{{request.ranks, head_groups, deal, dealt_by(deal, workloads, request.ranks / head_groups, fraction), first.lengths_q,
                        first.lengths_kv, first.unit},
                       {}};
        std::int64_t time = 0;
        for (const Workload* w : workloads) {
          made.plans.push_back(planned(*w, request, deal, made.layout.dealt, head_groups));
          time += decisive_ns(made.plans.back());
        }
        // The simplest comes first; another one must be faster by more than the error of the model.
        if (least < 0 || time < least - least / 100) least = time, best = std::move(made);
      }
    }
  }
  return best;
}

ContextPlan planned_on(const Workload& w, const PlanRequest& request) {
  const FixedLayout& layout = *request.layout;
  FOVEAL_CHECK(layout.ranks == request.ranks, "layout: of ", layout.ranks, " ranks; expected ", request.ranks);
  FOVEAL_CHECK(layout.lengths_q == w.lengths_q && layout.lengths_kv == w.lengths_kv && layout.unit == w.unit,
               "layout: of other lengths or another unit than this attention's");
  FOVEAL_CHECK(w.heads_kv % layout.head_groups == 0, "layout: ", layout.head_groups, " head groups do not divide the ", w.heads_kv,
               " kv heads");
  return planned(w, request, layout.deal, layout.dealt, layout.head_groups);
}

}  // namespace

FixedLayout choose_layout(const std::vector<const Workload*>& workloads, const PlanRequest& request) {
  return least(workloads, request).layout;
}

ContextPlan make_plan(const Workload& w, const PlanRequest& request) {
  check(w, request);
  ContextPlan best = request.layout != nullptr ? planned_on(w, request) : std::move(least({&w}, request).plans.front());
  best.text = base::join(w.text, " ranks=", request.ranks, " deal=", to_string(request.deal), " head_groups=", request.head_groups,
                         " remote_steps=", request.remote_steps, " machine=", request.machine.name, " unit=", w.unit);
  best.checksum = checksum_of(best);
  return best;
}

std::int64_t slices_of(std::int64_t heads, std::int64_t row_bytes, std::int64_t message_bytes) {
  // H200s, NVLink: rows of 1 KB move at 0.88 of the speed of whole messages, of 512 bytes at 0.73, of 256 at 0.4. Small messages in slices
  // cost more than they save: with 4 MB in two, a forward pass of 8k tokens on four ranks went from 0.29 to 0.36 ms.
  constexpr std::int64_t most = 5, least_row = 512, least_slice = 2 << 20, least_message = 8 << 20;
  for (std::int64_t slices = message_bytes < least_message ? 1 : most; slices > 1; --slices) {
    const std::int64_t first = heads >> (slices - 1);
    if (first > 0 && row_bytes / heads * first >= least_row && message_bytes / heads * first >= least_slice) return slices;
  }
  return 1;
}

std::uint64_t checksum_of(const ContextPlan& plan) {
  Digest digest;
  digest.add(plan.ranks, plan.head_groups, plan.remote_steps, static_cast<int>(plan.deal), plan.largest_piece);
  for (const Layout* layout : {&plan.q, &plan.kv})
    for (const Chunk& chunk : layout->chunks()) digest.add(chunk.sequence, chunk.owner, chunk.tokens.begin, chunk.tokens.end, chunk.place);
  for (const std::vector<Block>& blocks : plan.blocks) {
    digest.add(blocks.size());
    for (const Block& b : blocks) digest.add(b.sequence, b.q.begin, b.q.end, b.kv.begin, b.kv.end, b.full ? 1 : 0);
  }
  for (const RankLoad& l : plan.loads)
    digest.add(l.tokens_q, l.tokens_kv, l.chunks, l.launches, l.work, l.forward_in, l.forward_out, l.backward_in, l.backward_out, l.peers,
               l.forward_memory, l.backward_memory, l.forward_ns, l.backward_ns);
  digest.add(plan.text);
  return digest.value();
}

}  // namespace foveal::dist
