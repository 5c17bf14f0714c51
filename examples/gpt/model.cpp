#include "model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

#include "layers.h"

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
Model<T>::Model(const Config& config, std::int64_t batch, AttentionKind kind, std::vector<T> parameters)
    : config_(config), rows_(batch * config.context), parameters_(std::move(parameters)), gradients_(parameters_.size()) {
  config.validate();
  const auto sized = [this](std::int64_t width) { return std::vector<T>(static_cast<std::size_t>(rows_ * width)); };
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
                       .attention = make_attention<T>(kind, config.attention(batch))});
  }
  output_ = sized(width), mean_ = sized(1), rstd_ = sized(1), norm_ = sized(width), logits_ = sized(config.vocabulary);
  dx_ = sized(width), dwidth_ = sized(width), dqkv_ = sized(3 * width), dhidden_ = sized(hidden);
}

template <class T>
double Model<T>::forward(const Batch& batch) {
  const Parameters<T> p(config_, parameters_.data());
  const std::int64_t width = config_.width, hidden = config_.hidden(), size = rows_ * width;
  embed(layers_.front().input.data(), p.embedding, batch.tokens.data(), rows_, width);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& w = p.blocks[i];
    Activations& a = layers_[i];
    std::vector<T>& next = i + 1 < layers_.size() ? layers_[i + 1].input : output_;
    layer_norm(a.norm1.data(), a.mean1.data(), a.rstd1.data(), a.input.data(), w.norm1_gain, w.norm1_shift, rows_, width);
    linear(a.qkv.data(), a.norm1.data(), w.qkv, rows_, width, 3 * width);
    a.attention->forward(a.qkv.data(), w.bias, a.attended.data());
    linear(a.middle.data(), a.attended.data(), w.projection, rows_, width, width);
    add(a.middle.data(), a.input.data(), size);
    layer_norm(a.norm2.data(), a.mean2.data(), a.rstd2.data(), a.middle.data(), w.norm2_gain, w.norm2_shift, rows_, width);
    linear(a.up.data(), a.norm2.data(), w.up, rows_, width, hidden);
    gelu(a.active.data(), a.up.data(), rows_ * hidden);
    linear(next.data(), a.active.data(), w.down, rows_, hidden, width);
    add(next.data(), a.middle.data(), size);
  }
  layer_norm(norm_.data(), mean_.data(), rstd_.data(), output_.data(), p.norm_gain, p.norm_shift, rows_, width);
  linear(logits_.data(), norm_.data(), p.embedding, rows_, width, config_.vocabulary);
  return cross_entropy(logits_.data(), batch.targets.data(), rows_, config_.vocabulary);
}

template <class T>
void Model<T>::backward(const Batch& batch) {
  const Parameters<T> p(config_, parameters_.data());
  std::fill(gradients_.begin(), gradients_.end(), T(0));
  const Parameters<T> g(config_, gradients_.data());
  const std::int64_t width = config_.width, hidden = config_.hidden();
  linear_backward(dwidth_.data(), g.embedding, logits_.data(), norm_.data(), p.embedding, rows_, width, config_.vocabulary);
  std::fill(dx_.begin(), dx_.end(), T(0));
  layer_norm_backward(dx_.data(), g.norm_gain, g.norm_shift, dwidth_.data(), output_.data(), p.norm_gain, mean_.data(), rstd_.data(), rows_,
                      width);
  for (std::size_t i = layers_.size(); i-- > 0;) {  // dx_ is the gradient of the block's output, then of its input
    const auto& w = p.blocks[i];
    const auto& dw = g.blocks[i];
    Activations& a = layers_[i];
    linear_backward(dhidden_.data(), dw.down, dx_.data(), a.active.data(), w.down, rows_, hidden, width);
    gelu_backward(dhidden_.data(), a.up.data(), rows_ * hidden);
    linear_backward(dwidth_.data(), dw.up, dhidden_.data(), a.norm2.data(), w.up, rows_, width, hidden);
    layer_norm_backward(dx_.data(), dw.norm2_gain, dw.norm2_shift, dwidth_.data(), a.middle.data(), w.norm2_gain, a.mean2.data(),
                        a.rstd2.data(), rows_, width);
    linear_backward(dwidth_.data(), dw.projection, dx_.data(), a.attended.data(), w.projection, rows_, width, width);
    a.attention->backward(a.qkv.data(), w.bias, a.attended.data(), dwidth_.data(), dqkv_.data(), dw.bias);
    linear_backward(dwidth_.data(), dw.qkv, dqkv_.data(), a.norm1.data(), w.qkv, rows_, width, 3 * width);
    layer_norm_backward(dx_.data(), dw.norm1_gain, dw.norm1_shift, dwidth_.data(), a.input.data(), w.norm1_gain, a.mean1.data(),
                        a.rstd1.data(), rows_, width);
  }
  embed_backward(g.embedding, dx_.data(), batch.tokens.data(), rows_, width);
}

template struct Parameters<float>;
template struct Parameters<double>;
template class Model<float>;
template class Model<double>;

}  // namespace gpt
