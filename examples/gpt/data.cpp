#include "data.h"

#include <fmt/core.h>

#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace gpt {

Dataset::Dataset(std::vector<std::int32_t> tokens, std::int64_t context)
    : tokens_(std::move(tokens)), context_(context), split_(static_cast<std::int64_t>(tokens_.size()) / 20 * 19) {
  if (validation_tokens() <= context) {
    throw std::runtime_error(
        fmt::format("text: {} tokens; expected more than {} for a context of {}", tokens_.size(), 20 * context, context));
  }
}

void Dataset::append(Batch& batch, std::int64_t begin) const {
  const auto first = tokens_.begin() + begin;
  batch.tokens.insert(batch.tokens.end(), first, first + context_);
  batch.targets.insert(batch.targets.end(), first + 1, first + context_ + 1);
}

Batch Dataset::training(std::uint64_t seed, std::int64_t step, std::int64_t batch) const {
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), static_cast<std::uint32_t>(step)};
  std::mt19937_64 random(sequence);
  Batch result;
  for (std::int64_t i = 0; i < batch; ++i) {
    append(result, static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(split_ - context_)));
  }
  return result;
}

Batch Dataset::validation(std::int64_t index, std::int64_t count, std::int64_t batch) const {
  const std::int64_t room = validation_tokens() - context_ - 1;
  Batch result;
  for (std::int64_t i = index * batch; i < (index + 1) * batch; ++i) append(result, split_ + room * i / (count * batch));
  return result;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(fmt::format("text: cannot open '{}'", path));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) throw std::runtime_error(fmt::format("text: cannot read '{}'", path));
  return text;
}

}  // namespace gpt
