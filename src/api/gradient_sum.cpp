#include "api/gradient_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "base/strided.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/driver.h"
#include "cuda/launch/move_rows.h"
#include "problem/overlap.h"
#include "problem/problem.h"

namespace foveal::api {
namespace {

/// Calls fn(to, from) for each pair of tensors, the absent ones left out.
template <class To, class From, class Fn>
void each(To& to, From& from, Fn&& fn) {
  const std::array<std::pair<decltype(&to.dq), decltype(&from.dq)>, 3> views{{{&to.dq, &from.dq}, {&to.dk, &from.dk}, {&to.dv, &from.dv}}};
  for (const auto& [a, b] : views)
    if (a->rank > 0 || a->present()) fn(*a, *b);
  for (std::size_t i = 0; i < to.dparams.size(); ++i) fn(to.dparams[i].tensor, from.dparams[i].tensor);
}

template <class T>
void add_row(void* to, std::int64_t stride, const void* from, std::int64_t count) {
  T* sum = static_cast<T*>(to);
  const T* part = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < count; ++i) sum[i * stride] += part[i];
}

/// to += from, which is contiguous.
void add_tensor(const TensorView& to, const TensorView& from, const Executor& executor) {
  const auto bytes = static_cast<std::int64_t>(size_of(to.dtype));
  base::parallel_runs(to, executor, [&](std::int64_t i, std::int64_t count, std::int64_t offset, std::int64_t stride) {
    char* sum = static_cast<char*>(to.data) + offset * bytes;
    const char* part = static_cast<const char*>(from.data) + i * bytes;
    if (to.dtype == DType::f32) return add_row<float>(sum, stride, part, count);
    if (to.dtype == DType::f64) return add_row<double>(sum, stride, part, count);
    for (std::int64_t k = 0; k < count; ++k)
      base::store(sum, to.dtype, k * stride, base::load(sum, to.dtype, k * stride) + base::load(part, to.dtype, k));
  });
}

/// The same on a GPU: a launch for each index of the dimensions before the last four, and for so many batches as a grid has.
void add_on_device(const TensorView& to, const TensorView& from, cuda::RowStream stream) {
  constexpr std::int64_t most_batches = 65535;
  std::array<std::int64_t, 4> sizes{1, 1, 1, 1}, to_strides{}, from_strides{};
  const auto rank = static_cast<std::size_t>(to.rank), inner = std::min(rank, sizes.size()), outer = rank - inner;
  for (std::size_t d = 0; d < inner; ++d) {
    const std::size_t at = sizes.size() - inner + d, of = outer + d;
    sizes[at] = to.sizes[of], to_strides[at] = to.strides[of], from_strides[at] = from.strides[of];
  }
  std::int64_t launches = 1;
  for (std::size_t d = 0; d < outer; ++d) launches *= to.sizes[d];
  const auto bytes = static_cast<std::int64_t>(size_of(to.dtype));
  const auto rows_at = [&](const TensorView& tensor, const std::array<std::int64_t, 4>& strides, std::int64_t launch, std::int64_t batch) {
    std::int64_t offset = batch * strides[0];
    for (std::size_t d = outer; d-- > 0;) {
      offset += launch % tensor.sizes[d] * tensor.strides[d];
      launch /= tensor.sizes[d];
    }
    return cuda::DeviceRows{.data = static_cast<char*>(tensor.data) + offset * bytes,
                            .dtype = tensor.dtype,
                            .batch = strides[0],
                            .token = strides[1],
                            .head = strides[2],
                            .dim = strides[3]};
  };
  const cuda::RowKernels& kernels = cuda::row_kernels(to.device.index);
  for (std::int64_t launch = 0; launch < launches; ++launch)
    for (std::int64_t batch = 0; batch < sizes[0]; batch += most_batches)
      kernels.move(rows_at(from, from_strides, launch, batch), rows_at(to, to_strides, launch, batch),
                   {.batch = std::min(most_batches, sizes[0] - batch), .tokens = sizes[1], .heads = sizes[2], .dim = sizes[3]}, true,
                   stream);
}

}  // namespace

GradientSum::GradientSum(const BackwardOutputs& outputs) : outputs_(outputs), parts_(outputs) {
  each(parts_, outputs_, [](TensorView& part, const TensorView& output) {
    for (int d = 0; d < output.rank; ++d)
      FOVEAL_CHECK(output.sizes[static_cast<std::size_t>(d)] >= 0, "accumulate: a gradient has a negative size");
    problem::check_reach("accumulate: a gradient", output);
    const problem::TensorSpec spec{
        .present = true, .dtype = output.dtype, .rank = output.rank, .sizes = output.sizes, .strides = output.strides};
    FOVEAL_CHECK(output.numel() == 0 || !problem::overlaps_itself(spec),
                 "accumulate: strides of a gradient put two elements in one place; an output's elements must be apart");
    part = base::contiguous_like(output, part.rank > 0 ? nullptr : part.data, output.dtype);  // a scalar without data would count as absent
  });
}

void GradientSum::allocate(const BackwardInputs& inputs, Stream stream) {
  problem::check_places(inputs, outputs_);
  each(parts_, outputs_, [&](TensorView& part, const TensorView& output) {
    FOVEAL_CHECK(output.data != nullptr || output.numel() == 0, "accumulate: a gradient has no data");
    const std::size_t bytes = static_cast<std::size_t>(part.numel()) * size_of(part.dtype) + 64;  // what is empty has an address, too
    if (part.device.kind == DeviceKind::cpu) {
      memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
      part.data = memory_.back().get();
      return;
    }
    if (cuda::driver::is_captured(cuda::driver::handle_of(stream)))
      base::fail(ErrorCode::unsupported,
                 "accumulate: the stream is being captured into a graph; expected one that is not, or gradients that you add yourself");
    device_memory_.push_back(std::make_unique<planning::PooledWorkspace>(cuda::cuda_memory(part.device.index), part.device, stream, bytes));
    part.data = device_memory_.back()->data();
    add_on_device(output, part, {.stream = stream, .only_loads = true});  // what may fail does so before anything is written
  });
}

void GradientSum::add(int threads, Stream stream) const {
  const Executor executor = base::default_executor(threads);
  each(outputs_, parts_, [&](const TensorView& output, const TensorView& part) {
    if (output.device.kind == DeviceKind::cpu)
      add_tensor(output, part, executor);
    else
      add_on_device(output, part, {.stream = stream});
  });
}

}  // namespace foveal::api
