#pragma once
// A Problem is a checked, normalised attention call without its data: what plans are made for and caches are keyed by.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "foveal/attention.h"
#include "problem/roles.h"
#include "score/interval.h"

namespace foveal::problem {

/// Shape, dtype and strides of a tensor, in its logical form: [batch, seqlen, heads, dim] for q, k, v, out, dout and gradients
/// ([1, total, heads, dim] if packed, [pages, page_size, heads, dim] for paged keys and values), [batch, heads_q, seqlen_q] for lse and
/// dlse ([1, heads_q, total_q] if packed).
struct TensorSpec {
  bool present = false;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, TensorView::max_rank> sizes{};
  std::array<std::int64_t, TensorView::max_rank> strides{};
  bool aligned = true;  ///< on a GPU: the data are aligned to 16 bytes, or not given yet
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

struct ParamSpec {
  Param param;
  TensorSpec tensor;
  TensorSpec gradient;  ///< present if a gradient is requested
};

struct Problem {
  Pass pass = Pass::forward;
  Device device{};
  DType dtype = DType::f32;  ///< of q, k, v, out and their gradients
  std::int64_t batch = 0;    ///< sequences, or segments
  std::int64_t heads_q = 0, heads_kv = 0, group_size = 1;
  std::int64_t seqlen_q = 0, seqlen_kv = 0;  ///< packed: the maxima (0: unknown before a run, CPU only)
  std::int64_t total_q = 0, total_kv = 0;    ///< packed: tokens; otherwise batch * seqlen
  std::int64_t head_dim = 0, head_dim_v = 0;
  bool varlen = false;         ///< packed, as whole sequences or as segments; keys only if they are not paged
  bool paged = false;          ///< k and v are pools [pages, page_size, heads_kv, dim]; seqlen_kv and total_kv are upper bounds
  bool gathered = false;       ///< keys were paged and are now contiguous, seqlen_kv rows per sequence
  bool segments = false;       ///< Segments: `batch` counts segments, and each names its sequence
  std::int64_t sequences = 0;  ///< the symbol `batch` is below this
  bool any_length = false;     ///< also stands for problems with fewer keys and with queries at earlier positions
  // Part, with fields as there:
  bool part = false;  ///< outputs are wide accumulators; the score's symbols have the values of the whole problem
  bool whole_rows = false, spread = false, keeps_rows = false, whole_keys = false;
  std::int64_t first_query = 0, first_key = 0;           ///< with keeps_rows
  std::int64_t queries_of_whole = 0, keys_of_whole = 0;  ///< with keeps_rows
  std::int64_t batch_offset = 0;                         ///< value of `batch` for the first batch entry
  std::int64_t head_offset = 0, heads_all = 0;           ///< value of `head` for the first query head; query heads over all ranks
  double scale = 1;
  Attention attention;           ///< for a part, with values of the whole in score_mod and mask
  Expr given_score, given_mask;  ///< of a part: kept alive, since signatures of calls contain their addresses

#define FOVEAL_FIELD(name, ...) TensorSpec name;
  FOVEAL_ROLES(FOVEAL_FIELD)
#undef FOVEAL_FIELD
  std::vector<ParamSpec> params;  ///< every bound parameter, the sink included, in the order of binding
  int sink = -1;                  ///< position of the sink in params, or -1

  std::shared_ptr<const scoring::ScoreProgram> score;  ///< params in the same order
  std::shared_ptr<std::vector<float>> numbers;         ///< constants that kernels take as arguments; null: they are in the kernel text

  const ParamSpec& param(std::int32_t number) const { return params[static_cast<std::size_t>(number)]; }
  /// Whether outputs are merged with those of other parts.
  bool merges() const { return part && !whole_rows && !whole_keys; }
  bool has_score_mod() const { return !score->forward.empty(); }
  bool has_mask() const { return !score->mask.empty(); }
  /// Whether the number of keys of a sequence is known only at run time.
  bool ragged_kv() const { return varlen || paged || gathered; }
  /// Upper bound of the keys of a sequence.
  std::int64_t longest_kv() const { return std::max(seqlen_kv, varlen && !paged && !gathered ? total_kv : 0); }
  /// The positions at which kernels may evaluate the score: those of the call, or with keeps_rows those of the whole problem, since dq may
  /// be corrected over the keys of all parts, and the hoisted factors of its sum must agree between parts.
  std::int64_t first_position_q() const { return attention.q_offset - first_query; }
  std::int64_t positions_q() const { return keeps_rows ? queries_of_whole : seqlen_q; }
  std::int64_t first_position_kv() const { return attention.kv_offset - first_key; }
  std::int64_t positions_kv() const { return keeps_rows ? keys_of_whole : seqlen_kv; }
  std::int64_t pages() const { return k.sizes[0]; }
  std::int64_t page_size() const { return k.sizes[1]; }
  /// `backward bf16 b2 h12:4 q1024 d64 mask="kv_idx <= q_idx" score="score + rel[head, ...]" ...`, for parse_line().
  std::string line() const;
};

/// Everything that a plan depends on, as bytes: programs by their canonical text, so calls whose expressions mean the same share a plan.
std::string key_of(const Problem& problem);

/// The symbols of all pairs at which kernels may evaluate the score. Where lengths are unknown: of packed sequences, up to the total.
scoring::Box box_of(const Problem& problem);
/// Bounds of the values of one of its programs over these and all elements that the types of parameters can hold.
base::IdVector<scoring::Interval> bounds_of(const Problem& problem, const scoring::Program& program);

/// All tensors of a call, in the logical form of the Problem's specs.
struct Buffers {
#define FOVEAL_FIELD(name, ...) TensorView name;
  FOVEAL_ROLES(FOVEAL_FIELD)
#undef FOVEAL_FIELD
  std::vector<TensorView> params;   ///< in the order of Problem::params
  std::vector<TensorView> dparams;  ///< the same; absent if no gradient is requested
  TensorView segments;
  Part part;       ///< the run's fields of a part
  DropoutRng rng;  ///< on the CPU the state has been read into seed and offset; default without dropout
};

/// Checks everything that can be checked without data. Throws invalid_argument naming the argument, what was found and what is accepted.
Problem make_problem(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs);
Problem make_problem(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs);

/// Part of make_problem(), for callers that compute with sizes and strides before: element counts, byte offsets and workspaces of a few
/// such tensors fit in 64 bits.
void check_reach(const char* name, const TensorView& view);

/// Collects the views of a call; throws invalid_argument if one differs from its spec, has no data, or overlaps an output. Reused buffers,
/// which are those of a call with a part or without one as before, allocate nothing.
void fill_buffers(const Problem& problem, const ForwardInputs& inputs, const ForwardOutputs& outputs, Buffers& buffers);
void fill_buffers(const Problem& problem, const BackwardInputs& inputs, const BackwardOutputs& outputs, Buffers& buffers);

/// The caller's scratch memory of a run: throws invalid_argument unless it is aligned to 256 and shares no byte with a tensor.
void check_workspace(const Problem& problem, const Buffers& buffers, void* workspace, std::size_t bytes);

}  // namespace foveal::problem
