#pragma once
// What is decided about a Hopper kernel before it is compiled, a struct for each family. Plain C++: the host fills one and prints it into
// config.cuh as kConfig (jit::Constants::set_struct), from which kernels and tiles take their sizes. `fields` names every field, for the
// printer; `chosen` those of tables and of files of tuned configurations, from which the others follow.
#include "layout/sm90.cuh"

namespace foveal::device {

/// How the tiles of a row are determined. all: every tile. causal: kv - q <= band_high. band: band_low <= kv - q as well. list: runs
/// computed by mask/, with the mask program for partial tiles.
enum class TileSource { all, causal, band, list };

/// kernels/forward_sm90.cuh and kernels/decode_sm90.cuh.
struct ForwardConfig {
  int block_kv = 128;  ///< keys of a tile, a multiple of 16
  int consumers = 2;   ///< warpgroups of 64 rows
  int stages = 2;      ///< of keys and values
  int query_stages = 2;
  bool ping_pong = true;                 ///< one warpgroup's softmax overlaps the products of another
  bool intra_warpgroup_overlap = false;  ///< softmax overlaps the P V product of the same warpgroup
  int packed_heads = 1;                  ///< GQA packing: query heads that share a tile
  int pair_stages = 0;                   ///< of reads that TMA loads as tiles; 0: none
  bool split_kv = false;                 ///< several tasks share the keys of a row of tiles
  TileSource tile_source = TileSource::all;

  constexpr bool is_decode() const { return consumers == 1 || packed_heads > 1; }  ///< decode and short prefill
  constexpr int block_q() const { return 64 * consumers; }
  constexpr int queries() const { return block_q() / packed_heads; }  ///< of a tile; leftover rows are zero
  constexpr int threads() const { return 128 * (1 + consumers); }
  /// Registers per thread. has_lines: a warp of the producer warpgroup evaluates line values; looks_up: another looks up pages or ranges.
  constexpr int producer_registers(bool has_lines, bool looks_up) const {
    return consumers == 3 ? 32 : has_lines ? 56 : looks_up ? 40 : 24;
  }
  constexpr int consumer_registers(bool has_lines, bool looks_up) const {
    return consumers == 3 ? 160 : has_lines ? 224 : looks_up && consumers == 2 ? 232 : 240;
  }

  template <class Self, class Fn>
  static void chosen(Self& self, Fn fn) {
    fn("block_kv", self.block_kv), fn("consumers", self.consumers), fn("stages", self.stages), fn("query_stages", self.query_stages);
    fn("ping_pong", self.ping_pong), fn("intra_warpgroup_overlap", self.intra_warpgroup_overlap);
    fn("packed_heads", self.packed_heads), fn("pair_stages", self.pair_stages);
  }
  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    chosen(self, fn);
    fn("split_kv", self.split_kv), fn("tile_source", self.tile_source);
  }
};

/// Registers per thread of two consumer warpgroups, when each thread of the producer warpgroup keeps `producer_registers` of the 168 that a
/// launch of 384 threads gives it.
constexpr int registers_of_two(int producer_registers) { return (3 * 168 - producer_registers) / 2; }

/// kernels/backward_sm90.cuh, kernels/backward_wide_sm90.cuh and kernels/collect_sm90.cuh. What tells them apart: shape().
struct BackwardConfig {
  BackwardKernel kernel = BackwardKernel::narrow;
  int block_q = 64, block_kv = 128;  ///< of a CTA; block_kv is that of the kernel
  int stages = 2;                    ///< of queries and gradients of the output
  int pair_stages = 0;               ///< of reads that TMA loads as tiles; 0: none
  int producer_registers = 0;        ///< per thread of the producer warpgroup; the consumers share the rest
  bool collects = false;             ///< sums gradients of parameters, except those with a kernel of their own
  bool splits_groups = false;        ///< the query heads of a kv head are split among Sm90Args::splits tasks
  bool reproducible = false;         ///< tiles are added to dQ in a fixed order
  TileSource tile_source = TileSource::all;

  static constexpr int threads = BackwardFamily::threads;
  constexpr BackwardFamily shape() const { return backward_family(kernel); }
  constexpr int consumer_registers() const { return registers_of_two(producer_registers); }
  /// Among the gradients that it collects, those of reads whose terms it sums pair by pair?
  constexpr bool collects_terms() const { return collects && shape().cluster_size == 1; }

  template <class Self, class Fn>
  static void chosen(Self& self, Fn fn) {
    fn("block_q", self.block_q), fn("block_kv", self.block_kv), fn("stages", self.stages), fn("pair_stages", self.pair_stages);
  }
  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("kernel", self.kernel);
    chosen(self, fn);
    fn("producer_registers", self.producer_registers), fn("collects", self.collects), fn("splits_groups", self.splits_groups);
    fn("reproducible", self.reproducible), fn("tile_source", self.tile_source);
  }
};

/// What precedes and follows these kernels: kernels/backward_prepare_sm90.cuh and kernels/backward_convert_sm90.cuh.
struct BackwardRowsConfig {
  int block_q;                ///< of the kernel between them
  bool mask_is_band;          ///< single pairs are tested by the band's limits
  bool keeps_rows;            ///< the rows' state is kept from part to part (KeptRows)
  bool reproducible = false;  ///< prepares an order for tiles that are added to dQ

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("block_q", self.block_q), fn("mask_is_band", self.mask_is_band), fn("keeps_rows", self.keeps_rows);
    fn("reproducible", self.reproducible);
  }
};

/// kernels/pairs_sm90.cuh: a trained read with an element for each pair.
struct PairsConfig {
  static constexpr int consumers = 2;  ///< warpgroups of 64 queries
  static constexpr int block_q = 64 * consumers, threads = 128 * (1 + consumers);
  static constexpr int tasks_ahead = 4;      ///< started tasks that the warps which write zeros may lag behind
  int block_kv;                              ///< 64 or 128
  int stages;                                ///< of q, k, v and dout of one batch and head
  int pair_stages = 0;                       ///< of reads that TMA loads as tiles, each 64 keys wide; 0: none
  int read = 0;                              ///< its number
  bool own_batch = false, own_head = false;  ///< is the parameter indexed by batch, by head?
  bool pairs_differ = false;                 ///< pair reads differ between those that share an element
  bool hold_pairs = false;                   ///< pair reads stay in registers
  bool covers = false;                       ///< the parameter is exactly the pairs
  TileSource tile_source = TileSource::all;

  constexpr bool is_narrow() const { return block_kv == 64; }
  constexpr int producer_registers() const { return is_narrow() ? 72 : 56; }
  constexpr int consumer_registers() const { return registers_of_two(producer_registers()); }

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("block_kv", self.block_kv), fn("stages", self.stages), fn("pair_stages", self.pair_stages), fn("read", self.read);
    fn("own_batch", self.own_batch), fn("own_head", self.own_head), fn("pairs_differ", self.pairs_differ);
    fn("hold_pairs", self.hold_pairs), fn("covers", self.covers), fn("tile_source", self.tile_source);
  }
};

/// kernels/rows_sm90.cuh: trained reads of tables, summed for each query.
struct RowsConfig {
  static constexpr int block_kv = 64;
  int consumers;  ///< warpgroups of 64 queries
  int stages;     ///< of keys and values
  TileSource tile_source = TileSource::all;

  constexpr int block_q() const { return 64 * consumers; }
  constexpr int threads() const { return 128 * (1 + consumers); }
  constexpr int producer_registers() const { return consumers == 2 ? 40 : 56; }
  constexpr int consumer_registers() const { return consumers == 2 ? registers_of_two(producer_registers()) : 240; }

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("consumers", self.consumers), fn("stages", self.stages), fn("tile_source", self.tile_source);
  }
};

}  // namespace foveal::device
