// Where the elements lie in memory changes nothing, not even a bit.
#include "laws.h"

namespace foveal::laws {
namespace {

class Layout : public Laws {};
FOVEAL_LAWS(Layout);

TEST_P(Layout, EveryLayoutGivesTheSameBits) {
  for (const char* dtype : {"f32", "bf16"})
    for (const char* pass : {"forward ", "backward "}) {
      const std::string problem = std::string(pass) + dtype +
                                  " b2 h4:2 q37 d48 mask=\"causal()\" score=\"score + rel[head, clamp(kv_idx - q_idx, -3, 3) + 3]\" "
                                  "param=\"rel: real[4, 7] grad\" seed=3 layout=";
      CaseData contiguous = make(problem + "bshd");
      RUN_OR_SKIP(contiguous);
      const auto expected = bits_of_results(contiguous);
      for (const char* layout : {"bhsd", "sbhd", "padded", "packed_qkv", "dim_first"}) {
        CaseData other = make(problem + layout);
        for (const char* role : {"q", "k", "v", "dout"})
          if (other.view(role).present()) set_values(other.view(role), values_of(contiguous.view(role)));
        RUN_OR_SKIP(other);
        EXPECT_EQ(bits_of_results(other), expected) << pass << dtype << " " << layout;
        EXPECT_EQ(other.damage(), "") << pass << dtype << " " << layout;
      }
    }
}

TEST_P(Layout, StridesOfZeroAndBelowAreRead) {
  // One key and value head of one batch, seen by all: as a broadcast view and as copies.
  CaseData copies = make("forward f32 b3 h2 q9:11 d16");
  CaseData broadcast = make("forward f32 b3 h2 q9:11 d16 strides=k:0,16,0,1;v:0,16,0,1");
  for (const char* role : {"k", "v"}) set_values(copies.view(role), values_of(broadcast.view(role)));
  set_values(broadcast.view("q"), values_of(copies.view("q")));
  RUN_OR_SKIP(copies);
  RUN_OR_SKIP(broadcast);
  EXPECT_EQ(bits_of_results(copies), bits_of_results(broadcast));

  CaseData reversed = make("forward f32 b3 h2 q9:11 d16 strides=q:288,-32,16,1;k:352,32,-16,1;v:-352,32,16,1");
  for (const char* role : {"q", "k", "v"}) set_values(reversed.view(role), values_of(copies.view(role)));
  RUN_OR_SKIP(reversed);
  EXPECT_EQ(bits_of_results(copies), bits_of_results(reversed));
}

/// Reverses the order of the blocks of `block` elements in each group of `count` blocks.
Values reversed_blocks(const Values& values, std::size_t count, std::size_t block) {
  Values result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t group = i / (count * block), which = i / block % count, inside = i % block;
    result[(group * count + count - 1 - which) * block + inside] = values[i];
  }
  return result;
}

TEST_P(Layout, HeadsAndBatchesCanBeReordered) {
  constexpr std::size_t batch = 3, heads = 4, seqlen = 21, dim = 24;
  CaseData plain = make("backward f32 b3 h4 q21 d24 mask=\"causal()\""),
           heads_reversed = make("backward f32 b3 h4 q21 d24 mask=\"causal()\"");
  CaseData batch_reversed = make("backward f32 b3 h4 q21 d24 mask=\"causal()\"");
  for (const char* role : {"q", "k", "v", "dout"}) {
    set_values(heads_reversed.view(role), reversed_blocks(values_of(plain.view(role)), heads, dim));
    set_values(batch_reversed.view(role), reversed_blocks(values_of(plain.view(role)), batch, seqlen * heads * dim));
  }
  RUN_OR_SKIP(plain);
  RUN_OR_SKIP(heads_reversed);
  RUN_OR_SKIP(batch_reversed);
  for (const char* role : {"out", "dq", "dk", "dv"}) {
    EXPECT_EQ(values_of(heads_reversed.view(role)), reversed_blocks(values_of(plain.view(role)), heads, dim)) << role;
    EXPECT_EQ(values_of(batch_reversed.view(role)), reversed_blocks(values_of(plain.view(role)), batch, seqlen * heads * dim)) << role;
  }
}

TEST_P(Layout, GroupedHeadsEqualRepeatedHeads) {
  constexpr std::int64_t heads = 6, group = 3, seqlen = 19, dim = 32;
  CaseData grouped = make("backward f32 b1 h6:2 q19 d32 mask=\"window(5)\""),
           repeated = make("backward f32 b1 h6 q19 d32 mask=\"window(5)\"");
  for (const char* role : {"q", "dout"}) set_values(repeated.view(role), values_of(grouped.view(role)));
  for (const char* role : {"k", "v"}) {
    const Values from = values_of(grouped.view(role));
    Values to;
    for (std::int64_t token = 0; token < seqlen; ++token)
      for (std::int64_t head = 0; head < heads; ++head)
        for (std::int64_t d = 0; d < dim; ++d)
          to.push_back(from[static_cast<std::size_t>((token * (heads / group) + head / group) * dim + d)]);
    set_values(repeated.view(role), to);
  }
  RUN_OR_SKIP(grouped);
  RUN_OR_SKIP(repeated);
  EXPECT_EQ(values_of(grouped.view("out")), values_of(repeated.view("out")));
  EXPECT_LT(worst_difference(values_of(grouped.view("dq")), values_of(repeated.view("dq"))), 1e-5);
  for (const char* role : {"dk", "dv"}) {  // the group's gradients add up
    const Values each = values_of(repeated.view(role));
    Values sum(static_cast<std::size_t>(seqlen * heads / group * dim));
    for (std::int64_t token = 0; token < seqlen; ++token)
      for (std::int64_t head = 0; head < heads; ++head)
        for (std::int64_t d = 0; d < dim; ++d)
          sum[static_cast<std::size_t>((token * (heads / group) + head / group) * dim + d)] +=
              each[static_cast<std::size_t>((token * heads + head) * dim + d)];
    EXPECT_LT(worst_difference(values_of(grouped.view(role)), sum), 1e-5) << role;
  }
}

TEST_P(Layout, PackedSequencesEqualSeparateCalls) {
  const std::vector<std::pair<int, int>> lengths{{17, 17}, {1, 30}, {40, 3}, {33, 64}};
  CaseData packed =
      make("backward f32 h4:2 d32 lengths=17:17,1:30,40:3,33:64 mask=\"causal_bottom_right()\" score=\"score * (1 + 0.1 * batch)\"");
  RUN_OR_SKIP(packed);
  std::size_t q_begin = 0, kv_begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto [q, kv] = lengths[i];
    CaseData alone = make("backward f32 b1 h4:2 q" + std::to_string(q) + ":" + std::to_string(kv) +
                          " d32 mask=\"causal_bottom_right()\" score=\"score * (1 + 0.1 * " + std::to_string(i) + ")\"");
    const auto part = [&, q = q, kv = kv](const char* role) {
      const bool is_q = std::string(role) == "q" || std::string(role) == "dq" || std::string(role) == "out" || std::string(role) == "dout";
      const std::size_t token = (is_q ? 4 : 2) * 32, begin = is_q ? q_begin : kv_begin, count = static_cast<std::size_t>(is_q ? q : kv);
      const Values all = values_of(packed.view(role));
      return Values(all.begin() + static_cast<std::ptrdiff_t>(begin * token),
                    all.begin() + static_cast<std::ptrdiff_t>((begin + count) * token));
    };
    for (const char* role : {"q", "k", "v", "dout"}) set_values(alone.view(role), part(role));
    RUN_OR_SKIP(alone);
    for (const char* role : {"out", "dq", "dk", "dv"})
      EXPECT_LT(worst_difference(values_of(alone.view(role)), part(role)), 2e-5) << role << " of sequence " << i;
    q_begin += static_cast<std::size_t>(q), kv_begin += static_cast<std::size_t>(kv);
  }
}

}  // namespace
}  // namespace foveal::laws
