// Everything that can be wrong with a call before its data are looked at, and the normal form of one that is right.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/dtype.h"
#include "problem/call.h"
#include "problem/overlap.h"
#include "score/bounds.h"
#include "score/substitute.h"
#include "score/negative_index.h"

namespace foveal::problem {
namespace {

constexpr std::int64_t max_position = std::numeric_limits<std::int32_t>::max(), most_elements = std::int64_t{1} << 48;

std::string shape_text(const std::int64_t* sizes, int rank) {
  std::string text = "[";
  for (int d = 0; d < rank; ++d) text += (d > 0 ? ", " : "") + std::to_string(sizes[d]);
  return text + "]";
}
std::string shape_text(const std::vector<std::int64_t>& sizes) { return shape_text(sizes.data(), static_cast<int>(sizes.size())); }

}  // namespace

void check_reach(const char* name, const TensorView& view) {
  constexpr std::int64_t max_bytes = std::int64_t{1} << 60;
  std::int64_t elements = 1, reach = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    const std::int64_t size = view.sizes[d], stride = view.strides[d];
    FOVEAL_CHECK(!__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements) && elements <= most_elements, name,
                 ": shape ", shape_text(view.sizes.data(), view.rank), " has too many elements; expected at most 2^48");
    std::int64_t steps = 0;
    if (size <= 1) continue;
    FOVEAL_CHECK(!__builtin_mul_overflow(stride, size - 1, &steps) &&
                     !__builtin_mul_overflow(steps, static_cast<std::int64_t>(size_of(view.dtype)), &steps) &&
                     steps != std::numeric_limits<std::int64_t>::min() && !__builtin_add_overflow(reach, std::abs(steps), &reach) &&
                     reach <= max_bytes,
                 name, ": strides ", shape_text(view.strides.data(), view.rank), " reach too far; expected at most 2^60 bytes");
  }
}

namespace {

TensorSpec spec_of(const TensorView& logical) {
  return {.present = true,
          .dtype = logical.dtype,
          .rank = logical.rank,
          .sizes = logical.sizes,
          .strides = logical.strides,
          .aligned = is_aligned(logical)};
}

/// Present, of the rank its layout asks for, no empty dimension, on q's device.
TensorSpec checked_spec(const RoleRow& role, const TensorView& view, const Call& call) {
  const char* name = role.name;
  const Tokens tokens = call.tokens_of(role);
  const int rank = role.axes.rank - (tokens == Tokens::packed ? 1 : 0);
  const std::string layout = axes_text(role.axes, tokens);
  FOVEAL_CHECK(view.present(), name, ": absent; expected ", layout);
  FOVEAL_CHECK(view.rank == rank, name, ": rank ", view.rank, "; expected ", rank, " ", layout);
  for (int d = 0; d < rank; ++d)
    FOVEAL_CHECK(view.sizes[static_cast<std::size_t>(d)] >= 1, name, ": size ", view.sizes[static_cast<std::size_t>(d)], " in dimension ",
                 d, "; expected at least 1");
  FOVEAL_CHECK(view.device == call.q->device, name, ": on another device than q");
  check_reach(name, view);
  return spec_of(logical_view(view, tokens == Tokens::packed));
}

void check_shape(const char* name, const TensorSpec& spec, const std::vector<std::int64_t>& expected) {
  const bool same = std::equal(expected.begin(), expected.end(), spec.sizes.begin());
  FOVEAL_CHECK(same, name, ": shape ", shape_text(spec.sizes.data(), spec.rank), "; expected ", shape_text(expected));
}

void check_dtype(const char* name, DType found, DType expected, const char* why) {
  FOVEAL_CHECK(found == expected, name, ": dtype ", to_string(found), "; expected ", to_string(expected), ", ", why);
}

/// q, k, v: where every size comes from.
void read_sizes(Problem& p, const Call& call) {
  p.paged = call.paged != nullptr;
  p.q = checked_spec(roles[0], *call.q, call);
  p.dtype = p.q.dtype;
  FOVEAL_CHECK(is_floating(p.dtype), "q: dtype ", to_string(p.dtype), "; expected f64, f32, bf16 or f16");
  p.batch = p.q.sizes[0], p.total_q = p.q.sizes[0] * p.q.sizes[1], p.heads_q = p.heads_kv = p.q.sizes[2];
  p.seqlen_q = p.seqlen_kv = p.q.sizes[1], p.head_dim = p.head_dim_v = p.q.sizes[3];

  p.k = checked_spec(roles[1], *call.k, call);
  p.total_kv = p.k.sizes[0] * p.k.sizes[1], p.seqlen_kv = p.k.sizes[1], p.heads_kv = p.k.sizes[2];
  p.v = checked_spec(roles[2], *call.v, call);
  p.head_dim_v = p.v.sizes[3];

  check_dtype("k", p.k.dtype, p.dtype, "q's");
  check_dtype("v", p.v.dtype, p.dtype, "q's");
  if (p.paged) {
    FOVEAL_CHECK(p.k.sizes[1] % 16 == 0, "k: page_size ", p.k.sizes[1], " in dimension 1; expected a multiple of 16");
    FOVEAL_CHECK(p.v.sizes[0] == p.k.sizes[0], "v: pages ", p.v.sizes[0], " differ from k's ", p.k.sizes[0]);
    FOVEAL_CHECK(p.v.sizes[1] == p.k.sizes[1], "v: page_size ", p.v.sizes[1], " differs from k's ", p.k.sizes[1]);
  } else {
    FOVEAL_CHECK(p.k.sizes[0] == p.batch, "k: batch ", p.k.sizes[0], " differs from q's ", p.batch);
    FOVEAL_CHECK(p.v.sizes[0] == p.batch, "v: batch ", p.v.sizes[0], " differs from q's ", p.batch);
  }
  FOVEAL_CHECK(p.heads_q % p.heads_kv == 0, "k: heads ", p.heads_kv, " does not divide q's ", p.heads_q, "; expected a divisor of ",
               p.heads_q);
  FOVEAL_CHECK(p.k.sizes[3] == p.head_dim, "k: head_dim ", p.k.sizes[3], " differs from q's ", p.head_dim);
  FOVEAL_CHECK(p.v.sizes[2] == p.heads_kv, "v: heads ", p.v.sizes[2], " differs from k's ", p.heads_kv);
  FOVEAL_CHECK(p.v.sizes[1] == p.k.sizes[1], call.packed() ? "v: total " : "v: seqlen ", p.v.sizes[1], " differs from k's ", p.k.sizes[1]);
  p.group_size = p.heads_q / p.heads_kv;
}

TensorSpec checked_cu_seqlens(const char* name, const TensorView& cu, const Call& call) {
  FOVEAL_CHECK(cu.present(), name, ": absent; expected i32 or i64 [batch + 1]");
  FOVEAL_CHECK(cu.dtype == DType::i32 || cu.dtype == DType::i64, name, ": dtype ", to_string(cu.dtype), "; expected i32 or i64");
  FOVEAL_CHECK(cu.rank == 1, name, ": rank ", cu.rank, "; expected 1 [batch + 1]");
  FOVEAL_CHECK(cu.sizes[0] >= 2, name, ": size ", cu.sizes[0], "; expected batch + 1, at least 2");
  FOVEAL_CHECK(cu.strides[0] == 1, name, ": stride ", cu.strides[0], "; expected 1");
  FOVEAL_CHECK(cu.device == call.q->device, name, ": on another device than q");
  return spec_of(cu);
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
  p.seqlen_q = p.seqlen_kv = 0;  // the table tells, in each run
  FOVEAL_CHECK(p.heads_all >= p.heads_q && p.head_offset >= 0 && p.head_offset <= p.heads_all - p.heads_q,
               "segments.head_offset: ", p.heads_q, " heads from ", p.head_offset, " of ", p.heads_all, "; expected heads that there are");
  FOVEAL_CHECK(p.sequences <= max_position / p.heads_all, "segments.sequences: ", p.sequences, " times heads ", p.heads_all,
               "; expected at most ", max_position);
}

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

/// After the lengths of packed queries.
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
  FOVEAL_CHECK(table.device == call.q->device, "block_table: on another device than q");
  FOVEAL_CHECK(lengths.present(), "seqlens_kv: absent beside block_table; expected i32 or i64 [batch], how many keys each sequence has");
  FOVEAL_CHECK(lengths.dtype == DType::i32 || lengths.dtype == DType::i64, "seqlens_kv: dtype ", to_string(lengths.dtype),
               "; expected i32 or i64");
  FOVEAL_CHECK(lengths.rank == 1 && lengths.sizes[0] == p.batch, "seqlens_kv: shape ", shape_text(lengths.sizes.data(), lengths.rank),
               "; expected [", p.batch, "], one length for each sequence");
  FOVEAL_CHECK(lengths.device == call.q->device, "seqlens_kv: on another device than q");
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

/// The symbols of the whole take the place of the part's.
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
  FOVEAL_CHECK(p.heads_all >= p.heads_q && p.head_offset >= 0 && p.head_offset <= p.heads_all - p.heads_q, "part.head_offset: ", p.heads_q,
               " heads from ", p.head_offset, " of ", p.heads_all, "; expected heads that there are");
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

/// Before anything is multiplied by it.
void check_batch(const Problem& p) {
  FOVEAL_CHECK(p.batch <= max_position / p.heads_q, "q: batch ", p.batch, " times heads ", p.heads_q, "; expected at most ", max_position);
}

void check_limits(const Problem& p) {
  const Attention& a = p.attention;
  FOVEAL_CHECK(a.q_offset >= 0, "q_offset: ", a.q_offset, "; expected 0 or more");
  FOVEAL_CHECK(a.kv_offset >= 0, "kv_offset: ", a.kv_offset, "; expected 0 or more");
  const std::int64_t last_q = std::max(p.seqlen_q, p.varlen ? p.total_q : 0), last_kv = p.longest_kv();
  FOVEAL_CHECK(last_q <= max_position && a.q_offset <= max_position - last_q, "q: last position ", a.q_offset, " + ", last_q,
               "; expected at most ", max_position);
  FOVEAL_CHECK(last_kv <= max_position && a.kv_offset <= max_position - last_kv, "k: last position ", a.kv_offset, " + ", last_kv,
               "; expected at most ", max_position);
  // Rows of the longest sequence, which may be told longer than the tensors are: workspaces hold a few times as many.
  const std::int64_t dims = p.head_dim + p.head_dim_v, rows = std::max(last_q, last_kv);
  FOVEAL_CHECK(rows <= most_elements / dims, "max_seqlen_q, max_seqlen_kv: sequences of ", rows, " times head_dim ", dims,
               "; expected at most 2^48");
  FOVEAL_CHECK(std::isfinite(p.scale), "scale: ", p.scale, "; expected a finite number");
  FOVEAL_CHECK(a.dropout_p >= 0 && a.dropout_p < 1, "dropout_p: ", a.dropout_p, "; expected 0 <= p < 1");
}

/// Sizes of a tensor in its logical form.
std::vector<std::int64_t> sizes_of(const Problem& p, const Axes& axes) {
  std::vector<std::int64_t> sizes;
  for (const Axis axis : axes) {
    switch (axis) {
      case Axis::batch_q:
        sizes.push_back(p.q.sizes[0]);
        break;
      case Axis::batch_kv:
        sizes.push_back(p.k.sizes[0]);
        break;
      case Axis::seqlen_q:
        sizes.push_back(p.q.sizes[1]);
        break;
      case Axis::seqlen_kv:
        sizes.push_back(p.k.sizes[1]);
        break;
      case Axis::heads_q:
        sizes.push_back(p.heads_q);
        break;
      case Axis::heads_kv:
        sizes.push_back(p.heads_kv);
        break;
      case Axis::head_dim:
        sizes.push_back(p.head_dim);
        break;
      case Axis::head_dim_v:
        sizes.push_back(p.head_dim_v);
        break;
      case Axis::sequences:
        sizes.push_back(p.batch);
        break;
      case Axis::sequences_plus_one:
        sizes.push_back(p.batch + 1);
        break;
      case Axis::pages:
        sizes.push_back(p.block_table.sizes[1]);
        break;
    }
  }
  return sizes;
}

void check_role_dtype(const Problem& p, const Role& role, DType found, bool output) {
  const DType statistics = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (role.type == RoleType::statistics)
    return check_dtype(role.name, found, p.merges() && output ? DType::f64 : statistics, "the type of statistics for these inputs");
  if (p.keeps_rows && role.spec == &Problem::dq) return check_dtype(role.name, found, p.dtype, "q's");
  if (p.merges() && output) return check_dtype(role.name, found, statistics, "the type in which parts are added");
  const bool wide = output && found == DType::f32 && (p.dtype == DType::bf16 || p.dtype == DType::f16);
  if (!wide) check_dtype(role.name, found, p.dtype, "q's");
}

/// The tensors whose sizes follow from those of q, k and v.
void read_results(Problem& p, const Call& call) {
  for (const Role& role : roles) {
    TensorSpec& spec = p.*role.spec;
    const TensorView* view = call.*role.given;
    if (spec.present || view == nullptr || role.integers() || (!view->present() && role.optional(call.pass))) continue;
    const std::vector<std::int64_t> sizes = sizes_of(p, role.axes);
    spec = checked_spec(role, *view, call);
    check_shape(role.name, spec, sizes);
    const bool output = role.output(call.pass);
    if (output)
      FOVEAL_CHECK(!overlaps_itself(spec), role.name, ": strides ", shape_text(spec.strides.data(), spec.rank),
                   " put two elements in one place; an output's elements must be apart");
    check_role_dtype(p, role, spec.dtype, output);
  }
}

bool accepts(Type type, DType dtype) {
  switch (type) {
    case Type::real:
      return is_floating(dtype);
    case Type::integer:
      return base::is_integral(dtype);
    case Type::boolean:
      return dtype == DType::boolean || dtype == DType::u8;
  }
  return false;
}

const char* accepted_dtypes(Type type) {
  switch (type) {
    case Type::real:
      return "f64, f32, bf16 or f16";
    case Type::integer:
      return "i64, i32, i16, i8 or u8";
    case Type::boolean:
      return "boolean or u8";
  }
  return "";
}

TensorSpec param_spec(const std::string& what, const Param& param, const TensorView& tensor, const Call& call) {
  const std::vector<std::int64_t>& shape = param.shape();
  const bool same = tensor.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), tensor.sizes.begin());
  FOVEAL_CHECK(same, what, ": shape ", shape_text(tensor.sizes.data(), tensor.rank), "; expected ", shape_text(shape), " as declared");
  FOVEAL_CHECK(tensor.device == call.q->device, what, ": on another device than q");
  check_reach(what.c_str(), tensor);
  return spec_of(logical_view(tensor, false));
}

void read_params(Problem& p, const Call& call) {
  for (const ParamBinding& binding : *call.params) {
    FOVEAL_CHECK(binding.param.present(), "params: a binding without a parameter");
    const std::string what = "parameter " + binding.param.name();
    for (const ParamSpec& other : p.params) FOVEAL_CHECK(other.param.name() != binding.param.name(), what, ": bound twice");
    const TensorSpec spec = param_spec(what, binding.param, binding.tensor, call);
    FOVEAL_CHECK(accepts(binding.param.type(), spec.dtype), what, ": dtype ", to_string(spec.dtype), "; expected ",
                 accepted_dtypes(binding.param.type()), " for a parameter of type ", to_string(binding.param.type()));
    p.params.push_back({.param = binding.param, .tensor = spec, .gradient = {}});
  }
}

void read_param_gradients(Problem& p, const Call& call) {
  if (call.dparams == nullptr) return;
  for (const ParamBinding& wanted : *call.dparams) {
    FOVEAL_CHECK(wanted.param.present(), "dparams: a binding without a parameter");
    const std::string what = "gradient of parameter " + wanted.param.name();
    const auto bound =
        std::find_if(p.params.begin(), p.params.end(), [&](const ParamSpec& spec) { return spec.param.name() == wanted.param.name(); });
    FOVEAL_CHECK(bound != p.params.end(), what, ": the parameter is not bound in params");
    FOVEAL_CHECK(!bound->gradient.present, what, ": wanted twice");
    FOVEAL_CHECK(bound->param.type() == Type::real, what, ": a parameter of type ", to_string(bound->param.type()),
                 " has no gradient; expected a real one");
    const TensorSpec spec = param_spec(what, bound->param, wanted.tensor, call);
    const DType own = bound->tensor.dtype;
    FOVEAL_CHECK(spec.dtype == DType::f32 || spec.dtype == DType::f64 || spec.dtype == own, what, ": dtype ", to_string(spec.dtype),
                 "; expected f32, f64 or the parameter's own ", to_string(own));
    FOVEAL_CHECK(!overlaps_itself(spec), what, ": strides ", shape_text(spec.strides.data(), spec.rank),
                 " put two elements in one place; an output's elements must be apart");
    bound->gradient = spec;
  }
}

void read_sink(Problem& p) {
  if (!p.attention.sink) return;
  const Param& sink = *p.attention.sink;
  FOVEAL_CHECK(sink.present(), "sink: a Param without a name");
  FOVEAL_CHECK(sink.type() == Type::real, "sink: parameter ", sink.name(), " is ", to_string(sink.type()), "; expected real");
  FOVEAL_CHECK(sink.shape() == std::vector<std::int64_t>{p.heads_q}, "sink: parameter ", sink.name(), " has shape ",
               shape_text(sink.shape()), "; expected [", p.heads_q, "], one logit per query head");
  for (std::size_t i = 0; i < p.params.size(); ++i)
    if (p.params[i].param.name() == sink.name()) p.sink = static_cast<int>(i);
  FOVEAL_CHECK(p.sink >= 0, "sink: parameter ", sink.name(), " is not bound in params");
  FOVEAL_CHECK(p.params[static_cast<std::size_t>(p.sink)].param.shape() == sink.shape(), "sink: parameter ", sink.name(),
               " is bound with another shape");
}

bool reads(const scoring::Program& program, int param) {
  return std::any_of(program.code.begin(), program.code.end(),
                     [param](const scoring::Instr& instr) { return instr.op == scoring::Op::read && instr.param == param; });
}

/// All pairs of a problem; nothing for packed lengths that only the data tell.
std::optional<scoring::Box> box_of(const Problem& p) {
  const auto range = [](std::int64_t low, std::int64_t high) {
    return scoring::Interval{static_cast<double>(low), static_cast<double>(high)};
  };
  const auto length = [&](std::int64_t seqlen, bool ragged) { return range(ragged ? 0 : seqlen, seqlen); };
  if (p.batch == 0 || p.seqlen_q == 0 || p.seqlen_kv == 0) return {};
  scoring::Box box{range(0, p.sequences - 1),    range(0, p.heads_q - 1),           {}, {},
                   length(p.seqlen_q, p.varlen), length(p.seqlen_kv, p.ragged_kv())};
  box.q_idx = range(p.first_position_q(), p.first_position_q() + p.positions_q() - 1);
  box.kv_idx = range(p.first_position_kv(), p.first_position_kv() + p.positions_kv() - 1);
  return box;
}

/// Refuses what is certainly wrong whatever the data: a read that is outside its parameter at every pair, integers beyond 64 bits.
void check_bounds(const Problem& p, const scoring::Box& box, const char* what, const scoring::Program& program,
                  const scoring::Program& mask) {
  if (program.empty()) return;
  const scoring::ReadRanges unknown_data;
  for (const scoring::IndexCheck& check : scoring::check_reads(program, p.score->params, box, unknown_data, mask)) {
    FOVEAL_CHECK(check.verdict != scoring::IndexVerdict::never_inside, what, ": parameter ",
                 p.score->params[static_cast<std::size_t>(check.param)].name, ": index ", check.dimension, " is ", check.index.low, " to ",
                 check.index.high, ", outside at every pair; expected 0 to ", check.size - 1);
  }
  const std::optional<scoring::Interval> overflow = scoring::beyond_64_bits(program, scoring::evaluate(program, box, unknown_data));
  FOVEAL_CHECK(!overflow, what, ": an integer reaches from ", overflow->low, " to ", overflow->high,
               "; expected integers of 64 bits (compute it in reals with to_real)");
}

void compile_score(Problem& p) {
  scoring::Request request{.score_mod = p.attention.score_mod, .mask = p.attention.mask, .params = {}, .wants_gradient = {}};
  request.backward = p.pass == Pass::backward;
  request.row_constant_terms_matter = p.sink >= 0 || p.dlse.present;
  for (std::size_t i = 0; i < p.params.size(); ++i) {
    request.params.push_back(p.params[i].param);
    request.wants_gradient.push_back(p.params[i].gradient.present && static_cast<int>(i) != p.sink);
  }
  const std::optional<scoring::Box> box = box_of(p);
  if (box && !p.segments) {
    request.score_mod = scoring::simplify_indices(request.score_mod, request.mask, request.params, *box);
    request.mask = scoring::simplify_indices(request.mask, {}, request.params, *box);
  }
  p.score = scoring::compile_once(request);
  if (p.sink >= 0 && p.params[static_cast<std::size_t>(p.sink)].gradient.present)
    FOVEAL_CHECK(!reads(p.score->forward, p.sink), "sink: parameter ", p.attention.sink->name(),
                 " is read by score_mod too and its gradient is wanted; use two parameters");
  if (!box) return;
  check_bounds(p, *box, "score_mod", p.score->forward, p.score->mask);
  check_bounds(p, *box, "mask", p.score->mask, {});
}

void check_something_is_wanted(const Problem& p) {
  FOVEAL_CHECK(!p.merges() || p.lse.present, "lse: absent; a part needs it, for it says what its rows weigh");
  const bool wanted = p.pass == Pass::forward || p.dq.present || p.dk.present || p.dv.present ||
                      std::any_of(p.params.begin(), p.params.end(), [](const ParamSpec& spec) { return spec.gradient.present; });
  FOVEAL_CHECK(wanted, "outputs: no gradient is asked for; expected at least one of dq, dk, dv, dparams");
}

}  // namespace

std::string key_of(const Problem& p) {
  std::string key = p.line();
  const auto add = [&key](std::int64_t number) { key += ' ' + std::to_string(number); };
  const auto add_spec = [&](const TensorSpec& spec) {
    if (!spec.present) {
      key += " -";
      return;
    }
    key += ' ';
    key += to_string(spec.dtype);
    if (!spec.aligned) key += '*';
    for (int d = 0; d < spec.rank; ++d) add(spec.strides[static_cast<std::size_t>(d)]);
  };
  key += " |";
  add(static_cast<int>(p.device.kind)), add(p.device.index), add(p.total_q), add(p.total_kv);
  if (p.paged) key += " paged", add(p.block_table.sizes[1]);
  if (p.segments) key += " segments", add(p.batch), add(p.sequences), add(p.head_offset), add(p.heads_all);
  if (p.part)
    key += " part", add(p.batch_offset), add(p.head_offset), add(p.heads_all), add(p.whole_rows), add(p.spread), add(p.keeps_rows),
        add(p.whole_keys), add(p.first_query), add(p.queries_of_whole), add(p.first_key), add(p.keys_of_whole);
  for (const Role& role : roles) add_spec(p.*role.spec);
  for (const ParamSpec& param : p.params) add_spec(param.tensor), add_spec(param.gradient);
  return key;
}

namespace {

Problem make(const Attention& attention, const Call& call) {
  Problem p;
  p.pass = call.pass, p.device = call.q->device, p.attention = attention;
  try {
    read_sizes(p, call);
    read_varlen(p, call);
    check_batch(p);
    read_paged(p, call);
    read_part(p, call);
    p.scale = attention.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
    check_limits(p);
    read_results(p, call);
    read_params(p, call);
    read_param_gradients(p, call);
    read_sink(p);
    check_something_is_wanted(p);
    compile_score(p);
  } catch (const Error& error) {
    base::fail(error.code(), error.what(), " [", headline(p), "]");
  }
  return p;
}

}  // namespace

Problem make_problem(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs) {
  return make(attention, call_of(inputs, outputs));
}

Problem make_problem(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  return make(attention, call_of(inputs, outputs));
}

}  // namespace foveal::problem
