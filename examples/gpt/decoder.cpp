#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

#include "fused_attention.h"
#include "layers.h"

namespace gpt {

Decoder::Decoder(const Config& config, const std::vector<float>& parameters, std::int64_t capacity)
    : config_(config),
      parameters_(parameters),
      capacity_(capacity),
      cache_(static_cast<std::size_t>(config.layers), std::vector<float>(static_cast<std::size_t>(capacity * 2 * config.width))),
      logits_(static_cast<std::size_t>(config.vocabulary)) {}

const std::vector<float>& Decoder::next(std::int32_t token) {
  if (position_ == capacity_) throw std::runtime_error("decoder: the text is as long as it was made for");
  const Parameters<float> p(config_, const_cast<float*>(parameters_.data()));
  const std::int64_t width = config_.width, heads = config_.heads, head_dim = config_.head_dim(), row = 2 * width;
  const auto sized = [](std::int64_t size) { return std::vector<float>(static_cast<std::size_t>(size)); };
  std::vector<float> x = sized(width), norm = sized(width), q = sized(width), attended = sized(width), more = sized(width);
  std::vector<float> up = sized(config_.hidden()), active = sized(config_.hidden());
  float mean, rstd;

  const foveal::Param bias = bias_param(heads, config_.reach);
  foveal::Attention attention = describe_attention(bias);
  attention.q_offset = position_;

  embed(x.data(), p.embedding, &token, 1, width);
  for (std::size_t i = 0; i < p.blocks.size(); ++i) {
    const auto& w = p.blocks[i];
    float* const keys = cache_[i].data();
    layer_norm(norm.data(), &mean, &rstd, x.data(), w.norm1_gain, w.norm1_shift, 1, width);
    linear(q.data(), norm.data(), w.qkv, 1, width, width);
    linear(keys + position_ * row, norm.data(), w.qkv + width * width, 1, width, row);
    foveal::forward(attention,
                    {.q = view(q.data(), {1, 1, heads, head_dim}),
                     .k = view(keys, {1, position_ + 1, heads, head_dim}, {capacity_ * row, row, head_dim, 1}),
                     .v = view(keys + width, {1, position_ + 1, heads, head_dim}, {capacity_ * row, row, head_dim, 1}),
                     .params = {{bias, view(w.bias, {heads, config_.reach + 1})}}},
                    {.out = view(attended.data(), {1, 1, heads, head_dim})});
    linear(more.data(), attended.data(), w.projection, 1, width, width);
    add(x.data(), more.data(), width);
    layer_norm(norm.data(), &mean, &rstd, x.data(), w.norm2_gain, w.norm2_shift, 1, width);
    linear(up.data(), norm.data(), w.up, 1, width, config_.hidden());
    gelu(active.data(), up.data(), config_.hidden());
    linear(more.data(), active.data(), w.down, 1, config_.hidden(), width);
    add(x.data(), more.data(), width);
  }
  layer_norm(norm.data(), &mean, &rstd, x.data(), p.norm_gain, p.norm_shift, 1, width);
  linear(logits_.data(), norm.data(), p.embedding, 1, width, config_.vocabulary);
  ++position_;
  return logits_;
}

std::vector<std::int32_t> sample(const Config& config, const std::vector<float>& parameters, const std::vector<std::int32_t>& prompt,
                                 std::int64_t count, std::uint64_t seed, double temperature, std::size_t candidates) {
  if (prompt.empty()) throw std::runtime_error("sample: the prompt is empty; expected at least one token");
  Decoder decoder(config, parameters, static_cast<std::int64_t>(prompt.size()) + count);
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> order(static_cast<std::size_t>(config.vocabulary)), drawn;
  candidates = std::min(candidates, order.size());
  const std::vector<float>* logits = nullptr;
  for (const std::int32_t token : prompt) logits = &decoder.next(token);
  while (static_cast<std::int64_t>(drawn.size()) < count) {
    const auto logit = [&](std::int32_t token) { return static_cast<double>((*logits)[static_cast<std::size_t>(token)]); };
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(candidates), order.end(),
                      [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
    std::vector<double> weights;
    for (std::size_t i = 0; i < candidates; ++i) weights.push_back(std::exp((logit(order[i]) - logit(order[0])) / temperature));
    drawn.push_back(order[std::discrete_distribution<std::size_t>(weights.begin(), weights.end())(random)]);
    if (static_cast<std::int64_t>(drawn.size()) < count) logits = &decoder.next(drawn.back());
  }
  return drawn;
}

}  // namespace gpt
