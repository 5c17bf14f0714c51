#include "cuda/launch/attention_args.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "base/far_row.h"
#include "base/philox.h"
#include "cuda/device/layout/agreed.cuh"
#include "cuda/score/read_facts.h"

namespace foveal {

std::string device::value_text(KeyRows rows) {
  static constexpr const char* names[] = {"batched", "packed", "paged", "gathered", "spread"};
  static_assert(std::size(names) == static_cast<std::size_t>(KeyRows::spread) + 1);
  return base::join("foveal::device::KeyRows::", names[static_cast<std::size_t>(rows)]);
}

namespace cuda {

static_assert(device::kFarLse == base::far_lse);
namespace {

device::Tensor tensor(const TensorView& view, bool varlen) {
  if (!view.data) return {};
  device::Tensor t{view.data, varlen ? 0 : view.strides[0], view.strides[1], view.strides[2], view.strides[3], 0, 0};
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const auto aligned_to = [&](std::int64_t bytes) {
    const auto multiple = [&](std::int64_t stride, std::int64_t count) { return count <= 1 || stride * size % bytes == 0; };
    return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) == 0 && (t.dim == 1 || view.sizes[3] == 1) &&
           multiple(t.batch, view.sizes[0]) && multiple(t.seq, view.sizes[1]) && multiple(t.head, view.sizes[2]) &&
           view.sizes[3] * size % bytes == 0;
  };
  t.copy_bytes = aligned_to(16) ? 16 : (size <= 4 && aligned_to(4)) ? 4 : 0;
  return t;
}

device::Rows rows(const TensorView& view, bool varlen) {
  if (!view.data) return {};
  return {view.data, varlen ? 0 : view.strides[0], view.strides[1], view.strides[2]};
}

device::KeyRows key_rows_of(const problem::Problem& p) {
  using device::KeyRows;
  if (p.spread) return KeyRows::spread;
  return p.paged ? KeyRows::paged : p.gathered ? KeyRows::gathered : p.varlen ? KeyRows::packed : KeyRows::batched;
}

}  // namespace

int exact_sum_bin_bits(const problem::Problem& p) {
  const ExactSums sums = exact_sums(p);
  constexpr double most_terms = 1 << 24;                // that wide bins hold, whatever their values
  constexpr std::int64_t many = std::int64_t{1} << 20;  // 256 MiB of narrow bins
  return sums.most_terms > most_terms || (sums.scatters && sums.elements <= many) ? 8 : 16;
}

device::BlockTable block_table(const problem::Buffers& b) {
  return {static_cast<const int*>(b.block_table.data), b.block_table.strides[0], b.block_table.strides[1]};
}

std::optional<std::string> refuses_params(const problem::Problem& p) {
  if (p.params.size() > static_cast<std::size_t>(device::kMaxParams))
    return base::join(p.params.size(), " params exceed ", device::kMaxParams);
  for (const problem::ParamSpec& param : p.params)
    for (const std::int64_t size : param.param.shape())
      if (size > std::numeric_limits<std::int32_t>::max())  // indices are clamped in 32 bits
        return base::join("parameter ", param.param.name(), ": a dimension of ", size, " exceeds 2^31 - 1");
  return std::nullopt;
}

jit::Constants attention_constants(const problem::Problem& p) {
  const device::ProblemTraits traits{.head_dim = static_cast<int>(p.head_dim),
                                     .head_dim_v = static_cast<int>(p.head_dim_v),
                                     .varlen = p.varlen,
                                     .key_rows = key_rows_of(p),
                                     .page_size = static_cast<int>(p.spread  ? Part::key_range_unit
                                                                   : p.paged ? p.page_size()
                                                                             : 0),
                                     .part = p.merges(),
                                     .of_whole = p.part,
                                     .dropout = p.attention.dropout_p > 0,
                                     .scale_first = !(p.scale > 0),
                                     .bin_bits = exact_sum_bin_bits(p)};
  jit::Constants constants;
  constants.set_struct("kProblem", "ProblemTraits", "problem_traits.cuh", traits)
      .include("element.cuh")
      .set_type("Element", jit::device_type(p.dtype))
      .set_type("SeqlenIndex", p.cu_seqlens_q.dtype == DType::i64 ? "long long" : "int")
      .set_type("SeqlenKvIndex", (p.seqlens_kv.present ? p.seqlens_kv : p.cu_seqlens_kv).dtype == DType::i64 ? "long long" : "int");
  return constants;
}

device::AttentionArgs attention_args(const problem::Problem& p, const problem::Buffers& b) {
  device::AttentionArgs args{};
  args.q = tensor(b.q, p.varlen), args.k = tensor(b.k, p.varlen), args.v = tensor(b.v, p.varlen);
  args.out = tensor(b.out, p.varlen), args.dout = tensor(b.dout, p.varlen);
  args.dq = tensor(b.dq, p.varlen), args.dk = tensor(b.dk, p.varlen), args.dv = tensor(b.dv, p.varlen);
  args.lse = rows(b.lse, p.varlen), args.dlse = rows(b.dlse, p.varlen);
  args.batch = static_cast<int>(p.batch);
  args.heads_q = static_cast<int>(p.heads_q), args.heads_kv = static_cast<int>(p.heads_kv),
  args.group_size = static_cast<int>(p.group_size);
  args.seqlen_q = static_cast<int>(p.seqlen_q), args.seqlen_kv = static_cast<int>(p.seqlen_kv);
  args.q_offset = p.attention.q_offset, args.kv_offset = p.attention.kv_offset;
  args.cu_seqlens_q = b.cu_seqlens_q.data,
  args.kv_lengths = key_rows_of(p) == device::KeyRows::packed ? b.cu_seqlens_kv.data : b.seqlens_kv.data;
  args.scale = p.scale;
  const double keep_scale = 1 / (1 - p.attention.dropout_p);
  args.dropout = {.seed = b.rng.seed,
                  .offset = b.rng.offset,
                  .state = static_cast<const unsigned long long*>(b.rng.state.data),
                  .threshold = base::dropout_threshold(p.attention.dropout_p),
                  .keep_scale = static_cast<float>(keep_scale),
                  .keep_scale_f64 = keep_scale};
  args.part = {.adds_to_q = b.part.adds_to_q,
               .adds_to_kv = b.part.adds_to_kv,
               .batch_offset = static_cast<int>(p.batch_offset),
               .head_offset = static_cast<int>(p.head_offset),
               .heads = static_cast<int>(p.heads_all),
               .number = b.part.number};
  if (p.numbers) std::copy(p.numbers->begin(), p.numbers->end(), std::begin(args.score.number));
  for (std::size_t i = 0; i < b.params.size(); ++i) {
    device::ParamView& param = args.score.param[i];
    param.data = b.params[i].data;
    for (int d = 0; d < b.params[i].rank; ++d) {
      param.stride[d] = b.params[i].strides[static_cast<std::size_t>(d)];
      param.size[d] = static_cast<int>(b.params[i].sizes[static_cast<std::size_t>(d)]);
    }
  }
  return args;
}

}  // namespace cuda
}  // namespace foveal
