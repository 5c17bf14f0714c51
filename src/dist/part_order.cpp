#include "dist/part_order.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/divide.h"

namespace foveal::dist {
namespace {

/// Ranges of rows, disjoint and ascending.
class Covered {
 public:
  bool meets(Range r) const {
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& a) { return a.meets(r); });
  }
  void add(Range r) {
    std::vector<Range> merged;
    for (const Range& a : ranges_) {
      if (a.end < r.begin || r.end < a.begin) {
        merged.push_back(a);
      } else {
        r = {std::min(a.begin, r.begin), std::max(a.end, r.end)};
      }
    }
    merged.insert(std::upper_bound(merged.begin(), merged.end(), r, [](const Range& a, const Range& b) { return a.begin < b.begin; }), r);
    ranges_ = std::move(merged);
  }
  std::vector<Range> rest(std::int64_t rows) const {
    std::vector<Range> gaps;
    std::int64_t at = 0;
    for (const Range& a : ranges_) {
      if (a.begin > at) gaps.push_back({at, a.begin});
      at = a.end;
    }
    if (at < rows) gaps.push_back({at, rows});
    return gaps;
  }

 private:
  std::vector<Range> ranges_;
};

/// Pairs that a segment computes, at the granularity of the workload's tiles.
std::int64_t pairs_of(const Workload& workload, const Segment& s) {
  const SequenceWork& of_one = *workload.sequences[static_cast<std::size_t>(s.sequence)];
  const std::int64_t unit = of_one.unit(), q_end = s.q_first + s.q_rows, kv_end = s.kv_first + s.kv_rows;
  std::int64_t pairs = 0;
  for (std::int64_t q = s.q_first; q < q_end;) {
    const Range rows{q, std::min(q_end, (q / unit + 1) * unit)};
    for (const KeyRun& run : of_one.keys(rows))
      pairs += rows.size() * std::max<std::int64_t>(0, std::min(run.kv.end, kv_end) - std::max(run.kv.begin, s.kv_first));
    q = rows.end;
  }
  return pairs;
}

/// The same of a launch; closed sequences count as causal.
std::int64_t pairs_of(const Workload& workload, const PartLaunch& launch) {
  if (launch.closed.empty()) return pairs_of(workload, launch.segment);
  std::int64_t pairs = 0;
  for (const std::int64_t length : launch.closed) pairs += length * length / 2;
  return pairs;
}

/// Finds rows that one launch can give all their keys.
class WholeRows {
 public:
  WholeRows(const Workload& workload, const RankPlan& mine, const OrderRequest& request)
      : workload_(workload), mine_(mine), request_(request) {}

  /// Launches for consecutive queries, or nothing where their keys do not allow it.
  std::optional<std::vector<PartLaunch>> launches(const Transfer& queries) const {
    const Range rows = queries.tokens;
    const std::optional<Range> all = keys_of(queries.sequence, rows);
    if (!all) return std::nullopt;
    if (all->size() == 0) return std::vector<PartLaunch>{};
    if (const Transfer* own = holds(queries.sequence, *all)) return std::vector{on_own(queries, rows, *all, *own)};
    if (!request_.spread) return std::nullopt;
    // Under a window only rows near the border need received keys.
    const std::int64_t border = first_of_own(queries, rows);
    std::vector<PartLaunch> found;
    if (border < rows.end) {
      const Range inner{border, rows.end}, keys = *keys_of(queries.sequence, inner);
      if (keys.size() > 0) found.push_back(on_own(queries, inner, keys, *holds(queries.sequence, keys)));
    }
    const Range outer{rows.begin, border};
    const std::optional<Range> keys = keys_of(queries.sequence, outer);
    if (!keys) return std::nullopt;
    std::optional<PartLaunch> spread = on_key_ranges(queries, outer, *keys);
    if (!spread) return std::nullopt;
    found.push_back(std::move(*spread));
    return found;
  }

 private:
  /// What these queries need, if it has no gaps.
  std::optional<Range> keys_of(std::int32_t sequence, Range rows) const {
    const std::vector<KeyRun> runs = workload_.sequences[static_cast<std::size_t>(sequence)]->keys(rows);
    if (runs.empty()) return Range{0, 0};
    for (std::size_t i = 1; i < runs.size(); ++i)
      if (runs[i].kv.begin != runs[i - 1].kv.end) return std::nullopt;
    return Range{runs.front().kv.begin, runs.back().kv.end};
  }

  /// The own rows that hold all of these keys, if they lie together.
  const Transfer* holds(std::int32_t sequence, Range keys) const {
    for (const Transfer& t : mine_.steps[0].keys)
      if (t.sequence == sequence && t.tokens.begin <= keys.begin && keys.end <= t.tokens.end) return &t;
    return nullptr;
  }

  /// Of a range of queries the first from which on own keys are enough, in units.
  std::int64_t first_of_own(const Transfer& queries, Range rows) const {
    const std::int64_t unit = workload_.sequences[static_cast<std::size_t>(queries.sequence)]->unit();
    std::int64_t low = rows.begin / unit + 1, high = base::divide_up(rows.end, unit);
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      const std::optional<Range> keys = keys_of(queries.sequence, {middle * unit, rows.end});
      const bool enough = keys && (keys->size() == 0 || holds(queries.sequence, *keys) != nullptr);
      (enough ? high : low) = enough ? middle : middle + 1;
    }
    return std::min(low * unit, rows.end);
  }

  PartLaunch on_own(const Transfer& queries, Range rows, Range keys, const Transfer& own) const {
    PartLaunch launch;
    launch.whole = true;
    launch.segment = {queries.sequence, queries.row + rows.begin - queries.tokens.begin,
                      rows.size(),      own.row + keys.begin - own.tokens.begin,
                      keys.size(),      rows.begin,
                      keys.begin};
    return launch;
  }

  std::optional<PartLaunch> on_key_ranges(const Transfer& queries, Range rows, Range keys) const {
    if (mine_.steps[0].rows == 0) return std::nullopt;  // a launch has own keys, needed or not
    struct Piece {
      Transfer keys;
      std::size_t step;
    };
    std::vector<Piece> pieces;
    for (std::size_t step = 0; step < mine_.steps.size(); ++step)
      for (const Transfer& t : mine_.steps[step].keys)
        if (t.sequence == queries.sequence && t.tokens.meets(keys)) pieces.push_back({t, step});
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.keys.tokens.begin < b.keys.tokens.begin; });
    PartLaunch launch;
    launch.whole = true;
    launch.segment = {queries.sequence, queries.row + rows.begin - queries.tokens.begin, rows.size(), 0, keys.size(), rows.begin,
                      keys.begin};
    std::int64_t at = keys.begin;
    for (const Piece& piece : pieces) {
      const Transfer& t = piece.keys;
      const std::int64_t begin = std::max(t.tokens.begin, keys.begin);
      if (begin != at || (begin - keys.begin) % Part::key_range_unit != 0) return std::nullopt;
      at = t.tokens.end;
      const Part::KeyRange place{.first = begin - keys.begin, .row = t.row + begin - t.tokens.begin, .received = piece.step > 0};
      launch.key_ranges.push_back({place, piece.step, t.source});
      launch.step = std::max(launch.step, piece.step);
    }
    if (at < keys.end || launch.key_ranges.empty() || launch.key_ranges.size() > Part::most_key_ranges) return std::nullopt;
    return launch;
  }

  const Workload& workload_;
  const RankPlan& mine_;
  const OrderRequest& request_;
};

/// Cuts off rows at both ends that need none of the segment's keys: under a window few rows of a chunk need another rank's.
Segment rows_that_need(const Workload& workload, Segment s) {
  const SequenceWork& of_one = *workload.sequences[static_cast<std::size_t>(s.sequence)];
  const std::int64_t unit = of_one.unit(), end = s.q_first + s.q_rows, kv_end = s.kv_first + s.kv_rows;
  std::int64_t first = end, last = s.q_first;
  for (std::int64_t q = s.q_first; q < end;) {
    const Range rows{q, std::min(end, (q / unit + 1) * unit)};
    const std::vector<KeyRun> runs = of_one.keys(rows);
    if (std::any_of(runs.begin(), runs.end(), [&](const KeyRun& run) { return run.kv.begin < kv_end && s.kv_first < run.kv.end; }))
      first = std::min(first, rows.begin), last = rows.end;
    q = rows.end;
  }
  if (first >= last) return s;
  const auto in_tiles = [&](std::int64_t rows) { return rows / Part::key_range_unit * Part::key_range_unit; };
  first = s.q_first + in_tiles(first - s.q_first);
  last = std::min(end, s.q_first + in_tiles(last - s.q_first + Part::key_range_unit - 1));
  s.q_row += first - s.q_first, s.q_first = first, s.q_rows = last - first;
  return s;
}

std::vector<PartLaunch> parts_of(const Workload& workload, const RankPlan& mine, const std::vector<Block>& blocks) {
  std::vector<PartLaunch> parts;
  for (std::size_t step = 0; step < mine.steps.size(); ++step)
    for (const std::vector<Segment>& launch : launches_of(blocks, mine.queries, mine.steps[step].keys))
      for (const Segment& segment : launch) {
        PartLaunch part;
        part.step = step, part.segment = rows_that_need(workload, segment);
        parts.push_back(std::move(part));
      }
  return parts;
}

bool is_closed(const Workload& workload, const Transfer& queries) {
  return queries.tokens == Range{0, workload.lengths_q[static_cast<std::size_t>(queries.sequence)]};
}

/// Packed sequences that this rank holds whole, neighbours in the shard in one call.
std::vector<PartLaunch> closed_launches(const Workload& workload, const RankPlan& mine) {
  std::vector<PartLaunch> launches;
  for (const Transfer& queries : mine.queries) {
    const std::int64_t length = workload.lengths_q[static_cast<std::size_t>(queries.sequence)];
    if (!is_closed(workload, queries)) continue;
    if (launches.empty() || launches.back().segment.q_row + launches.back().segment.q_rows != queries.row) {
      PartLaunch launch;
      launch.whole = true, launch.segment.q_row = launch.segment.kv_row = queries.row;
      launches.push_back(std::move(launch));
    }
    PartLaunch& launch = launches.back();
    launch.closed.push_back(length);
    launch.segment.q_rows += length, launch.segment.kv_rows += length;
  }
  return launches;
}

/// The first transfer_pairs overlap transfers; the launch across that limit is cut, so that the rest has the whole GPU.
void leave_multiprocessors(std::vector<PartLaunch>& launches, const Workload& workload, std::int64_t transfer_pairs) {
  constexpr std::int64_t unit = 128;
  std::int64_t begun = 0;
  for (std::size_t i = 0; i < launches.size() && launches[i].step == 0 && begun < transfer_pairs; ++i) {
    launches[i].beside_transfers = true;
    if (!launches[i].closed.empty()) {
      begun += pairs_of(workload, launches[i]);
      continue;
    }
    const std::int64_t pairs = pairs_of(workload, launches[i].segment);
    const std::int64_t rows = launches[i].segment.q_rows;
    const std::int64_t wanted = pairs > 0 ? rows * (transfer_pairs - begun) / pairs : rows;
    const std::int64_t first = base::round_up(wanted, unit);
    if (rows >= 4 * unit && first <= rows - unit) {
      PartLaunch rest = launches[i];
      launches[i].segment.q_rows = first;
      rest.beside_transfers = false;
      rest.segment.q_row += first, rest.segment.q_first += first, rest.segment.q_rows -= first;
      launches.insert(launches.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
    }
    begun += pairs_of(workload, launches[i].segment);
  }
}

/// Own launches that are not needed to hide the arrival of keys go to the end, where they hide the return of dk and dv.
void return_early(std::vector<PartLaunch>& launches, const Workload& workload, std::int64_t transfer_pairs) {
  const auto remote = std::find_if(launches.begin(), launches.end(), [](const PartLaunch& l) { return l.step > 0; });
  std::int64_t begun = 0;
  auto later = launches.begin();
  for (; later != remote && begun < transfer_pairs; ++later) begun += pairs_of(workload, *later);
  std::rotate(later, remote, launches.end());
}

/// Deals own launches to queues, each to the one where it can begin first by the pairs before it; closed ones stay in the first.
void deal_to_queues(std::vector<PartLaunch>& launches, const Workload& workload) {
  struct Placed {
    const PartLaunch* launch;
    std::int64_t end;
  };
  std::vector<Placed> placed;
  std::array<std::int64_t, own_queues> free{};  // when the queue's launches end
  for (PartLaunch& launch : launches) {
    if (launch.step > 0) continue;
    std::array<std::int64_t, own_queues> meets;  // when those that have rows in common with this one end; -1: none
    meets.fill(-1);
    for (const Placed& p : placed)
      if (p.launch->segment.rows().meets(launch.segment.rows()) || p.launch->segment.keys().meets(launch.segment.keys()))
        meets[p.launch->queue] = p.end;
    const std::int64_t last = *std::max_element(meets.begin(), meets.end());
    const auto begin = [&](std::size_t queue) { return std::max(free[queue], last); };
    std::size_t queue = 0;
    for (std::size_t other = 1; other < own_queues && launch.closed.empty(); ++other)
      if (begin(other) < begin(queue) || (begin(other) == begin(queue) && meets[other] > meets[queue])) queue = other;
    free[queue] = begin(queue) + pairs_of(workload, launch);
    placed.push_back({&launch, free[queue]});
    launch.queue = queue;
    for (std::size_t other = 0; other < own_queues; ++other) launch.follows[other] = other != queue && meets[other] >= 0;
  }
}

/// Launches with rows in common share their statistics, if one of them has all these rows and the others are aligned to tiles.
void keep_rows(PartOrder& order) {
  struct Group {
    Range rows;
    std::vector<std::size_t> launches;
  };
  std::vector<Group> groups;
  for (std::size_t i = 0; i < order.launches.size(); ++i) {
    const PartLaunch& launch = order.launches[i];
    if (!launch.closed.empty()) continue;
    Group joined{launch.segment.rows(), {i}};
    for (auto at = groups.begin(); at != groups.end();) {
      if (!at->rows.meets(joined.rows)) {
        ++at;
        continue;
      }
      joined.rows = {std::min(at->rows.begin, joined.rows.begin), std::max(at->rows.end, joined.rows.end)};
      joined.launches.insert(joined.launches.end(), at->launches.begin(), at->launches.end());
      at = groups.erase(at);
    }
    groups.push_back(std::move(joined));
  }
  for (Group& group : groups) {
    std::sort(group.launches.begin(), group.launches.end());
    const auto rows_of = [&](std::size_t i) { return order.launches[i].segment.rows(); };
    const auto whole =
        std::find_if(group.launches.rbegin(), group.launches.rend(), [&](std::size_t i) { return rows_of(i) == group.rows; });
    const bool in_tiles = std::all_of(group.launches.begin(), group.launches.end(), [&](std::size_t i) {
      const Range rows = rows_of(i);
      return (rows.begin - group.rows.begin) % Part::key_range_unit == 0 &&
             (rows.end == group.rows.end || (rows.end - group.rows.begin) % Part::key_range_unit == 0);
    });
    if (whole == group.launches.rend() || !in_tiles || group.launches.size() > Part::most_kept) continue;
    for (std::size_t n = 0; n < group.launches.size(); ++n) {
      PartLaunch& launch = order.launches[group.launches[n]];
      launch.kept = static_cast<int>(order.kept.size()), launch.kept_number = static_cast<std::uint32_t>(n);
    }
    order.kept.push_back({group.rows, *whole, group.launches.front(), group.launches.back()});
  }
}

/// Launches that are alone with own keys give their final gradients.
void find_whole_keys(PartOrder& order, const std::vector<Range>& sent) {
  for (std::size_t i = 0; i < order.launches.size(); ++i) {
    PartLaunch& launch = order.launches[i];
    const auto meets = [keys = launch.segment.keys()](const Range& other) { return other.meets(keys); };
    launch.whole_keys = launch.kept >= 0 && launch.step == 0 && std::none_of(sent.begin(), sent.end(), meets);
    for (std::size_t j = 0; j < order.launches.size(); ++j) {
      const PartLaunch& other = order.launches[j];
      if (j != i && other.step == 0 && meets(other.segment.keys())) launch.whole_keys = false;
    }
  }
}

/// The first launch of a row writes, later ones add; rows that no launch writes are cleared.
void find_accumulation(PartOrder& order, const RankPlan& mine, bool forward, std::int64_t shard_tokens) {
  Covered q, q_written, q_final, kv_final;
  std::vector<Covered> kv(mine.steps.size()), kv_written(mine.steps.size());
  for (PartLaunch& launch : order.launches) {
    const Segment& s = launch.segment;
    const Range rows = s.rows(), keys = s.keys();
    if (!launch.closed.empty()) q_written.add(rows);
    if (!launch.closed.empty() || launch.whole_keys) kv_final.add(keys), kv_written[0].add(keys);
    if (launch.whole) {
      q_final.add(rows);
      continue;
    }
    if (launch.kept >= 0) {
      q_final.add(rows), q_written.add(rows);
    } else {
      launch.adds_to_q = q.meets(rows);
      q.add(rows);
      if (!launch.adds_to_q) q_written.add(rows);
    }
    if (forward || launch.whole_keys) continue;
    launch.adds_to_kv = kv[launch.step].meets(keys);
    kv[launch.step].add(keys);
    if (!launch.adds_to_kv) kv_written[launch.step].add(keys);
  }
  order.merged_q = q_final.rest(mine.q_rows);
  order.clear_q = q_written.rest(mine.q_rows);
  order.summed_kv = kv_final.rest(shard_tokens);
  for (std::size_t step = 0; step < mine.steps.size(); ++step) order.clear_kv.push_back(kv_written[step].rest(mine.steps[step].rows));
}

}  // namespace

PartOrder part_order(const ContextPlan& plan, const Workload& workload, const RankPlan& mine, const OrderRequest& request) {
  PartOrder order;
  std::vector<PartLaunch> spread;
  std::vector<Block> others;  // of queries that need several parts
  const std::vector<Block>& blocks = plan.blocks[static_cast<std::size_t>(plan.group_of(mine.rank))];
  const WholeRows whole_rows(workload, mine, request);
  const bool any_whole = request.forward && request.whole_rows;
  if (request.closed_sequences) order.launches = closed_launches(workload, mine);
  if (!any_whole && !request.closed_sequences) others = blocks;
  for (const Transfer& queries : mine.queries) {
    if (!any_whole && !request.closed_sequences) break;
    if (request.closed_sequences && is_closed(workload, queries)) continue;
    std::optional<std::vector<PartLaunch>> whole;
    if (any_whole) whole = whole_rows.launches(queries);
    if (!whole) {
      for (const Block& block : blocks)
        if (block.sequence == queries.sequence && queries.tokens.begin <= block.q.begin && block.q.end <= queries.tokens.end)
          others.push_back(block);
      continue;
    }
    for (PartLaunch& launch : *whole) (launch.spread() ? spread : order.launches).push_back(std::move(launch));
  }
  for (PartLaunch& part : parts_of(workload, mine, others)) order.launches.push_back(std::move(part));
  std::stable_sort(order.launches.begin(), order.launches.end(), [](const PartLaunch& a, const PartLaunch& b) { return a.step < b.step; });
  if (request.leaves_multiprocessors) leave_multiprocessors(order.launches, workload, request.transfer_pairs);
  if (request.returns_early) return_early(order.launches, workload, request.transfer_pairs);
  for (PartLaunch& launch : spread) order.launches.push_back(std::move(launch));
  if (!request.forward) deal_to_queues(order.launches, workload);
  if (request.keeps_rows) keep_rows(order);
  if (request.whole_keys) find_whole_keys(order, request.sent);
  find_accumulation(order, mine, request.forward, plan.kv.tokens(mine.rank));
  return order;
}

}  // namespace foveal::dist
