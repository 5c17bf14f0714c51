#include "cuda/launch/read_plan.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/score_emit.h"
#include "cuda/tune/score_facts.h"

namespace foveal::cuda {

const char* to_string(Collector collector) {
  switch (collector) {
    case Collector::keys:
      return "from dk";
    case Collector::registers:
      return "in registers";
    case Collector::lines:
      return "along lines of a tile";
    case Collector::bins:
      return "bins in shared memory";
    case Collector::window:
      return "a window of bins in shared memory";
    case Collector::scatter:
      return "exact sums in L2";
    case Collector::stored:
      return "stored";
    case Collector::pairs:
      return "pairs";
    case Collector::beside_dq:
      return "beside dq";
    case Collector::walk:
      return "a portable pass";
    case Collector::any_pairs:
      return "portable pairs";
  }
  return "";
}

namespace {

/// Of a read that follows no line of a tile.
PlannedRead scattered(const problem::Problem& p, int number, const char* kernel, const ReadBins& bins) {
  const auto entries = bin_entries(p, p.score->reads[static_cast<std::size_t>(number)]);
  if (bins.copies == 0)
    return {number, Collector::scatter, kernel,
            base::join(entries, " elements, more than fit shared memory, and those of a tile lie apart")};
  if (bins.entries < entries)
    return {number, Collector::window, kernel,
            base::join(bins.entries, " of ", entries, " elements at a time: those of a tile lie together")};
  return {number, Collector::bins, kernel, base::join(entries, " elements, ", bins.copies, bins.copies == 1 ? " copy" : " copies")};
}

/// Can pairs_sm90 do this read?
bool serves_pairs(const problem::Problem& p, int number) {
  using scoring::Op;
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  const auto same_param = [&](const scoring::TrainableRead& other) { return other.param == read.param; };
  if (std::count_if(p.score->reads.begin(), p.score->reads.end(), same_param) > 1) return false;
  if (std::max(p.head_dim, p.head_dim_v) > 256 || p.varlen || p.attention.dropout_p > 0) return false;
  for (const scoring::ValueId index : read.index) {  // all that share an element must mean the same one
    const Op op = p.score->backward[index].op;
    const auto depends = p.score->backward.depends[static_cast<std::size_t>(index)];
    if (op != Op::batch && op != Op::head && depends & (scoring::depends_batch | scoring::depends_head)) return false;
  }
  if (sm90_mask(p).tiles != Sm90Tiles::list) return true;
  for (const scoring::Instr& instr : p.score->mask.code)
    if ((instr.op == Op::batch && !read.reads_batch) || (instr.op == Op::head && !read.reads_head)) return false;
  return true;
}

PlannedRead planned(const problem::Problem& p, int number, const Sm90BackwardConfig& config,
                    const std::optional<Sm90CollectConfig>& collect) {
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  const auto param = static_cast<std::size_t>(read.param);
  if (is_added_later(p, read)) {
    if (serves_pairs(p, number))
      return {number, Collector::pairs, "pairs_sm90", "an element for each pair that several batches or heads share"};
    return {number, Collector::any_pairs, "pairs_sm80", "an element for each pair, shared, in a form that pairs_sm90 does not serve"};
  }
  if (!sm90_collects(p))
    return {number, Collector::walk, "dq_sm80", "registers or shared memory last for no more sums, or an index comes from the score"};
  if (follows_from_dk(p, read))
    return {number, Collector::keys, config.kernel(), "the factor is the raw score, the same element for all pairs"};
  const char* const kernel = collect ? "collect_sm90" : config.kernel();
  const std::vector<ReadBins>& bins = collect ? collect->bins : config.bins;
  if (bin_entries(p, read) > 0) {
    const auto r = static_cast<std::size_t>(number);
    return scattered(p, number, kernel, r < bins.size() ? bins[r] : ReadBins{});
  }
  switch (read.reduction) {
    case scoring::Reduction::uniform:
    case scoring::Reduction::column:
      return {number, Collector::registers, kernel, base::join("a ", to_string(read.reduction), " read: a warp stays with its keys")};
    case scoring::Reduction::row:
    case scoring::Reduction::diagonal:
      return {number, Collector::lines, kernel, base::join("a ", to_string(read.reduction), " read: its pairs of a tile lie on lines")};
    default:
      FOVEAL_CHECK(gradient_storage(p, param) == GradientStorage::stored, "a read without a collector");
      return {number, Collector::stored, kernel, "an element for each pair of each batch and head"};
  }
}

}  // namespace

std::string PlannedRead::text() const { return base::join(to_string(collector), " (", kernel, "): ", why); }

std::vector<int> ReadPlan::of(Collector collector) const {
  std::vector<int> found;
  for (const PlannedRead& read : reads)
    if (read.collector == collector) found.push_back(read.read);
  return found;
}

void ReadPlan::describe(Explanation& e, const problem::Problem& p) const {
  for (const PlannedRead& read : reads) {
    const auto param = static_cast<std::size_t>(p.score->reads[static_cast<std::size_t>(read.read)].param);
    e.details.emplace_back(base::join("gradient of ", p.params[param].param.name()), read.text());
  }
}

ReadPlan sm90_read_plan(const problem::Problem& p, const Sm90BackwardConfig& config) {
  ReadPlan plan{.reads = {}, .collect = sm90_collect_config(p)};
  for (std::size_t r = 0; r < p.score->reads.size(); ++r) plan.reads.push_back(planned(p, static_cast<int>(r), config, plan.collect));
  return plan;
}

ReadPlan sm80_read_plan(const problem::Problem& p, const Sm80Config& config) {
  const auto planned = [&](int number) -> PlannedRead {
    const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
    if (is_added_later(p, read))
      return {number, Collector::any_pairs, "pairs_sm80", "an element for each pair that several batches or heads share"};
    if (config.column_split > 1)
      return {number, Collector::walk, "dq_sm80", "warps that share the rows of dq would compute the same terms"};
    const bool stored = gradient_storage(p, static_cast<std::size_t>(read.param)) == GradientStorage::stored;
    return {
        number, Collector::beside_dq, "dq_sm80",
        stored ? "an element for each pair of each batch and head" : base::join("a ", to_string(read.reduction), " read, in exact sums")};
  };
  ReadPlan plan;
  for (std::size_t r = 0; r < p.score->reads.size(); ++r) plan.reads.push_back(planned(static_cast<int>(r)));
  return plan;
}

}  // namespace foveal::cuda
