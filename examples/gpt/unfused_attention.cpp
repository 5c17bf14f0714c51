// Unfused attention: the context x context matrix of probabilities of every head is materialised and kept for the backward pass.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "attention.h"
#include "blas.h"

namespace gpt {
namespace {

template <class T>
class UnfusedAttention final : public AttentionLayer<T> {
 public:
  explicit UnfusedAttention(const AttentionShape& shape)
      : shape_(shape), p_(static_cast<std::size_t>(shape.batch * shape.heads * shape.context * shape.context)) {}

  void forward(const T* qkv, const T* bias, T* out) override {
    const std::int64_t pairs = shape_.batch * shape_.heads;
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t pair = 0; pair < pairs; ++pair) forward_head(pair / shape_.heads, pair % shape_.heads, qkv, bias, out);
  }

  void backward(const T* qkv, const T* bias, const T* out, const T* dout, T* dqkv, T* dbias) override {
    static_cast<void>(bias);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t head = 0; head < shape_.heads; ++head) {  // one thread adds up one head's bias
      std::vector<T> ds(static_cast<std::size_t>(shape_.context * shape_.context));
      for (std::int64_t batch = 0; batch < shape_.batch; ++batch) backward_head(batch, head, qkv, out, dout, dqkv, dbias, ds.data());
    }
  }

 private:
  T scale() const { return 1 / std::sqrt(static_cast<T>(shape_.head_dim)); }
  std::int64_t row() const { return 3 * shape_.width(); }
  T* probabilities(std::int64_t batch, std::int64_t head) {
    return p_.data() + (batch * shape_.heads + head) * shape_.context * shape_.context;
  }
  std::int64_t qkv_offset(std::int64_t batch, std::int64_t head) const { return batch * shape_.context * row() + head * shape_.head_dim; }
  std::int64_t out_offset(std::int64_t batch, std::int64_t head) const {
    return batch * shape_.context * shape_.width() + head * shape_.head_dim;
  }

  void forward_head(std::int64_t batch, std::int64_t head, const T* qkv, const T* bias, T* out) {
    const std::int64_t n = shape_.context, d = shape_.head_dim, width = shape_.width();
    const T* q = qkv + qkv_offset(batch, head);
    const T* table = bias + head * (shape_.reach + 1);
    T* p = probabilities(batch, head);
    gemm<T>({n, n, d}, scale(), q, row(), Transposed::no, q + width, row(), Transposed::yes, 0, p, n);
    for (std::int64_t i = 0; i < n; ++i) {
      T* s = p + i * n;
      for (std::int64_t j = 0; j <= i; ++j) s[j] += table[std::min(i - j, shape_.reach)];
      const T largest = *std::max_element(s, s + i + 1);
      T sum = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        s[j] = std::exp(s[j] - largest);
        sum += s[j];
      }
      for (std::int64_t j = 0; j <= i; ++j) s[j] /= sum;
      std::fill(s + i + 1, s + n, T(0));
    }
    gemm<T>({n, d, n}, 1, p, n, Transposed::no, q + 2 * width, row(), Transposed::no, 0, out + out_offset(batch, head), width);
  }

  void backward_head(std::int64_t batch, std::int64_t head, const T* qkv, const T* out, const T* dout, T* dqkv, T* dbias, T* ds) {
    const std::int64_t n = shape_.context, d = shape_.head_dim, width = shape_.width();
    const T* q = qkv + qkv_offset(batch, head);
    const T* o = out + out_offset(batch, head);
    const T* g = dout + out_offset(batch, head);
    T* dq = dqkv + qkv_offset(batch, head);
    T* dtable = dbias + head * (shape_.reach + 1);
    const T* p = probabilities(batch, head);
    gemm<T>({n, d, n}, 1, p, n, Transposed::yes, g, width, Transposed::no, 0, dq + 2 * width, row());  // dv = p^T dout
    gemm<T>({n, n, d}, 1, g, width, Transposed::no, q + 2 * width, row(), Transposed::yes, 0, ds, n);  // dp = dout v^T
    for (std::int64_t i = 0; i < n; ++i) {
      T delta = 0;
      for (std::int64_t e = 0; e < d; ++e) delta += o[i * width + e] * g[i * width + e];
      for (std::int64_t j = 0; j < n; ++j) ds[i * n + j] = p[i * n + j] * (ds[i * n + j] - delta);
      for (std::int64_t j = 0; j <= i; ++j) dtable[std::min(i - j, shape_.reach)] += ds[i * n + j];
    }
    gemm<T>({n, d, n}, scale(), ds, n, Transposed::no, q + width, row(), Transposed::no, 0, dq, row());   // dq = ds k
    gemm<T>({n, d, n}, scale(), ds, n, Transposed::yes, q, row(), Transposed::no, 0, dq + width, row());  // dk = ds^T q
  }

  AttentionShape shape_;
  std::vector<T> p_;
};

}  // namespace

template <class T>
std::unique_ptr<AttentionLayer<T>> make_unfused_attention(const AttentionShape& shape, Machine<T>& machine) {
  if (machine.device().kind != foveal::DeviceKind::cpu) throw std::runtime_error("attention: the materialised form is for the host only");
  return std::make_unique<UnfusedAttention<T>>(shape);
}
template std::unique_ptr<AttentionLayer<float>> make_unfused_attention(const AttentionShape&, Machine<float>&);
template std::unique_ptr<AttentionLayer<double>> make_unfused_attention(const AttentionShape&, Machine<double>&);

}  // namespace gpt
