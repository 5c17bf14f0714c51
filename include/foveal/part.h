#pragma once
// Calls that are pieces of a larger attention: what a rank runs under context parallelism
// (foveal/dist.h), on CPUs (Segments) and on GPUs (Part).
#include <array>
#include <cstddef>
#include <cstdint>

#include "foveal/tensor.h"

namespace foveal {

/// Several blocks of rows of q against blocks of rows of k and v, each at its own positions: what a rank computes under context
/// parallelism. Tensors are packed, and lse covers only the keys of the segment. Rows outside every segment are left untouched. CPU and
/// reference only.
struct Segments {
  /// Contiguous i64 [segments, 9] in host memory. Each row is {q_begin, q_rows, kv_begin, kv_rows, sequence, q_first, kv_first, seqlen_q,
  /// seqlen_kv}: row ranges of the tensors, the value of `batch`, the positions of the two first rows, and the values of `seqlen_q` and
  /// `seqlen_kv`. Row ranges ascend and do not overlap.
  TensorView table;
  std::int64_t sequences = 1;    ///< `batch` is below this
  std::int64_t head_offset = 0;  ///< value of `head` for the first query head
  std::int64_t heads_q = 0;      ///< query heads over all ranks; 0: those of the tensors
};

/// One of several calls that compute an attention together, each on some of the queries and some of the keys: what a rank runs on a GPU
/// under context parallelism. q_offset and kv_offset give positions; all other symbols have the values of the whole problem. GPU only.
///
/// Outputs are accumulators: out, dq, dk, dv in f32 (f64 for f64 inputs), lse in f64. Partial out and lse of a row are merged as in
/// split-KV decoding; a row that has met no key has lse = -inf, and its out is ignored. A backward pass reads the final out and lse in
/// their usual dtypes. A sink requires whole_rows.
struct Part {
  std::int64_t batch_offset = 0;             ///< value of `batch` for the first batch entry
  std::int64_t head_offset = 0;              ///< value of `head` for the first query head
  std::int64_t heads_q = 0;                  ///< query heads of the whole problem; 0: those of the tensors
  std::int64_t seqlen_q = 0, seqlen_kv = 0;  ///< values of the symbols; 0: sizes of the tensors
  /// Forward: this call sees every key of its queries, so it writes final results in their usual dtypes and a sink is allowed.
  bool whole_rows = false;
  /// With whole_rows: this many keys, starting at kv_offset, lie in `key_ranges` of k, v and k_received, v_received. 0: all keys are in k
  /// and v.
  std::int64_t spread_keys = 0;
  /// Backward, on Hopper: per-row data and the sum of dq stay in `kept` between parts; the last part writes dq once, in q's dtype.
  bool keeps_rows = false;
  std::int64_t first_query = 0, first_key = 0;  ///< with keeps_rows: where this part begins in the whole problem's seqlen_q and seqlen_kv
  /// With keeps_rows: this call sees every query of its keys, so dk and dv are final and written in k's dtype.
  bool whole_keys = false;

  // The remaining fields belong to a run, not to a plan.
  bool adds_to_q = false;    ///< true: merge into the out and lse, or the dq, of earlier parts; false: overwrite
  bool adds_to_kv = false;   ///< the same for dk and dv
  std::uint16_t number = 0;  ///< distinct among the parts that share rows; kept in the low bits of lse
  static constexpr std::int64_t key_range_unit = 128;
  static constexpr std::size_t most_key_ranges = 16;
  /// Consecutive keys of the spread ones, up to where the next range begins.
  struct KeyRange {
    std::int64_t first = 0;  ///< first key, a multiple of key_range_unit
    std::int64_t row = 0;    ///< its row in k and v, or in k_received and v_received
    bool received = false;   ///< which of the two
    /// Device-readable word to wait for: the keys have arrived once it has counted up to `arrived` (it may wrap around). Null: no wait.
    const std::uint32_t* word = nullptr;
    std::uint32_t arrived = 0;
    /// With `word`: the keys arrive by groups of kv heads, each of which raises the word by one. The first group has
    /// heads_kv >> (slices - 1) heads; each further group has as many as all before it together, the last one the rest.
    std::uint32_t slices = 1;
  };
  const std::uint32_t* failed = nullptr;               ///< device-readable; nonzero ends all waits. Required with any `word`
  std::array<KeyRange, most_key_ranges> key_ranges{};  ///< the first key_range_count of them; the first begins at key 0
  std::size_t key_range_count = 0;
  TensorView k_received{}, v_received{};  ///< dtype, batch, heads and dim of k and v; may be absent
  static constexpr std::size_t most_kept = 64;
  /// State of consecutive rows of one sequence that several parts work on (keeps_rows). The part that begins and the part that ends cover
  /// all rows; parts in between cover a range that starts at a multiple of 128 and stops at one or at the last row. A call may run any
  /// subset of the four phases. Parts on the same stream are ordered; the two streams run concurrently.
  struct Kept {
    void* memory = nullptr;            ///< Plan::kept_rows(rows).bytes bytes, aligned to 256
    std::int64_t rows = 0, first = 0;  ///< rows over all parts; this part's first row
    std::uint32_t number = 0;          ///< this part's number among the parts of these rows, below most_kept
    std::uint32_t count = 0;           ///< parts run so far, including this one
    std::uint32_t stream = 0;          ///< 0 or 1
    bool begins = true;                ///< phase 1: initialise the rows
    bool measures = true;              ///< phase 2: measure far rows (docs/numerics.md) over this part's keys
    bool multiplies = true;            ///< phase 3: compute the pairs, accumulate dk and dv
    bool ends = true;                  ///< phase 4: write dq
  };
  Kept kept{};
};

/// What Part::Kept::memory needs: its size, and a hash of its layout and of the score that must agree between the parts that share it.
struct KeptRows {
  std::size_t bytes = 0, hash = 0;
  bool operator==(const KeptRows&) const = default;
};

}  // namespace foveal
