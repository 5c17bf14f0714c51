// Writes one parameter's gradient, from exact sums, values, or as zeros, in its own type and strides.
//
// config.cuh: kConfig (a ParamGradientConfig); Gradient, Value (types).
#include "element.cuh"
#include "param_gradient_args.cuh"
#include "score/exact_sum.cuh"

#include "config.cuh"

extern "C" __global__ void __launch_bounds__(foveal::device::kParamGradientThreads)
    param_gradient(const __grid_constant__ foveal::device::ParamGradientArgs args) {
  using namespace foveal::device;
  const i64 element = i64(blockIdx.x) * kParamGradientThreads + threadIdx.x;
  if (element >= args.elements) return;
  i64 rest = element, offset = 0;
  for (int d = args.rank - 1; d >= 0; --d) {
    offset += rest % args.size[d] * args.stride[d];
    rest /= args.size[d];
  }
  double value = 0;
  if (args.bins) {
    value = ExactSum<kConfig.bin_bits>::value(args.bins, args.elements, element);
  } else if (args.values) {
    value = static_cast<const Value*>(args.values)[element];
  }
  from_real(static_cast<Gradient*>(args.gradient)[offset], value);
}
