#include "cuda/launch/tile_tables.h"

#include <limits>
#include <utility>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/device/layout/agreed.cuh"
#include "cuda/device/sm80_config.cuh"
#include "cuda/device/tile_classes.cuh"
#include "cuda/launch/attention_args.h"
#include "cuda/score/score_emit.h"
#include "mask/block_mask.h"
#include "plan/flops.h"

namespace foveal::cuda {
namespace {

struct MaskFacts {
  bool on_device = false;  ///< tables depend on data, so each run makes them
  int batches = 1;         ///< that have tables of their own
  int heads = 1;           ///< likewise
};

MaskFacts facts_of(const problem::Problem& p) {
  bool data = false, lengths = false, batch = false;
  for (const scoring::Instr& instr : p.score->mask.code) {
    data = data || instr.op == scoring::Op::read;
    lengths = lengths || instr.op == scoring::Op::seqlen_q || instr.op == scoring::Op::seqlen_kv;
    batch = batch || instr.op == scoring::Op::batch;
  }
  const bool on_device = data || (p.ragged_kv() && lengths);
  return {.on_device = on_device,
          .batches = batch || (on_device && p.ragged_kv()) ? static_cast<int>(p.batch) : 1,
          .heads = mask_depends_on_head(p) ? static_cast<int>(p.heads_q) : 1};
}

}  // namespace

std::optional<std::string> TileTables::refuses(const problem::Problem& p, int block_q, int block_kv) {
  if (!p.has_mask()) return std::nullopt;
  const MaskFacts facts = facts_of(p);
  if (!facts.on_device) return std::nullopt;
  // One block classifies a tile, and rows of the table begin at 32-bit indices of runs.
  constexpr double most = std::numeric_limits<std::int32_t>::max();
  const double of_one =
      static_cast<double>(base::divide_up(p.seqlen_q, block_q)) * static_cast<double>(base::divide_up(p.seqlen_kv, block_kv));
  const double all = of_one * facts.batches * facts.heads;
  if (all <= most) return std::nullopt;
  return base::join("the mask reads data, and the table of its tiles would have ", static_cast<std::int64_t>(of_one), " for each of ",
                    std::int64_t{facts.batches} * facts.heads, facts.heads > 1 ? " heads of sequences" : " sequences",
                    ", all as long as the longest; at most 2^31 - 1 in all");
}

TileTables::TileTables(const problem::Problem& p, int block_q, int block_kv, bool transposed, Workspace& workspace)
    : transposed_(transposed) {
  const std::int64_t tiles_q = base::divide_up(p.seqlen_q, block_q), tiles_kv = base::divide_up(p.seqlen_kv, block_kv);
  rows_ = transposed ? tiles_kv : tiles_q;
  capacity_ = transposed ? tiles_q : tiles_kv;
  const std::int64_t pairs = p.batch * p.heads_q;
  if (!p.has_mask()) {
    all_full_ = true;
    full = pairs * tiles_q * tiles_kv;
    return;
  }
  if (auto reason = refuses(p, block_q, block_kv)) base::fail(ErrorCode::unsupported, *reason);
  const MaskFacts facts = facts_of(p);
  mask_batches_ = facts.batches, mask_heads_ = facts.heads;
  head_stride_ = mask_heads_ > 1 ? rows_ : 0;
  batch_stride_ = mask_batches_ > 1 ? rows_ * mask_heads_ : 0;
  const auto all_rows = static_cast<std::size_t>(rows_ * mask_batches_ * mask_heads_);
  if (facts.on_device) {
    const std::size_t all_tiles = all_rows * static_cast<std::size_t>(capacity_);
    classes_offset_ = workspace.reserve(all_tiles);
    runs_offset_ = workspace.reserve(all_tiles * sizeof(device::TileRun));
    begin_offset_ = workspace.reserve(all_rows * sizeof(int));
    end_offset_ = workspace.reserve(all_rows * sizeof(int));
    needs_data_ = true;
    classify_source_ = {.stem = "classify_sm80", .constants = attention_constants(p), .score = emit_score(p)};
    classify_source_.constants
        .set_struct("kConfig", "PortableConfig", "sm80_config.cuh",
                    device::PortableConfig{.block_q = block_q, .block_kv = block_kv, .warps = 8})
        .set_struct("kMask", "ClassifiedMask", "sm80_config.cuh", device::ClassifiedMask{.transposed = transposed, .heads = mask_heads_});
    classify_known(p, block_q, block_kv);
    return;
  }
  const mask::Tiling tiling{p.seqlen_q, p.seqlen_kv, block_q, block_kv, p.attention.q_offset, p.attention.kv_offset};
  host_begin_.push_back(0);
  for (int batch = 0; batch < mask_batches_; ++batch) {
    for (int head = 0; head < mask_heads_; ++head) {
      mask::BlockMask blocks = mask::classify(p.score->mask, tiling, batch, head, scoring::ReadRanges());
      const std::int64_t shared_by = pairs / (mask_batches_ * mask_heads_);
      full += blocks.full * shared_by, partial += blocks.partial * shared_by, empty += blocks.empty * shared_by;
      if (transposed) blocks = mask::transpose(blocks);
      const int first = static_cast<int>(host_runs_.size());
      for (const mask::Run& run : blocks.runs) host_runs_.push_back({run.begin, run.end, run.full, run.full});
      for (std::size_t row = 1; row < blocks.row_begin.size(); ++row)
        host_begin_.push_back(first + static_cast<int>(blocks.row_begin[row]));
    }
  }
}

void TileTables::classify_known(const problem::Problem& p, int block_q, int block_kv) {
  constexpr std::int64_t most_tiles = 1 << 14;  // so that planning stays fast
  const std::int64_t tiles_of_one = rows_ * capacity_;
  if (p.ragged_kv() || tiles_of_one * mask_batches_ * mask_heads_ > most_tiles) return;
  const mask::Tiling tiling{p.seqlen_q, p.seqlen_kv, block_q, block_kv, p.attention.q_offset, p.attention.kv_offset};
  for (int batch = 0; batch < mask_batches_; ++batch) {
    for (int head = 0; head < mask_heads_; ++head) {
      mask::BlockMask blocks = mask::classify(p.score->mask, tiling, batch, head, scoring::ReadRanges());
      if (transposed_) blocks = mask::transpose(blocks);
      const std::size_t first = host_known_.size();
      host_known_.resize(first + static_cast<std::size_t>(tiles_of_one), device::kEmpty);
      for (std::size_t row = 0; row + 1 < blocks.row_begin.size(); ++row) {
        for (std::int64_t r = blocks.row_begin[row]; r < blocks.row_begin[row + 1]; ++r) {
          const mask::Run& run = blocks.runs[static_cast<std::size_t>(r)];
          const auto begin = host_known_.begin() + static_cast<std::ptrdiff_t>(first + row * static_cast<std::size_t>(capacity_));
          std::fill(begin + run.begin, begin + run.end, run.full ? device::kFull : device::kPartial);
        }
      }
    }
  }
}

void TileTables::add_to(jit::KernelSet& kernels) {
  if (needs_data_) {
    classify_ = kernels.add(std::move(classify_source_));
    list_runs_ = kernels.add({.stem = "list_runs_sm80"});
    known_ = kernels.add_table(std::exchange(host_known_, {}));
  } else if (!all_full_) {
    runs_ = kernels.add_table(std::exchange(host_runs_, {}));
    begin_ = kernels.add_table(std::exchange(host_begin_, {}));
  }
}

device::TileRuns TileTables::runs(void* workspace) const {
  if (all_full_) return {nullptr, nullptr, nullptr, 0, 0, 1, 0};
  if (needs_data()) {
    return {Workspace::at<device::TileRun>(workspace, runs_offset_),
            Workspace::at<int>(workspace, begin_offset_),
            Workspace::at<int>(workspace, end_offset_),
            batch_stride_,
            head_stride_,
            0,
            0};
  }
  // If all tiles are empty there are no runs, but still a table of rows.
  const int* begin = static_cast<const int*>(begin_->data());
  const auto* runs = static_cast<const device::TileRun*>(runs_->data());
  return {runs ? runs : reinterpret_cast<const device::TileRun*>(begin), begin, begin + 1, batch_stride_, head_stride_, 0, 0};
}

void TileTables::place(device::AttentionArgs& args, void* workspace, Stream stream) const {
  args.tiles_q = static_cast<int>(transposed_ ? capacity_ : rows_);
  args.tiles_kv = static_cast<int>(transposed_ ? rows_ : capacity_);
  (transposed_ ? args.runs_transposed : args.runs) = runs(workspace);
  make(args, workspace, stream);
}

void TileTables::describe_work(Explanation& e, const problem::Problem& p) const {
  e.tiles_full = full, e.tiles_partial = partial, e.tiles_empty = empty;
  e.flops_nominal = planning::dense_flops(p);
  if (!needs_data() && full + partial + empty > 0)
    e.flops_nominal *= (static_cast<double>(full) + 0.5 * static_cast<double>(partial)) / static_cast<double>(full + partial + empty);
}

void TileTables::describe(Explanation& e, const problem::Problem& p) const {
  describe_work(e, p);
  if (needs_data()) e.details.emplace_back("tile table", "made on the device in each run: the mask reads data");
}

void TileTables::make(const device::AttentionArgs& args, void* workspace, Stream stream) const {
  if (!needs_data()) return;
  const std::int64_t rows = rows_ * mask_batches_ * mask_heads_;
  const device::ClassifyArgs all{args,
                                 runs(workspace),
                                 Workspace::at<unsigned char>(workspace, classes_offset_),
                                 static_cast<const unsigned char*>(known_->data()),
                                 static_cast<int>(rows),
                                 static_cast<int>(capacity_)};
  classify_->launch({.grid_x = static_cast<unsigned>(rows * capacity_), .threads = device::kClassifyThreads}, all, stream);
  list_runs_->launch(
      {.grid_x = static_cast<unsigned>(base::divide_up(rows, device::kListRunsWarps)), .threads = 32 * device::kListRunsWarps}, all,
      stream);
}

}  // namespace foveal::cuda
