#pragma once
// The text as tokens, cut into a training part and a validation part, and the batches drawn from them.
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer.h"

namespace gpt {

/// `targets[i]` is the token that follows `tokens[i]`; both [batch, context].
struct Batch {
  std::vector<std::int32_t> tokens, targets;
};

class Dataset {
 public:
  /// The last twentieth is for validation. Throws when a part is shorter than one context.
  Dataset(std::vector<std::int32_t> tokens, std::int64_t context);

  /// Batch number `step` of a run: a pure function of seed and step, so that a resumed run sees what the unbroken one would.
  Batch training(std::uint64_t seed, std::int64_t step, std::int64_t batch) const;
  /// Batch number `index` of the validation part, evenly spread over it: the same ones every time.
  Batch validation(std::int64_t index, std::int64_t count, std::int64_t batch) const;

  std::int64_t training_tokens() const { return split_; }
  std::int64_t validation_tokens() const { return static_cast<std::int64_t>(tokens_.size()) - split_; }

 private:
  void append(Batch& batch, std::int64_t begin) const;

  std::vector<std::int32_t> tokens_;
  std::int64_t context_, split_;
};

/// Throws when the file cannot be read.
std::string read_text(const std::string& path);

}  // namespace gpt
