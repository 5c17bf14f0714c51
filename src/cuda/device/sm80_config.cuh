#pragma once
// What is decided about a portable kernel before it is compiled: as sm90_config.cuh.

namespace foveal::device {

/// kConfig of the kernels of tiles: kernels/forward_sm80.cuh, dq_sm80.cuh, dkdv_sm80.cuh, two_scan_sm80.cuh, pairs_sm80.cuh and
/// measure_sm80.cuh; the kernels delta_sm80.cuh and classify_sm80.cuh have some of it.
struct PortableConfig {
  int block_q = 64, block_kv = 64;
  int warps = 4;
  int row_tiles = 1;     ///< m16 tiles of rows per warp
  int stages = 1;        ///< of the tiles along the walk
  int column_split = 1;  ///< warps that share rows and split the columns of what is summed
  int ctas = 1;          ///< at least this many CTAs on a multiprocessor

  constexpr int threads() const { return 32 * warps; }

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("block_q", self.block_q), fn("block_kv", self.block_kv), fn("warps", self.warps), fn("row_tiles", self.row_tiles);
    fn("stages", self.stages), fn("column_split", self.column_split), fn("ctas", self.ctas);
  }
  template <class Self, class Fn>
  static void chosen(Self& self, Fn fn) {
    fields(self, fn);
  }
};

/// kWanted of the backward kernels: the gradients that are asked for.
struct WantedGradients {
  bool dq, dk, dv;

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("dq", self.dq), fn("dk", self.dk), fn("dv", self.dv);
  }
};

/// kPairs of kernels/pairs_sm80.cuh: the trained read with an element for each pair.
struct PairsRead {
  int read;                  ///< its number
  bool own_batch, own_head;  ///< is the parameter indexed by batch, by head?
  bool shares_address;       ///< do all batch entries and heads that share an element add to one address?

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("read", self.read), fn("own_batch", self.own_batch), fn("own_head", self.own_head), fn("shares_address", self.shares_address);
  }
};

/// kMask of kernels/classify_sm80.cuh.
struct ClassifiedMask {
  bool transposed;  ///< rows of tiles are keys
  int heads;        ///< that have rows of their own

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("transposed", self.transposed), fn("heads", self.heads);
  }
};

}  // namespace foveal::device
