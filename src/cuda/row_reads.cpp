#include "cuda/row_reads.h"

#include <algorithm>

#include "cuda/score_writer.h"
#include "score/column_forms.h"

namespace foveal::cuda {

std::optional<RowRead> row_read(const Problem& p, int number) {
  constexpr std::int64_t most = 4096;  // entries: shared memory has room for no more rows of them than a warp has
  const Program& program = p.score->backward;
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  const std::vector<std::int64_t> shape = p.params[static_cast<std::size_t>(read.param)].param.shape();
  const std::vector<Interval> bounds = bounds_of(program, p);
  const auto stays_inside = [&](std::size_t d) {
    const Interval& index = bounds[static_cast<std::size_t>(read.index[d])];
    return index.low >= 0 && index.high <= static_cast<double>(shape[d] - 1);
  };
  bool of_row = false, own_row = false, inside = true;
  std::int64_t entries = 1;
  unsigned dims = 0;
  std::vector<ValueId> columns;
  for (std::size_t d = 0; d < read.index.size(); ++d) {
    const unsigned depends = program.depends_of(read.index[d]);
    if (depends & scoring::depends_score) return {};
    inside = inside && stays_inside(d);
    if (depends & scoring::depends_kv) {
      entries = std::min(most + 1, entries * shape[d]);
      dims |= 1u << d;
      columns.push_back(read.index[d]);
    } else if (depends & scoring::depends_q) {
      of_row = true;
      own_row = own_row || program[read.index[d]].op == Op::q_idx;
    }
  }
  if (!of_row || columns.empty() || entries > most) return {};
  const auto same_param = [&](const scoring::TrainableRead& other) { return other.param == read.param; };
  const bool only = std::count_if(p.score->reads.begin(), p.score->reads.end(), same_param) == 1;
  const bool own_head = (read.reads_head || p.heads_q == 1) && (read.reads_batch || p.batch == 1);
  const scoring::ColumnForm form = scoring::form_of_element(scoring::column_forms(program, p.attention.kv_offset), columns);
  return RowRead{.read = number,
                 .entries = static_cast<int>(entries),
                 .run = form.run,
                 .repeats = form.repeats,
                 .distinct = form.distinct && inside,
                 .stored = only && own_head && own_row && inside && p.attention.q_offset >= 0,
                 .dims = dims};
}

}  // namespace foveal::cuda
