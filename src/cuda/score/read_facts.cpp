#include "cuda/score/read_facts.h"

#include <algorithm>
#include <cmath>

#include "cuda/device/layout/agreed.cuh"
#include "cuda/score/score_forms.h"

namespace foveal::cuda {
namespace {

using scoring::TrainableRead;

class Analysis {
 public:
  explicit Analysis(const Problem& p) : p_(p), program_(p.score->backward), forms_(p, program_) {}

  GradientStorage storage(std::size_t param) const {
    if (!p_.params[param].gradient.present) return GradientStorage::none;
    if (static_cast<int>(param) == p_.sink) return GradientStorage::exact_sums;
    if (p_.score->params[param].gradient_is_zero) return GradientStorage::zero;
    int found = 0;
    bool elements = true, owned = true;
    for (const TrainableRead& read : p_.score->reads) {
      if (read.param != static_cast<std::int32_t>(param)) continue;
      ++found;
      elements = elements && read.own_elements && forms_.is_inside(read);
      owned = owned && (read.reads_head || p_.heads_q == 1) && (read.reads_batch || p_.batch == 1);
    }
    if (!elements) return GradientStorage::exact_sums;
    return owned && found == 1 ? GradientStorage::stored : GradientStorage::added;
  }

  ReadFacts operator()(const TrainableRead& read) const {
    ReadFacts facts{};
    facts.param = static_cast<std::size_t>(read.param);
    facts.storage = storage(facts.param);
    facts.over = read.over;
    facts.follows_from_dk = follows_from_dk(read);
    facts.factor_of_score = of_score(read.factor);
    facts.index_of_score = std::any_of(read.index.begin(), read.index.end(), [&](ValueId index) { return of_score(index); });
    facts.early = of_score(p_.score->dscore) || (facts.factor_of_score && !facts.follows_from_dk);
    facts.elements = facts.scatters() ? forms_.elements(read) : 0;
    facts.lie_together = facts.elements > 0 && (is_led_by_key(read) || (facts.elements <= 32 * p_.seqlen_kv && sums_of_positions(read)));
    facts.covers = read.own_elements && forms_.covers(read);
    return facts;
  }

  /// Of a read of a parameter with exact sums: the most terms that one element can get.
  double terms(const TrainableRead& read) const {
    constexpr double tile = device::kExactSumTile, lines = 2 * tile - 1;
    const auto tiles = [](std::int64_t length) { return std::ceil(static_cast<double>(length) / tile); };
    const auto size_of = [&](Op position) {
      return static_cast<double>(position == Op::batch   ? p_.batch
                                 : position == Op::head  ? p_.heads_q
                                 : position == Op::q_idx ? p_.seqlen_q
                                                         : p_.seqlen_kv);
    };
    const double batch = size_of(Op::batch), heads = size_of(Op::head);
    const double rows = p_.varlen ? static_cast<double>(p_.total_q) : batch * size_of(Op::q_idx);
    double pairs = rows * heads * size_of(Op::kv_idx);
    double of_lines = lines * heads * tiles(p_.seqlen_kv) * (p_.varlen ? tiles(p_.total_q) + batch : batch * tiles(p_.seqlen_q));
    for (const Op position : forms_.own_positions(read)) {
      const bool of_sequence = position == Op::batch || position == Op::q_idx;
      if (p_.varlen && of_sequence) continue;  // sequences differ in length
      pairs /= size_of(position);
      if (position == Op::batch || position == Op::head) of_lines /= size_of(position);
    }
    return read.over == Varies::pair ? pairs : std::min(pairs, of_lines);
  }

 private:
  bool of_score(ValueId value) const { return program_.depends_on(value, scoring::depends_score); }

  /// The key's position comes first among the dimensions of pairs: the elements of a tile's keys
  /// stand together, whatever the other indices are.
  bool is_led_by_key(const TrainableRead& read) const {
    constexpr std::int64_t keys = 128, most = ReadLimits::most_in_window;  // of a tile; of a window of bins
    std::int64_t of_key = 0;                                               // elements
    for (std::size_t d = 0; d < read.index.size(); ++d) {
      if (forms_.is_uniform(read.index[d])) continue;
      if (of_key == 0 && program_[read.index[d]].op != Op::kv_idx) return false;
      of_key = of_key == 0 ? 1 : std::min(most, of_key * forms_.size(read, d));
    }
    return of_key > 0 && of_key * keys <= most;
  }

  /// The indices are sums of what rows and columns are, and no data is read for them.
  bool sums_of_positions(const TrainableRead& read) const {
    const auto needed = scoring::ancestors(program_, read.index);
    for (ValueId id = 0; id < needed.size(); ++id)
      if (needed[id] && program_[id].op == Op::read) return false;
    return forms_.is_element_of_lines(read);
  }

  bool follows_from_dk(const TrainableRead& read) const {
    if (read.over != Varies::uniform || !forms_.is_scaled_score(read.factor)) return false;
    const bool grouped = p_.heads_q != p_.heads_kv;  // dk is the sum over a group of query heads
    const auto differs = [&](ValueId value) {
      return !forms_.is_uniform(value) || (grouped && program_.depends_on(value, scoring::depends_head));
    };
    return std::none_of(read.index.begin(), read.index.end(), differs) && !differs(p_.score->dscore) &&
           !(grouped && program_.depends_on(read.factor, scoring::depends_head));
  }

  const Problem& p_;
  const Program& program_;
  const ScoreForms forms_;
};

}  // namespace

std::vector<GradientStorage> gradient_storage(const Problem& p) {
  const Analysis analysis(p);
  std::vector<GradientStorage> storage;
  for (std::size_t i = 0; i < p.params.size(); ++i) storage.push_back(analysis.storage(i));
  return storage;
}

ExactSums exact_sums(const Problem& p) {
  ExactSums sums;
  const auto wanted = [](const problem::ParamSpec& param) { return param.gradient.present; };
  if (std::none_of(p.params.begin(), p.params.end(), wanted)) return sums;
  const Analysis analysis(p);
  for (std::size_t i = 0; i < p.params.size(); ++i) {
    if (analysis.storage(i) != GradientStorage::exact_sums) continue;
    std::int64_t elements = 1;
    for (const std::int64_t size : p.params[i].param.shape()) elements *= size;
    sums.elements += elements;
    double terms = static_cast<int>(i) == p.sink ? static_cast<double>(p.varlen ? p.total_q : p.batch * p.seqlen_q) : 0;
    for (const TrainableRead& read : p.score->reads) {
      if (read.param != static_cast<std::int32_t>(i)) continue;
      terms += analysis.terms(read);
      sums.scatters = sums.scatters || (read.over == Varies::pair && !read.own_elements);
    }
    sums.most_terms = std::max(sums.most_terms, terms);
  }
  return sums;
}

std::vector<ReadFacts> read_facts(const Problem& p) {
  if (p.score->reads.empty()) return {};
  const Analysis analysis(p);
  std::vector<ReadFacts> facts;
  for (const TrainableRead& read : p.score->reads) facts.push_back(analysis(read));
  return facts;
}

}  // namespace foveal::cuda
