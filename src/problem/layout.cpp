// Sizes and strides of a line's tensors, and the line of a problem.
#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "problem/call.h"
#include "problem/line.h"

namespace foveal::problem {
namespace {

/// Strides for comparison: those of dimensions of size 1 do not matter.
std::vector<std::int64_t> canonical(const std::vector<std::int64_t>& sizes, std::vector<std::int64_t> strides) {
  std::int64_t inner = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) strides[d] = inner;
    inner = sizes[d] * strides[d];
  }
  return strides;
}

/// So that strides of every layout fit 64 bits.
constexpr std::int64_t most_elements = std::int64_t{1} << 48;

}  // namespace

std::vector<std::int64_t> role_sizes(const Line& l, std::string_view role) {
  FOVEAL_CHECK(l.batch <= most_elements, "problem line: b", l.batch, "; expected at most 2^48");
  const std::int64_t rows = l.varlen ? 1 : l.batch;
  AxisSizes sizes{};
  sizes[Axis::batch_q] = rows, sizes[Axis::seqlen_q] = l.varlen ? l.total_q : l.seqlen_q;
  sizes[Axis::batch_kv] = l.paged() ? l.pages : rows, sizes[Axis::seqlen_kv] = l.paged()  ? l.page_size
                                                                               : l.varlen ? l.total_kv
                                                                                          : l.seqlen_kv;
  sizes[Axis::heads_q] = l.heads_q, sizes[Axis::heads_kv] = l.heads_kv;
  sizes[Axis::head_dim] = l.head_dim, sizes[Axis::head_dim_v] = l.head_dim_v;
  sizes[Axis::sequences] = l.batch, sizes[Axis::sequences_plus_one] = l.batch + 1, sizes[Axis::pages] = l.paged() ? l.table_pages() : 0;
  std::vector<std::int64_t> found = sizes.of(role_named(role).axes);
  std::int64_t room = most_elements;
  for (const std::int64_t size : found) {
    FOVEAL_CHECK(size <= room, "problem line: ", role, ": sizes ", base::shape_text(found), "; expected at most 2^48 elements");
    room /= std::max<std::int64_t>(size, 1);
  }
  return found;
}

std::vector<bool> sampled_queries(const Line& line) {
  if (line.sample <= 0) return {};
  const std::int64_t tokens = role_sizes(line, "q")[1], count = std::min(line.sample, tokens);
  std::vector<bool> sampled(static_cast<std::size_t>(tokens));
  base::Random random(line.seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = tokens * i / count, end = tokens * (i + 1) / count;
    const std::int64_t token = i == 0 ? 0 : i + 1 == count ? tokens - 1 : random.integer(begin, end - 1);
    sampled[static_cast<std::size_t>(token)] = true;
  }
  return sampled;
}

std::vector<std::int64_t> layout_strides(const Line& l, std::string_view role) {
  const std::vector<std::int64_t> sizes = role_sizes(l, role);
  for (const auto& [name, strides] : l.strides) {
    if (name != role) continue;
    FOVEAL_CHECK(strides.size() == sizes.size(), "problem line: strides of ", name, ": ", strides.size(), " of them; expected ",
                 sizes.size());
    return strides;
  }
  if (sizes.size() != 4) return row_major_strides(sizes);
  const std::int64_t b = sizes[0], s = sizes[1], h = sizes[2], d = sizes[3];
  switch (l.layout) {
    case Layout::bshd:
      break;
    case Layout::bhsd:
      return {h * s * d, d, s * d, 1};
    case Layout::sbhd:
      return {h * d, b * h * d, d, 1};
    case Layout::packed_qkv: {
      if (role == "out" || role == "dout") break;
      const std::int64_t token = l.heads_q * l.head_dim + l.heads_kv * (l.head_dim + l.head_dim_v);
      return {s * token, token, d, 1};
    }
    case Layout::padded: {
      constexpr std::int64_t gap = 8;
      return {(s + 3) * h * (d + gap), h * (d + gap), d + gap, 1};
    }
    case Layout::dim_first:
      return {h * d * s, 1, d * s, s};
  }
  return row_major_strides(sizes);
}

DType role_dtype(const Line& line, const RoleRow& role) {
  switch (role.type) {
    case RoleType::of_q:
      return line.dtype;
    case RoleType::statistics:
      return default_dtype(Type::real, line.dtype);
    case RoleType::lengths:
      return line.cu_seqlens_dtype;
    case RoleType::pages:
      break;
  }
  return DType::i32;
}

TensorView public_view(const Line& line, const RoleRow& role, const TensorView& logical) {
  if (!line.varlen || role.integers() || (line.paged() && role.of_keys())) return logical;
  TensorView view = logical;
  --view.rank;
  std::copy_n(logical.sizes.begin() + 1, view.rank, view.sizes.begin());
  std::copy_n(logical.strides.begin() + 1, view.rank, view.strides.begin());
  return view;
}

Line line_of(const Problem& p) {
  Line l;
  l.pass = p.pass, l.dtype = p.dtype, l.batch = p.batch, l.heads_q = p.heads_q, l.heads_kv = p.heads_kv;
  l.seqlen_q = p.seqlen_q, l.seqlen_kv = p.seqlen_kv, l.head_dim = p.head_dim, l.head_dim_v = p.head_dim_v;
  l.varlen = p.varlen, l.device = p.device;
  for (const TensorSpec* lengths : {&p.seqlens_kv, &p.cu_seqlens_q})
    if (lengths->present) l.cu_seqlens_dtype = lengths->dtype;
  if (p.varlen) l.total_q = p.total_q, l.total_kv = p.total_kv;
  if (p.paged) {
    l.page_size = p.page_size(), l.pages = p.pages(), l.total_kv = 0;
    l.seqlen_kv = p.block_table.sizes[1] * l.page_size;
  }
  l.attention = p.attention;
  for (const ParamSpec& spec : p.params)
    l.params.push_back(
        {.param = spec.param, .dtype = spec.tensor.dtype, .fill = {}, .grad = spec.gradient.present, .grad_dtype = spec.gradient.dtype});
  l.lse = p.lse.present, l.dlse = p.dlse.present;
  l.dq = p.dq.present, l.dk = p.dk.present, l.dv = p.dv.present;

  const auto found = [&p](const Role& role) {
    const TensorSpec& spec = p.*role.spec;
    return std::vector<std::int64_t>(spec.strides.begin(), spec.strides.begin() + spec.rank);
  };
  const auto differing = [&](Layout layout) {
    l.layout = layout;
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> strides;
    for (const Role& role : roles)
      if ((p.*role.spec).present && !role.integers()) {
        const auto sizes = role_sizes(l, role.name);
        if (canonical(sizes, layout_strides(l, role.name)) != canonical(sizes, found(role))) strides.emplace_back(role.name, found(role));
      }
    return strides;
  };
  for (const Layout layout : layouts)
    if (differing(layout).empty()) return l;
  l.strides = differing(Layout::bshd);
  return l;
}

}  // namespace foveal::problem
