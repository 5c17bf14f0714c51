// Final results from wide accumulated parts: out in its own type, and lse, with the sink applied.
//
// config.cuh: kConfig (a FinishRowsConfig); Element, Sink (types); Wide: of sums and lse.
#include "element.cuh"
#include "rows_args.cuh"

#include "config.cuh"

/// Grid: (any, batch); one row for each warp at a time.
extern "C" __global__ void __launch_bounds__(foveal::device::kRowThreads)
    finish_rows(const __grid_constant__ foveal::device::FinishRowsArgs args) {
  using namespace foveal::device;
  const double none = -static_cast<double>(infinity());
  const u64 all = static_cast<u64>(args.tokens) * args.heads, step = static_cast<u64>(gridDim.x) * (blockDim.x / kWarp);
  for (u64 row = static_cast<u64>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp; row < all; row += step) {
    const u32 head = row % args.heads, token = row / args.heads;
    const auto place = [&](const RowsView& view) { return blockIdx.y * view.batch + token * view.token + head * view.head; };
    double lse = static_cast<const double*>(args.sums.data)[place(args.sums)];
    Wide factor = lse == none ? Wide(0) : Wide(1);
    if constexpr (kConfig.has_sink) {
      const double logit = to_real(static_cast<const Sink*>(args.sink)[head * args.sink_stride]);
      const double high = lse > logit ? lse : logit;
      if (high != none) {
        const Wide of_keys = exp_real(Wide(lse - high)), of_sink = exp_real(Wide(logit - high));
        factor = of_keys / (of_keys + of_sink);
        lse = high + static_cast<double>(log_real(of_keys + of_sink));
      }
    }
    if (args.lse.data != nullptr && threadIdx.x % kWarp == 0) static_cast<Wide*>(args.lse.data)[place(args.lse)] = Wide(lse);
    Element* out = static_cast<Element*>(args.out.data) + place(args.out);
    const Wide* wide = static_cast<const Wide*>(args.wide.data) + place(args.wide);
    if (kConfig.vector > 1) {
      for (int d = threadIdx.x % kWarp * kConfig.vector; d < args.dim; d += kWarp * kConfig.vector) {
        struct alignas(sizeof(Wide) * kConfig.vector) From {
          Wide value[kConfig.vector];
        };
        struct alignas(sizeof(Element) * kConfig.vector) To {
          Element value[kConfig.vector];
        };
        From from{};
        if (factor != 0) from = *reinterpret_cast<const From*>(wide + d);
        To to;
#pragma unroll
        for (int e = 0; e < kConfig.vector; ++e) from_real(to.value[e], from.value[e] * factor);
        *reinterpret_cast<To*>(out + d) = to;
      }
    } else {
      for (int d = threadIdx.x % kWarp; d < args.dim; d += kWarp)
        from_real(out[d * args.out.dim], factor != 0 ? wide[d * args.wide.dim] * factor : Wide(0));
    }
  }
}
