// The host as a machine: plain memory and the functions of layers.h.
#include <algorithm>
#include <cstddef>
#include <new>

#include "layers.h"
#include "machine.h"

namespace gpt {
namespace {

template <class T>
class Host final : public Machine<T> {
 public:
  foveal::Device device() const override { return {}; }

  T* allocate(std::int64_t size) override {
    blocks_.emplace_back(static_cast<T*>(::operator new(std::max<std::size_t>(1, static_cast<std::size_t>(size)) * sizeof(T), alignment)));
    return blocks_.back().get();
  }
  void write(T* to, const std::vector<T>& from) override { std::copy(from.begin(), from.end(), to); }
  void read(std::vector<T>& to, const T* from) override { std::copy_n(from, to.size(), to.begin()); }
  void zero(T* x, std::int64_t size) override { std::fill_n(x, size, T(0)); }

  void linear(T* y, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out) override {
    gpt::linear(y, x, w, rows, in, out);
  }
  void linear_backward(T* dx, T* dw, const T* dy, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out) override {
    gpt::linear_backward(dx, dw, dy, x, w, rows, in, out);
  }
  void layer_norm(T* y, T* mean, T* rstd, const T* x, const T* gain, const T* shift, std::int64_t rows, std::int64_t width) override {
    gpt::layer_norm(y, mean, rstd, x, gain, shift, rows, width);
  }
  void layer_norm_backward(T* dx, T* dgain, T* dshift, const T* dy, const T* x, const T* gain, const T* mean, const T* rstd,
                           std::int64_t rows, std::int64_t width) override {
    gpt::layer_norm_backward(dx, dgain, dshift, dy, x, gain, mean, rstd, rows, width);
  }
  void gelu(T* y, const T* x, std::int64_t size) override { gpt::gelu(y, x, size); }
  void gelu_backward(T* dy, const T* x, std::int64_t size) override { gpt::gelu_backward(dy, x, size); }
  void add(T* y, const T* x, std::int64_t size) override { gpt::add(y, x, size); }
  void embed(T* y, const T* table, const std::vector<std::int32_t>& tokens, std::int64_t width) override {
    gpt::embed(y, table, tokens.data(), static_cast<std::int64_t>(tokens.size()), width);
  }
  void embed_backward(T* dtable, const T* dy, const std::vector<std::int32_t>& tokens, std::int64_t, std::int64_t width) override {
    gpt::embed_backward(dtable, dy, tokens.data(), static_cast<std::int64_t>(tokens.size()), width);
  }
  double cross_entropy(T* logits, const std::vector<std::int32_t>& targets, std::int64_t classes) override {
    return gpt::cross_entropy(logits, targets.data(), static_cast<std::int64_t>(targets.size()), classes);
  }

 private:
  static constexpr std::align_val_t alignment{256};
  struct Release {
    void operator()(T* memory) const { ::operator delete(memory, alignment); }
  };
  std::vector<std::unique_ptr<T, Release>> blocks_;
};

}  // namespace

template <class T>
std::unique_ptr<Machine<T>> make_host() {
  return std::make_unique<Host<T>>();
}
template std::unique_ptr<Machine<float>> make_host();
template std::unique_ptr<Machine<double>> make_host();

}  // namespace gpt
