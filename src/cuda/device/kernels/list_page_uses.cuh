// Lists the sequences that have keys in each page, in their order, so that sums over them are deterministic; only the position of a page's
// list within `uses` varies.
//
// config.cuh: SeqlenKvIndex.
#include "schedule/pages.cuh"

#include "config.cuh"

namespace foveal::device {

/// By a warp: calls see(use, index) in the lane of each use of a page; returns their count.
template <class See>
FOVEAL_DEVICE int for_each_use(const PagesArgs& args, int page, See&& see) {
  int count = 0;
  const int entries = args.batch * args.width;
  for (int first = 0; first < entries; first += kWarp) {
    const int entry = first + lane_id(), sequence = entry / args.width, index = entry % args.width;
    int rows = 0;
    if (entry < entries && page_of(args, sequence, index) == page) {
      rows = min(length_of<SeqlenKvIndex>(args, sequence) - index * args.page_size, args.page_size);
    }
    const u32 users = __ballot_sync(~0u, rows > 0);
    if (rows > 0) see(PageUse{sequence * args.seqlen_kv + index * args.page_size, rows}, count + __popc(users & ((1u << lane_id()) - 1)));
    count += __popc(users);
  }
  return count;
}

}  // namespace foveal::device

/// One page for each warp.
extern "C" __global__ void __launch_bounds__(foveal::device::kPageThreads)
    list_page_uses(const __grid_constant__ foveal::device::PagesArgs args) {
  using namespace foveal::device;
  const int page = int(blockIdx.x) * (kPageThreads / kWarp) + warp_id();
  if (page >= args.pages) return;
  const int count = for_each_use(args, page, [](const PageUse&, int) {});
  int begin = 0;
  if (lane_id() == 0) begin = atomicAdd(args.used, count);
  begin = __shfl_sync(~0u, begin, 0);
  for_each_use(args, page, [&](const PageUse& use, int number) { args.uses[begin + number] = use; });
  if (lane_id() == 0) args.of_page[page] = {begin, count};
}
