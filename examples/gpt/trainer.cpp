#include "trainer.h"

#include <limits>

namespace gpt {

Checkpoint start(const Config& config, std::uint64_t seed, const Tokenizer& tokenizer) {
  Checkpoint state{.config = config,
                   .seed = seed,
                   .merges = tokenizer.merges(),
                   .history = {},
                   .parameters = initial_parameters(config, seed),
                   .mean = {},
                   .square = {}};
  state.mean.resize(state.parameters.size());
  state.square.resize(state.parameters.size());
  return state;
}

void train(Checkpoint& state, const Dataset& data, const TrainingOptions& options, const std::function<void(const Progress&)>& report) {
  Model<float> model(state.config, options.batch, options.attention, make_machine(options.place), std::move(state.parameters),
                     options.ranks);
  const Ranks& ranks = options.ranks;
  const std::int64_t context = state.config.context;
  Adam adam(0);
  adam.mean = std::move(state.mean);
  adam.square = std::move(state.square);
  const std::int64_t end = options.stop_after > 0 ? std::min(options.stop_after, options.schedule.steps) : options.schedule.steps;
  while (state.step < end) {
    const Batch batch = ranks.shard(data.training(state.seed, state.step, options.batch), context);
    Progress progress{state.step + 1, ranks.mean(model.forward(batch)), std::numeric_limits<double>::quiet_NaN()};
    model.backward(batch);
    ranks.mean(model.gradients());
    adam.update(model.parameters(), model.gradients(), options.schedule.rate(state.step), state.step);
    ++state.step;
    if (state.step % options.validate_every == 0 || state.step == end) {
      progress.validation = 0;
      for (std::int64_t i = 0; i < options.validation_batches; ++i) {
        const Batch unseen = ranks.shard(data.validation(i, options.validation_batches, options.batch), context);
        progress.validation += ranks.mean(model.forward(unseen)) / static_cast<double>(options.validation_batches);
      }
    }
    state.history.push_back(progress);
    report(progress);
  }
  state.parameters = std::move(model.parameters());
  state.mean = std::move(adam.mean);
  state.square = std::move(adam.square);
}

}  // namespace gpt
