#pragma once
// Word pieces by byte-pair encoding, learned from the text itself: tokens 0..255 are the bytes, every further one joins two earlier ones.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

class Tokenizer {
 public:
  struct Merge {
    std::int32_t left, right;
  };

  /// Bytes only.
  Tokenizer() : Tokenizer(std::vector<Merge>{}) {}
  explicit Tokenizer(std::vector<Merge> merges);

  /// Joins the most frequent pair inside words, again and again, until there are `vocabulary` tokens or nothing repeats.
  static Tokenizer learn(std::string_view text, std::int64_t vocabulary);

  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::int32_t>& tokens) const;

  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  const std::vector<Merge>& merges() const { return merges_; }

 private:
  std::vector<Merge> merges_;
  std::vector<std::string> pieces_;  // the bytes that each token stands for
};

}  // namespace gpt
