#include "cuda/score/row_reads.h"

#include <algorithm>

#include "cuda/score/score_forms.h"
#include "score/bounds.h"
#include "score/column_forms.h"

namespace foveal::cuda {

std::optional<RowRead> row_read(const Problem& p, int number) {
  constexpr std::int64_t most = 4096;  // entries: shared memory has room for no more rows of them than a warp has
  const Program& program = p.score->backward;
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  const std::vector<std::int64_t> shape = p.param(read.param).param.shape();
  const base::IdVector<Interval> bounds = problem::bounds_of(p, program);
  bool of_row = false, own_row = false, inside = true;
  std::int64_t entries = 1;
  unsigned dims = 0;
  std::vector<ValueId> columns;
  for (std::size_t d = 0; d < read.index.size(); ++d) {
    const ValueId index = read.index[d];
    if (program.depends_on(index, scoring::depends_score)) return {};
    inside = inside && scoring::is_inside(bounds[index], shape[d]);
    if (program.depends_on(index, scoring::depends_kv)) {
      entries = std::min(most + 1, entries * shape[d]);
      dims |= 1u << d;
      columns.push_back(index);
    } else if (program.depends_on(index, scoring::depends_q)) {
      of_row = true;
      own_row = own_row || program[index].op == Op::q_idx;
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
