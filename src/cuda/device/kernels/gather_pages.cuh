// Copies keys or values from pages to contiguous rows, seqlen_kv for each sequence, and zeroes rows behind the last key up to a multiple of
// kRowsMultiple.
//
// config.cuh: kConfig (a GatherPagesConfig); Piece, SeqlenKvIndex (types).
#include "schedule/pages.cuh"

#include "config.cuh"

/// Grid: (any, sequences).
extern "C" __global__ void __launch_bounds__(foveal::device::kPageThreads)
    gather_pages(const __grid_constant__ foveal::device::PagesArgs args) {
  using namespace foveal::device;
  const int sequence = blockIdx.y, length = length_of<SeqlenKvIndex>(args, sequence);
  const int pieces = args.dim / kConfig.piece_elements, rows = min(round_up(length, kRowsMultiple), args.seqlen_kv);
  const auto at = [](const Tensor& tensor, i64 offset) {
    return reinterpret_cast<Piece*>(static_cast<char*>(tensor.data) + offset * (sizeof(Piece) / kConfig.piece_elements));
  };
  for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < i64(rows) * args.heads * pieces; i += i64(gridDim.x) * blockDim.x) {
    const int piece = int(i % pieces), head = int(i / pieces % args.heads), row = int(i / pieces / args.heads);
    const int page = row < length ? page_of(args, sequence, row / args.page_size) : -1;
    Piece value{};
    if (page >= 0 && page < args.pages) {
      value = *at(args.pool, page * args.pool.batch + row % args.page_size * args.pool.seq + head * args.pool.head +
                                 i64(piece) * kConfig.piece_elements * args.pool.dim);
    }
    *at(args.rows, (i64(sequence) * args.seqlen_kv + row) * args.rows.seq + head * args.rows.head + piece * kConfig.piece_elements) = value;
  }
}
