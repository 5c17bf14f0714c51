#include "api/gradient_sum.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "base/strided.h"
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

}  // namespace

GradientSum::GradientSum(const BackwardOutputs& outputs) : outputs_(outputs), parts_(outputs) {
  each(parts_, outputs_, [](TensorView& part, const TensorView& output) {
    if (output.device.kind != DeviceKind::cpu)
      base::fail(ErrorCode::unsupported,
                 "accumulate: gradients on a GPU; expected on the CPU, or overwritten gradients that you add yourself");
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

void GradientSum::allocate(const BackwardInputs& inputs) {
  problem::check_places(inputs, outputs_);
  each(parts_, outputs_, [this](TensorView& part, const TensorView& output) {
    FOVEAL_CHECK(output.data != nullptr || output.numel() == 0, "accumulate: a gradient has no data");
    const std::size_t bytes = static_cast<std::size_t>(part.numel()) * size_of(part.dtype);
    memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes + 64));
    part.data = memory_.back().get();
  });
}

void GradientSum::add(int threads) const {
  const Executor executor = base::default_executor(threads);
  each(outputs_, parts_, [&](const TensorView& output, const TensorView& part) { add_tensor(output, part, executor); });
}

}  // namespace foveal::api
