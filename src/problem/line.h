#pragma once
// Problem lines: one line of text per problem, used by the command line, suites, tests and messages. Grammar: docs/problem-lines.md.
//
//   backward bf16 b2 h12:4 q1024:2048 d64:128 layout=bhsd mask="kv_idx <= q_idx" score="score + rel[head]" param="rel: real[12] grad"
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foveal/attention.h"
#include "problem/roles.h"

namespace foveal::problem {

struct Problem;

/// Memory layout of the tensors. packed_qkv: q, k, v (and dq, dk, dv) are views of one buffer [batch, seqlen, heads of q, k and v, dim].
/// padded: gaps after every head and every sequence. dim_first: the stride of head_dim is not 1.
enum class Layout : std::uint8_t { bshd, bhsd, sbhd, packed_qkv, padded, dim_first };
inline constexpr std::array layouts{Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::packed_qkv, Layout::padded, Layout::dim_first};

const char* to_string(Layout layout);

/// Data of the tensors. normal: N(0, 1). adversarial: large logits, keys that nearly cancel, rows of equal scores.
enum class Fill : std::uint8_t { normal, adversarial };

const char* to_string(Fill fill);

/// Data of a parameter, such as normal(0.5). Without a name, by type: normal(0.5), integers(0, 3) or bernoulli(0.5).
struct ParamFill {
  std::string name;
  std::vector<double> args;
};

/// The dtype of a parameter, or of a gradient (Type::real), if the line names none.
DType default_dtype(Type type, DType problem);

/// `rel: real[12, 33] f32 normal(0.5) grad`
struct ParamLine {
  Param param;
  DType dtype = DType::f32;
  ParamFill fill;
  bool grad = false;
  DType grad_dtype = DType::f32;
};

struct Line {
  Pass pass = Pass::forward;
  DType dtype = DType::f32;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64, head_dim_v = 64;
  Layout layout = Layout::bshd;
  /// Strides that differ from the layout's, in elements of the logical tensor: {"k", {0, 64, 1024, 1}}.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> strides;

  bool varlen = false;  ///< `thd`: packed sequences; seqlen_q and seqlen_kv are the maxima (0: unknown)
  std::int64_t total_q = 0, total_kv = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;  ///< {q, kv} of each sequence of a packed or paged batch, if known
  DType cu_seqlens_dtype = DType::i32;                         ///< and of seqlens_kv

  /// Paged keys: the page size (0: not paged) and the number of pages. seqlen_kv is then the capacity of a table row.
  std::int64_t page_size = 0, pages = 0;
  bool paged() const { return page_size > 0; }
  bool ragged() const { return varlen || paged(); }
  std::int64_t table_pages() const { return seqlen_kv / page_size; }

  Attention attention;
  std::vector<ParamLine> params;
  bool lse = true;                       ///< forward: whether it is requested
  bool dlse = false;                     ///< backward: whether it is given
  bool dq = true, dk = true, dv = true;  ///< backward: which are requested

  // How to run it; not part of a Problem.
  DropoutRng rng;              ///< seed and offset; no state
  bool rng_in_memory = false;  ///< pass the two as DropoutRng::state
  std::uint64_t seed = 0;
  Fill fill = Fill::normal;
  std::int64_t sample = 0;  ///< check only this many queries, and give only these gradients of out and lse; 0: all
  Device device{};
  PlanOptions options{};  ///< backend, target, threads
};

/// Throws invalid_argument with the token, its column and what is accepted.
Line parse_line(std::string_view text);
/// The same, or a forward and a backward line of a text that begins with `both`.
std::vector<Line> parse_lines(std::string_view text);

/// parse_line() gives the same line back.
std::string to_string(const Line& line);

/// The line of a problem, without what a Problem does not know (data, lengths).
Line line_of(const Problem& problem);

/// Sizes of a role's logical tensor, as in TensorSpec.
std::vector<std::int64_t> role_sizes(const Line& line, std::string_view role);
/// Its strides in the line's layout. Throws invalid_argument if the line gives other than one per dimension.
std::vector<std::int64_t> layout_strides(const Line& line, std::string_view role);
DType role_dtype(const Line& line, const RoleRow& role);
/// The tensor as public calls take it: packed ones without the batch dimension.
TensorView public_view(const Line& line, const RoleRow& role, const TensorView& logical);
/// For each token of q: is it in the sample? Empty: all are. One token of each of equal stretches, including the first and the last token.
std::vector<bool> sampled_queries(const Line& line);

}  // namespace foveal::problem
