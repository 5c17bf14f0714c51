#pragma once
// The tensors of a call, one row each: name, use in either pass, type and axes. Structs with a field per tensor, the order of slots in
// Python, checks, keys and messages are generated from this table.
//
//   X(name, forward, backward, type, axes...)
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace foveal::problem {

/// How a pass uses a tensor.
enum class Use : std::uint8_t { none, input, optional_input, output, optional_output };

/// of_q: q's dtype. statistics: f32, or f64 for f64 inputs. lengths: i32 or i64. pages: i32.
enum class RoleType : std::uint8_t { of_q, statistics, lengths, pages };

/// batch and seqlen are sizes of the tensors: 1 and the total when packed, number and size of the pages when paged.
enum class Axis : std::uint8_t {
  batch_q,
  seqlen_q,
  batch_kv,
  seqlen_kv,
  heads_q,
  heads_kv,
  head_dim,
  head_dim_v,
  sequences,
  sequences_plus_one,
  pages
};

// clang-format off
/// Tensors of real numbers.
#define FOVEAL_TENSOR_ROLES(X)                                                                                      \
  X(q,    input,           input,           of_q,       batch_q, seqlen_q, heads_q, head_dim)                       \
  X(k,    input,           input,           of_q,       batch_kv, seqlen_kv, heads_kv, head_dim)                    \
  X(v,    input,           input,           of_q,       batch_kv, seqlen_kv, heads_kv, head_dim_v)                  \
  X(out,  output,          input,           of_q,       batch_q, seqlen_q, heads_q, head_dim_v)                     \
  X(lse,  optional_output, input,           statistics, batch_q, heads_q, seqlen_q)                                 \
  X(dout, none,            input,           of_q,       batch_q, seqlen_q, heads_q, head_dim_v)                     \
  X(dlse, none,            optional_input,  statistics, batch_q, heads_q, seqlen_q)                                 \
  X(dq,   none,            optional_output, of_q,       batch_q, seqlen_q, heads_q, head_dim)                       \
  X(dk,   none,            optional_output, of_q,       batch_kv, seqlen_kv, heads_kv, head_dim)                    \
  X(dv,   none,            optional_output, of_q,       batch_kv, seqlen_kv, heads_kv, head_dim_v)
/// Integers that assign tokens to sequences.
#define FOVEAL_LENGTH_ROLES(X)                                                                                      \
  X(cu_seqlens_q,  optional_input, optional_input, lengths, sequences_plus_one)                                     \
  X(cu_seqlens_kv, optional_input, optional_input, lengths, sequences_plus_one)                                     \
  X(block_table,   optional_input, optional_input, pages,   sequences, pages)                                       \
  X(seqlens_kv,    optional_input, optional_input, lengths, sequences)
// clang-format on
#define FOVEAL_ROLES(X) FOVEAL_TENSOR_ROLES(X) FOVEAL_LENGTH_ROLES(X)

/// Up to four axes, in order.
struct Axes {
  std::array<Axis, 4> axis{};
  int rank = 0;

  constexpr Axes(std::initializer_list<Axis> list) {
    for (const Axis a : list) axis[static_cast<std::size_t>(rank++)] = a;
  }
  constexpr bool has(Axis wanted) const {
    for (const Axis a : *this)
      if (a == wanted) return true;
    return false;
  }
  constexpr const Axis* begin() const { return axis.data(); }
  constexpr const Axis* end() const { return axis.data() + rank; }
};

/// A size for each Axis.
struct AxisSizes {
  std::array<std::int64_t, 11> size{};

  std::int64_t& operator[](Axis axis) { return size[static_cast<std::size_t>(axis)]; }
  std::vector<std::int64_t> of(const Axes& axes) const {
    std::vector<std::int64_t> sizes;
    for (const Axis axis : axes) sizes.push_back(size[static_cast<std::size_t>(axis)]);
    return sizes;
  }
};

struct RoleRow {
  const char* name;
  Use forward, backward;
  RoleType type;
  Axes axes;

  constexpr bool integers() const { return type == RoleType::lengths || type == RoleType::pages; }
  constexpr bool of_keys() const { return axes.has(Axis::seqlen_kv); }
};

namespace role_table {
using enum Axis;
#define FOVEAL_ROW(name, forward, backward, type, ...) RoleRow{#name, Use::forward, Use::backward, RoleType::type, {__VA_ARGS__}},
inline constexpr std::array tensors{FOVEAL_TENSOR_ROLES(FOVEAL_ROW)};
inline constexpr std::array lengths{FOVEAL_LENGTH_ROLES(FOVEAL_ROW)};
inline constexpr std::array all{FOVEAL_ROLES(FOVEAL_ROW)};
#undef FOVEAL_ROW
}  // namespace role_table

/// The row of a name that is in the table.
const RoleRow& role_named(std::string_view name);

/// Strides of a contiguous tensor.
std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& sizes);

enum class Tokens : std::uint8_t { batched, packed, paged };

/// `[batch, seqlen_q, heads_q, head_dim]`, packed `[total_q, heads_q, head_dim]`, paged `[pages, page_size, heads_kv, head_dim]`.
std::string axes_text(const Axes& axes, Tokens tokens);

}  // namespace foveal::problem
