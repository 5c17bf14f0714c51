// The dense layers on a GPU, but for their matrix products: compiled at run time. Each does what the function of its name in layers.h does.
// Sums have one order, whatever the run.

__device__ float sum_of_block(float value) {
  __shared__ float parts[32];
  __syncthreads();  // the last use of the parts is over
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// A block for each row.
extern "C" __global__ void layer_norm(float* y, float* mean, float* rstd, const float* x, const float* gain, const float* shift, long long width) {
  const float* xr = x + blockIdx.x * width;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += xr[i];
  const float mu = sum_of_block(sum) / width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) squares += (xr[i] - mu) * (xr[i] - mu);
  const float scale = 1 / sqrtf(sum_of_block(squares) / width + 1e-5f);
  for (int i = threadIdx.x; i < width; i += blockDim.x) y[blockIdx.x * width + i] = (xr[i] - mu) * scale * gain[i] + shift[i];
  if (threadIdx.x == 0) mean[blockIdx.x] = mu, rstd[blockIdx.x] = scale;
}

// A block for each row.
extern "C" __global__ void layer_norm_backward_rows(float* dx, const float* dy, const float* x, const float* gain, const float* mean,
                                                    const float* rstd, long long width) {
  const float *xr = x + blockIdx.x * width, *dyr = dy + blockIdx.x * width;
  const float mu = mean[blockIdx.x], scale = rstd[blockIdx.x];
  float sum = 0, dot = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float g = dyr[i] * gain[i];
    sum += g;
    dot += g * (xr[i] - mu);
  }
  sum = sum_of_block(sum) / width;
  dot = sum_of_block(dot) * scale * scale / width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) dx[blockIdx.x * width + i] += scale * (dyr[i] * gain[i] - sum - dot * (xr[i] - mu));
}

// A block for each column.
extern "C" __global__ void layer_norm_backward_columns(float* dgain, float* dshift, const float* dy, const float* x, const float* mean,
                                                       const float* rstd, long long rows, long long width) {
  float gain = 0, shift = 0;
  for (int row = threadIdx.x; row < rows; row += blockDim.x) {
    const float g = dy[row * width + blockIdx.x];
    gain += g * (x[row * width + blockIdx.x] - mean[row]) * rstd[row];
    shift += g;
  }
  gain = sum_of_block(gain);
  shift = sum_of_block(shift);
  if (threadIdx.x == 0) dgain[blockIdx.x] += gain, dshift[blockIdx.x] += shift;
}

__device__ float gelu_tanh(float x) { return tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)); }

extern "C" __global__ void gelu(float* y, const float* x, long long size) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) y[i] = 0.5f * x[i] * (1 + gelu_tanh(x[i]));
}

extern "C" __global__ void gelu_backward(float* dy, const float* x, long long size) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const float t = gelu_tanh(x[i]), inner = 0.7978845608028654f * (1 + 3 * 0.044715f * x[i] * x[i]);
  dy[i] *= 0.5f * (1 + t) + 0.5f * x[i] * (1 - t * t) * inner;
}

extern "C" __global__ void add(float* y, const float* x, long long size) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) y[i] += x[i];
}

// A block for each row.
extern "C" __global__ void embed(float* y, const float* table, const int* tokens, long long width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) y[blockIdx.x * width + i] = table[tokens[blockIdx.x] * width + i];
}

// A block for each token of the vocabulary: it looks for its rows.
extern "C" __global__ void embed_backward(float* dtable, const float* dy, const int* tokens, long long rows, long long width) {
  for (int row = 0; row < rows; ++row) {
    if (tokens[row] != blockIdx.x) continue;
    for (int i = threadIdx.x; i < width; i += blockDim.x) dtable[blockIdx.x * width + i] += dy[row * width + i];
  }
}

__device__ float largest_of_block(float value) {
  __shared__ float parts[32];
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[threadIdx.x % (blockDim.x / 32)];
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// A block for each row.
extern "C" __global__ void cross_entropy(float* losses, float* logits, const int* targets, long long rows, long long classes) {
  float* z = logits + blockIdx.x * classes;
  const float at_target = z[targets[blockIdx.x]];
  float largest = z[0], sum = 0;
  for (int i = threadIdx.x; i < classes; i += blockDim.x) largest = fmaxf(largest, z[i]);
  largest = largest_of_block(largest);
  for (int i = threadIdx.x; i < classes; i += blockDim.x) sum += expf(z[i] - largest);
  sum = sum_of_block(sum);
  for (int i = threadIdx.x; i < classes; i += blockDim.x)
    z[i] = (expf(z[i] - largest) / sum - (i == targets[blockIdx.x] ? 1.0f : 0.0f)) / rows;
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) - (at_target - largest);
}
