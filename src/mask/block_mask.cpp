#include "mask/block_mask.h"

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"

namespace foveal::mask {
namespace {

constexpr int halvings_within_a_tile = 6;

/// One list of runs for each row, linked in one array.
class RunLists final : public RunSink {
 public:
  explicit RunLists(std::int64_t rows) : first_(static_cast<std::size_t>(rows), -1), last_(first_) {}

  void append(std::int64_t row, const Run& run) override {
    std::int64_t& last = last_[static_cast<std::size_t>(row)];
    if (last >= 0) {
      Run& before = links_[static_cast<std::size_t>(last)].run;
      if (before.end == run.begin && before.full == run.full) {
        before.end = run.end;
        return;
      }
    }
    const auto position = static_cast<std::int64_t>(links_.size());
    links_.push_back({run, -1});
    if (last >= 0) {
      links_[static_cast<std::size_t>(last)].next = position;
    } else {
      first_[static_cast<std::size_t>(row)] = position;
    }
    last = position;
  }

  void write_to(BlockMask& mask, std::int64_t columns) const {
    mask.row_begin = {0};
    mask.row_begin.reserve(first_.size() + 1);
    mask.runs.reserve(links_.size());
    for (std::int64_t link : first_) {
      for (; link >= 0; link = links_[static_cast<std::size_t>(link)].next) {
        const Run& run = links_[static_cast<std::size_t>(link)].run;
        mask.runs.push_back(run);
        (run.full ? mask.full : mask.partial) += run.end - run.begin;
      }
      mask.row_begin.push_back(static_cast<std::int64_t>(mask.runs.size()));
    }
    mask.empty = static_cast<std::int64_t>(first_.size()) * columns - mask.full - mask.partial;
  }

 private:
  struct Link {
    Run run;
    std::int64_t next;
  };
  std::vector<Link> links_;
  std::vector<std::int64_t> first_, last_;
};

/// Bisects an area of tiles until its pairs are all kept or all dropped, or it is one tile. Undecided tiles are bisected a few times more:
/// bounds may decide all parts of a tile that two terms of a mask cover together.
class Refinement {
 public:
  Refinement(const scoring::IntervalProgram& mask, const Tiling& tiling, std::int64_t batch, std::int64_t head,
             const scoring::ReadRanges& reads, std::span<scoring::Interval> values, RunSink& sink)
      : program_(mask), tiling_(tiling), reads_(reads), values_(values), sink_(sink) {
    const auto point = [](std::int64_t value) { return scoring::Interval{static_cast<double>(value), static_cast<double>(value)}; };
    box_ = {point(batch),
            point(head),
            {},
            {},
            point(tiling.whole_q > 0 ? tiling.whole_q : tiling.seqlen_q),
            point(tiling.whole_kv > 0 ? tiling.whole_kv : tiling.seqlen_kv)};
  }

  /// Visits the columns of a row in ascending order.
  void visit(std::int64_t row_begin, std::int64_t row_end, std::int64_t column_begin, std::int64_t column_end) {
    const std::int64_t rows = row_end - row_begin, columns = column_end - column_begin;
    const Span q{row_begin * tiling_.block_q, std::min(row_end * tiling_.block_q, tiling_.seqlen_q)};
    const Span kv{column_begin * tiling_.block_kv, std::min(column_end * tiling_.block_kv, tiling_.seqlen_kv)};
    Kept kept = evaluate(q, kv);
    if (kept == Kept::unknown && rows * columns == 1 && decidable(q, kv)) kept = decide(q, kv, halvings_within_a_tile);
    if (kept == Kept::none) return;
    if (kept == Kept::all || rows * columns == 1) {
      const Run run{static_cast<std::int32_t>(column_begin), static_cast<std::int32_t>(column_end), kept == Kept::all};
      for (std::int64_t row = row_begin; row < row_end; ++row) sink_.append(row, run);
    } else if (columns == 1 || (rows > 1 && q.size() >= kv.size())) {
      const std::int64_t middle = row_begin + rows / 2;
      visit(row_begin, middle, column_begin, column_end);
      visit(middle, row_end, column_begin, column_end);
    } else {
      const std::int64_t middle = column_begin + columns / 2;
      visit(row_begin, row_end, column_begin, middle);
      visit(row_begin, row_end, middle, column_end);
    }
  }

 private:
  enum class Kept { none, all, unknown };

  struct Span {
    std::int64_t begin, end;  ///< local positions
    std::int64_t size() const { return end - begin; }
    Span first_half() const { return {begin, begin + size() / 2}; }
    Span second_half() const { return {begin + size() / 2, end}; }
  };

  Kept evaluate(const Span& q, const Span& kv) {
    box_.q_idx = {static_cast<double>(q.begin + tiling_.q_offset), static_cast<double>(q.end - 1 + tiling_.q_offset)};
    box_.kv_idx = {static_cast<double>(kv.begin + tiling_.kv_offset), static_cast<double>(kv.end - 1 + tiling_.kv_offset)};
    program_.evaluate(box_, reads_, values_);
    const scoring::Interval keep = values_[static_cast<std::size_t>(program_.output())];
    return keep.high <= 0 ? Kept::none : keep.low > 0 ? Kept::all : Kept::unknown;
  }

  /// False when not even one pair can be decided: parameters without data.
  bool decidable(const Span& q, const Span& kv) { return evaluate({q.begin, q.begin + 1}, {kv.begin, kv.begin + 1}) != Kept::unknown; }

  /// Bisects an undecided part. Gives up at the first half that stays undecided or differs from the other: most border tiles cost a few
  /// evaluations.
  Kept decide(const Span& q, const Span& kv, int halvings) {
    if (halvings == 0 || q.size() * kv.size() == 1) return Kept::unknown;
    const bool by_rows = q.size() >= kv.size();
    Kept common = Kept::unknown;
    for (const Span& half : {(by_rows ? q : kv).first_half(), (by_rows ? q : kv).second_half()}) {
      const Span& half_q = by_rows ? half : q;
      const Span& half_kv = by_rows ? kv : half;
      Kept kept = evaluate(half_q, half_kv);
      if (kept == Kept::unknown) kept = decide(half_q, half_kv, halvings - 1);
      if (kept == Kept::unknown || (common != Kept::unknown && kept != common)) return Kept::unknown;
      common = kept;
    }
    return common;
  }

  const scoring::IntervalProgram& program_;
  const Tiling& tiling_;
  const scoring::ReadRanges& reads_;
  std::span<scoring::Interval> values_;
  RunSink& sink_;
  scoring::Box box_{};
};

}  // namespace

void Classifier::operator()(const Tiling& tiling, std::int64_t batch, std::int64_t head, const scoring::ReadRanges& reads,
                            std::span<scoring::Interval> scratch, RunSink& sink) const {
  const std::int64_t rows = base::divide_up(tiling.seqlen_q, tiling.block_q), columns = base::divide_up(tiling.seqlen_kv, tiling.block_kv);
  if (rows > 0 && columns > 0) Refinement(mask_, tiling, batch, head, reads, scratch, sink).visit(0, rows, 0, columns);
}

BlockMask classify(const scoring::Program& mask, const Tiling& tiling, std::int64_t batch, std::int64_t head,
                   const scoring::ReadRanges& reads) {
  FOVEAL_CHECK(tiling.block_q > 0 && tiling.block_kv > 0, "block mask: tiles of ", tiling.block_q, " x ", tiling.block_kv,
               "; expected positive sizes");
  const std::int64_t rows = base::divide_up(tiling.seqlen_q, tiling.block_q), columns = base::divide_up(tiling.seqlen_kv, tiling.block_kv);
  BlockMask result;
  result.tiling = tiling;
  RunLists lists(rows);
  if (mask.empty()) {
    for (std::int64_t row = 0; row < rows && columns > 0; ++row) lists.append(row, {0, static_cast<std::int32_t>(columns), true});
  } else {
    const Classifier classifier(mask);
    std::vector<scoring::Interval> scratch(classifier.scratch_size());
    classifier(tiling, batch, head, reads, scratch, lists);
  }
  lists.write_to(result, columns);
  return result;
}

/// Sweeps the rows: where a row differs from the one before, runs of those columns end and begin. Work is proportional to the changes.
BlockMask transpose(const BlockMask& mask) {
  const Tiling& tiling = mask.tiling;
  const std::int64_t rows = static_cast<std::int64_t>(mask.row_begin.size()) - 1;
  const std::int64_t columns =
      mask.transposed ? base::divide_up(tiling.seqlen_q, tiling.block_q) : base::divide_up(tiling.seqlen_kv, tiling.block_kv);
  enum State : std::uint8_t { empty, partial, full };
  std::vector<State> state(static_cast<std::size_t>(columns), empty);
  std::vector<std::int32_t> since(static_cast<std::size_t>(columns), 0);
  RunLists lists(columns);
  const auto change = [&](std::int64_t begin, std::int64_t end, State to, std::int64_t row) {
    for (std::int64_t column = begin; column < end; ++column) {
      const auto at = static_cast<std::size_t>(column);
      if (state[at] != empty) lists.append(column, {since[at], static_cast<std::int32_t>(row), state[at] == full});
      state[at] = to;
      since[at] = static_cast<std::int32_t>(row);
    }
  };
  struct Edge {
    std::int64_t column;
    State state;  ///< from here on
  };
  const auto edges_of = [&](std::int64_t row, std::vector<Edge>& edges) {
    edges.assign(1, {0, empty});
    if (row < rows) {
      for (std::int64_t i = mask.row_begin[static_cast<std::size_t>(row)]; i < mask.row_begin[static_cast<std::size_t>(row) + 1]; ++i) {
        const Run& run = mask.runs[static_cast<std::size_t>(i)];
        edges.push_back({run.begin, run.full ? full : partial});
        edges.push_back({run.end, empty});
      }
    }
    edges.push_back({columns, empty});
  };
  std::vector<Edge> before{{0, empty}, {columns, empty}}, now;
  for (std::int64_t row = 0; row <= rows; ++row) {
    edges_of(row, now);
    std::size_t i = 0, j = 0;
    for (std::int64_t column = 0; column < columns;) {
      while (before[i + 1].column <= column) ++i;
      while (now[j + 1].column <= column) ++j;
      const std::int64_t next = std::min(before[i + 1].column, now[j + 1].column);
      if (before[i].state != now[j].state) change(column, next, now[j].state, row);
      column = next;
    }
    before.swap(now);
  }
  BlockMask result;
  result.tiling = tiling;
  result.transposed = !mask.transposed;
  lists.write_to(result, rows);
  return result;
}

}  // namespace foveal::mask
