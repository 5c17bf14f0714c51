#include "cuda/tune/read_plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace foveal::cuda {

namespace {

/// Can pairs_sm90 do this read?
bool serves_pairs(const problem::Problem& p, int number) {
  using scoring::Op;
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  const auto same_param = [&](const scoring::TrainableRead& other) { return other.param == read.param; };
  if (std::count_if(p.score->reads.begin(), p.score->reads.end(), same_param) > 1) return false;
  if (std::max(p.head_dim, p.head_dim_v) > 256 || p.ragged_kv() || p.attention.dropout_p > 0) return false;
  for (const scoring::ValueId index : read.index) {  // all that share an element must mean the same one
    const Op op = p.score->backward[index].op;
    const auto depends = p.score->backward.depends_of(index);
    if (op != Op::batch && op != Op::head && depends & (scoring::depends_batch | scoring::depends_head)) return false;
  }
  if (sm90_mask(p).tiles != device::TileSource::list) return true;
  for (const scoring::Instr& instr : p.score->mask.code)
    if ((instr.op == Op::batch && !read.reads_batch) || (instr.op == Op::head && !read.reads_head)) return false;
  return true;
}

/// Do the Hopper kernels sum all gradients of parameters but those added later? collect: collect_sm90, if it fits.
bool hopper_collects(const problem::Problem& p, const ReadPlan& plan, bool has_terms, const std::optional<Sm90CollectConfig>& collect) {
  const bool wide = sm90_backward_variant(p).is_wide;
  if (plan.count([](const PlannedRead& read) { return !read.has_own_kernel(); }) == 0) return false;
  if (wide && !has_terms) return true;
  if (plan.count([](const PlannedRead& read) { return read.facts.index_of_score; }) > 0) return false;
  if (plan.early() > ReadLimits::early) return false;
  return wide ? collect.has_value() : plan.staged().fit(std::max(p.head_dim, p.head_dim_v));
}

void plan_sm90(const problem::Problem& p, const ReadPlan& plan, PlannedRead& planned) {
  const ReadFacts& facts = planned.facts;
  const auto is = [&](Collector collector, const char* kernel, std::string why) {
    planned.collector = collector, planned.kernel = kernel, planned.why = std::move(why);
  };
  const char* const backward = sm90_backward_variant(p).stem;
  const char* const kernel = plan.collect ? "collect_sm90" : backward;
  const char* const kind = to_string(facts.over);
  if (planned.collector == Collector::rows) return;  // already
  if (facts.is_added() && serves_pairs(p, planned.read))
    return is(Collector::pairs, "pairs_sm90", "an element for each pair that several batches or heads share");
  if (facts.is_added())
    return is(Collector::any_pairs, "pairs_sm80", "an element for each pair, shared, in a form that pairs_sm90 does not serve");
  if (!plan.hopper)
    return is(Collector::walk, "dq_sm80", "registers or shared memory suffice for no more sums, or an index comes from the score");
  if (facts.follows_from_dk) return is(Collector::keys, backward, "the factor is the raw score, the same element for all pairs");
  switch (facts.over) {
    case scoring::Varies::uniform:
    case scoring::Varies::column:
      return is(Collector::registers, kernel, base::join("a ", kind, " read: a warp stays with its keys"));
    case scoring::Varies::row:
    case scoring::Varies::diagonal:
      return is(Collector::lines, kernel, base::join("a ", kind, " read: its pairs of a tile lie on lines"));
    case scoring::Varies::pair:
      if (facts.scatters()) return is(Collector::bins, kernel, "");  // placed() says where
      FOVEAL_CHECK(facts.storage == GradientStorage::stored, "a read without a collector");
      return is(Collector::stored, kernel, "an element for each pair of each batch and head");
  }
}

/// How a table for each query is summed.
std::string why_rows(const RowRead& row) {
  const char* const how = row.run > 0    ? " elements, one for many neighbouring keys"
                          : row.repeats  ? " elements, the same for every tile of keys"
                          : row.distinct ? " elements, one for each of eight neighbouring keys"
                                         : " elements, some for several neighbouring keys";
  return base::join(row.entries, how, row.stored ? "" : "; shared, and then in exact sums");
}

/// Decides between bins, a window and L2.
void place(std::vector<PlannedRead>& reads, const std::vector<ReadBins>& bins) {
  for (PlannedRead& read : reads) {
    if (read.collector != Collector::bins) continue;
    const auto number = static_cast<std::size_t>(read.read);
    const ReadBins of_read = number < bins.size() ? bins[number] : ReadBins{};
    const std::int64_t elements = read.facts.elements;
    if (of_read.copies == 0) {
      read.collector = Collector::scatter;
      read.why = base::join(elements, " elements, more than fit shared memory, and those of a tile lie apart");
    } else if (of_read.is_window()) {
      read.collector = Collector::window;
      read.why = base::join(of_read.entries, " of ", elements, " elements at a time: those of a tile lie together");
    } else {
      read.why = base::join(elements, " elements, ", of_read.copies, of_read.copies == 1 ? " copy" : " copies");
    }
  }
}

/// Gives reads of tables per query that do not fit the bins of a CTA to rows_sm90.
void plan_rows(const problem::Problem& p, ReadPlan& plan) {
  if (p.ragged_kv() || p.part || p.attention.dropout_p > 0) return;
  std::vector<RowRead> found;
  for (const PlannedRead& read : plan.reads)
    if (read.facts.scatters() && read.facts.elements > ReadLimits::whole_bins)
      if (const auto row = row_read(p, read.read)) found.push_back(*row);
  plan.rows = sm90_rows_config(p, std::move(found));
  if (!plan.rows) return;
  for (const RowRead& row : plan.rows->reads) {
    PlannedRead& read = plan.reads[static_cast<std::size_t>(row.read)];
    read.collector = Collector::rows, read.kernel = "rows_sm90", read.why = why_rows(row);
    if (row.stored) plan.storage[read.facts.param] = GradientStorage::stored;
  }
}

}  // namespace

std::vector<int> ReadPlan::of(Collector collector) const {
  std::vector<int> found;
  for (const PlannedRead& read : reads)
    if (read.collector == collector) found.push_back(read.read);
  return found;
}

ReadPlan ReadPlan::placed(const std::vector<ReadBins>& bins) const {
  ReadPlan plan = *this;
  if (!collect) place(plan.reads, bins);
  return plan;
}

void ReadPlan::describe(Explanation& e, const problem::Problem& p) const {
  for (const PlannedRead& read : reads)
    e.details.emplace_back(base::join("gradient of ", p.params[read.facts.param].param.name()), read.text());
}

ReadPlan sm90_read_plan(const problem::Problem& p) {
  ReadPlan plan{.storage = gradient_storage(p), .reads = walked_reads(p)};
  plan_rows(p, plan);
  const bool has_terms = plan.count([](const PlannedRead& read) { return read.has_terms(); }) > 0;
  if (sm90_backward_variant(p).is_wide && has_terms) plan.collect = sm90_collect_config(p, plan);
  plan.hopper = hopper_collects(p, plan, has_terms, plan.collect);
  if (!plan.hopper) plan.collect.reset();
  for (PlannedRead& read : plan.reads) plan_sm90(p, plan, read);
  if (!plan.of(Collector::pairs).empty()) plan.pairs = sm90_pairs_config(p);
  if (plan.collect) {
    place(plan.reads, plan.collect->bins);
    plan.collect->reads = plan.reads;
  }
  return plan;
}

ReadPlan sm80_read_plan(const problem::Problem& p, const Sm80Config& config) {
  ReadPlan plan{.storage = gradient_storage(p), .reads = walked_reads(p)};
  for (PlannedRead& read : plan.reads) {
    read.collector = read.facts.is_added() ? Collector::any_pairs : config.column_split > 1 ? Collector::walk : Collector::beside_dq;
    read.kernel = read.facts.is_added() ? "pairs_sm80" : "dq_sm80";
    if (read.facts.is_added()) {
      read.why = "an element for each pair that several batches or heads share";
    } else if (config.column_split > 1) {
      read.why = "warps that share the rows of dq would compute the same terms";
    } else if (read.facts.storage == GradientStorage::stored) {
      read.why = "an element for each pair of each batch and head";
    } else {
      read.why = base::join("a ", p.score->reads[static_cast<std::size_t>(read.read)].kind(), " read, in exact sums");
    }
  }
  return plan;
}

}  // namespace foveal::cuda
