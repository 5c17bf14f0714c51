#pragma once
// The training loop: from a starting state through the steps of a schedule, with a report after each step.
#include <functional>

#include "adam.h"
#include "checkpoint.h"
#include "data.h"
#include "model.h"

namespace gpt {

struct TrainingOptions {
  std::int64_t batch = 4;
  Schedule schedule;
  std::int64_t validate_every = 25;  ///< steps
  std::int64_t validation_batches = 6;
  AttentionKind attention = AttentionKind::fused;
  Place place = Place::host;
  std::int64_t stop_after = 0;  ///< 0: at the schedule's end
  Ranks ranks{};                ///< who shares each sequence
};

/// A fresh run of this seed.
Checkpoint start(const Config& config, std::uint64_t seed, const Tokenizer& tokenizer);

/// Trains `state` on, in place. `report` sees each row of the history as it is added.
void train(Checkpoint& state, const Dataset& data, const TrainingOptions& options, const std::function<void(const Progress&)>& report);

}  // namespace gpt
