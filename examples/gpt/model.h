#pragma once
// A GPT: token embedding, blocks of causal attention and a GELU layer with residual paths, and the embedding again as the output layer.
// The trainable bias in the score of its attention is its only positional encoding.
#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "data.h"
#include "ranks.h"

namespace gpt {

struct Config {
  std::int64_t vocabulary = 1024;
  std::int64_t width = 192;
  std::int64_t layers = 6;
  std::int64_t heads = 6;
  std::int64_t context = 256;
  std::int64_t reach = 128;  ///< distances beyond this share one bias

  std::int64_t head_dim() const { return width / heads; }
  std::int64_t hidden() const { return 4 * width; }
  AttentionShape attention(std::int64_t batch) const { return {batch, context, heads, head_dim(), reach}; }
  /// Throws when the sizes do not fit together.
  void validate() const;
  friend bool operator==(const Config&, const Config&) = default;
};

/// Where each parameter lies in one flat array: the same for the parameters, their gradients and the state of the optimizer.
template <class T>
struct Parameters {
  struct Block {
    T *norm1_gain, *norm1_shift, *qkv, *bias, *projection, *norm2_gain, *norm2_shift, *up, *down;
  };
  T *embedding, *norm_gain, *norm_shift;
  std::vector<Block> blocks;

  Parameters(const Config& config, T* base);
};
std::int64_t count_parameters(const Config& config);
/// Normal weights, scaled down on the residual paths; gains 1, shifts and biases 0.
std::vector<float> initial_parameters(const Config& config, std::uint64_t seed);

template <class T>
class Model {
 public:
  /// Computes on the machine; parameters and gradients are the host's. ranks: who shares the sequences; batches are this one's shards.
  Model(const Config& config, std::int64_t batch, AttentionKind kind, std::unique_ptr<Machine<T>> machine, std::vector<T> parameters,
        const Ranks& ranks = {});

  /// The mean loss in nats per token; keeps what backward() needs.
  double forward(const Batch& batch);
  /// Writes gradients() for the batch of the last forward().
  void backward(const Batch& batch);

  const Config& config() const { return config_; }
  std::vector<T>& parameters() { return parameters_; }
  const std::vector<T>& parameters() const { return parameters_; }
  std::vector<T>& gradients() { return gradients_; }
  const std::vector<T>& gradients() const { return gradients_; }

 private:
  struct Activations {
    T *input, *mean1, *rstd1, *norm1, *qkv, *attended, *middle, *mean2, *rstd2, *norm2, *up, *active;
    std::unique_ptr<AttentionLayer<T>> attention;
  };

  Config config_;
  std::int64_t rows_;  // batch * context, of this rank
  std::unique_ptr<Machine<T>> machine_;
  std::vector<T> parameters_, gradients_;
  T *parameters_there_, *gradients_there_;  // on the machine, as everything below
  std::vector<Activations> layers_;
  T *output_, *mean_, *rstd_, *norm_, *logits_;
  T *dx_, *dwidth_, *dqkv_, *dhidden_;
};

}  // namespace gpt
