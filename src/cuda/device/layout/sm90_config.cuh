#pragma once
// What is decided about a Hopper kernel before it is compiled, a struct for each family. Plain C++: the host fills one and prints it into
// config.cuh as kConfig (jit::Constants::set_struct), from which kernels and tiles take their sizes. `fields` names every field, for the
// printer; `chosen` those of tables and of files of tuned configurations, from which the others follow.

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

}  // namespace foveal::device
