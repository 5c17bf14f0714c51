#include "dist/layout.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace foveal::dist {

Layout::Layout(std::vector<std::int64_t> lengths, std::vector<Chunk> chunks, int ranks)
    : lengths_(std::move(lengths)), tokens_(static_cast<std::size_t>(ranks), 0), shards_(static_cast<std::size_t>(ranks)) {
  for (const std::int64_t length : lengths_) first_.push_back(first_.back() + length);
  std::sort(chunks.begin(), chunks.end(),
            [](const Chunk& a, const Chunk& b) { return std::tie(a.sequence, a.tokens.begin) < std::tie(b.sequence, b.tokens.begin); });
  for (const Chunk& chunk : chunks) {
    if (chunk.tokens.size() == 0) continue;
    if (!chunks_.empty()) {
      Chunk& before = chunks_.back();
      if (before.sequence == chunk.sequence && before.owner == chunk.owner && before.tokens.end == chunk.tokens.begin) {
        before.tokens.end = chunk.tokens.end;
        continue;
      }
    }
    chunks_.push_back(chunk);
  }
  chunk_begin_.assign(lengths_.size() + 1, chunks_.size());
  for (std::size_t i = chunks_.size(); i-- > 0;) chunk_begin_[static_cast<std::size_t>(chunks_[i].sequence)] = i;
  for (std::size_t s = lengths_.size(); s-- > 0;) {  // sequences without tokens have no chunk
    if (lengths_[s] == 0) chunk_begin_[s] = chunk_begin_[s + 1];
    std::int64_t next = 0;
    for (std::size_t i = chunk_begin_[s]; i < chunk_begin_[s + 1]; ++i) {
      FOVEAL_CHECK(chunks_[i].tokens.begin == next, "layout: sequence ", s, " has a gap or an overlap at token ", next);
      next = chunks_[i].tokens.end;
    }
    FOVEAL_CHECK(next == lengths_[s], "layout: sequence ", s, " is dealt up to token ", next, "; expected ", lengths_[s]);
  }
  for (Chunk& chunk : chunks_) {
    const auto owner = static_cast<std::size_t>(chunk.owner);
    chunk.place = tokens_[owner];
    tokens_[owner] += chunk.tokens.size();
    shards_[owner].push_back(chunk);
  }
}

std::vector<Chunk> Layout::owners(std::int32_t sequence, Range tokens) const {
  std::vector<Chunk> pieces;
  const auto s = static_cast<std::size_t>(sequence);
  const auto begin = chunks_.begin() + static_cast<std::ptrdiff_t>(chunk_begin_[s]);
  const auto end = chunks_.begin() + static_cast<std::ptrdiff_t>(chunk_begin_[s + 1]);
  auto chunk = std::upper_bound(begin, end, tokens.begin, [](std::int64_t token, const Chunk& c) { return token < c.tokens.end; });
  for (; chunk != end && chunk->tokens.begin < tokens.end; ++chunk) {
    Chunk piece = *chunk;
    piece.tokens = {std::max(chunk->tokens.begin, tokens.begin), std::min(chunk->tokens.end, tokens.end)};
    piece.place += piece.tokens.begin - chunk->tokens.begin;
    pieces.push_back(piece);
  }
  return pieces;
}

std::vector<std::int64_t> Layout::tokens_of(int rank) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(static_cast<std::size_t>(this->tokens(rank)));
  for (const Chunk& chunk : shard(rank))
    for (std::int64_t t = chunk.tokens.begin; t < chunk.tokens.end; ++t) tokens.push_back(first(chunk.sequence) + t);
  return tokens;
}

std::vector<std::int64_t> Layout::places() const {
  std::vector<std::int64_t> places(static_cast<std::size_t>(total()));
  std::int64_t place = 0;
  for (int rank = 0; rank < ranks(); ++rank)
    for (const std::int64_t token : tokens_of(rank)) places[static_cast<std::size_t>(token)] = place++;
  return places;
}

}  // namespace foveal::dist
