// The forms of a call other than a plain batch: packed sequences, segments, paged keys, parts.
#include <algorithm>
#include <utility>

#include "problem/checks.h"
#include "score/substitute.h"

namespace foveal::problem {
namespace {

TensorSpec checked_cu_seqlens(const char* name, const TensorView& cu, const Call& call) {
  FOVEAL_CHECK(cu.present(), name, ": absent; expected i32 or i64 [batch + 1]");
  FOVEAL_CHECK(cu.dtype == DType::i32 || cu.dtype == DType::i64, name, ": dtype ", to_string(cu.dtype), "; expected i32 or i64");
  FOVEAL_CHECK(cu.rank == 1, name, ": rank ", cu.rank, "; expected 1 [batch + 1]");
  FOVEAL_CHECK(cu.sizes[0] >= 2, name, ": size ", cu.sizes[0], "; expected batch + 1, at least 2");
  FOVEAL_CHECK(cu.strides[0] == 1, name, ": stride ", cu.strides[0], "; expected 1");
  check_device(name, cu, call);
  return spec_of(cu);
}

/// The call's heads are among those of all ranks.
void check_heads(const char* what, const Problem& p) {
  FOVEAL_CHECK(p.heads_all >= p.heads_q && p.head_offset >= 0 && p.head_offset <= p.heads_all - p.heads_q, what, p.heads_q, " heads from ",
               p.head_offset, " of ", p.heads_all, "; expected heads that there are");
}

void read_segments(Problem& p, const Call& call) {
  const Segments& segments = *call.segments;
  FOVEAL_CHECK(call.varlen == nullptr, "segments: given beside varlen; expected one of the two");
  FOVEAL_CHECK(p.device.kind == DeviceKind::cpu, "segments: the tensors are on a GPU; expected tensors in host memory");
  const TensorView& table = segments.table;
  FOVEAL_CHECK(table.present() && table.dtype == DType::i64 && table.rank == 2 && table.sizes[1] == 9 && table.sizes[0] >= 1 &&
                   table.strides[1] == 1 && table.strides[0] == 9 && table.device.kind == DeviceKind::cpu,
               "segments.table: ", table.describe(), "; expected i64[parts, 9], contiguous, in host memory");
  FOVEAL_CHECK(segments.sequences >= 1 && segments.sequences <= max_position, "segments.sequences: ", segments.sequences,
               "; expected 1 to ", max_position);
  p.varlen = p.segments = true;
  p.batch = table.sizes[0], p.sequences = segments.sequences;
  p.head_offset = segments.head_offset, p.heads_all = segments.heads_q == 0 ? p.heads_q : segments.heads_q;
  p.seqlen_q = p.seqlen_kv = 0;  // known from the table, in each run
  check_heads("segments.head_offset: ", p);
  FOVEAL_CHECK(p.sequences <= max_position / p.heads_all, "segments.sequences: ", p.sequences, " times heads ", p.heads_all,
               "; expected at most ", max_position);
}

}  // namespace

void read_varlen(Problem& p, const Call& call) {
  p.sequences = p.batch, p.heads_all = p.heads_q;
  if (call.segments != nullptr) return read_segments(p, call);
  if (call.varlen == nullptr) return;
  const Varlen& varlen = *call.varlen;
  p.varlen = true;
  p.cu_seqlens_q = checked_cu_seqlens("cu_seqlens_q", varlen.cu_seqlens_q, call);
  p.batch = p.sequences = varlen.cu_seqlens_q.sizes[0] - 1;
  if (call.paged != nullptr) {
    FOVEAL_CHECK(!varlen.cu_seqlens_kv.present(), "cu_seqlens_kv: given beside a block_table; expected seqlens_kv in its place");
  } else {
    p.cu_seqlens_kv = checked_cu_seqlens("cu_seqlens_kv", varlen.cu_seqlens_kv, call);
    check_dtype("cu_seqlens_kv", p.cu_seqlens_kv.dtype, p.cu_seqlens_q.dtype, "cu_seqlens_q's");
    FOVEAL_CHECK(varlen.cu_seqlens_kv.sizes[0] == p.batch + 1, "cu_seqlens_kv: size ", varlen.cu_seqlens_kv.sizes[0], "; expected ",
                 p.batch + 1, ", cu_seqlens_q's");
  }
  p.seqlen_q = varlen.max_seqlen_q, p.seqlen_kv = varlen.max_seqlen_kv;
  const std::int64_t least = p.device.kind == DeviceKind::cpu ? 0 : 1;
  const char* accepted =
      least == 0 ? "; expected a length, or 0 to find out" : "; expected the longest sequence (it cannot be found out on this device)";
  FOVEAL_CHECK(p.seqlen_q >= least, "max_seqlen_q: ", p.seqlen_q, accepted);
  FOVEAL_CHECK(p.seqlen_kv >= (p.paged ? 0 : least), "max_seqlen_kv: ", p.seqlen_kv, accepted);
}

void read_paged(Problem& p, const Call& call) {
  if (call.paged == nullptr) return;
  FOVEAL_CHECK(call.segments == nullptr && call.part == nullptr, "block_table: given beside ", call.part ? "a part" : "segments",
               "; expected whole sequences");
  const TensorView &table = call.paged->block_table, &lengths = call.paged->seqlens_kv;
  const char* of_table = "i32 [batch, pages of the longest sequence]";
  FOVEAL_CHECK(table.present(), "block_table: absent beside seqlens_kv; expected ", of_table);
  FOVEAL_CHECK(table.dtype == DType::i32, "block_table: dtype ", to_string(table.dtype), "; expected i32");
  FOVEAL_CHECK(table.rank == 2, "block_table: rank ", table.rank, "; expected ", of_table);
  FOVEAL_CHECK(table.sizes[0] == p.batch, "block_table: ", table.sizes[0], " rows; expected ", p.batch, ", one for each sequence");
  FOVEAL_CHECK(table.sizes[1] >= 1, "block_table: rows of ", table.sizes[1], " pages; expected at least 1");
  check_device("block_table", table, call);
  FOVEAL_CHECK(lengths.present(), "seqlens_kv: absent beside block_table; expected i32 or i64 [batch], how many keys each sequence has");
  FOVEAL_CHECK(lengths.dtype == DType::i32 || lengths.dtype == DType::i64, "seqlens_kv: dtype ", to_string(lengths.dtype),
               "; expected i32 or i64");
  FOVEAL_CHECK(lengths.rank == 1 && lengths.sizes[0] == p.batch, "seqlens_kv: shape ", shape_text(lengths.sizes.data(), lengths.rank),
               "; expected [", p.batch, "], one length for each sequence");
  check_device("seqlens_kv", lengths, call);
  check_reach("block_table", table);
  check_reach("seqlens_kv", lengths);
  p.block_table = spec_of(logical_view(table, false)), p.seqlens_kv = spec_of(logical_view(lengths, false));
  FOVEAL_CHECK(table.sizes[1] <= max_position / p.page_size(), "block_table: rows of ", table.sizes[1], " pages of ", p.page_size(),
               " keys; expected at most ", max_position, " keys");
  const std::int64_t held = table.sizes[1] * p.page_size();
  p.seqlen_kv = p.varlen && p.seqlen_kv > 0 ? std::min(p.seqlen_kv, held) : held;
  p.total_kv = p.batch * p.seqlen_kv;
  const std::int64_t row = p.heads_kv * std::max(p.head_dim, p.head_dim_v);
  FOVEAL_CHECK(p.total_kv <= most_elements / row, "block_table: room for ", p.total_kv, " keys of ", row,
               " elements; expected at most 2^48 elements");
}

void read_part(Problem& p, const Call& call) {
  if (call.part == nullptr) return;
  const Part& part = *call.part;
  FOVEAL_CHECK(p.device.kind == DeviceKind::cuda,
               "part: the tensors are in host memory, where segments do this; expected tensors on a GPU");
  FOVEAL_CHECK(!p.varlen, "part: given beside varlen or segments; expected a batch of equal lengths");
  FOVEAL_CHECK(!part.whole_rows || p.pass == Pass::forward, "part.whole_rows: given in a backward pass");
  FOVEAL_CHECK(part.whole_rows || !p.attention.sink, "sink: given with a part; it joins whole rows");
  FOVEAL_CHECK(part.spread_keys == 0 || (part.whole_rows && part.spread_keys > 0 && part.spread_keys <= max_position),
               "part.spread_keys: ", part.spread_keys, "; expected 0, or with whole_rows 1 to ", max_position);
  FOVEAL_CHECK(!part.keeps_rows || p.pass == Pass::backward, "part.keeps_rows: given in a forward pass");
  FOVEAL_CHECK(!part.whole_keys || part.keeps_rows, "part.whole_keys: given without keeps_rows");
  p.whole_rows = part.whole_rows, p.spread = part.spread_keys > 0, p.keeps_rows = part.keeps_rows, p.whole_keys = part.whole_keys;
  if (p.keeps_rows) {
    const auto take = [](const char* name, std::int64_t first, std::int64_t of_whole, std::int64_t count, std::int64_t offset,
                         std::int64_t& to, std::int64_t& to_whole) {
      to = first, to_whole = of_whole > 0 ? of_whole : count;
      FOVEAL_CHECK(first >= 0 && first <= offset && first <= to_whole - count, "part.", name, ": ", first,
                   "; expected 0 to its offset, and ", count, " from there on among the whole's ", to_whole);
    };
    take("first_query", part.first_query, part.seqlen_q, p.seqlen_q, p.attention.q_offset, p.first_query, p.queries_of_whole);
    take("first_key", part.first_key, part.seqlen_kv, p.seqlen_kv, p.attention.kv_offset, p.first_key, p.keys_of_whole);
  }
  if (p.spread) p.seqlen_kv = part.spread_keys, p.total_kv = p.batch * p.seqlen_kv;
  p.part = true, p.batch_offset = part.batch_offset, p.head_offset = part.head_offset;
  p.heads_all = part.heads_q == 0 ? p.heads_q : part.heads_q;
  FOVEAL_CHECK(part.batch_offset >= 0 && part.batch_offset <= max_position - p.batch, "part.batch_offset: ", part.batch_offset,
               "; expected 0 or more");
  check_heads("part.head_offset: ", p);
  FOVEAL_CHECK(part.batch_offset + p.batch <= max_position / p.heads_all, "part.batch_offset: sequences ", part.batch_offset + p.batch,
               " times heads ", p.heads_all, "; expected at most ", max_position);
  std::vector<std::pair<scoring::Op, Expr>> of_whole;
  if (part.batch_offset > 0) of_whole.emplace_back(scoring::Op::batch, symbols::batch + Expr(part.batch_offset));
  if (part.head_offset > 0) of_whole.emplace_back(scoring::Op::head, symbols::head + Expr(part.head_offset));
  const auto length = [&](const char* name, scoring::Op symbol, std::int64_t whole) {
    if (whole == 0) return;
    FOVEAL_CHECK(whole > 0 && whole <= max_position, "part.", name, ": ", whole, "; expected 0 to ", max_position);
    of_whole.emplace_back(symbol, Expr(whole));
  };
  length("seqlen_q", scoring::Op::seqlen_q, part.seqlen_q);
  length("seqlen_kv", scoring::Op::seqlen_kv, part.seqlen_kv);
  p.given_score = p.attention.score_mod, p.given_mask = p.attention.mask;
  p.attention.score_mod = scoring::substitute(p.attention.score_mod, of_whole);
  p.attention.mask = scoring::substitute(p.attention.mask, of_whole);
}

}  // namespace foveal::problem
