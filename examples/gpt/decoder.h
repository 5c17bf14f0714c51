#pragma once
// Text from a trained model, one token at a time: keys and values of earlier tokens are kept, and each new token is one query at its
// global position. The bias knows only distances, so a text may grow beyond the context that the model was trained with.
#include <cstdint>
#include <vector>

#include "model.h"

namespace gpt {

class Decoder {
 public:
  Decoder(const Config& config, const std::vector<float>& parameters, std::int64_t capacity);

  /// The logits of the token that follows. Throws when there is no room left.
  const std::vector<float>& next(std::int32_t token);

 private:
  Config config_;
  const std::vector<float>& parameters_;
  std::int64_t capacity_, position_ = 0;
  std::vector<std::vector<float>> cache_;  // for each layer [capacity, 2, width]: keys and values
  std::vector<float> logits_;
};

/// Draws `count` tokens after the prompt: softmax(logits / temperature) of the `candidates` likeliest.
std::vector<std::int32_t> sample(const Config& config, const std::vector<float>& parameters, const std::vector<std::int32_t>& prompt,
                                 std::int64_t count, std::uint64_t seed, double temperature = 0.8, std::size_t candidates = 40);

}  // namespace gpt
