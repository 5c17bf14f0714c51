// Attention over parts of the keys, joined by lse, is attention over all of them: what context parallelism and split keys stand on.
#include "laws.h"

namespace foveal::laws {
namespace {

class Merge : public Laws {
 protected:
  static constexpr std::size_t heads = 2, seqlen = 50, dim = 16;

  /// Joins two partial results. Rows without keys have lse -inf and no weight.
  static void merge(const CaseData& a, const CaseData& b, Values& out, Values& lse) {
    const Values out_a = values_of(a.view("out")), out_b = values_of(b.view("out")), lse_a = values_of(a.view("lse")),
                 lse_b = values_of(b.view("lse"));
    out.resize(out_a.size()), lse.resize(lse_a.size());
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t q = 0; q < seqlen; ++q) {
        const std::size_t row = h * seqlen + q, at = (q * heads + h) * dim;
        const double largest = std::max(lse_a[row], lse_b[row]);
        const double weight_a = std::exp(lse_a[row] - largest), weight_b = std::exp(lse_b[row] - largest);
        lse[row] = largest + std::log(weight_a + weight_b);
        for (std::size_t d = 0; d < dim; ++d) out[at + d] = (weight_a * out_a[at + d] + weight_b * out_b[at + d]) / (weight_a + weight_b);
      }
  }

  static Values tokens(const Values& all, std::size_t begin, std::size_t end) {
    constexpr auto token = static_cast<std::ptrdiff_t>(heads * dim);
    return {all.begin() + static_cast<std::ptrdiff_t>(begin) * token, all.begin() + static_cast<std::ptrdiff_t>(end) * token};
  }
};
FOVEAL_LAWS(Merge);

TEST_P(Merge, HalvesOfTheKeysMakeTheWhole) {
  const std::string what = " d16 mask=\"causal()\" score=\"score + 0.1 * (kv_idx - q_idx)\"";
  CaseData whole = make("forward f32 b1 h2 q50" + what), first = make("forward f32 b1 h2 q50:30" + what);
  CaseData second = make("forward f32 b1 h2 q50:20 kv_offset=30" + what);
  for (CaseData* part : {&first, &second}) set_values(part->view("q"), values_of(whole.view("q")));
  for (const char* role : {"k", "v"}) {
    set_values(first.view(role), tokens(values_of(whole.view(role)), 0, 30));
    set_values(second.view(role), tokens(values_of(whole.view(role)), 30, 50));
  }
  RUN_OR_SKIP(whole);
  RUN_OR_SKIP(first);
  RUN_OR_SKIP(second);
  Values out, lse;
  merge(first, second, out, lse);
  EXPECT_LT(worst_difference(out, values_of(whole.view("out"))), 1e-5);
  EXPECT_LT(worst_difference(lse, values_of(whole.view("lse"))), 1e-5);
}

TEST_P(Merge, GradientsOfPartsMakeTheWhole) {
  if (GetParam().backend == "cuda") GTEST_SKIP() << "runs through tensors of the host";
  // Each part is given out and lse of the whole, as a rank of a ring is.
  const std::string what = " d16 mask=\"window(21)\"";
  CaseData whole = make("backward f32 b1 h2 q50" + what), first = make("backward f32 b1 h2 q50:30" + what);
  CaseData second = make("backward f32 b1 h2 q50:20 kv_offset=30" + what);
  RUN_OR_SKIP(whole);
  Values dq(heads * seqlen * dim), dk, dv;
  for (CaseData* part : {&first, &second}) {
    for (const char* role : {"q", "out", "lse", "dout"}) set_values(part->view(role), values_of(whole.view(role)));
    const bool is_first = part == &first;
    for (const char* role : {"k", "v"})
      set_values(part->view(role), tokens(values_of(whole.view(role)), is_first ? 0 : 30, is_first ? 30 : 50));
    backward(part->line().attention, part->backward_inputs(), part->backward_outputs(), {}, options());
    const Values part_dq = values_of(part->view("dq")), part_dk = values_of(part->view("dk")), part_dv = values_of(part->view("dv"));
    for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += part_dq[i];
    dk.insert(dk.end(), part_dk.begin(), part_dk.end());
    dv.insert(dv.end(), part_dv.begin(), part_dv.end());
  }
  EXPECT_LT(worst_difference(dq, values_of(whole.view("dq"))), 1e-5);
  EXPECT_LT(worst_difference(dk, values_of(whole.view("dk"))), 1e-5);
  EXPECT_LT(worst_difference(dv, values_of(whole.view("dv"))), 1e-5);
}

TEST_P(Merge, AMaskAndItsComplementMakeTheWhole) {
  CaseData whole = make("forward f32 b1 h2 q50 d16 mask=\"causal()\""),
           near = make("forward f32 b1 h2 q50 d16 mask=\"causal() & window(7)\"");
  CaseData far = make("forward f32 b1 h2 q50 d16 mask=\"causal() & ~window(7)\"");
  RUN_OR_SKIP(whole);
  RUN_OR_SKIP(near);
  RUN_OR_SKIP(far);
  Values out, lse;
  merge(near, far, out, lse);
  EXPECT_LT(worst_difference(out, values_of(whole.view("out"))), 1e-5);
  EXPECT_LT(worst_difference(lse, values_of(whole.view("lse"))), 1e-5);
}

TEST_P(Merge, AShardOfTheQueriesIsASliceOfTheWhole) {
  CaseData whole = make("forward f32 b1 h2 q50 d16 mask=\"causal() & window(9)\""),
           shard = make("forward f32 b1 h2 q20:50 d16 q_offset=30 mask=\"causal() & window(9)\"");
  set_values(shard.view("q"), tokens(values_of(whole.view("q")), 30, 50));
  for (const char* role : {"k", "v"}) set_values(shard.view(role), values_of(whole.view(role)));
  RUN_OR_SKIP(whole);
  RUN_OR_SKIP(shard);
  EXPECT_LT(worst_difference(values_of(shard.view("out")), tokens(values_of(whole.view("out")), 30, 50)), 1e-5);
}

}  // namespace
}  // namespace foveal::laws
