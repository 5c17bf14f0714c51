#include "layers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "blas.h"

namespace gpt {

template <class T>
void linear(T* y, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out) {
  gemm<T>({.rows = rows, .columns = out, .depth = in}, 1, x, in, Transposed::no, w, in, Transposed::yes, 0, y, out);
}

template <class T>
void linear_backward(T* dx, T* dw, const T* dy, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out) {
  gemm<T>({.rows = rows, .columns = in, .depth = out}, 1, dy, out, Transposed::no, w, in, Transposed::no, 0, dx, in);
  gemm<T>({.rows = out, .columns = in, .depth = rows}, 1, dy, out, Transposed::yes, x, in, Transposed::no, 1, dw, in);
}

template <class T>
void layer_norm(T* y, T* mean, T* rstd, const T* x, const T* gain, const T* shift, std::int64_t rows, std::int64_t width) {
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* xr = x + row * width;
    T sum = 0, squares = 0;
    for (std::int64_t i = 0; i < width; ++i) sum += xr[i];
    const T mu = sum / static_cast<T>(width);
    for (std::int64_t i = 0; i < width; ++i) squares += (xr[i] - mu) * (xr[i] - mu);
    const T scale = 1 / std::sqrt(squares / static_cast<T>(width) + T(1e-5));
    for (std::int64_t i = 0; i < width; ++i) y[row * width + i] = (xr[i] - mu) * scale * gain[i] + shift[i];
    mean[row] = mu;
    rstd[row] = scale;
  }
}

template <class T>
void layer_norm_backward(T* dx, T* dgain, T* dshift, const T* dy, const T* x, const T* gain, const T* mean, const T* rstd,
                         std::int64_t rows, std::int64_t width) {
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* xr = x + row * width;
    const T* dyr = dy + row * width;
    T sum = 0, dot = 0;  // of the gradient of the normalised row, and of that times the normalised row
    for (std::int64_t i = 0; i < width; ++i) {
      const T g = dyr[i] * gain[i];
      sum += g;
      dot += g * (xr[i] - mean[row]);
    }
    sum /= static_cast<T>(width);
    dot *= rstd[row] * rstd[row] / static_cast<T>(width);
    for (std::int64_t i = 0; i < width; ++i) dx[row * width + i] += rstd[row] * (dyr[i] * gain[i] - sum - dot * (xr[i] - mean[row]));
  }
  // Sums along rows: each thread owns a block of columns, so the order of the sum does not depend on the number of threads.
  constexpr std::int64_t block = 32;
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < width; begin += block) {
    const std::int64_t end = std::min(begin + block, width);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = begin; i < end; ++i) {
        dgain[i] += dy[row * width + i] * (x[row * width + i] - mean[row]) * rstd[row];
        dshift[i] += dy[row * width + i];
      }
    }
  }
}

namespace {

constexpr double gelu_slope = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double gelu_cubic = 0.044715;

// tanh through exp, which vectorises; the argument is clamped so that exp stays finite.
template <class T>
T tanh_by_exp(T x) {
  const T bounded = std::min(std::max(x, T(-20)), T(20));
  return 1 - 2 / (std::exp(2 * bounded) + 1);
}

}  // namespace

template <class T>
void gelu(T* y, const T* x, std::int64_t size) {
#pragma omp parallel for simd schedule(static)
  for (std::int64_t i = 0; i < size; ++i) {
    const T t = tanh_by_exp(T(gelu_slope) * (x[i] + T(gelu_cubic) * x[i] * x[i] * x[i]));
    y[i] = T(0.5) * x[i] * (1 + t);
  }
}

template <class T>
void gelu_backward(T* dy, const T* x, std::int64_t size) {
#pragma omp parallel for simd schedule(static)
  for (std::int64_t i = 0; i < size; ++i) {
    const T t = tanh_by_exp(T(gelu_slope) * (x[i] + T(gelu_cubic) * x[i] * x[i] * x[i]));
    const T inner = T(gelu_slope) * (1 + 3 * T(gelu_cubic) * x[i] * x[i]);
    dy[i] *= T(0.5) * (1 + t) + T(0.5) * x[i] * (1 - t * t) * inner;
  }
}

template <class T>
void add(T* y, const T* x, std::int64_t size) {
#pragma omp parallel for simd schedule(static)
  for (std::int64_t i = 0; i < size; ++i) y[i] += x[i];
}

template <class T>
void embed(T* y, const T* table, const std::int32_t* tokens, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) std::copy_n(table + tokens[row] * width, width, y + row * width);
}

template <class T>
void embed_backward(T* dtable, const T* dy, const std::int32_t* tokens, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) dtable[tokens[row] * width + i] += dy[row * width + i];
  }
}

template <class T>
double cross_entropy(T* logits, const std::int32_t* targets, std::int64_t rows, std::int64_t classes) {
  std::vector<double> losses(static_cast<std::size_t>(rows));
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    T* z = logits + row * classes;
    const T largest = *std::max_element(z, z + classes);
    const T target = z[targets[row]];
    T sum = 0;
    for (std::int64_t i = 0; i < classes; ++i) {
      z[i] = std::exp(z[i] - largest);
      sum += z[i];
    }
    losses[static_cast<std::size_t>(row)] = std::log(static_cast<double>(sum)) - static_cast<double>(target - largest);
    const T weight = 1 / static_cast<T>(rows);
    for (std::int64_t i = 0; i < classes; ++i) z[i] *= weight / sum;
    z[targets[row]] -= weight;
  }
  double total = 0;
  for (const double loss : losses) total += loss;
  return total / static_cast<double>(rows);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define GPT_INSTANTIATE(T)                                                                                                     \
  template void linear(T*, const T*, const T*, std::int64_t, std::int64_t, std::int64_t);                                      \
  template void linear_backward(T*, T*, const T*, const T*, const T*, std::int64_t, std::int64_t, std::int64_t);               \
  template void layer_norm(T*, T*, T*, const T*, const T*, const T*, std::int64_t, std::int64_t);                              \
  template void layer_norm_backward(T*, T*, T*, const T*, const T*, const T*, const T*, const T*, std::int64_t, std::int64_t); \
  template void gelu(T*, const T*, std::int64_t);                                                                              \
  template void gelu_backward(T*, const T*, std::int64_t);                                                                     \
  template void add(T*, const T*, std::int64_t);                                                                               \
  template void embed(T*, const T*, const std::int32_t*, std::int64_t, std::int64_t);                                          \
  template void embed_backward(T*, const T*, const std::int32_t*, std::int64_t, std::int64_t);                                 \
  template double cross_entropy(T*, const std::int32_t*, std::int64_t, std::int64_t);
// NOLINTEND(bugprone-macro-parentheses)
GPT_INSTANTIATE(float)
GPT_INSTANTIATE(double)

}  // namespace gpt
