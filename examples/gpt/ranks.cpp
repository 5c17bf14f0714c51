#include "ranks.h"

#include <fmt/core.h>

#include <stdexcept>

namespace gpt {

Ranks::Ranks(std::shared_ptr<foveal::dist::Transport> transport, std::int64_t context) : transport_(std::move(transport)) {
  if (context % (2 * size()) != 0)
    throw std::runtime_error(fmt::format("context: {} on {} processes; expected a multiple of {}", context, size(), 2 * size()));
}

Batch Ranks::shard(const Batch& batch, std::int64_t context) const {
  if (size() == 1) return batch;
  const std::vector<std::int64_t> mine = foveal::dist::tokens_of(context, size(), rank(), "zigzag", unit(context));
  Batch part;
  for (std::size_t row = 0; row < batch.tokens.size(); row += static_cast<std::size_t>(context)) {
    for (const std::int64_t token : mine) {
      part.tokens.push_back(batch.tokens[row + static_cast<std::size_t>(token)]);
      part.targets.push_back(batch.targets[row + static_cast<std::size_t>(token)]);
    }
  }
  return part;
}

void Ranks::mean(std::vector<float>& values) const {
  if (size() == 1) return;
  const std::size_t count = values.size(), ranks = static_cast<std::size_t>(size());
  std::vector<float> all(count * ranks);
  transport_->all_gather(values.data(), count * sizeof(float), all.data());
  for (std::size_t i = 0; i < count; ++i) {
    double sum = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) sum += all[rank * count + i];
    values[i] = static_cast<float>(sum / static_cast<double>(ranks));
  }
}

double Ranks::mean(double value) const {
  if (size() == 1) return value;
  std::vector<double> all(static_cast<std::size_t>(size()));
  transport_->all_gather(&value, sizeof value, all.data());
  double sum = 0;
  for (const double of_rank : all) sum += of_rank;
  return sum / size();
}

}  // namespace gpt
