#include "dist/deal.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "base/divide.h"

namespace foveal::dist {
namespace {

using base::divide_up;

/// Border i of n equal parts of a length, on units.
std::int64_t border(std::int64_t length, std::int64_t unit, std::int64_t i, std::int64_t n) {
  return std::min(length, divide_up(length, unit) * i / n * unit);
}

/// Chunks that go to one group together: two of a causal sequence, whose work adds up to the same for every pair; else one.
struct Piece {
  std::int32_t sequence = 0;
  Range chunks[2];
  std::int64_t tokens = 0, work = 0;
  int group = -1;
};

std::int64_t work_of(const std::vector<const Workload*>& workloads, std::int32_t sequence, Range q) {
  std::int64_t work = 0;
  for (const Workload* w : workloads) work += w->work(sequence, q);
  return work;
}

std::vector<Piece> cut(const std::vector<const Workload*>& workloads, std::int32_t s, std::int64_t groups, std::int64_t total_work,
                       std::int64_t total_tokens, std::int64_t fraction) {
  const Workload& w = *workloads.front();
  const std::int64_t length = w.lengths_q[static_cast<std::size_t>(s)], units = divide_up(length, w.unit);
  std::vector<Piece> pieces;
  if (length == 0) return pieces;
  const auto chunks_of = [&](std::int64_t n) {
    std::vector<Range> chunks;
    for (std::int64_t i = 0; i < n; ++i)
      if (const Range c{border(length, w.unit, i, n), border(length, w.unit, i + 1, n)}; c.size() > 0) chunks.push_back(c);
    return chunks;
  };
  // Pieces small enough in work and in tokens.
  const std::int64_t share =
      std::max(divide_up(work_of(workloads, s, {0, length}) * fraction * groups, std::max<std::int64_t>(total_work, 1)),
               divide_up(length * fraction * groups, std::max<std::int64_t>(total_tokens, 1)));
  const std::int64_t n = std::clamp<std::int64_t>(2 * share, 1, units);
  const std::vector<Range> chunks = share <= 1 ? std::vector<Range>{{0, length}} : chunks_of(n);
  const auto work = [&](const Range& r) { return work_of(workloads, s, r); };
  // Two by two where that is more even: the first with the last.
  const std::size_t count = chunks.size();
  bool pairs = false;
  if (count >= 2) {
    std::int64_t low = work(chunks[0]), high = low, low_pair = -1, high_pair = -1;
    for (std::size_t i = 0; i < count; ++i) low = std::min(low, work(chunks[i])), high = std::max(high, work(chunks[i]));
    for (std::size_t i = 0; i < count / 2; ++i) {
      const std::int64_t both = work(chunks[i]) + work(chunks[count - 1 - i]);
      low_pair = low_pair < 0 ? both : std::min(low_pair, both), high_pair = std::max(high_pair, both);
    }
    pairs = (high_pair - low_pair) < (high - low);
  }
  if (!pairs) {
    for (const Range& c : chunks) pieces.push_back({s, {c, {}}, c.size(), work(c)});
    return pieces;
  }
  for (std::size_t i = 0; i < count / 2; ++i) {
    const Range &a = chunks[i], &b = chunks[count - 1 - i];
    pieces.push_back({s, {a, b}, a.size() + b.size(), work(a) + work(b)});
  }
  if (count % 2 == 1) pieces.push_back({s, {chunks[count / 2], {}}, chunks[count / 2].size(), work(chunks[count / 2])});
  return pieces;
}

class Dealer {
 public:
  Dealer(std::vector<Piece>& pieces, std::int64_t sequences, int groups, std::int64_t unit)
      : pieces_(pieces), groups_(static_cast<std::size_t>(groups)), load_(groups_, 0), tokens_(groups_, 0), held_(groups_) {
    std::int64_t work = 0, tokens = 0;
    for (const Piece& piece : pieces) work += piece.work, tokens += piece.tokens;
    mean_ = work / groups;
    cap_ = divide_up(divide_up(tokens, groups), unit) * unit;
    holders_.resize(static_cast<std::size_t>(sequences));
  }

  void deal() {
    std::vector<std::size_t> order(pieces_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::tie(pieces_[b].work, pieces_[a].sequence, pieces_[a].chunks[0].begin) <
             std::tie(pieces_[a].work, pieces_[b].sequence, pieces_[b].chunks[0].begin);
    });
    for (const std::size_t i : order) place(i, pieces_[i].work * 50 < mean_);
    swap_while_it_helps();
  }

 private:
  /// To the group of least load that has room; one that already has a piece of the sequence counts as less loaded. Small pieces level
  /// tokens.
  void place(std::size_t i, bool sand) {
    Piece& piece = pieces_[i];
    const std::vector<bool>& holders = holders_[static_cast<std::size_t>(piece.sequence)];
    std::size_t best = groups_, roomiest = 0;
    std::int64_t least = 0;
    for (std::size_t g = 0; g < groups_; ++g) {
      if (tokens_[g] < tokens_[roomiest]) roomiest = g;
      if (tokens_[g] + piece.tokens > cap_) continue;
      std::int64_t key = sand ? tokens_[g] : load_[g];
      if (sand && load_[g] + piece.work > mean_) key += cap_;  // full of work already
      if (!sand && !holders.empty() && holders[g] && load_[g] + piece.work <= mean_ / 100 * 97) key -= mean_ / 2;
      if (best == groups_ || key < least) best = g, least = key;
    }
    give(i, best == groups_ ? roomiest : best);
  }

  void give(std::size_t i, std::size_t group) {
    Piece& piece = pieces_[i];
    piece.group = static_cast<int>(group);
    load_[group] += piece.work, tokens_[group] += piece.tokens;
    held_[group].push_back(i);
    std::vector<bool>& holders = holders_[static_cast<std::size_t>(piece.sequence)];
    holders.resize(groups_);
    holders[group] = true;
  }

  /// Pieces of equal tokens change places between the most loaded group and one of the least loaded, where that lowers the larger load.
  void swap_while_it_helps() {
    std::vector<std::size_t> light(groups_);
    for (std::size_t round = 0; round < 4 * groups_; ++round) {
      std::size_t heavy = 0;
      for (std::size_t g = 0; g < groups_; ++g) {
        light[g] = g;
        if (load_[g] > load_[heavy]) heavy = g;
      }
      if (load_[heavy] * 1000 <= mean_ * 1001) return;
      const std::size_t few = std::min<std::size_t>(8, groups_);
      std::partial_sort(light.begin(), light.begin() + static_cast<std::ptrdiff_t>(few), light.end(),
                        [&](std::size_t a, std::size_t b) { return std::tie(load_[a], a) < std::tie(load_[b], b); });
      std::int64_t best = load_[heavy];
      std::size_t best_a = 0, best_b = 0, with = heavy;
      for (std::size_t l = 0; l < few; ++l) {
        const std::size_t other = light[l];
        if (other == heavy) continue;
        auto& theirs = held_[other];
        const auto less = [&](std::size_t a, std::size_t b) {
          return std::tie(pieces_[a].tokens, pieces_[a].work, a) < std::tie(pieces_[b].tokens, pieces_[b].work, b);
        };
        std::sort(theirs.begin(), theirs.end(), less);
        for (std::size_t a = 0; a < held_[heavy].size(); ++a) {
          const Piece& mine = pieces_[held_[heavy][a]];
          const std::int64_t wanted = mine.work - (load_[heavy] - load_[other]) / 2;
          auto b = std::lower_bound(theirs.begin(), theirs.end(), std::tuple(mine.tokens, wanted),
                                    [&](std::size_t i, const auto& key) { return std::tuple(pieces_[i].tokens, pieces_[i].work) < key; });
          for (int candidate = 0; candidate < 2; ++candidate, --b) {
            if (b != theirs.end() && pieces_[*b].tokens == mine.tokens) {
              const std::int64_t moved = mine.work - pieces_[*b].work;
              const std::int64_t larger = std::max(load_[heavy] - moved, load_[other] + moved);
              if (moved > 0 && larger < best)
                best = larger, best_a = a, best_b = static_cast<std::size_t>(b - theirs.begin()), with = other;
            }
            if (b == theirs.begin()) break;
          }
        }
        if (with == other) {  // positions refer to the order just made
          const std::int64_t moved = pieces_[held_[heavy][best_a]].work - pieces_[theirs[best_b]].work;
          std::swap(held_[heavy][best_a], theirs[best_b]);
          pieces_[held_[heavy][best_a]].group = static_cast<int>(heavy), pieces_[theirs[best_b]].group = static_cast<int>(other);
          load_[heavy] -= moved, load_[other] += moved;
          break;
        }
      }
      if (with == heavy) return;
    }
  }

  std::vector<Piece>& pieces_;
  std::size_t groups_;
  std::vector<std::int64_t> load_, tokens_;
  std::vector<std::vector<std::size_t>> held_;  ///< pieces of each group
  std::vector<std::vector<bool>> holders_;      ///< groups that have a piece of a sequence
  std::int64_t mean_ = 0, cap_ = 0;
};

}  // namespace

Dealt deal_contiguous(const std::vector<std::int64_t>& lengths, std::int64_t unit, int groups) {
  std::int64_t units = 0;
  for (const std::int64_t length : lengths) units += divide_up(length, unit);
  Dealt dealt;
  std::int64_t before = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const std::int64_t here = divide_up(lengths[s], unit);
    for (std::int64_t at = 0; at < here;) {
      const std::int64_t group =
          ((before + at + 1) * groups - 1) / std::max<std::int64_t>(units, 1);  // its range is [units g / groups, units (g + 1) / groups)
      const std::int64_t end = std::min(here, units * (group + 1) / groups - before);
      dealt.chunks.push_back(
          {static_cast<std::int32_t>(s), static_cast<std::int32_t>(group), {at * unit, std::min(lengths[s], end * unit)}, 0});
      at = end;
    }
    before += here;
  }
  return dealt;
}

Dealt deal_zigzag(const std::vector<std::int64_t>& lengths, std::int64_t unit, int groups) {
  Dealt dealt;
  for (std::size_t s = 0; s < lengths.size(); ++s)
    for (std::int64_t i = 0; i < 2 * std::int64_t{groups}; ++i) {
      const Range tokens{border(lengths[s], unit, i, 2 * std::int64_t{groups}), border(lengths[s], unit, i + 1, 2 * std::int64_t{groups})};
      const auto owner = static_cast<std::int32_t>(i < groups ? i : 2 * std::int64_t{groups} - 1 - i);
      if (tokens.size() > 0) dealt.chunks.push_back({static_cast<std::int32_t>(s), owner, tokens, 0});
    }
  return dealt;
}

Dealt deal_pieces(const std::vector<const Workload*>& workloads, int groups, int fraction) {
  const Workload& w = *workloads.front();
  std::int64_t work = 0, tokens = 0;
  for (std::size_t s = 0; s < w.sequences.size(); ++s) {
    work += work_of(workloads, static_cast<std::int32_t>(s), {0, w.lengths_q[s]});
    tokens += w.lengths_q[s];
  }
  std::vector<Piece> pieces;
  for (std::size_t s = 0; s < w.sequences.size(); ++s) {
    const std::vector<Piece> of_one = cut(workloads, static_cast<std::int32_t>(s), groups, work, tokens, fraction);
    pieces.insert(pieces.end(), of_one.begin(), of_one.end());
  }
  Dealer(pieces, static_cast<std::int64_t>(w.sequences.size()), groups, w.unit).deal();
  Dealt dealt;
  for (const Piece& piece : pieces) {
    dealt.largest_piece = std::max(dealt.largest_piece, piece.work);
    for (const Range& tokens_of : piece.chunks)
      if (tokens_of.size() > 0) dealt.chunks.push_back({piece.sequence, piece.group, tokens_of, 0});
  }
  return dealt;
}

std::vector<Chunk> cut_for_members(const std::vector<std::int64_t>& lengths, const std::vector<Chunk>& chunks, std::int64_t unit,
                                   int groups, int members) {
  if (members == 1) return chunks;
  const Layout layout(lengths, chunks, groups);
  std::vector<Chunk> cut;
  for (int group = 0; group < groups; ++group) {
    std::int64_t units = 0, before = 0;
    for (const Chunk& chunk : layout.shard(group)) units += divide_up(chunk.tokens.size(), unit);
    for (const Chunk& chunk : layout.shard(group)) {
      const std::int64_t here = divide_up(chunk.tokens.size(), unit);
      for (std::int64_t at = 0; at < here; ++at) {
        const auto member = static_cast<std::int32_t>((before + at) * members / std::max<std::int64_t>(units, 1));
        Chunk part = chunk;
        part.owner = group * members + member;
        part.tokens = {chunk.tokens.begin + at * unit, std::min(chunk.tokens.end, chunk.tokens.begin + (at + 1) * unit)};
        cut.push_back(part);  // neighbours of one owner become one chunk in the layout
      }
      before += here;
    }
  }
  return cut;
}

}  // namespace foveal::dist
