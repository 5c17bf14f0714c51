#pragma once
// Attention, described once as a value, and the calls that plan and compute it.
//
//   forward:  s[q, kv] = score_mod(scale * dot(q, k))
//             p        = softmax of s over the keys that the mask keeps (and the sink, if there is one)
//             out      = dropout(p) @ v
//             lse[q]   = log(sum over kept kv of exp(s) [+ exp(sink[head])]), natural logarithm
//   backward: gradients of sum(out * dout) + sum(lse * dlse) with respect to q, k, v, the sink and every requested parameter
//
// Shapes, with arbitrary strides:
//                                                          packed (varlen)
//   q, dq      [batch, seqlen_q, heads_q, head_dim]        [total_q, heads_q, head_dim]
//   k, dk      [batch, seqlen_kv, heads_kv, head_dim]      [total_kv, heads_kv, head_dim]
//   v, dv      [batch, seqlen_kv, heads_kv, head_dim_v]    [total_kv, heads_kv, head_dim_v]
//   out, dout  [batch, seqlen_q, heads_q, head_dim_v]      [total_q, heads_q, head_dim_v]
//   lse, dlse  [batch, heads_q, seqlen_q]                  [heads_q, total_q]
// Paged: k, dk [pages, page_size, heads_kv, head_dim], v, dv [pages, page_size, heads_kv, head_dim_v].
//
// dtypes: q, k, v, dout and the backward pass's out share one of f64, f32, bf16, f16. lse and dlse are f32, or f64 when q is f64.
// GQA: heads_q is a multiple of heads_kv; query head h uses kv head h / (heads_q / heads_kv).
// A row without any kept key has out = 0, zero gradients and lse = -inf (the sink's logit if there is a sink).
//
// Errors: invalid_argument for a wrong call, unsupported when no backend can run it, device when the driver or an allocation fails.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foveal/error.h"
#include "foveal/masks.h"
#include "foveal/part.h"
#include "foveal/score.h"
#include "foveal/tensor.h"

namespace foveal {

enum class Pass : std::uint8_t { forward, backward };
enum class Determinism : std::uint8_t { fast, reproducible };

/// How the backward pass is organised.
/// fused: one pass over kv tiles with 5 matmuls per tile; dq is accumulated across kv tiles (FlashAttention-2, Dao 2023).
/// split: a dk/dv pass and a dq pass, 7 matmuls; nothing is accumulated across tiles.
/// two_scan: like split, but in one launch: each task computes a dk/dv tile, then a dq tile.
/// automatic: the backend chooses.
enum class BackwardStrategy : std::uint8_t { automatic, fused, split, two_scan };

FOVEAL_API const char* to_string(Pass pass);
FOVEAL_API const char* to_string(Determinism determinism);
FOVEAL_API const char* to_string(BackwardStrategy strategy);

/// The random state of dropout. Each pair (batch, query head, q_idx, kv_idx) is dropped with probability Attention::dropout_p, decided by
/// Philox4x32-10 (Salmon et al. 2011) at its global position: the same pairs on every device, tiling and strategy. Kept probabilities are
/// scaled by 1 / (1 - p). Dropout follows normalisation, so lse is unaffected.
/// Seed and offset are arguments of a run, not part of a plan. A backward pass must get those of its forward pass.
struct DropoutRng {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  /// If present, replaces the two above: contiguous i64 [2] on q's device, the bits of {seed, offset}. It is read when the kernels run, so
  /// a captured CUDA graph can draw new pairs on every replay.
  TensorView state{};
};

/// What to compute. Cheap to copy; both passes take the same value.
struct Attention {
  Expr score_mod{};               ///< real expression of `score`, the scaled dot product; absent: the score itself
  Expr mask{};                    ///< boolean expression that does not read `score`: true keeps the pair; absent: all pairs are kept
  std::optional<double> scale{};  ///< factor on dot(q, k); default 1 / sqrt(head_dim)
  std::optional<Param> sink{};    ///< real, shape {heads_q}: one extra logit per query head in the softmax denominator
  double dropout_p = 0;           ///< dropout probability, 0 <= p < 1
  Determinism determinism = Determinism::fast;              ///< reproducible: bitwise the same gradients on every run
  BackwardStrategy backward = BackwardStrategy::automatic;  ///< ignored by a forward pass
  bool checked = false;        ///< check every parameter index at run time and fail on one out of range; slow, and synchronises a GPU
  std::int64_t q_offset = 0;   ///< q_idx of the first query, for shards and decode steps; 0 or more
  std::int64_t kv_offset = 0;  ///< kv_idx of the first key; 0 or more
};

/// A parameter of the score, the mask or the sink, and its data (or, in BackwardOutputs::dparams, its gradient).
struct ParamBinding {
  Param param;
  TensorView tensor;
};

/// Packed sequences of different lengths (varlen).
struct Varlen {
  TensorView cu_seqlens_q;        ///< contiguous i32 or i64 [batch + 1]: cumulative lengths, from 0 to total_q, never decreasing
  TensorView cu_seqlens_kv;       ///< the same for k and v, in the same dtype; absent when keys are paged
  std::int64_t max_seqlen_q = 0;  ///< the longest sequence, or a bound on it; 0: read from cu_seqlens_q in each run (CPU only)
  std::int64_t max_seqlen_kv = 0;
};

/// A paged KV cache (PagedAttention, Kwon et al. 2023). k, v, dk and dv are pools [pages, page_size, heads_kv, dim] with arbitrary strides;
/// page_size is a multiple of 16. Queries are batched or packed. Key kv_idx of a sequence is row kv_idx % page_size of page
/// block_table[sequence, kv_idx / page_size]; the symbol seqlen_kv is seqlens_kv[sequence]. Sequences may share pages; their gradients are
/// then summed in a fixed order. Rows of dk and dv that hold no key of any sequence are set to zero.
struct Paged {
  TensorView block_table;  ///< i32 [batch, pages of the longest sequence]; entries past a sequence's last page are not read
  TensorView seqlens_kv;   ///< i32 or i64 [batch]: keys of each sequence, at most a table row's capacity and, with varlen, max_seqlen_kv
};

struct ForwardInputs {
  TensorView q, k, v;
  std::vector<ParamBinding> params{};
  std::optional<Varlen> varlen{};
  std::optional<Segments> segments{};  ///< excludes varlen; tensors are packed
  std::optional<Part> part{};
  std::optional<Paged> paged{};
  DropoutRng rng{};
};

struct ForwardOutputs {
  TensorView out;    ///< q's dtype; on CPUs also f32 for bf16 and f16 inputs
  TensorView lse{};  ///< optional; a backward pass needs it
};

struct BackwardInputs {
  TensorView q, k, v, out, lse, dout;
  TensorView dlse{};  ///< optional gradient of lse
  std::vector<ParamBinding> params{};
  std::optional<Varlen> varlen{};
  std::optional<Segments> segments{};  ///< excludes varlen; tensors are packed, out and lse are those of whole rows
  std::optional<Part> part{};
  std::optional<Paged> paged{};
  DropoutRng rng{};
};

struct BackwardOutputs {
  TensorView dq{}, dk{}, dv{};  ///< each optional; overwritten, not accumulated; q's dtype, on CPUs also f32 for bf16 and f16 inputs
  /// The requested gradients of parameters and of the sink: the parameter's shape, in f32, f64 or the parameter's own dtype.
  std::vector<ParamBinding> dparams{};
};

/// A thread pool of the caller's. run() calls fn(task, slot) once for each task below `tasks`, in any order, on any threads, and ends when
/// none runs or will begin. Slots are below the concurrency (at most 4096), and different at
/// one time. Waiting threads may make other calls.
struct Executor {
  int concurrency = 1;
  std::function<void(std::int64_t tasks, const std::function<void(std::int64_t task, int slot)>& fn)> run;
};

/// Threads of the CPU backend when no executor is given. 0: FOVEAL_NUM_THREADS or OMP_NUM_THREADS as first read, otherwise every CPU that
/// the process may use (affinity and cgroup quota).
FOVEAL_API void set_num_threads(int threads);
FOVEAL_API int num_threads();

struct PlanOptions {
  std::string backend{};  ///< "": the first backend that supports the problem; or "reference", "cpu", "cuda"
  /// "": the best target of this machine; or "scalar", "avx2", "avx512", "avx512bf16", "amx", "neon", "neonbf16", "neonfhm" (cpu), "sm80",
  /// "sm90" (cuda), "f64" (reference); targets() lists those of this build
  std::string target{};
  std::string exclude{};  ///< comma-separated backends that must not be chosen: "reference"
  int threads = 0;        ///< CPU; 0: num_threads()
  /// CPU; null: the library's own threads. Plans own it, also those that forward() and backward() keep for later calls.
  std::shared_ptr<const Executor> executor{};
};

/// Why a candidate was not chosen: {"cuda", "no driver: libcuda.so.1 not found"}.
struct Refusal {
  std::string candidate;
  std::string reason;
};

/// Tiles of a plan's main kernel and the order in which they are scheduled.
struct TileSchedule {
  /// A task's tiles: tokens [begin, end) and query heads [head, head + heads) of one sequence. A split of a row has a task of its own.
  struct Row {
    std::int64_t task;  ///< tasks start in ascending order
    std::int64_t team;  ///< CTA or cluster that runs it; -1: the next one that is free
    std::int64_t batch, head, heads, begin, end;
  };
  std::int64_t block_q = 0, block_kv = 0;  ///< tile shape in tokens; 0: the kernel is not tiled
  bool rows_are_keys = false;              ///< tasks own rows of keys (dK and dV) rather than of queries
  std::string team;                        ///< "CTA", "cluster" or "thread"
  std::int64_t teams = 0;                  ///< how many run concurrently
  std::vector<Row> rows;                   ///< empty when tasks are only known at run time
};

/// What a plan will do. All figures are for the whole problem.
struct Explanation {
  std::string problem;       ///< the problem line (docs/problem-lines.md)
  std::string backend;       ///< "cpu"
  std::string kernel;        ///< "cpu.avx512.f32.backward.fused"; "a|b": b is the fallback for data that a cannot handle
  std::string strategy;      ///< backward strategy; "" for a forward plan
  std::string reduction;     ///< how parameter gradients are reduced; "" if there are none
  double flops = 0;          ///< floating-point operations of the tiles that are not skipped
  double flops_nominal = 0;  ///< 4 B H Sq Skv D, 2.5 times that backward, times the density of the mask
  std::int64_t tiles_full = 0, tiles_partial = 0, tiles_empty = 0;
  TileSchedule schedule{};
  std::size_t workspace_bytes = 0;
  bool deterministic = true;
  std::vector<Refusal> refusals{};                             ///< candidates that declined before this one
  std::vector<std::pair<std::string, std::string>> details{};  ///< further facts from the backend, in order

  FOVEAL_API std::string to_string() const;
};

namespace planning {
struct PlanState;
}

/// The decision for one problem: backend, kernel, tiling, workspace. Made once, run many times, from any thread. run() checks that the
/// tensors have the planned shapes, dtypes and strides; after that it neither allocates nor locks.
class FOVEAL_API Plan {
 public:
  Plan() = default;
  std::size_t workspace_bytes() const;
  const std::string& kernel() const;
  Explanation explain() const;
  /// For `rows` rows of parts with keeps_rows; equal for all parts that share them.
  KeptRows kept_rows(std::int64_t rows) const;
  /// workspace: workspace_bytes() bytes of scratch on the plan's device, aligned to 256; concurrent runs need one each. On a GPU the work
  /// is enqueued on the stream and the call returns. Throws invalid_argument if a tensor differs from the plan.
  void run(const ForwardInputs& inputs, const ForwardOutputs& outputs, void* workspace, Stream stream = {}) const;
  void run(const BackwardInputs& inputs, const BackwardOutputs& outputs, void* workspace, Stream stream = {}) const;

  explicit Plan(std::shared_ptr<const planning::PlanState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const planning::PlanState> state_;
};

/// Plans a call; the data of its tensors may be null. Throws invalid_argument for a wrong call, unsupported (with every refusal in the
/// message) when no backend supports it.
FOVEAL_API Plan plan(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs,
                     const PlanOptions& options = {});
FOVEAL_API Plan plan(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs,
                     const PlanOptions& options = {});

/// Contiguous tensors of these sizes, with lse and, backward, dq, dk and dv: for planning before anything is allocated.
struct Shapes {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64, head_dim_v = 64;
  DType dtype = DType::f32;
};
FOVEAL_API Plan plan(const Attention& attention, const Shapes& shapes, Pass pass, Device device = {}, const PlanOptions& options = {});

/// Plans (or reuses a cached plan), takes workspace from a per-thread pool, and runs. Throws like plan() and Plan::run().
FOVEAL_API void forward(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs, Stream stream = {},
                        const PlanOptions& options = {});
FOVEAL_API void backward(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs, Stream stream = {},
                         const PlanOptions& options = {});

/// A backend and target of this build.
struct TargetInfo {
  std::string backend, target;
  bool available = false;  ///< whether it can run on this machine
  std::string detail;      ///< the device or instruction set found, or why it is not available
};
FOVEAL_API std::vector<TargetInfo> targets();

}  // namespace foveal
