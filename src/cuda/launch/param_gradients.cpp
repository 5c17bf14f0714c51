#include "cuda/launch/param_gradients.h"

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "base/strided.h"
#include "base/wide_type.h"
#include "cuda/device/param_gradient_args.cuh"
#include "cuda/launch/attention_args.h"

namespace foveal::cuda {

ParamGradients::ParamGradients(const problem::Problem& p, const ReadPlan& plan, Workspace& workspace, jit::KernelSet& kernels) {
  const int bin_bits = exact_sum_bin_bits(p);
  const DType real = base::wide_type(p.dtype);
  for (std::size_t i = 0; i < p.params.size(); ++i) {
    Gradient gradient{.param = i, .storage = plan.storage[i]};
    if (gradient.storage == GradientStorage::none) continue;
    const problem::TensorSpec& target = p.params[i].gradient;
    for (const std::int64_t size : p.params[i].param.shape()) gradient.elements *= size;
    const auto elements = static_cast<std::size_t>(gradient.elements);
    if (gradient.storage == GradientStorage::exact_sums) gradient.bytes = elements * static_cast<std::size_t>(256 / bin_bits) * 8;
    if (gradient.storage == GradientStorage::added) {
      // pairs_sm90 writes each element once, in its own type
      const auto written = [&](const PlannedRead& read) { return read.facts.param == i && read.collector == Collector::pairs; };
      gradient.direct = target.dtype == real || std::any_of(plan.reads.begin(), plan.reads.end(), written);
      gradient.bytes = gradient.direct ? 0 : elements * size_of(real);
    }
    gradient.offset = workspace.reserve(gradient.bytes);
    jit::KernelSource source{.stem = "param_gradient"};
    source.constants.set_type("Gradient", jit::device_type(target.dtype))
        .set_type("Value", jit::device_type(real))
        .set_struct("kConfig", "ParamGradientConfig", "param_gradient_args.cuh", device::ParamGradientConfig{.bin_bits = bin_bits});
    gradient.convert = kernels.add(std::move(source));

    text_ += base::join(text_.empty() ? "" : "; ", p.params[i].param.name());
    if (gradient.storage == GradientStorage::zero) text_ += " zero";
    if (static_cast<int>(i) == p.sink) text_ += " uniform";
    for (const scoring::TrainableRead& read : p.score->reads)
      if (read.param == static_cast<std::int32_t>(i)) text_ += base::join(" ", read.kind());
    gradients_.push_back(std::move(gradient));
  }
}

void ParamGradients::leave_uncleared(std::size_t param) {
  for (Gradient& gradient : gradients_)
    if (gradient.param == param) gradient.clears = false;
}

std::string ParamGradients::text() const { return text_; }

void ParamGradients::prepare(device::AttentionArgs& args, const problem::Buffers& buffers, void* workspace, Stream stream) const {
  for (const Gradient& gradient : gradients_) {
    device::ParamGradient& target = args.gradient[gradient.param];
    const TensorView& view = buffers.dparams[gradient.param];
    void* piece = Workspace::at<void>(workspace, gradient.offset);
    if (gradient.bytes > 0 && gradient.clears) driver::fill(piece, 0, gradient.bytes, stream);
    target.elements = gradient.elements;
    if (gradient.storage == GradientStorage::exact_sums) target.bins = static_cast<unsigned long long*>(piece);
    const bool in_place = gradient.storage == GradientStorage::stored || gradient.direct;
    if (in_place && gradient.clears) clear(gradient, buffers, stream);
    if (in_place || gradient.storage == GradientStorage::added) {
      const TensorView values = in_place ? view : base::contiguous_like(view, piece, view.dtype);
      target.values = values.data;
      for (int d = 0; d < values.rank; ++d) target.stride[d] = values.strides[static_cast<std::size_t>(d)];
    }
  }
}

/// Zeros in the caller's tensor, for elements that no pair writes.
void ParamGradients::clear(const Gradient& gradient, const problem::Buffers& buffers, Stream stream) const {
  const TensorView& view = buffers.dparams[gradient.param];
  if (!base::is_contiguous(view)) return convert(gradient, nullptr, nullptr, buffers, stream);
  driver::fill(view.data, 0, static_cast<std::size_t>(view.numel()) * size_of(view.dtype), stream);
}

void ParamGradients::finish(const device::AttentionArgs& args, const problem::Buffers& buffers, Stream stream) const {
  for (const Gradient& gradient : gradients_) {
    if (gradient.storage == GradientStorage::stored || gradient.direct) continue;
    const device::ParamGradient& target = args.gradient[gradient.param];
    convert(gradient, target.bins, target.values, buffers, stream);
  }
}

void ParamGradients::convert(const Gradient& gradient, const unsigned long long* bins, const void* values, const problem::Buffers& buffers,
                             Stream stream) const {
  const TensorView& view = buffers.dparams[gradient.param];
  device::ParamGradientArgs args{bins, values, view.data, view.rank, 0, gradient.elements, {}, {}};
  for (int d = 0; d < view.rank; ++d) {
    args.size[d] = view.sizes[static_cast<std::size_t>(d)];
    args.stride[d] = view.strides[static_cast<std::size_t>(d)];
  }
  gradient.convert->launch({.grid_x = static_cast<unsigned>(base::divide_up(gradient.elements, device::kParamGradientThreads)),
                            .threads = device::kParamGradientThreads},
                           args, stream);
}

}  // namespace foveal::cuda
