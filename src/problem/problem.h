#pragma once
// A Problem is one checked, normalised attention call without its data: what a plan is made for and what caches are keyed by.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "foveal/attention.h"
#include "problem/roles.h"
#include "score/program.h"

namespace foveal::problem {

/// Shape, type and strides of one tensor; rank 0 with present = false when it is not given. Always in the 4-D logical form
/// [batch, seqlen, heads, dim] for q, k, v, out, dout and their gradients ([1, total, heads, dim] when packed, [pages, page_size, heads,
/// dim] for keys in pages), and
/// [batch, heads_q, seqlen_q] for lse and dlse ([1, heads_q, total_q] when packed).
struct TensorSpec {
  bool present = false;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, TensorView::max_rank> sizes{};
  std::array<std::int64_t, TensorView::max_rank> strides{};
  bool aligned = true;  ///< on a GPU: the data begins at a multiple of 16 bytes, or was not shown
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

struct ParamSpec {
  Param param;
  TensorSpec tensor;
  TensorSpec gradient;  ///< present when a gradient is wanted
};

struct Problem {
  Pass pass = Pass::forward;
  Device device{};
  DType dtype = DType::f32;  ///< of q, k, v, out and their gradients
  std::int64_t batch = 0;    ///< sequences
  std::int64_t heads_q = 0, heads_kv = 0, group_size = 1;
  std::int64_t seqlen_q = 0, seqlen_kv = 0;  ///< packed: the maxima (0 = unknown until run, CPU only)
  std::int64_t total_q = 0, total_kv = 0;    ///< packed: tokens; otherwise batch * seqlen
  std::int64_t head_dim = 0, head_dim_v = 0;
  bool varlen = false;         ///< packed, in whole sequences or in segments; of keys only where they are not paged
  bool paged = false;          ///< k and v are pools [pages, page_size, heads_kv, dim]; seqlen_kv and total_kv are bounds
  bool gathered = false;       ///< keys were paged: those of a sequence lie together, seqlen_kv rows for each
  bool segments = false;       ///< each of `batch` segments says itself which sequence it is a part of
  std::int64_t sequences = 0;  ///< the symbol `batch` is less
  bool any_length = false;     ///< stands for all problems with fewer keys, too, and with queries at earlier places
  bool part = false;           ///< results are wide and merged into what is there; symbols of the whole stand in the score
  bool whole_rows = false;     ///< of a part: no other has keys of its rows, and results are those of a call without a part
  bool spread = false;         ///< of a part: keys lie in stretches of two memories
  bool keeps_rows = false;     ///< of a part, backward: what is found of rows is kept for other parts, and dq is written once, in q's type
  bool whole_keys = false;     ///< of a part that keeps rows: no other has queries of its keys, and dk and dv are written once, too
  std::int64_t first_query = 0, first_key = 0;  ///< with keeps_rows: of the part, among so many of the whole
  std::int64_t queries_of_whole = 0, keys_of_whole = 0;
  std::int64_t batch_offset = 0;                ///< of a part: the symbol `batch` of the first row
  std::int64_t head_offset = 0, heads_all = 0;  ///< the symbol `head` of the first query head; query heads of all ranks
  double scale = 1;
  Attention attention;           ///< as given; of a part, with symbols of the whole in score_mod and mask
  Expr given_score, given_mask;  ///< of a part: kept, for signatures of calls know them by address

#define FOVEAL_FIELD(name, ...) TensorSpec name;
  FOVEAL_ROLES(FOVEAL_FIELD)
#undef FOVEAL_FIELD
  std::vector<ParamSpec> params;  ///< every bound parameter, the sink included, in the order of binding
  int sink = -1;                  ///< position of the sink in params, or -1

  std::shared_ptr<const scoring::ScoreProgram> score;  ///< params in the same order
  std::shared_ptr<std::vector<float>> numbers;  ///< of kernels: constants that these get as arguments; null: texts show all constants

  /// Results are merged into what is there.
  bool merges() const { return part && !whole_rows && !whole_keys; }
  bool has_score_mod() const { return !score->forward.empty(); }
  bool has_mask() const { return !score->mask.empty(); }
  /// Sequences have as many keys as a run says.
  bool ragged_kv() const { return varlen || paged || gathered; }
  /// No sequence has more.
  std::int64_t longest_kv() const { return std::max(seqlen_kv, varlen && !paged && !gathered ? total_kv : 0); }
  /// Of the pairs that kernels may ask the score about: those here. Where rows are kept, those of the whole: dq may be mended over the keys of all parts, and the factors
  /// that its sum lacks must be the same for all.
  std::int64_t first_position_q() const { return attention.q_offset - first_query; }
  std::int64_t positions_q() const { return keeps_rows ? queries_of_whole : seqlen_q; }
  std::int64_t first_position_kv() const { return attention.kv_offset - first_key; }
  std::int64_t positions_kv() const { return keeps_rows ? keys_of_whole : seqlen_kv; }
  std::int64_t pages() const { return k.sizes[0]; }
  std::int64_t page_size() const { return k.sizes[1]; }
  /// `backward bf16 b2 h12:4 q1024 kv1024 d64 mask="kv_idx <= q_idx" score="score + rel[head, ...]" ...`: parsed back by parse_line()
  std::string line() const;
};

/// line() plus strides, dtypes and everything else that a plan depends on.
std::string key_of(const Problem& problem);

/// All tensors of one call, in the same roles and order as the Problem's specs (rank-4 views of packed tensors).
struct Buffers {
#define FOVEAL_FIELD(name, ...) TensorView name;
  FOVEAL_ROLES(FOVEAL_FIELD)
#undef FOVEAL_FIELD
  std::vector<TensorView> params;   ///< like Problem::params
  std::vector<TensorView> dparams;  ///< like Problem::params; absent where no gradient is wanted
  TensorView segments;
  Part part;       ///< of a part: what a run says of it
  DropoutRng rng;  ///< without a state on the CPU: it has been read; without anything where nothing is dropped
};

/// Checks everything that can be checked without data and normalises. Throws invalid_argument naming the argument, what was
/// found and what is accepted.
Problem make_problem(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs);
Problem make_problem(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs);

/// Part of that, for who computes with sizes and strides before: all that follows from them fits into 64 bits, elements, offsets in bytes,
/// workspaces of a few such tensors.
void check_reach(const char* name, const TensorView& view);

/// Gathers the views of a call for a problem; throws invalid_argument when one differs from the spec, has no data, or overlaps an output.
/// Buffers that were filled before are reused, so that a repeated call allocates nothing.
void fill_buffers(const Problem& problem, const ForwardInputs& inputs, const ForwardOutputs& outputs, Buffers& buffers);
void fill_buffers(const Problem& problem, const BackwardInputs& inputs, const BackwardOutputs& outputs, Buffers& buffers);

}  // namespace foveal::problem
