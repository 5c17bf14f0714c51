// Gradient of the sink from final out and lse. One block for each head, in a fixed order: deterministic.
//
// config.cuh: Element, Sink (types); Wide: of lse and dlse.
#include "element.cuh"
#include "ptx/warp.cuh"
#include "rows_args.cuh"

#include "config.cuh"

extern "C" __global__ void __launch_bounds__(foveal::device::kSinkThreads)
    sink_gradient(const __grid_constant__ foveal::device::SinkGradientArgs args) {
  using namespace foveal::device;
  const int head = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const double logit = to_real(static_cast<const Sink*>(args.sink)[head * args.sink_stride]);
  const i64 rows = static_cast<i64>(args.batch) * args.tokens;
  double sum = 0;  // of the warp's rows, the same in every lane
  for (i64 row = warp; row < rows; row += warps) {
    const i64 batch = row / args.tokens, token = row % args.tokens;
    const auto place = [&](const RowsView& view) { return batch * view.batch + token * view.token + head * view.head; };
    const double lse = static_cast<const Wide*>(args.lse.data)[place(args.lse)];
    const double p = exp(logit - lse);
    if (p == 0 || lse == -static_cast<double>(infinity())) continue;
    double delta = 0;
    if (p != 1) {  // 1: no keys, and out is constant 0
      const Element* out = static_cast<const Element*>(args.out.data) + place(args.out);
      const Element* dout = static_cast<const Element*>(args.dout.data) + place(args.dout);
      for (int d = lane; d < args.dim; d += kWarp)
        delta += static_cast<double>(to_real(out[d * args.out.dim])) * static_cast<double>(to_real(dout[d * args.dout.dim]));
      delta = warp_sum(delta);
    }
    if (args.dlse.data != nullptr) delta -= static_cast<const Wide*>(args.dlse.data)[place(args.dlse)];
    sum -= p * delta;
  }
  __shared__ double of_warp[kSinkThreads / kWarp];
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int w = 0; w < warps; ++w) total += of_warp[w];
  args.gradient[head] = total;
}
