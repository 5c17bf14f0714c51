#pragma once
// What every attention kernel knows of the problem when it is compiled. Plain C++: the host fills the struct and prints it into config.cuh
// as kProblem (launch/attention_args.h); beside it are the types Element, of q, k, v and out, and SeqlenIndex and SeqlenKvIndex, of
// lengths.

namespace foveal::device {

/// Where the keys of a sequence are, and what AttentionArgs::kv_lengths holds:
///  batched   seqlen_kv rows for each batch entry; no lengths
///  packed    one sequence after the other; cu_seqlens_kv
///  paged     in pages of a pool; seqlens_kv
///  gathered  pages copied into seqlen_kv contiguous rows for each sequence, of which seqlens_kv exist; their gradients are wide
///            (f32 for 16-bit types) and summed into pages afterwards
///  spread    in ranges of two memories (SpreadKeys)
enum class KeyRows { batched, packed, paged, gathered, spread };

struct ProblemTraits {
  int head_dim, head_dim_v;  ///< for Hopper kernels multiples of 8, up to 256
  bool varlen;               ///< queries are packed (cu_seqlens_q)
  KeyRows key_rows;
  int page_size;  ///< a multiple of 16 where kernels look up pages or ranges, which begin at multiples of it; 0: neither
  bool part;      ///< one part of an attention computed in several launches (PartArgs): results are wide, and accumulated
  bool of_whole;  ///< dropout numbers batch entries and heads as in the whole attention
  bool dropout;
  bool scale_first;  ///< before the exponent, which needs a positive factor
  int bin_bits;      ///< of exact sums (score/exact_sum.cuh)

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("head_dim", self.head_dim), fn("head_dim_v", self.head_dim_v), fn("varlen", self.varlen), fn("key_rows", self.key_rows);
    fn("page_size", self.page_size), fn("part", self.part), fn("of_whole", self.of_whole), fn("dropout", self.dropout);
    fn("scale_first", self.scale_first), fn("bin_bits", self.bin_bits);
  }
};

}  // namespace foveal::device
