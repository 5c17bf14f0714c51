#include "dist/steps.h"

#include <algorithm>
#include <tuple>

namespace foveal::dist {
namespace {

/// The part of a block's keys that lies in a run of a step's buffer.
struct NextStep {
  Segment segment;
  bool taken = false;
};

/// Pieces of a buffer that are neighbours in the sequence and in the buffer.
std::vector<Transfer> runs_of(const std::vector<Transfer>& transfers) {
  std::vector<Transfer> runs;
  for (const Transfer& t : transfers) {
    if (!runs.empty()) {
      Transfer& before = runs.back();
      if (before.sequence == t.sequence && before.tokens.end == t.tokens.begin && before.row + before.tokens.size() == t.row) {
        before.tokens.end = t.tokens.end;
        continue;
      }
    }
    runs.push_back(t);
  }
  return runs;
}

}  // namespace

std::vector<std::vector<Segment>> launches_of(const std::vector<Block>& blocks, const std::vector<Transfer>& queries,
                                              const std::vector<Transfer>& keys) {
  const std::vector<Transfer> q_runs = runs_of(queries), kv_runs = runs_of(keys);
  std::vector<NextStep> candidates;
  // Blocks ascend by sequence and queries; those of one run of queries stand together, full and partial ones side by side.
  for (std::size_t i = 0; i < blocks.size();) {
    Block block = blocks[i];
    for (++i; i < blocks.size() && blocks[i].sequence == block.sequence && blocks[i].q == block.q && blocks[i].kv.begin == block.kv.end;
         ++i)
      block.kv.end = blocks[i].kv.end;
    const auto q = std::find_if(q_runs.begin(), q_runs.end(), [&](const Transfer& t) {
      return t.sequence == block.sequence && t.tokens.begin <= block.q.begin && block.q.end <= t.tokens.end;
    });
    const auto first = std::upper_bound(kv_runs.begin(), kv_runs.end(), std::tuple(block.sequence, block.kv.begin),
                                        [](const auto& key, const Transfer& t) { return key < std::tuple(t.sequence, t.tokens.end); });
    for (auto kv = first; kv != kv_runs.end() && kv->sequence == block.sequence && kv->tokens.begin < block.kv.end; ++kv) {
      const Range range{std::max(kv->tokens.begin, block.kv.begin), std::min(kv->tokens.end, block.kv.end)};
      Segment segment{block.sequence, q->row + block.q.begin - q->tokens.begin,
                      block.q.size(), kv->row + range.begin - kv->tokens.begin,
                      range.size(),   block.q.begin,
                      range.begin};
      candidates.push_back({segment});
    }
  }
  std::vector<std::vector<Segment>> launches;
  for (std::size_t left = candidates.size(); left > 0;) {
    std::vector<Segment>& launch = launches.emplace_back();
    std::int64_t q_end = 0, kv_end = 0;
    for (NextStep& c : candidates) {
      if (c.taken || c.segment.q_row < q_end || c.segment.kv_row < kv_end) continue;
      c.taken = true, --left;
      launch.push_back(c.segment);
      q_end = c.segment.q_row + c.segment.q_rows, kv_end = c.segment.kv_row + c.segment.kv_rows;
    }
  }
  return launches;
}

std::vector<Need> needs_of(const std::vector<Block>& blocks) {
  std::vector<Need> needs;
  needs.reserve(blocks.size());
  for (const Block& block : blocks) needs.push_back({block.sequence, block.kv});
  std::sort(needs.begin(), needs.end(), [](const Need& a, const Need& b) {
    return std::tie(a.sequence, a.kv.begin, a.kv.end) < std::tie(b.sequence, b.kv.begin, b.kv.end);
  });
  std::size_t count = 0;
  for (const Need& need : needs) {
    if (count > 0 && needs[count - 1].sequence == need.sequence && need.kv.begin <= needs[count - 1].kv.end)
      needs[count - 1].kv.end = std::max(needs[count - 1].kv.end, need.kv.end);
    else
      needs[count++] = need;
  }
  needs.resize(count);
  return needs;
}

int step_of(const ContextPlan& plan, int rank, int owner) {
  const int groups = plan.groups();
  const int distance = (plan.group_of(rank) - plan.group_of(owner) + groups) % groups;  // the group before this one comes first
  return distance == 0 ? 0 : 1 + static_cast<int>(std::int64_t{distance - 1} * plan.remote_steps / (groups - 1));
}

RankPlan rank_plan(const ContextPlan& plan, int rank) {
  RankPlan mine;
  mine.rank = rank;
  const int group = plan.group_of(rank);
  for (int member = 0; member < plan.head_groups; ++member)
    for (const Chunk& chunk : plan.q.shard(group * plan.head_groups + member))
      mine.queries.push_back({chunk.owner, chunk.sequence, chunk.tokens, chunk.place, 0});
  std::sort(mine.queries.begin(), mine.queries.end(), [](const Transfer& a, const Transfer& b) {
    return std::tie(a.sequence, a.tokens.begin) < std::tie(b.sequence, b.tokens.begin);
  });
  for (Transfer& t : mine.queries) t.row = mine.q_rows, mine.q_rows += t.tokens.size();

  const std::vector<Block>& blocks = plan.blocks[static_cast<std::size_t>(group)];
  mine.steps.resize(plan.groups() == 1 ? 1 : static_cast<std::size_t>(1 + plan.remote_steps));
  for (const Need& need : needs_of(blocks))
    for (const Chunk& piece : plan.kv.owners(need.sequence, need.kv)) {
      Step& step = mine.steps[static_cast<std::size_t>(step_of(plan, rank, piece.owner))];
      step.keys.push_back({piece.owner, piece.sequence, piece.tokens, piece.place, step.rows});
      step.rows += piece.tokens.size();
    }
  for (Step& step : mine.steps) step.launches = launches_of(blocks, mine.queries, step.keys);
  return mine;
}

}  // namespace foveal::dist
