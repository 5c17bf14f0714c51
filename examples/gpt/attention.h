#pragma once
// The attention of the model: causal, with a trainable bias per head and distance, clamped at `reach`:
//   s = q . k / sqrt(head_dim) + bias[head, min(q_idx - kv_idx, reach)]
// Two implementations: foveal's fused kernels, and unfused attention with materialised probabilities.
#include <cstdint>
#include <memory>

#include "machine.h"

namespace gpt {

struct AttentionShape {
  std::int64_t batch, context, heads, head_dim, reach;
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t bias_size() const { return heads * (reach + 1); }
};

/// One attention layer of a training step, on arrays of a machine's memory; what the backward pass needs again is kept inside.
template <class T>
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  /// out [batch, context, width] from qkv [batch, context, 3, width] and bias [heads, reach + 1].
  virtual void forward(const T* qkv, const T* bias, T* out) = 0;
  /// Writes dqkv, adds to dbias. The inputs and `out` are those of the last forward.
  virtual void backward(const T* qkv, const T* bias, const T* out, const T* dout, T* dqkv, T* dbias) = 0;
};

enum class AttentionKind { fused, unfused };

/// foveal on the machine's device; the machine outlives the layer.
template <class T>
std::unique_ptr<AttentionLayer<T>> make_fused_attention(const AttentionShape& shape, Machine<T>& machine);
/// On the host only; throws for another machine.
template <class T>
std::unique_ptr<AttentionLayer<T>> make_unfused_attention(const AttentionShape& shape, Machine<T>& machine);

class Ranks;
/// foveal over several processes; shape: of the whole. The arrays hold this process's tokens.
std::unique_ptr<AttentionLayer<float>> make_shared_attention(const AttentionShape& shape, Machine<float>& machine, const Ranks& ranks);

template <class T>
std::unique_ptr<AttentionLayer<T>> make_attention(AttentionKind kind, const AttentionShape& shape, Machine<T>& machine) {
  return kind == AttentionKind::fused ? make_fused_attention<T>(shape, machine) : make_unfused_attention<T>(shape, machine);
}

}  // namespace gpt
