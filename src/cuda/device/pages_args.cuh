#pragma once
// What the kernels that convert between pages and contiguous rows are called with, and compiled for (kConfig). Shared with the host: plain
// types only.
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

constexpr int kPageThreads = 256;  ///< of a CTA
/// The gathered rows of a sequence are a multiple of this: no tile of keys of a backward kernel is larger, and it holds rows of one
/// sequence.
constexpr int kRowsMultiple = 128;

/// kConfig of kernels/gather_pages.cuh.
struct GatherPagesConfig {
  int piece_elements;  ///< of a Piece, the unit of copying

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("piece_elements", self.piece_elements);
  }
};

}  // namespace foveal::device
