#include "cuda/launch/backward_sm80.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/forward_sm80.h"
#include "cuda/launch/param_gradients.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/score_emit.h"

namespace foveal::cuda {
namespace {

constexpr int delta_rows = 64, delta_warps = 8;

int tiles(std::int64_t length, int block) { return static_cast<int>((length + block - 1) / block); }

jit::KernelSource source_of(const problem::Problem& p, const char* kernel) {
  jit::KernelSource source{.stem = kernel, .entry = kernel, .constants = attention_constants(p), .score = emit_score(p), .arch = {}};
  source.constants.set("kWantsDq", p.dq.present).set("kWantsDk", p.dk.present).set("kWantsDv", p.dv.present);
  return source;
}

bool collects_reads(const problem::Problem& p) {
  for (const scoring::TrainableRead& read : p.score->reads)
    if (gradient_storage(p, static_cast<std::size_t>(read.param)) != GradientStorage::added) return true;
  return false;
}

/// A kernel with its tiles and its tables of tiles.
struct Pass80 {
  Sm80Kernel kind;
  Sm80Config config;
  TileTables tables;
  std::vector<jit::KernelSource> sources;  ///< the kernel, then the one that makes its tables
  unsigned shared_bytes = 0;
  jit::Kernel kernel{};

  Pass80(const problem::Problem& p, Sm80Kernel kind, const Sm80Config& config, jit::KernelSource source, Workspace& workspace)
      : kind(kind),
        config(config),
        tables(p, config.block_q, config.block_kv, kind == Sm80Kernel::dkdv, workspace),
        sources{std::move(source)},
        shared_bytes(static_cast<unsigned>(config.shared_bytes(p, kind))) {
    if (tables.source()) sources.push_back(*tables.source());
  }

  void load(const std::shared_ptr<const jit::Image>* images, int device) {
    kernel = jit::Kernel(images[0], device, shared_bytes);
    if (tables.source()) tables.load(images[1], device);
    tables.upload(device);
  }

  /// Args for this pass: its tiles and tables.
  void place(const problem::Problem& p, device::AttentionArgs& args, void* workspace) const {
    args.tiles_q = tiles(p.seqlen_q, config.block_q);
    args.tiles_kv = tiles(p.seqlen_kv, config.block_kv);
    (kind == Sm80Kernel::dkdv ? args.runs_transposed : args.runs) = tables.runs(workspace);
  }

  void launch(const device::AttentionArgs& args, std::int64_t blocks, Stream stream) const {
    kernel.launch({.grid_x = static_cast<unsigned>(blocks), .threads = static_cast<unsigned>(config.threads()), .shared_bytes = shared_bytes}, args,
                  stream);
  }
};

struct PairsPass {
  Pass80 pass;
  std::int64_t owners;  ///< batches or heads that the parameter tells apart
};

class BackwardSm80 : public planning::Executable {
 public:
  BackwardSm80(const problem::Problem& problem, const driver::DeviceFacts& facts)
      : problem_(problem), device_(problem.device.index), gradients_(problem, workspace_) {
    const problem::Problem& p = problem_;
    const auto real = p.dtype == DType::f64 ? sizeof(double) : sizeof(float);
    const std::int64_t rows = p.varlen ? p.total_q : p.batch * p.seqlen_q;
    lse2_offset_ = workspace_.reserve(static_cast<std::size_t>(rows * p.heads_q) * real);
    delta_offset_ = workspace_.reserve(static_cast<std::size_t>(rows * p.heads_q) * real);

    const std::size_t limit = facts.shared_bytes_per_block;
    const bool wants_queries = p.dq.present || collects_reads(p), wants_keys = p.dk.present || p.dv.present;
    two_scan_ = p.attention.backward == BackwardStrategy::two_scan && wants_queries && wants_keys;
    if (two_scan_) {
      const Sm80Config config = *two_scan_config(p, limit);
      queries_.emplace(p, Sm80Kernel::dq, config, two_scan_sm80_source(p, config), workspace_);
      keys_.emplace(p, Sm80Kernel::dkdv, config, two_scan_sm80_source(p, config), workspace_);
      queries_->shared_bytes = keys_->shared_bytes = std::max(queries_->shared_bytes, keys_->shared_bytes);
    } else {
      if (wants_keys) {
        const Sm80Config config = *sm80_config(p, Sm80Kernel::dkdv, limit);
        keys_.emplace(p, Sm80Kernel::dkdv, config, dkdv_sm80_source(p, config), workspace_);
      }
      if (wants_queries) {
        const Sm80Config config = *sm80_config(p, Sm80Kernel::dq, limit);
        queries_.emplace(p, Sm80Kernel::dq, config, dq_sm80_source(p, config), workspace_);
      }
    }
    for (std::size_t r = 0; r < p.score->reads.size(); ++r) {
      const scoring::TrainableRead& read = p.score->reads[r];
      if (gradient_storage(p, static_cast<std::size_t>(read.param)) != GradientStorage::added) continue;
      const Sm80Config config = *sm80_config(p, Sm80Kernel::pairs, limit);
      pairs_.push_back({Pass80(p, Sm80Kernel::pairs, config, pairs_sm80_source(p, config, static_cast<int>(r)), workspace_),
                        (read.reads_batch ? p.batch : 1) * (read.reads_head ? p.heads_q : 1)});
    }
    compile(jit::arch_of(facts.major, facts.minor));
  }

  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  std::string kernel() const override {
    return base::join("cuda.sm80.", to_string(problem_.dtype), ".backward.", two_scan_ ? "two_scan" : "split");
  }

  void describe(Explanation& e) const override {
    e.kernel = kernel();
    e.strategy = two_scan_ ? "two_scan" : "split";
    e.reduction = gradients_.text();
    const auto describe_pass = [&](const char* name, const Pass80& pass, int matmuls_qk, int matmuls_v) {
      e.tiles_full = pass.tables.full, e.tiles_partial = pass.tables.partial, e.tiles_empty = pass.tables.empty;
      e.flops += static_cast<double>(e.tiles_full + e.tiles_partial) * pass.config.block_q * pass.config.block_kv * 2.0 *
                 (matmuls_qk * static_cast<double>(problem_.head_dim) + matmuls_v * static_cast<double>(problem_.head_dim_v));
      const jit::Facts& facts = pass.kernel.image().facts;
      e.details.emplace_back(name, base::join("tiles ", pass.config.text(), ", registers ", facts.registers, ", spilled bytes ",
                                              facts.spill_bytes, ", shared bytes ", pass.shared_bytes));
      if (pass.tables.needs_data()) e.details.emplace_back("tile table", "made on the device in each run: the mask reads data");
    };
    for (const PairsPass& pairs : pairs_) describe_pass("pairs", pairs.pass, 1, 1);
    if (keys_) describe_pass("dk, dv", *keys_, 1 + problem_.dk.present, 1 + problem_.dv.present);
    if (queries_) describe_pass("dq", *queries_, 1 + problem_.dq.present, 1);
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    const problem::Problem& p = problem_;
    const driver::Current current(device_);
    device::AttentionArgs args = attention_args(p, buffers);
    const std::int64_t rows = p.varlen ? p.total_q : p.seqlen_q;
    args.lse2 = {Workspace::at<void>(workspace, lse2_offset_), p.varlen ? 0 : p.heads_q * rows, rows, 1};
    args.delta = {Workspace::at<void>(workspace, delta_offset_), p.varlen ? 0 : p.heads_q * rows, rows, 1};
    gradients_.prepare(args, buffers, workspace, stream);

    args.tiles_q = tiles(p.seqlen_q, delta_rows);
    delta_.launch({.grid_x = static_cast<unsigned>(args.tiles_q * p.heads_q * p.batch), .threads = delta_warps * 32}, args, stream);
    if (two_scan_) {
      queries_->place(p, args, workspace);
      queries_->tables.make(args, stream);
      keys_->place(p, args, workspace);
      keys_->tables.make(args, stream);
      const std::int64_t tasks = std::max(args.tiles_kv * p.heads_kv, args.tiles_q * p.heads_q) * p.batch;
      queries_->launch(args, tasks, stream);
    } else {
      if (keys_) {
        keys_->place(p, args, workspace);
        keys_->tables.make(args, stream);
        keys_->launch(args, args.tiles_kv * p.heads_kv * p.batch, stream);
      }
      if (queries_) {
        queries_->place(p, args, workspace);
        queries_->tables.make(args, stream);
        queries_->launch(args, args.tiles_q * p.heads_q * p.batch, stream);
      }
    }
    for (const PairsPass& pairs : pairs_) {
      pairs.pass.place(p, args, workspace);
      pairs.pass.tables.make(args, stream);
      pairs.pass.launch(args, std::int64_t{args.tiles_q} * args.tiles_kv * pairs.owners, stream);
    }
    gradients_.finish(args, buffers, stream);
  }

 private:
  /// Everything at once, on all threads.
  void compile(const std::string& arch) {
    std::vector<jit::KernelSource> sources{delta_sm80_source(problem_)};
    const auto add = [&](const std::vector<jit::KernelSource>& more) { sources.insert(sources.end(), more.begin(), more.end()); };
    add(gradients_.sources());
    std::vector<Pass80*> passes;
    if (keys_) passes.push_back(&*keys_);
    if (queries_) passes.push_back(&*queries_);
    for (PairsPass& pairs : pairs_) passes.push_back(&pairs.pass);
    for (const Pass80* pass : passes) add(pass->sources);
    for (jit::KernelSource& source : sources) source.arch = arch;

    const auto images = jit::compile(sources);
    const auto* next = images.data();
    delta_ = jit::Kernel(*next++, device_, 0);
    gradients_.load(next, device_);
    next += gradients_.sources().size();
    for (Pass80* pass : passes) {
      pass->load(next, device_);
      next += pass->sources.size();
    }
  }

  problem::Problem problem_;
  int device_;
  Workspace workspace_;
  ParamGradients gradients_;
  std::size_t lse2_offset_ = 0, delta_offset_ = 0;
  bool two_scan_ = false;
  std::optional<Pass80> keys_, queries_;
  std::vector<PairsPass> pairs_;
  jit::Kernel delta_;
};

std::optional<std::string> refuses(const problem::Problem& p, const driver::DeviceFacts& facts) {
  if (auto reason = refuses_sm80(p, facts)) return reason;
  if (p.attention.backward == BackwardStrategy::fused) return "the portable kernels have no fused backward; use split, two_scan or automatic";
  const std::size_t limit = facts.shared_bytes_per_block;
  const bool fits = p.attention.backward == BackwardStrategy::two_scan
                        ? two_scan_config(p, limit).has_value()
                        : sm80_config(p, Sm80Kernel::dq, limit) && sm80_config(p, Sm80Kernel::dkdv, limit) && sm80_config(p, Sm80Kernel::pairs, limit);
  if (!fits) return base::join("a tile of head_dim ", p.head_dim, " does not fit into ", limit, " bytes of shared memory");
  return std::nullopt;
}

std::unique_ptr<planning::Executable> prepare(const problem::Problem& p, const driver::DeviceFacts& facts) {
  return std::make_unique<BackwardSm80>(p, facts);
}

}  // namespace

const Candidate backward_sm80{"sm80", Pass::backward, refuses, prepare};

jit::KernelSource delta_sm80_source(const problem::Problem& p) {
  jit::KernelSource source = source_of(p, "delta_sm80");
  source.constants.set("kBlockQ", delta_rows).set("kWarps", delta_warps).set("kColumnSplit", 1);
  return source;
}

jit::KernelSource dq_sm80_source(const problem::Problem& p, const Sm80Config& config) {
  jit::KernelSource source = source_of(p, "dq_sm80");
  config.set(source.constants);
  return source;
}

jit::KernelSource dkdv_sm80_source(const problem::Problem& p, const Sm80Config& config) {
  jit::KernelSource source = source_of(p, "dkdv_sm80");
  config.set(source.constants);
  return source;
}

jit::KernelSource two_scan_sm80_source(const problem::Problem& p, const Sm80Config& config) {
  jit::KernelSource source = source_of(p, "two_scan_sm80");
  config.set(source.constants);
  return source;
}

jit::KernelSource pairs_sm80_source(const problem::Problem& p, const Sm80Config& config, int read) {
  jit::KernelSource source = source_of(p, "pairs_sm80");
  config.set(source.constants);
  const scoring::TrainableRead& facts = p.score->reads[static_cast<std::size_t>(read)];
  source.constants.set("kPairsRead", read).set("kPairsOwnBatch", facts.reads_batch).set("kPairsOwnHead", facts.reads_head);
  return source;
}

std::optional<Sm80Config> two_scan_config(const problem::Problem& p, std::size_t limit) {
  // Both halves own 16 rows per warp, so square tiles serve both; the columns of dk and dv are not split.
  for (const Sm80Config& config : {Sm80Config{64, 64, 4, 1, 2, 1, 1}, Sm80Config{64, 64, 4, 1, 1, 1, 1}, Sm80Config{32, 32, 2, 1, 1, 1, 1},
                                   Sm80Config{16, 16, 1, 1, 1, 1, 1}}) {
    if (std::max(config.shared_bytes(p, Sm80Kernel::dq), config.shared_bytes(p, Sm80Kernel::dkdv)) <= limit) return config;
  }
  return std::nullopt;
}

}  // namespace foveal::cuda
