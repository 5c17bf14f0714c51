#include "dist/workload.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/divide.h"
#include "base/dtype.h"

namespace foveal::dist {
namespace {

bool uses(const scoring::Program& program, scoring::Op op) {
  return std::any_of(program.code.begin(), program.code.end(), [op](const scoring::Instr& instr) { return instr.op == op; });
}

/// Most tile evaluations, and rows of tiles, of one mask: beyond that, tiles become larger.
constexpr std::int64_t most_border_tiles = std::int64_t{1} << 20, few_rows = 512, most_rows = std::int64_t{1} << 17;

class Classifying {
 public:
  Classifying(const problem::Problem& problem, const scoring::ReadRanges& ranges, std::int64_t unit)
      : problem_(problem), ranges_(ranges), unit_(unit) {
    const scoring::Program& mask = problem.score->mask;
    by_head_ = uses(mask, scoring::Op::head), by_batch_ = uses(mask, scoring::Op::batch);
  }

  bool by_batch() const { return by_batch_; }

  std::shared_ptr<const SequenceWork> sequence(std::int64_t seqlen_q, std::int64_t seqlen_kv, std::int64_t first_batch,
                                               std::int64_t batches) const {
    // The border in coarse tiles says how long it is in fine ones.
    std::int64_t unit = unit_;
    while (std::max(seqlen_q, seqlen_kv) > unit * few_rows) unit *= 2;
    std::vector<mask::BlockMask> variants = classify(seqlen_q, seqlen_kv, unit, first_batch, batches);
    while (unit > unit_) {
      std::int64_t border = 0;
      for (const mask::BlockMask& variant : variants) border += variant.partial;
      if (border * 4 > most_border_tiles || std::max(seqlen_q, seqlen_kv) > unit / 2 * most_rows) break;
      unit /= 2;
      variants = classify(seqlen_q, seqlen_kv, unit, first_batch, batches);
    }
    const std::int64_t all = (by_head_ ? 1 : problem_.heads_q) * (by_batch_ ? 1 : batches);
    return std::make_shared<const SequenceWork>(seqlen_q, seqlen_kv, unit, std::move(variants), all);
  }

 private:
  std::vector<mask::BlockMask> classify(std::int64_t seqlen_q, std::int64_t seqlen_kv, std::int64_t unit, std::int64_t first_batch,
                                        std::int64_t batches) const {
    std::vector<mask::BlockMask> variants;
    const auto block = static_cast<std::int32_t>(unit);
    const mask::Tiling tiling{seqlen_q, seqlen_kv, block, block, problem_.attention.q_offset, problem_.attention.kv_offset};
    for (std::int64_t b = 0; b < (by_batch_ ? batches : 1); ++b)
      for (std::int64_t head = 0; head < (by_head_ ? problem_.heads_q : 1); ++head)
        variants.push_back(mask::classify(problem_.score->mask, tiling, first_batch + b, head, ranges_));
    return variants;
  }

  const problem::Problem& problem_;
  const scoring::ReadRanges& ranges_;
  std::int64_t unit_;
  bool by_head_, by_batch_;
};

}  // namespace

SequenceWork::SequenceWork(std::int64_t seqlen_q, std::int64_t seqlen_kv, std::int64_t unit, std::vector<mask::BlockMask> variants,
                           std::int64_t repeats)
    : unit_(unit), seqlen_q_(seqlen_q), seqlen_kv_(seqlen_kv), variants_(std::move(variants)), before_{0} {
  const std::int64_t rows = base::divide_up(seqlen_q, unit);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t work = 0;
    for (const mask::BlockMask& mask : variants_) {
      work += Cost::row;
      for (auto i = mask.row_begin[static_cast<std::size_t>(row)]; i < mask.row_begin[static_cast<std::size_t>(row) + 1]; ++i) {
        const mask::Run& run = mask.runs[static_cast<std::size_t>(i)];
        const std::int64_t tiles = run.end - run.begin;
        work += tiles * (run.full ? Cost::full : Cost::partial);
        (run.full ? full_ : partial_) += tiles * repeats;
      }
    }
    before_.push_back(before_.back() + work * repeats);
  }
}

std::int64_t SequenceWork::work(Range q) const {
  return before_[static_cast<std::size_t>(base::divide_up(q.end, unit_))] -
         before_[static_cast<std::size_t>(base::divide_up(q.begin, unit_))];
}

std::vector<KeyRun> SequenceWork::keys(Range q) const {
  struct Edge {
    std::int64_t column;
    std::int64_t some, full;  ///< this many rows more, from here on
  };
  std::vector<Edge> edges;
  const std::int64_t row_begin = q.begin / unit_, row_end = base::divide_up(q.end, unit_);
  for (const mask::BlockMask& mask : variants_)
    for (auto i = mask.row_begin[static_cast<std::size_t>(row_begin)]; i < mask.row_begin[static_cast<std::size_t>(row_end)]; ++i) {
      const mask::Run& run = mask.runs[static_cast<std::size_t>(i)];
      edges.push_back({run.begin, 1, run.full ? 1 : 0});
      edges.push_back({run.end, -1, run.full ? -1 : 0});
    }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.column < b.column; });
  const std::int64_t all = (row_end - row_begin) * static_cast<std::int64_t>(variants_.size());
  std::vector<KeyRun> runs;
  std::int64_t some = 0, full = 0;
  for (std::size_t i = 0; i < edges.size();) {
    const std::int64_t column = edges[i].column;
    for (; i < edges.size() && edges[i].column == column; ++i) some += edges[i].some, full += edges[i].full;
    if (some == 0) continue;
    const Range kv{column * unit_, std::min(edges[i].column * unit_, seqlen_kv_)};
    if (!runs.empty() && runs.back().kv.end == kv.begin && runs.back().full == (full == all))
      runs.back().kv.end = kv.end;
    else
      runs.push_back({kv, full == all});
  }
  return runs;
}

Workload make_workload(const problem::Problem& problem, const std::vector<std::pair<std::int64_t, std::int64_t>>& lengths,
                       const std::vector<TensorView>& params, std::int64_t unit) {
  FOVEAL_CHECK(unit >= 1 && unit <= most_unit, "unit: ", unit, "; expected 1 to ", most_unit, " tokens");
  FOVEAL_CHECK(!problem.paged, "block_table: keys in pages are not shared between ranks; expected contiguous or packed ones");
  Workload w;
  w.batch = problem.varlen ? 1 : problem.batch;
  w.heads_q = problem.heads_q, w.heads_kv = problem.heads_kv, w.head_dim = problem.head_dim, w.head_dim_v = problem.head_dim_v;
  w.element_bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  w.statistic_bytes = problem.dtype == DType::f64 ? 8 : 4;
  w.unit = unit;
  w.text = problem.line();
  if (problem.varlen) {
    FOVEAL_CHECK(static_cast<std::int64_t>(lengths.size()) == problem.batch, "lengths: ", lengths.size(), " of packed sequences; expected ",
                 problem.batch);
    for (const auto& [q, kv] : lengths) w.lengths_q.push_back(q), w.lengths_kv.push_back(kv);
  } else {
    w.lengths_q = {problem.seqlen_q}, w.lengths_kv = {problem.seqlen_kv};
  }
  std::vector<TensorView> data = params;
  data.resize(problem.params.size());
  const scoring::Program& mask = problem.score->mask;
  for (const scoring::Instr& instr : mask.code)
    if (instr.op == scoring::Op::read && data[static_cast<std::size_t>(instr.param)].data == nullptr) w.mask_reads_unknown = true;
  const scoring::DataReadRanges ranges(problem.score->params, data);
  const Classifying classifying(problem, ranges, unit);
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::shared_ptr<const SequenceWork>> known;
  for (std::size_t s = 0; s < w.lengths_q.size(); ++s) {
    const std::int64_t batch = problem.varlen ? static_cast<std::int64_t>(s) : 0;
    auto& work = known[{w.lengths_q[s], w.lengths_kv[s], classifying.by_batch() ? batch : 0}];
    if (!work) work = classifying.sequence(w.lengths_q[s], w.lengths_kv[s], batch, w.batch);
    w.sequences.push_back(work);
  }
  return w;
}

}  // namespace foveal::dist
