#pragma once
// Which rank holds which tokens. The axis of tokens is a list of sequences (a single one for a dense batch, whose rows are cut alike).
// Chunks of it are dealt to ranks; a rank's chunks, in the order of the axis, are its shard.
#include <cstdint>
#include <vector>

namespace foveal::dist {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Tokens [begin, end) of a sequence, with one owner.
struct Chunk {
  std::int32_t sequence = 0, owner = 0;
  Range tokens;
  std::int64_t place = 0;  ///< row in the owner's shard
};

class Layout {
 public:
  Layout() = default;
  /// chunks: of every sequence all tokens, each once, in any order; `place` is found here. Neighbours of one owner become one chunk.
  Layout(std::vector<std::int64_t> lengths, std::vector<Chunk> chunks, int ranks);

  int ranks() const { return static_cast<int>(shards_.size()); }
  const std::vector<std::int64_t>& lengths() const { return lengths_; }  ///< of the sequences
  const std::vector<Chunk>& chunks() const { return chunks_; }           ///< in the order of the axis
  const std::vector<Chunk>& shard(int rank) const { return shards_[static_cast<std::size_t>(rank)]; }
  std::int64_t tokens(int rank) const { return tokens_[static_cast<std::size_t>(rank)]; }
  std::int64_t total() const { return first_.back(); }
  /// Where a sequence begins on the axis.
  std::int64_t first(std::int32_t sequence) const { return first_[static_cast<std::size_t>(sequence)]; }

  /// The parts of chunks that cover these tokens of a sequence, in order.
  std::vector<Chunk> owners(std::int32_t sequence, Range tokens) const;
  /// For each row of a rank's shard its token of the axis.
  std::vector<std::int64_t> tokens_of(int rank) const;
  /// For each token of the axis its row in the concatenated shards: the inverse of tokens_of over all ranks.
  std::vector<std::int64_t> places() const;

 private:
  std::vector<std::int64_t> lengths_, first_{0}, tokens_;
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> chunk_begin_;  ///< of each sequence, in chunks_
  std::vector<std::vector<Chunk>> shards_;
};

}  // namespace foveal::dist
