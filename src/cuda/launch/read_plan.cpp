#include "cuda/launch/read_plan.h"

#include "base/check.h"
#include "cuda/launch/pairs_sm90.h"
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
    case Collector::portable:
      return "portable";
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

PlannedRead planned(const problem::Problem& p, int number, const Sm90BackwardConfig& config,
                    const std::optional<Sm90CollectConfig>& collect) {
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  const auto param = static_cast<std::size_t>(read.param);
  if (is_added_later(p, read)) {
    if (PairsSm90::serves(p, number))
      return {number, Collector::pairs, "pairs_sm90", "an element for each pair that several batches or heads share"};
    return {number, Collector::portable, "pairs_sm80", "an element for each pair, shared, in a form that pairs_sm90 does not serve"};
  }
  if (!sm90_collects(p))
    return {number, Collector::portable, "dq_sm80", "registers or shared memory last for no more sums, or an index comes from the score"};
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

std::vector<PlannedRead> sm90_read_plan(const problem::Problem& p, const Sm90BackwardConfig& config) {
  const auto collect = sm90_collect_config(p);
  std::vector<PlannedRead> plan;
  for (std::size_t r = 0; r < p.score->reads.size(); ++r) plan.push_back(planned(p, static_cast<int>(r), config, collect));
  return plan;
}

std::vector<int> reads_of(const std::vector<PlannedRead>& plan, Collector collector) {
  std::vector<int> reads;
  for (const PlannedRead& read : plan)
    if (read.collector == collector) reads.push_back(read.read);
  return reads;
}

}  // namespace foveal::cuda
