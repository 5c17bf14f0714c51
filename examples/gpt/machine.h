#pragma once
// Where a model's arrays live and its dense layers run: the host and its BLAS (layers.h), or a GPU with cuBLAS and a few small kernels.
#include <foveal/foveal.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpt {

template <class T>
class Machine {
 public:
  virtual ~Machine() = default;
  virtual foveal::Device device() const = 0;

  /// Memory that lives as long as the machine, aligned to 256 bytes; nothing is written to it.
  virtual T* allocate(std::int64_t size) = 0;
  virtual void write(T* to, const std::vector<T>& from) = 0;
  virtual void read(std::vector<T>& to, const T* from) = 0;
  virtual void zero(T* x, std::int64_t size) = 0;

  // The layers, as layers.h describes them. Tokens are in the host's memory, everything else in the machine's.
  virtual void linear(T* y, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out) = 0;
  virtual void linear_backward(T* dx, T* dw, const T* dy, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out) = 0;
  virtual void layer_norm(T* y, T* mean, T* rstd, const T* x, const T* gain, const T* shift, std::int64_t rows, std::int64_t width) = 0;
  virtual void layer_norm_backward(T* dx, T* dgain, T* dshift, const T* dy, const T* x, const T* gain, const T* mean, const T* rstd,
                                   std::int64_t rows, std::int64_t width) = 0;
  virtual void gelu(T* y, const T* x, std::int64_t size) = 0;
  virtual void gelu_backward(T* dy, const T* x, std::int64_t size) = 0;
  virtual void add(T* y, const T* x, std::int64_t size) = 0;
  virtual void embed(T* y, const T* table, const std::vector<std::int32_t>& tokens, std::int64_t width) = 0;
  virtual void embed_backward(T* dtable, const T* dy, const std::vector<std::int32_t>& tokens, std::int64_t classes,
                              std::int64_t width) = 0;
  virtual double cross_entropy(T* logits, const std::vector<std::int32_t>& targets, std::int64_t classes) = 0;
};

enum class Place { host, gpu };

template <class T>
std::unique_ptr<Machine<T>> make_host();
/// The first GPU. Throws with gpu_unavailable().
std::unique_ptr<Machine<float>> make_gpu();
/// Why there is no GPU to train on: the driver, NVRTC or cuBLAS that is missing; "" when there is one.
std::string gpu_unavailable();

inline std::unique_ptr<Machine<float>> make_machine(Place place) { return place == Place::gpu ? make_gpu() : make_host<float>(); }

}  // namespace gpt
