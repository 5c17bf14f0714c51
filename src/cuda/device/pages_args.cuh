#pragma once
// Arguments of the kernels that convert between pages and contiguous rows. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

/// Keys of one sequence in one page, as rows of the gathered tensor.
struct alignas(8) PageUse {
  int first_row, rows;
};
/// Uses of one page: uses[begin .. begin + count), in order of sequences.
struct alignas(8) PageUses {
  int begin, count;
};

struct PagesArgs {
  Tensor pool, rows;    ///< [pages, page_size, heads, dim]; [batch * seqlen_kv, heads, dim], of wide gradients for sum_pages
  BlockTable table;     ///< `width` pages for each sequence
  const void* lengths;  ///< seqlens_kv
  int batch, width, pages, page_size;
  int seqlen_kv;  ///< rows of each sequence
  int heads, dim, unused;
  PageUse* uses;
  PageUses* of_page;
  int* used;  ///< entries of `uses` in use; initially 0
};

}  // namespace foveal::device
