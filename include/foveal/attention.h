#pragma once
// The one description of an attention, and the two calls that compute it.
//
//   forward:  s[q,kv]  = score_mod(q . k * scale);   p = softmax over the kv that mask keeps (and the sink);   out = dropout(p) v
//             lse[q]   = log(sum over kept kv of exp(s) [+ exp(sink[head])])          (natural logarithm)
//   backward: the gradients of sum(out * dout) + sum(lse * dlse) with respect to q, k, v, the sink and every parameter asked for.
//
// Shapes (any strides):   q [batch, seqlen_q, heads_q, head_dim]     k [batch, seqlen_kv, heads_kv, head_dim]
//                         v [batch, seqlen_kv, heads_kv, head_dim_v] out, dout [batch, seqlen_q, heads_q, head_dim_v]
//                         lse, dlse f32 (f64 for f64 inputs) [batch, heads_q, seqlen_q]
// Packed sequences (varlen): q [total_q, heads_q, head_dim] and so on, lse [heads_q, total_q].
// Paged keys and values: k, v, dk, dv are pools of pages, [pages, page_size, heads_kv, dim].
// heads_q is a multiple of heads_kv; query head h reads kv head h / (heads_q / heads_kv).
// A row with nothing to attend gives out = 0, lse = -inf (the sink's value when there is one) and zero gradients.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foveal/error.h"
#include "foveal/masks.h"
#include "foveal/score.h"
#include "foveal/tensor.h"

namespace foveal {

enum class Pass : std::uint8_t { forward, backward };
enum class Determinism : std::uint8_t { fast, reproducible };

/// fused: one pass over kv tiles, 5 matmuls, dq accumulated across tiles. split: a dk/dv pass and a dq pass, 7 matmuls, nothing
/// accumulated across tiles. two_scan: one launch whose tasks do a dk/dv tile, then a dq tile. automatic picks.
enum class BackwardStrategy : std::uint8_t { automatic, fused, split, two_scan };

FOVEAL_API const char* to_string(Pass pass);
FOVEAL_API const char* to_string(Determinism determinism);
FOVEAL_API const char* to_string(BackwardStrategy strategy);

/// Each (batch, query head, q_idx, kv_idx) is dropped with probability p by Philox4x32-10 of its global position, so the same bits
/// fall on every device, tiling and strategy; what stays is scaled by 1 / (1 - p). Applied after normalisation: lse is not affected.
/// The seed and offset belong to a run, so that one plan serves all; a backward pass takes those of its forward pass.
struct DropoutRng {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  /// Instead of the two, when present: i64 [2] of the bits of {seed, offset}, contiguous, on q's device. Read when the kernels run, so that
  /// a captured CUDA graph drops other pairs on each replay once something has written other numbers there.
  TensorView state{};
};

/// What to compute: a cheap value, shared by both passes so that they cannot disagree.
struct Attention {
  Expr score_mod{};               ///< real; absent means `score`
  Expr mask{};                    ///< boolean, must not read `score`; absent means everything
  std::optional<double> scale{};  ///< default 1 / sqrt(head_dim)
  std::optional<Param> sink{};    ///< real, shape {heads_q}: a logit per query head that joins the denominator
  double dropout_p = 0;           ///< in [0, 1): the probability that a pair is dropped; which ones is up to a run's DropoutRng
  Determinism determinism = Determinism::fast;
  BackwardStrategy backward = BackwardStrategy::automatic;
  bool checked = false;       ///< verify every parameter index at run time; slow, on GPUs each run waits
  std::int64_t q_offset = 0;  ///< added to local positions to give q_idx: a shard or a decode step
  std::int64_t kv_offset = 0;
};

struct ParamBinding {
  Param param;
  TensorView tensor;
};

/// Packed sequences. cu_seqlens: i32 or i64 [batch + 1], first 0, not decreasing, last = total. max_seqlen: 0 means "find out" (CPU only).
/// With paged keys cu_seqlens_kv is absent.
struct Varlen {
  TensorView cu_seqlens_q;
  TensorView cu_seqlens_kv;
  std::int64_t max_seqlen_q = 0;
  std::int64_t max_seqlen_kv = 0;
};

/// Keys and values in pages. k and v, and dk and dv, are pools [pages, page_size, heads_kv, dim] of any strides, page_size a multiple of 16;
/// queries are [batch, seqlen_q, heads_q, head_dim], or packed. The key kv_idx of a sequence is row kv_idx % page_size of the page
/// block_table[sequence, kv_idx / page_size], and the symbol seqlen_kv is seqlens_kv[sequence]. Sequences may share pages: their gradients
/// are summed, in order. dk and dv are zero where a row of a page belongs to no sequence.
struct Paged {
  TensorView block_table;  ///< i32 [batch, pages of the longest sequence]; entries behind a sequence's last page are not read
  TensorView seqlens_kv;   ///< i32 or i64 [batch]: at most what a row of the table holds; with varlen at most max_seqlen_kv too
};

/// Parts of packed sequences: rows of q against rows of k and v, with the positions that these have in their sequence. What one of several
/// ranks computes. table: i64 [parts, 9] in host memory, contiguous; a row is {q_begin, q_rows, kv_begin, kv_rows, sequence, q_first,
/// kv_first, seqlen_q, seqlen_kv}: rows of the tensors; the symbol `batch`; the positions of the first of these rows; the symbols
/// `seqlen_q` and `seqlen_kv`. Rows of different parts are disjoint, and ascend, for q and for kv; rows in no part are not touched. lse is
/// that of the part alone. CPU and reference only.
struct Segments {
  TensorView table;
  std::int64_t sequences = 1;    ///< `batch` is less
  std::int64_t head_offset = 0;  ///< the symbol `head` of the first query head
  std::int64_t heads_q = 0;      ///< query heads of all ranks; 0: the tensors'
};

/// One of several calls that compute an attention together, each some of the queries against some of the keys: what one of several ranks does
/// on a GPU. Positions come from q_offset and kv_offset; the other symbols are those of the whole. Results are wide, to be added to: out, dq,
/// dk and dv f32 (f64 for f64), lse f64. out and lse of the parts that a row has met are merged; a row that met no key has lse -inf, and its
/// out is not looked at. In a backward pass out and lse are inputs, in their own types, of whole rows. A sink joins whole rows only. GPU only.
/// With whole_rows, all keys that the queries keep are in this call: it gives what a call without a part gives, and a sink may join. With keeps_rows,
/// dq is made once of the sum of all parts, in q's type; with whole_keys, too, all queries that keep these keys are in this call, and dk and dv are written in k's type.
struct Part {
  std::int64_t batch_offset = 0;             ///< the symbol `batch` of the first row of the batch
  std::int64_t head_offset = 0;              ///< the symbol `head` of the first query head
  std::int64_t heads_q = 0;                  ///< query heads of the whole; 0: the tensors'
  std::int64_t seqlen_q = 0, seqlen_kv = 0;  ///< the symbols; 0: the tensors'
  bool whole_rows = false;                   ///< forward only
  /// With whole_rows: so many keys, from kv_offset on, lie in stretches of two memories, k and v and k_received and v_received. 0: in k and v.
  std::int64_t spread_keys = 0;
  /// Backward, on Hopper: what is found of a row, and the sum of its dq, stay in `kept` from part to part.
  bool keeps_rows = false;
  std::int64_t first_query = 0, first_key = 0;  ///< with keeps_rows: of this part, among the seqlen_q and seqlen_kv of the whole
  bool whole_keys = false;                      ///< with keeps_rows only
  // Of a run, not of a plan:
  bool adds_to_q = false;    ///< out and lse, or dq, hold what other parts gave: merge; else they are written
  bool adds_to_kv = false;   ///< likewise dk and dv
  std::uint16_t number = 0;  ///< of the part, different for parts that a row meets: kept in the last bits of lse
  static constexpr std::int64_t stretch_unit = 128;
  static constexpr std::size_t most_stretches = 16;
  /// Keys from `first` (a multiple of stretch_unit) of the spread ones on, up to the next stretch, in rows from `row` on.
  struct Stretch {
    std::int64_t first = 0, row = 0;
    bool received = false;
    /// Memory that the device reads: they are there when it holds `arrived`, or what comes later in counting up. Null: they are there.
    const std::uint32_t* word = nullptr;
    std::uint32_t arrived = 0;
  };
  const std::uint32_t* failed = nullptr;            ///< likewise: not 0 when nobody is to wait for keys any more. With any `word`
  std::array<Stretch, most_stretches> stretches{};  ///< so many of them; the first begins at key 0
  std::size_t stretch_count = 0;
  TensorView k_received{}, v_received{};  ///< of k's and v's type, batch and heads; may be absent
  static constexpr std::size_t most_kept = 64;
  /// Rows that several parts meet, of one sequence and one after the other, of which each part has some. The first call begins and the last one ends; both have all of
  /// these rows, and those in between from a multiple of 128 on, to one or to the last row. A call may do one of the four alone. Parts of one lane run one after the other,
  /// those of the two lanes side by side.
  struct Kept {
    void* memory = nullptr;            ///< Plan::kept_rows(rows), aligned to 256
    std::int64_t rows = 0, first = 0;  ///< of all parts; the first of this one
    std::uint32_t number = 0;          ///< of this part among those of these rows, which are most_kept at most
    std::uint32_t count = 0;           ///< of those that have been, this one included
    std::uint32_t lane = 0;            ///< 0 or 1
    bool begins = true;                ///< rows are prepared
    bool measures = true;              ///< far rows are measured over this part's keys
    bool multiplies = true;            ///< pairs are computed, dk and dv added to
    bool ends = true;                  ///< dq is written
  };
  Kept kept{};
};

struct ForwardInputs {
  TensorView q, k, v;
  std::vector<ParamBinding> params{};
  std::optional<Varlen> varlen{};
  std::optional<Segments> segments{};  ///< instead of varlen: tensors are packed
  std::optional<Part> part{};
  std::optional<Paged> paged{};
  DropoutRng rng{};
};

struct ForwardOutputs {
  TensorView out;    ///< q's dtype; on CPUs f32 too, for bf16 and f16
  TensorView lse{};  ///< optional
};

struct BackwardInputs {
  TensorView q, k, v, out, lse, dout;
  TensorView dlse{};  ///< optional gradient of lse
  std::vector<ParamBinding> params{};
  std::optional<Varlen> varlen{};
  std::optional<Segments> segments{};  ///< instead of varlen: tensors are packed; lse and out are those of whole rows
  std::optional<Part> part{};
  std::optional<Paged> paged{};
  DropoutRng rng{};
};

struct BackwardOutputs {
  TensorView dq{}, dk{}, dv{};  ///< each optional; written, not accumulated; each with its own strides; dtypes as out's
  std::vector<ParamBinding>
      dparams{};  ///< gradients wanted (the sink's too): same shape as the parameter; f32 or f64, or the parameter's own dtype
};

/// Runs `tasks` calls fn(task, slot), slot < concurrency, in any order and on any threads; two calls that run at once have different slots.
struct Executor {
  int concurrency = 1;
  std::function<void(std::int64_t tasks, const std::function<void(std::int64_t task, int slot)>& fn)> run;
};

/// Threads that the CPU backend uses when no executor is given: 0 means what FOVEAL_NUM_THREADS or OMP_NUM_THREADS said when first asked, else
/// all that the process may use (affinity and cgroup quota).
FOVEAL_API void set_num_threads(int threads);
FOVEAL_API int num_threads();

struct PlanOptions {
  std::string backend{};  ///< "" = the first that can; or "reference", "cpu", "cuda"
  std::string target{};   ///< "" = the best here; or "scalar", "avx2", "avx512", "avx512bf16", "amx" (cpu), "sm80", "sm90" (cuda)
  std::string exclude{};  ///< back ends that must not be chosen, with commas between: "reference"
  int threads = 0;        ///< CPU: 0 = num_threads()
  std::shared_ptr<const Executor> executor{};  ///< CPU: instead of threads of our own
};

/// Why something was not chosen: {"cuda", "no driver: libcuda.so.1 not found"}.
struct Refusal {
  std::string candidate;
  std::string reason;
};

/// The tiles of a plan's main kernel, and who takes which row of them when.
struct TileSchedule {
  /// Tiles of the tokens [begin, end) and query heads [head, head + heads) of a sequence, of which a task takes all, or a split.
  struct Row {
    std::int64_t task;  ///< tasks begin in the order of their numbers
    std::int64_t team;  ///< which CTA or cluster; -1: whoever is free takes the next task
    std::int64_t batch, head, heads, begin, end;
  };
  std::int64_t block_q = 0, block_kv = 0;  ///< tokens of a tile; 0: the kernel has no tiles
  bool rows_are_keys = false;              ///< tasks own keys (dK, dV) instead of queries
  std::string team;                        ///< "CTA", "cluster", "thread"
  std::int64_t teams = 0;                  ///< that work at a time
  std::vector<Row> rows;                   ///< empty when a run deals its tasks
};

/// What a plan will do. Figures are for the whole problem.
struct Explanation {
  std::string problem;       ///< one line
  std::string backend;       ///< "cpu"
  std::string kernel;        ///< "cpu.avx512.f32.backward.fused"; "a|b": b takes over where a finds data that it cannot serve
  std::string strategy;      ///< backward strategy that runs, "" in a forward plan
  std::string reduction;     ///< how parameter gradients are reduced, "" without
  double flops = 0;          ///< floating-point operations of the tiles that are visited
  double flops_nominal = 0;  ///< 4 B H Sq Skv D (2.5 times that backward) times the density of the mask
  std::int64_t tiles_full = 0, tiles_partial = 0, tiles_empty = 0;
  TileSchedule schedule{};
  std::size_t workspace_bytes = 0;
  bool deterministic = true;
  std::vector<Refusal> refusals{};                             ///< every candidate that was asked before, and why it declined
  std::vector<std::pair<std::string, std::string>> details{};  ///< backend's own facts, in order

  FOVEAL_API std::string to_string() const;
};

namespace planning {
struct PlanState;
}

/// Memory, and what must be the same for parts that share it: how it lies, and the score as far as dq is made by it.
struct KeptRows {
  std::size_t bytes = 0, hash = 0;
  bool operator==(const KeptRows&) const = default;
};

/// A decision, made once and run many times from any thread: backend, kernel, tiling, workspace. run() checks that the tensors have the
/// planned shapes, dtypes and strides, and then neither allocates nor locks.
class FOVEAL_API Plan {
 public:
  Plan() = default;
  std::size_t workspace_bytes() const;
  const std::string& kernel() const;
  Explanation explain() const;
  /// What parts keep of so many rows (Part::keeps_rows): must be equal for all parts of a row.
  KeptRows kept_rows(std::int64_t rows) const;
  /// workspace: workspace_bytes() bytes on the plan's device, aligned to 256; contents are scratch. Throws invalid_argument when a tensor
  /// differs from the plan's.
  void run(const ForwardInputs& inputs, const ForwardOutputs& outputs, void* workspace, Stream stream = {}) const;
  void run(const BackwardInputs& inputs, const BackwardOutputs& outputs, void* workspace, Stream stream = {}) const;

  explicit Plan(std::shared_ptr<const planning::PlanState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const planning::PlanState> state_;
};

/// Plans from views; their data may be null. Throws invalid_argument for a wrong call, unsupported when every backend declines.
FOVEAL_API Plan plan(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs,
                     const PlanOptions& options = {});
FOVEAL_API Plan plan(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs,
                     const PlanOptions& options = {});

/// Contiguous tensors of these sizes, all gradients and lse included: for planning before anything is allocated.
struct Shapes {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64, head_dim_v = 64;
  DType dtype = DType::f32;
};
FOVEAL_API Plan plan(const Attention& attention, const Shapes& shapes, Pass pass, Device device = {}, const PlanOptions& options = {});

/// Plans (or finds the plan in a cache), takes workspace from a per-thread pool, runs.
FOVEAL_API void forward(const Attention& attention, const ForwardInputs& inputs, const ForwardOutputs& outputs, Stream stream = {},
                        const PlanOptions& options = {});
FOVEAL_API void backward(const Attention& attention, const BackwardInputs& inputs, const BackwardOutputs& outputs, Stream stream = {},
                         const PlanOptions& options = {});

/// One row for each backend and target this build knows: can it run here, and if not, why.
struct TargetInfo {
  std::string backend, target;
  bool available = false;
  std::string detail;
};
FOVEAL_API std::vector<TargetInfo> targets();

}  // namespace foveal
