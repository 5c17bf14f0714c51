#include "model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <type_traits>

namespace gpt {
namespace {

std::vector<std::pair<float*, std::int64_t>> weight_matrices(const Config& c, Parameters<float>& p) {
  std::vector<std::pair<float*, std::int64_t>> matrices{{p.embedding, c.vocabulary * c.width}};
  for (const auto& block : p.blocks) {
    matrices.insert(matrices.end(), {{block.qkv, 3 * c.width * c.width},
                                     {block.projection, c.width * c.width},
                                     {block.up, c.hidden() * c.width},
                                     {block.down, c.hidden() * c.width}});
  }
  return matrices;
}

}  // namespace

void Config::validate() const {
  if (std::min({vocabulary, width, layers, heads, context, reach}) < 1 || width % heads != 0) {
    throw std::runtime_error(
        fmt::format("model: width {}, heads {}, layers {}, context {}, reach {}; expected positive sizes and a width that heads divides",
                    width, heads, layers, context, reach));
  }
}

template <class T>
Parameters<T>::Parameters(const Config& c, T* base) {
  const auto take = [&base](std::int64_t size) {
    T* const begin = base;
    base += size;
    return begin;
  };
  embedding = take(c.vocabulary * c.width);
  norm_gain = take(c.width);
  norm_shift = take(c.width);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    blocks.push_back({.norm1_gain = take(c.width),
                      .norm1_shift = take(c.width),
                      .qkv = take(3 * c.width * c.width),
                      .bias = take(c.attention(1).bias_size()),
                      .projection = take(c.width * c.width),
                      .norm2_gain = take(c.width),
                      .norm2_shift = take(c.width),
                      .up = take(c.hidden() * c.width),
                      .down = take(c.hidden() * c.width)});
  }
}

std::int64_t count_parameters(const Config& c) {
  const std::int64_t block = 4 * c.width + c.attention(1).bias_size() + 4 * c.width * c.width + 2 * c.hidden() * c.width;
  return c.vocabulary * c.width + 2 * c.width + c.layers * block;
}

std::vector<float> initial_parameters(const Config& config, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count_parameters(config)));
  Parameters<float> p(config, values.data());
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (const auto& [weights, size] : weight_matrices(config, p)) std::generate_n(weights, size, [&] { return normal(random); });
  const float residual = 1.0f / std::sqrt(2.0f * static_cast<float>(config.layers));
  std::fill_n(p.norm_gain, config.width, 1.0f);
  for (const auto& block : p.blocks) {
    std::fill_n(block.norm1_gain, config.width, 1.0f);
    std::fill_n(block.norm2_gain, config.width, 1.0f);
    std::for_each_n(block.projection, config.width * config.width, [&](float& w) { w *= residual; });
    std::for_each_n(block.down, config.hidden() * config.width, [&](float& w) { w *= residual; });
  }
  return values;
}

template <class T>
Model<T>::Model(const Config& config, std::int64_t batch, AttentionKind kind, std::unique_ptr<Machine<T>> machine,
                std::vector<T> parameters, const Ranks& ranks)
    : config_(config),
      rows_(batch * config.context / ranks.size()),
      machine_(std::move(machine)),
      parameters_(std::move(parameters)),
      gradients_(parameters_.size()) {
  config.validate();
  parameters_there_ = machine_->allocate(count_parameters(config));
  gradients_there_ = machine_->allocate(count_parameters(config));
  const auto attention = [&]() -> std::unique_ptr<AttentionLayer<T>> {
    if constexpr (std::is_same_v<T, float>)
      if (ranks.size() > 1) return make_shared_attention(config.attention(batch), *machine_, ranks);
    return make_attention<T>(kind, config.attention(batch), *machine_);
  };
  const auto sized = [this](std::int64_t width) { return machine_->allocate(rows_ * width); };
  const std::int64_t width = config.width, hidden = config.hidden();
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers_.push_back({.input = sized(width),
                       .mean1 = sized(1),
                       .rstd1 = sized(1),
                       .norm1 = sized(width),
                       .qkv = sized(3 * width),
                       .attended = sized(width),
                       .middle = sized(width),
                       .mean2 = sized(1),
                       .rstd2 = sized(1),
                       .norm2 = sized(width),
                       .up = sized(hidden),
                       .active = sized(hidden),
                       .attention = attention()});
  }
  output_ = sized(width), mean_ = sized(1), rstd_ = sized(1), norm_ = sized(width), logits_ = sized(config.vocabulary);
  dx_ = sized(width), dwidth_ = sized(width), dqkv_ = sized(3 * width), dhidden_ = sized(hidden);
}

template <class T>
double Model<T>::forward(const Batch& batch) {
  Machine<T>& m = *machine_;
  m.write(parameters_there_, parameters_);
  const Parameters<T> p(config_, parameters_there_);
  const std::int64_t width = config_.width, hidden = config_.hidden(), size = rows_ * width;
  m.embed(layers_.front().input, p.embedding, batch.tokens, width);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& w = p.blocks[i];
    Activations& a = layers_[i];
    T* const next = i + 1 < layers_.size() ? layers_[i + 1].input : output_;
    m.layer_norm(a.norm1, a.mean1, a.rstd1, a.input, w.norm1_gain, w.norm1_shift, rows_, width);
    m.linear(a.qkv, a.norm1, w.qkv, rows_, width, 3 * width);
    a.attention->forward(a.qkv, w.bias, a.attended);
    m.linear(a.middle, a.attended, w.projection, rows_, width, width);
    m.add(a.middle, a.input, size);
    m.layer_norm(a.norm2, a.mean2, a.rstd2, a.middle, w.norm2_gain, w.norm2_shift, rows_, width);
    m.linear(a.up, a.norm2, w.up, rows_, width, hidden);
    m.gelu(a.active, a.up, rows_ * hidden);
    m.linear(next, a.active, w.down, rows_, hidden, width);
    m.add(next, a.middle, size);
  }
  m.layer_norm(norm_, mean_, rstd_, output_, p.norm_gain, p.norm_shift, rows_, width);
  m.linear(logits_, norm_, p.embedding, rows_, width, config_.vocabulary);
  return m.cross_entropy(logits_, batch.targets, config_.vocabulary);
}

template <class T>
void Model<T>::backward(const Batch& batch) {
  Machine<T>& m = *machine_;
  const Parameters<T> p(config_, parameters_there_), g(config_, gradients_there_);
  m.zero(gradients_there_, static_cast<std::int64_t>(gradients_.size()));
  const std::int64_t width = config_.width, hidden = config_.hidden();
  m.linear_backward(dwidth_, g.embedding, logits_, norm_, p.embedding, rows_, width, config_.vocabulary);
  m.zero(dx_, rows_ * width);
  m.layer_norm_backward(dx_, g.norm_gain, g.norm_shift, dwidth_, output_, p.norm_gain, mean_, rstd_, rows_, width);
  for (std::size_t i = layers_.size(); i-- > 0;) {  // dx_ is the gradient of the block's output, then of its input
    const auto& w = p.blocks[i];
    const auto& dw = g.blocks[i];
    Activations& a = layers_[i];
    m.linear_backward(dhidden_, dw.down, dx_, a.active, w.down, rows_, hidden, width);
    m.gelu_backward(dhidden_, a.up, rows_ * hidden);
    m.linear_backward(dwidth_, dw.up, dhidden_, a.norm2, w.up, rows_, width, hidden);
    m.layer_norm_backward(dx_, dw.norm2_gain, dw.norm2_shift, dwidth_, a.middle, w.norm2_gain, a.mean2, a.rstd2, rows_, width);
    m.linear_backward(dwidth_, dw.projection, dx_, a.attended, w.projection, rows_, width, width);
    a.attention->backward(a.qkv, w.bias, a.attended, dwidth_, dqkv_, dw.bias);
    m.linear_backward(dwidth_, dw.qkv, dqkv_, a.norm1, w.qkv, rows_, width, 3 * width);
    m.layer_norm_backward(dx_, dw.norm1_gain, dw.norm1_shift, dwidth_, a.input, w.norm1_gain, a.mean1, a.rstd1, rows_, width);
  }
  m.embed_backward(g.embedding, dx_, batch.tokens, config_.vocabulary, width);
  m.read(gradients_, gradients_there_);
}

template struct Parameters<float>;
template struct Parameters<double>;
template class Model<float>;
template class Model<double>;

}  // namespace gpt
