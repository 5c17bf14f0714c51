#pragma once
// The dense layers, forward and backward, on row-major [rows, width] matrices. T is float (training) or double (the tests of the
// gradients). A backward function adds to the gradients of parameters and writes those of activations.
#include <cstdint>

namespace gpt {

/// y[rows, out] = x[rows, in] w[out, in]^T
template <class T>
void linear(T* y, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out);
template <class T>
void linear_backward(T* dx, T* dw, const T* dy, const T* x, const T* w, std::int64_t rows, std::int64_t in, std::int64_t out);

/// y = (x - mean) * rstd * gain + shift in each row; mean and rstd [rows] are kept for the backward pass.
template <class T>
void layer_norm(T* y, T* mean, T* rstd, const T* x, const T* gain, const T* shift, std::int64_t rows, std::int64_t width);
/// Adds to dx, because x also feeds the residual path.
template <class T>
void layer_norm_backward(T* dx, T* dgain, T* dshift, const T* dy, const T* x, const T* gain, const T* mean, const T* rstd,
                         std::int64_t rows, std::int64_t width);

/// The tanh form: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
template <class T>
void gelu(T* y, const T* x, std::int64_t size);
/// dy becomes dx in place.
template <class T>
void gelu_backward(T* dy, const T* x, std::int64_t size);

template <class T>
void add(T* y, const T* x, std::int64_t size);  ///< y += x

/// y[i] = table[tokens[i]]
template <class T>
void embed(T* y, const T* table, const std::int32_t* tokens, std::int64_t rows, std::int64_t width);
template <class T>
void embed_backward(T* dtable, const T* dy, const std::int32_t* tokens, std::int64_t rows, std::int64_t width);

/// The mean of -log softmax(logits)[target]; the logits become their own gradient in place.
template <class T>
double cross_entropy(T* logits, const std::int32_t* targets, std::int64_t rows, std::int64_t classes);

}  // namespace gpt
