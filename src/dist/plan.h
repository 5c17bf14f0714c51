#pragma once
// The plan of a context-parallel attention, as a value: who holds which tokens, who computes which blocks, what is sent when, and what that
// costs. A pure function of the workload, the machine and the options: equal on every rank, and testable without a device.
//
// Ranks form a grid: rank = group * head_groups + member. The ranks of a group share their queries and keep one share of the heads each;
// groups exchange keys and values, and the sums of their gradients.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/deal.h"
#include "dist/layout.h"
#include "dist/workload.h"

namespace foveal::dist {

/// Links and rates for predicted times: constants, never measured, so that every rank gets the same plan.
struct Machine {
  std::string name = "nvlink";
  std::int64_t ranks_per_host = 8;
  std::int64_t forward_gflops = 655'000, backward_gflops = 590'000;  ///< of one rank
  std::int64_t grouped_gflops = 590'000;                             ///< of a backward pass whose query heads share keys
  std::int64_t rows_at_a_time = 16'896;                              ///< of queries, over heads, that a forward pass computes at a time
  std::int64_t memory_mbytes = 2'000'000;                            ///< a second, of memory-bound passes over rows
  std::int64_t host_mbytes = 370'000, network_mbytes = 45'000;       ///< a second, each way, of one rank: inside a host, between hosts
  std::int64_t host_latency_ns = 12'000, network_latency_ns = 60'000;
  std::int64_t step_ns = 8'000;       ///< one more step and its share of merging
  std::int64_t launch_ns = 2'000;     ///< one more launch beside those of a step
  std::int64_t begin_ns = 45'000;     ///< exposed latency of received keys; a flag's round trip takes 14 us
  std::int64_t exchange_ns = 40'000;  ///< the same for queries and results, where heads are shared out
};
/// "nvlink" (hosts of 8, networks of 400 Gb/s between them) or "network" (hosts of 1).
Machine machine_named(std::string_view name);

enum class Deal : std::uint8_t { automatic, contiguous, zigzag, pieces };
const char* to_string(Deal deal);
Deal deal_named(std::string_view name);

/// Each rank may need keys of every other, so that planning takes time by the square of their number.
constexpr int most_ranks = 4096;

/// A layout of tokens that several plans share.
struct FixedLayout {
  int ranks = 1, head_groups = 1;
  Deal deal = Deal::contiguous;
  Dealt dealt;
  std::vector<std::int64_t> lengths_q, lengths_kv;
  std::int64_t unit = 128;
};

struct PlanRequest {
  int ranks = 1;
  Deal deal = Deal::automatic;
  int head_groups = 0;   ///< 0: picked by predicted time
  int remote_steps = 0;  ///< into how many steps the keys of other ranks are gathered; 0: picked
  Machine machine{};
  std::shared_ptr<const FixedLayout> layout{};  ///< null: chosen for this plan; else deal and head groups are its own
};

/// Queries of one sequence and keys that some of them need. full: all of them need all of these.
struct Block {
  std::int32_t sequence = 0;
  Range q, kv;
  bool full = false;
};

/// What one rank does, in numbers.
struct RankLoad {
  std::int64_t tokens_q = 0, tokens_kv = 0;  ///< held
  std::int64_t chunks = 0;                   ///< of q held
  std::int64_t launches = 0;                 ///< of a forward pass: chunks, but packed sequences held whole make one with their neighbours
  std::int64_t work = 0;                     ///< in Cost units
  std::int64_t forward_in = 0, forward_out = 0;          ///< bytes received and sent in a forward pass
  std::int64_t backward_in = 0, backward_out = 0;        ///< likewise in a backward pass
  std::int64_t peers = 0;                                ///< ranks it receives keys from
  std::int64_t forward_memory = 0, backward_memory = 0;  ///< bytes that a pass allocates beside the tensors of the call, in host memory
  std::int64_t forward_device_memory = 0,
               backward_device_memory = 0;       ///< on a GPU whose messages go from there, where heads are not shared out
  std::int64_t forward_ns = 0, backward_ns = 0;  ///< predicted, without the time that every deal takes:
  std::int64_t forward_beside_ns = 0, backward_beside_ns = 0;
};

/// Does a forward pass double-buffer this many bytes of received keys? A rank that is ahead then sends
/// before its receiver is done with the last pass.
constexpr bool double_buffers_keys(std::int64_t bytes) { return bytes <= std::int64_t{512} << 20; }

struct ContextPlan {
  int ranks = 1, head_groups = 1, remote_steps = 1;
  Deal deal = Deal::contiguous;
  Layout q, kv;                            ///< the same for self attention
  std::vector<std::vector<Block>> blocks;  ///< of each group
  std::vector<RankLoad> loads;             ///< of each rank
  std::int64_t largest_piece = 0;          ///< work of the largest piece that was dealt
  std::string text;                        ///< of the problem and the request
  std::uint64_t checksum = 0;              ///< of everything above

  int groups() const { return ranks / head_groups; }
  int group_of(int rank) const { return rank / head_groups; }
  /// Query heads [begin, end) of a rank.
  Range heads(int rank, std::int64_t heads) const {
    const std::int64_t member = rank % head_groups;
    return {heads * member / head_groups, heads * (member + 1) / head_groups};
  }
  /// (most work - mean work) / mean work, in millionths.
  std::int64_t imbalance() const;
  std::int64_t forward_ns() const;   ///< predicted, of the slowest rank
  std::int64_t backward_ns() const;  ///< likewise
};

/// Deals the work. Throws invalid_argument when the request cannot be met (head groups that do not divide the heads or the ranks).
ContextPlan make_plan(const Workload& workload, const PlanRequest& request);

/// The fastest predicted layout for workloads that run in turn over the same sequences: layers with different masks. Throws
/// invalid_argument when these differ in lengths, or the request cannot be met.
FixedLayout choose_layout(const std::vector<const Workload*>& workloads, const PlanRequest& request);

/// In how many groups of heads the keys of a forward pass travel, if copy engines carry them: kernels begin when the first group is there,
/// which is the smallest (Part::KeyRange::slices). row_bytes: of all heads of a token.
std::int64_t slices_of(std::int64_t heads, std::int64_t row_bytes, std::int64_t message_bytes);

/// A digest of all that ranks must agree on.
std::uint64_t checksum_of(const ContextPlan& plan);

/// Tables of work, bytes and chunks of each rank, the mask by ranks, predicted times and the limit of scaling.
std::string explain(const ContextPlan& plan, const Workload& workload, const PlanRequest& request);

}  // namespace foveal::dist
