#pragma once
// One line of text for one problem: what the command line, suites, tests and messages share. docs/problem-lines.md holds the grammar.
//
//   backward bf16 b2 h12:4 q1024:2048 d64:128 layout=bhsd mask="kv_idx <= q_idx" score="score + rel[head]" param="rel: real[12] grad"
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foveal/attention.h"

namespace foveal::problem {

struct Problem;

/// How tensors lie in memory. packed_qkv: q, k, v (and dq, dk, dv) are views of one buffer [batch, seqlen, heads of q, k, v, dim]; padded:
/// contiguous but for gaps after every head and every sequence; dim_first: head_dim has a stride other than 1.
enum class Layout : std::uint8_t { bshd, bhsd, sbhd, packed_qkv, padded, dim_first };

const char* to_string(Layout layout);

/// What the tensors are filled with. normal: N(0, 1). adversarial: large logits, keys that nearly cancel, rows of equal scores.
enum class Fill : std::uint8_t { normal, adversarial };

/// How a parameter's data are made: normal(0.5). No name: by type, normal(0.5), integers(0, 3) or bernoulli(0.5).
struct ParamFill {
  std::string name;
  std::vector<double> args;
};

/// A parameter of a line: `rel: real[12, 33] f32 normal(0.5) grad`.
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
  /// Strides that the layout does not say, in elements of the logical tensor: {"k", {0, 64, 1024, 1}}.
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> strides;

  bool varlen = false;  ///< `thd`: packed sequences; seqlen_q and seqlen_kv are the maxima then (0: not told)
  std::int64_t total_q = 0, total_kv = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;  ///< one for each sequence of a packed or paged batch, when known
  DType cu_seqlens_dtype = DType::i32;                         ///< and of seqlens_kv

  /// Keys in `pages` pages of page_size; 0: none. seqlen_kv is what a row of the table holds, then, and lengths are known for packed queries
  /// or not.
  std::int64_t page_size = 0, pages = 0;
  bool paged() const { return page_size > 0; }
  bool ragged() const { return varlen || paged(); }
  std::int64_t table_pages() const { return seqlen_kv / page_size; }

  Attention attention;
  std::vector<ParamLine> params;
  bool lse = true;                       ///< forward: is it asked for
  bool dlse = false;                     ///< backward: is it given
  bool dq = true, dk = true, dv = true;  ///< backward: which are asked for

  // How to run it; no part of a Problem.
  DropoutRng rng;              ///< seed and offset; no state
  bool rng_in_memory = false;  ///< CaseData puts the two into memory and gives them as the state
  std::uint64_t seed = 0;
  Fill fill = Fill::normal;
  std::int64_t sample = 0;  ///< checks look at this many queries alone, and only these have gradients of out and lse; 0: at all
  Device device{};
  PlanOptions options{};  ///< backend, target, threads
};

/// Throws invalid_argument naming the token, its column and what is accepted.
Line parse_line(std::string_view text);

/// Parsed back to the same line.
std::string to_string(const Line& line);

/// The line of a problem. What a Problem does not know (data, lengths) is left out.
Line line_of(const Problem& problem);

/// Strides of a role's logical tensor (q, k, v, out, dout, dq, dk, dv: [batch, seqlen, heads, dim], [1, total, heads, dim] when packed).
std::vector<std::int64_t> layout_strides(const Line& line, std::string_view role);
/// For each token of q: is it in the sample? Empty when all are. One in each of equal stretches, the first and the last token among them.
std::vector<bool> sampled_queries(const Line& line);
/// Sizes of a role's logical tensor; lse and dlse too.
std::vector<std::int64_t> role_sizes(const Line& line, std::string_view role);

}  // namespace foveal::problem
