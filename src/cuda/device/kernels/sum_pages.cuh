// Scatters gradients of keys or values from contiguous rows to their pages: each page row is the sum over the sequences that use it, in
// their order, or zero.
//
// config.cuh: Element (of the pool), Wide (of the rows).
#include "element.cuh"
#include "schedule/pages.cuh"

#include "config.cuh"

/// Grid: (pages, any).
extern "C" __global__ void __launch_bounds__(foveal::device::kPageThreads)
    sum_pages(const __grid_constant__ foveal::device::PagesArgs args) {
  using namespace foveal::device;
  const int page = blockIdx.x;
  const PageUses uses = args.of_page[page];
  const Wide* rows = static_cast<const Wide*>(args.rows.data);
  Element* pool = static_cast<Element*>(args.pool.data) + page * args.pool.batch;
  for (i64 i = i64(blockIdx.y) * blockDim.x + threadIdx.x; i < i64(args.page_size) * args.heads * args.dim;
       i += i64(gridDim.y) * blockDim.x) {
    const int column = int(i % args.dim), head = int(i / args.dim % args.heads), row = int(i / args.dim / args.heads);
    double sum = 0;
    bool first = true;
    for (int u = uses.begin; u < uses.begin + uses.count; ++u) {
      const PageUse use = args.uses[u];
      if (row >= use.rows) continue;
      const double value = rows[i64(use.first_row + row) * args.rows.seq + head * args.rows.head + column];
      sum = first ? value : sum + value;
      first = false;
    }
    from_real(pool[row * args.pool.seq + head * args.pool.head + column * args.pool.dim], sum);
  }
}
