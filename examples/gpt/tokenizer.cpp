#include "tokenizer.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace gpt {
namespace {

using Word = std::vector<std::int32_t>;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '\'' || static_cast<unsigned char>(c) >= 128; }

// A word is a run of letters with the blank before it; anything else is a word of one byte. Merges never cross words.
std::string_view next_word(std::string_view text) {
  std::size_t end = text[0] == ' ' && text.size() > 1 && is_letter(text[1]) ? 1 : 0;
  if (!is_letter(text[end])) return text.substr(0, 1);
  while (end < text.size() && is_letter(text[end])) ++end;
  return text.substr(0, end);
}

Word to_bytes(std::string_view word) {
  Word bytes;
  for (const char c : word) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

void join(Word& word, std::int32_t left, std::int32_t right, std::int32_t joined) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const bool match = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
    word[kept++] = match ? joined : word[i];
    i += match;
  }
  word.resize(kept);
}

}  // namespace

Tokenizer::Tokenizer(std::vector<Merge> merges) : merges_(std::move(merges)) {
  for (int byte = 0; byte < 256; ++byte) pieces_.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : merges_) {
    if (left < 0 || right < 0 || left >= size() || right >= size()) throw std::runtime_error("tokenizer: a merge names a later token");
    pieces_.push_back(pieces_[static_cast<std::size_t>(left)] + pieces_[static_cast<std::size_t>(right)]);
  }
}

Tokenizer Tokenizer::learn(std::string_view text, std::int64_t vocabulary) {
  std::unordered_map<std::string_view, std::int64_t> counts;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view word = next_word(text.substr(at));
    ++counts[word];
    at += word.size();
  }
  std::vector<std::pair<Word, std::int64_t>> words;
  words.reserve(counts.size());
  for (const auto& [word, count] : counts) words.emplace_back(to_bytes(word), count);

  // How often each pair stands side by side, and in which words; both are kept up to date as pairs are joined.
  std::unordered_map<std::uint64_t, std::int64_t> pairs;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> places;
  const auto tally = [&](std::size_t index, std::int64_t sign) {
    const auto& [word, count] = words[index];
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      const std::uint64_t key = pair_key(word[i], word[i + 1]);
      pairs[key] += sign * count;
      if (sign > 0) places[key].push_back(index);
    }
  };
  for (std::size_t index = 0; index < words.size(); ++index) tally(index, 1);

  std::vector<Merge> merges;
  while (256 + static_cast<std::int64_t>(merges.size()) < vocabulary) {
    const auto best = std::max_element(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second < b.second : a.first > b.first;  // a tie takes the smaller key: the result has one order
    });
    if (best == pairs.end() || best->second < 2) break;
    const Merge merge{static_cast<std::int32_t>(best->first >> 32), static_cast<std::int32_t>(best->first & 0xffffffffu)};
    const auto joined = static_cast<std::int32_t>(256 + merges.size());
    merges.push_back(merge);
    std::vector<std::size_t> touched = std::move(places[best->first]);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const std::size_t index : touched) {
      tally(index, -1);
      join(words[index].first, merge.left, merge.right, joined);
      tally(index, 1);
    }
    pairs.erase(pair_key(merge.left, merge.right));
  }
  return Tokenizer(std::move(merges));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::unordered_map<std::uint64_t, std::int32_t> joined;
  for (std::size_t i = 0; i < merges_.size(); ++i) joined[pair_key(merges_[i].left, merges_[i].right)] = static_cast<std::int32_t>(256 + i);

  std::unordered_map<std::string_view, Word> known;
  std::vector<std::int32_t> tokens;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view piece = next_word(text.substr(at));
    const auto [entry, is_new] = known.try_emplace(piece);
    Word& word = entry->second;
    if (is_new) {
      word = to_bytes(piece);
      for (;;) {  // the earliest learned merge first, as it was learned
        std::int32_t first = -1;
        for (std::size_t i = 0; i + 1 < word.size(); ++i) {
          const auto found = joined.find(pair_key(word[i], word[i + 1]));
          if (found != joined.end() && (first < 0 || found->second < first)) first = found->second;
        }
        if (first < 0) break;
        const Merge& merge = merges_[static_cast<std::size_t>(first - 256)];
        join(word, merge.left, merge.right, first);
      }
    }
    tokens.insert(tokens.end(), word.begin(), word.end());
    at += piece.size();
  }
  return tokens;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += pieces_.at(static_cast<std::size_t>(token));
  return text;
}

}  // namespace gpt
