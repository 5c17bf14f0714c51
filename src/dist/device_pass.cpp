#include "dist/device_pass.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "cuda/jit/driver.h"
#include "plan/signature.h"

namespace foveal::dist {
namespace {

/// Pairs of tokens that a rank computes while its keys arrive, at the rates of the transport and of the plan's machine.
std::int64_t transfer_pairs(const Context& c, bool forward) {
  if (!c.transport->carries_device_memory()) return 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 1; i < c.mine.steps.size(); ++i) bytes += c.mine.steps[i].rows;
  if (bytes == 0) return 0;
  const std::int64_t dims = c.shapes.head_dim + c.shapes.head_dim_v;
  bytes *= c.batch() * c.heads_kv().size() * dims * static_cast<std::int64_t>(size_of(c.shapes.dtype));
  const Machine& machine = c.request.machine;
  constexpr std::int64_t bytes_per_us = 15'000;  // of NCCL, for each multiprocessor that it occupies
  const int occupied = c.transport->multiprocessors();
  const std::int64_t us =
      (occupied > 0 ? bytes / (bytes_per_us * occupied) : bytes / machine.host_mbytes + machine.host_latency_ns / 1000) + 1;
  const std::int64_t flops = (forward ? 2 : 5) * dims * c.heads_q().size() * c.batch();  // of a pair
  return us * (forward ? machine.forward_gflops : machine.backward_gflops) * 1000 / std::max<std::int64_t>(flops, 1);
}

}  // namespace

std::string DevicePass::signature_of(std::initializer_list<const TensorView*> tensors,
                                     std::initializer_list<const std::vector<ParamBinding>*> params) {
  std::string bytes;
  planning::Signature signature(bytes);
  for (const TensorView* t : tensors) signature.add(*t);
  for (const std::vector<ParamBinding>* list : params)
    for (const ParamBinding& p : *list) signature.add(p.param.info().get()), signature.add(p.tensor);
  return bytes;
}

const PartOrder& DevicePass::order_by(const OrderRequest& request) {
  plans_.order = part_order(c_.plan, c_.workload, c_.mine, request);
  plans_.plans.assign(plans_.order.launches.size(), std::nullopt);
  plans_.cu_seqlens.clear();
  for (const PartLaunch& launch : plans_.order.launches) {
    std::vector<std::int32_t> begins{0};
    for (const std::int64_t length : launch.closed) begins.push_back(begins.back() + static_cast<std::int32_t>(length));
    plans_.cu_seqlens.emplace_back();
    if (!launch.closed.empty()) plans_.cu_seqlens.back() = {buffers_.device().index, begins.data(), begins.size() * sizeof begins[0]};
  }
  return plans_.order;
}

OrderRequest DevicePass::request_for(PassKind kind) const {
  return {.forward = kind.forward,
          .whole_rows = in_place(),
          .spread = in_place() && c_.transport->carries_device_memory(),
          .closed_sequences =
              c_.packed() && in_place(0) && c_.workload.self_attention() && !c_.reads_batch && c_.attention.dropout_p == 0 && !kind.trains,
          .transfer_pairs = transfer_pairs(c_, kind.forward),
          .leaves_multiprocessors = c_.transport->multiprocessors() > 0,
          .returns_early = !kind.forward && by_copy_engines()};
}

/// Launches beside transfers leave multiprocessors to these: a CTA that waits for one would be late by the whole transfer.
cuda::driver::DeviceFacts DevicePass::facts_for(const PartLaunch& launch) const {
  cuda::driver::DeviceFacts facts = cuda::driver::device_facts(buffers_.device().index);
  if (launch.beside_transfers) facts.multiprocessors = std::max(1, facts.multiprocessors - c_.transport->multiprocessors());
  return facts;
}

Attention DevicePass::attention_of(const PartLaunch& launch, bool forward) const {
  if (!launch.closed.empty()) return forward ? c_.attention : without_sink();
  Attention attention = launch.whole ? c_.attention : without_sink();
  attention.q_offset += launch.segment.q_first, attention.kv_offset += launch.segment.kv_first;
  return attention;
}

Varlen DevicePass::closed_sequences(std::size_t number) const {
  const std::vector<std::int64_t>& lengths = plans_.order.launches[number].closed;
  const TensorView cu(plans_.cu_seqlens[number].data(), DType::i32, {static_cast<std::int64_t>(lengths.size()) + 1}, buffers_.device());
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return {cu, cu, longest, longest};
}

Part DevicePass::part_of(std::size_t number) const {
  FOVEAL_CHECK(number < std::numeric_limits<std::uint16_t>::max(), "context parallelism: more than 65534 parts on a rank");
  const PartLaunch& launch = plans_.order.launches[number];
  const Segment& s = launch.segment;
  const auto sequence = static_cast<std::size_t>(s.sequence);
  return {.batch_offset = c_.packed() ? s.sequence : 0,
          .head_offset = heads(false).begin,
          .heads_q = c_.shapes.heads_q,
          .seqlen_q = c_.workload.lengths_q[sequence],
          .seqlen_kv = c_.workload.lengths_kv[sequence],
          .whole_rows = launch.whole,
          .spread_keys = launch.spread() ? s.kv_rows : 0,
          .keeps_rows = launch.kept >= 0,
          .first_query = launch.kept >= 0 ? s.q_first : 0,
          .first_key = launch.kept >= 0 ? s.kv_first : 0,
          .whole_keys = launch.whole_keys,
          .adds_to_q = launch.adds_to_q,
          .adds_to_kv = launch.adds_to_kv,
          .number = static_cast<std::uint16_t>(number + 1)};
}

void DevicePass::gather_keys(const Rows& k_shard, const Rows& v_shard, GatherUse use) {
  std::int64_t received = 0;
  for (std::size_t i = 1; i < c_.mine.steps.size(); ++i) received += c_.mine.steps[i].rows;
  const std::int64_t row_bytes = heads(true).size() * (k_shard.dim + v_shard.dim) * static_cast<std::int64_t>(size_of(k_shard.dtype));
  const DeviceBuffers::DoubleBuffered received_keys(
      buffers_, use.in_slices && by_copy_engines() && double_buffers_keys(c_.batch() * received * row_bytes));
  k_received_ = memory_.rows(k_shard.dtype, c_.batch(), received, heads(true).size(), k_shard.dim, For::messages);
  v_received_ = memory_.rows(v_shard.dtype, c_.batch(), received, heads(true).size(), v_shard.dim, For::messages);
  received = 0;
  gathers_.resize(c_.mine.steps.size());
  for (std::size_t i = 0; i < c_.mine.steps.size(); ++i) {
    const Step& step = c_.mine.steps[i];
    Keys& of_step = keys_.emplace_back();
    of_step.gather = use.at_once ? std::min<std::size_t>(i, 1) : i;
    if (in_place(i)) {
      of_step.k = k_shard, of_step.v = v_shard;
      continue;
    }
    if (i == 0) {
      of_step.k = key_rows(step, k_shard.dtype, k_shard.dim, For::messages);
      of_step.v = key_rows(step, v_shard.dtype, v_shard.dim, For::messages);
    } else {
      const Range rows{received, received + step.rows};
      of_step.k = k_received_.slice(rows), of_step.v = v_received_.slice(rows), of_step.first_row = received;
      received = rows.end;
      if (use.at_once) continue;
    }
    gathers_[i] = {gather(c_.keys_to[i], step.keys, {{k_shard, of_step.k, true}, {v_shard, of_step.v, true}}, use.in_slices && i > 0),
                   true};
  }
  if (use.at_once && c_.mine.steps.size() > 1) gather_at_once(k_shard, v_shard, use.in_slices);
}

/// In the order of the steps, in which a warm-up took the memory of messages: nearer ranks come first there, too.
void DevicePass::gather_at_once(const Rows& k_shard, const Rows& v_shard, bool in_slices) {
  std::vector<Sending> sendings;
  std::vector<Transfer> wanted;
  for (std::size_t i = 1; i < c_.mine.steps.size(); ++i) {
    sendings.insert(sendings.end(), c_.keys_to[i].begin(), c_.keys_to[i].end());
    for (Transfer keys : c_.mine.steps[i].keys) keys.row += keys_[i].first_row, wanted.push_back(keys);
  }
  gathers_[1] = {gather(sendings, wanted, {{k_shard, k_received_, true}, {v_shard, v_received_, true}}, in_slices), true};
}

}  // namespace foveal::dist
