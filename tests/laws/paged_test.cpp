// Keys and values in pages: which pages hold them changes nothing.
#include "check/check.h"
#include "laws.h"

namespace foveal::laws {
namespace {

class PagedKeys : public Laws {};
FOVEAL_LAWS(PagedKeys);

struct Key {
  std::int64_t sequence, key;
};

/// The keys of all sequences, one sequence after the other.
std::vector<Key> keys_of(const Line& line) {
  std::vector<Key> keys;
  for (std::size_t b = 0; b < line.lengths.size(); ++b)
    for (std::int64_t key = 0; key < line.lengths[b].second; ++key) keys.push_back({static_cast<std::int64_t>(b), key});
  return keys;
}

/// Rows of a pool, [pages * page_size] of them, in the order of the keys.
Values gathered(const CaseData& paged, const std::string& role) {
  const Values pool = values_of(paged.view(role));
  const std::size_t row = pool.size() / static_cast<std::size_t>(paged.line().pages * paged.line().page_size);
  Values values;
  for (const Key& key : keys_of(paged.line())) {
    const auto begin = pool.begin() + static_cast<std::ptrdiff_t>(paged.pool_row(key.sequence, key.key)) * static_cast<std::ptrdiff_t>(row);
    values.insert(values.end(), begin, begin + static_cast<std::ptrdiff_t>(row));
  }
  return values;
}

/// The pool whose rows are sums of rows in the order of the keys.
Values scattered(const CaseData& paged, const Values& rows) {
  const std::vector<Key> keys = keys_of(paged.line());
  const std::size_t row = rows.size() / keys.size();
  Values pool(static_cast<std::size_t>(paged.line().pages * paged.line().page_size) * row);
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t d = 0; d < row; ++d)
      pool[static_cast<std::size_t>(paged.pool_row(keys[i].sequence, keys[i].key)) * row + d] += rows[i * row + d];
  return pool;
}

constexpr const char* scores[] = {
    "",
    " mask=\"causal_bottom_right() & window(19)\"",
    " score=\"5 * tanh(score / 5) + rel[head, clamp(kv_idx - q_idx, -3, 3) + 3]\" param=\"rel: real[4, 7] grad\" mask=\"(kv_idx + q_idx) % "
    "3 < "
    "2\" sink=s param=\"s: real[4] grad\"",
    " mask=\"kv_idx < seqlen_kv - batch\" dropout=0.3:5",
};

/// The same problem with its keys packed, and the values of the paged one.
CaseData packed_from(const CaseData& paged, CaseData packed) {
  for (const char* role : {"q", "dout"})
    if (paged.view(role).present()) set_values(packed.view(role), values_of(paged.view(role)));
  for (const char* role : {"k", "v"}) set_values(packed.view(role), gathered(paged, role));
  for (std::size_t i = 0; i < paged.line().params.size(); ++i) set_values(packed.param(i), values_of(paged.param(i)));
  return packed;
}

void expect_the_same(const CaseData& paged, const CaseData& packed, const std::string& what) {
  for (const char* role : {"out", "lse", "dq"})
    if (paged.view(role).present() && (paged.line().pass == Pass::forward) == (role[0] != 'd')) {
      EXPECT_EQ(worst_difference(values_of(paged.view(role)), values_of(packed.view(role))), 0) << what << ": " << role;
    }
  EXPECT_EQ(paged.damage(), "") << what;
  if (paged.line().pass == Pass::forward) return;
  for (const char* role : {"dk", "dv"})
    EXPECT_EQ(worst_difference(values_of(paged.view(role)), scattered(paged, values_of(packed.view(role)))), 0) << what << ": " << role;
  for (std::size_t i = 0; i < paged.line().params.size(); ++i)
    EXPECT_EQ(worst_difference(values_of(paged.dparam(i)), values_of(packed.dparam(i))), 0) << what << ": parameter " << i;
}

TEST_P(PagedKeys, GiveTheBitsOfPackedKeys) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"})
    for (const char* pass : {"forward ", "backward "})
      for (const char* score : scores)
        for (const char* pages : {" pages=16", " pages=48 layout=bhsd", " pages=128 layout=padded", " pages=32 layout=dim_first cu=i64"}) {
          const std::string problem = std::string(pass) + dtype + " h4:2 d40:24 seed=3 lengths=5:70,1:17,9:64,3:0,0:20,40:131" + score;
          CaseData paged = make(problem + pages);
          if (!run(paged)) continue;
          CaseData packed = packed_from(paged, make(problem));
          RUN_OR_SKIP(packed);
          expect_the_same(paged, packed, problem + pages);
        }
}

TEST_P(PagedKeys, OfQueriesThatAreNotPacked) {
  for (const char* dtype : {"f32", "bf16", "f64"})
    for (const char* pass : {"forward ", "backward "}) {
      const std::string problem = std::string(pass) + dtype + " h6:2 d64 seed=4 mask=\"causal_bottom_right()\"";
      CaseData paged = make(problem + " b3 q5:96 pages=32 seqlens_kv=96,5,33");
      if (!run(paged)) continue;
      CaseData packed = packed_from(paged, make(problem + " lengths=5:96,5:5,5:33"));
      RUN_OR_SKIP(packed);
      for (const char* role : {"out", "dq"})
        if (paged.view(role).present() && (paged.line().pass == Pass::forward) == (role[0] != 'd')) {
          EXPECT_EQ(worst_difference(values_of(paged.view(role)), values_of(packed.view(role))), 0) << problem << ": " << role;
        }
      if (paged.line().pass == Pass::forward) continue;
      for (const char* role : {"dk", "dv"})
        EXPECT_EQ(worst_difference(values_of(paged.view(role)), scattered(paged, values_of(packed.view(role)))), 0)
            << problem << ": " << role;
    }
}

TEST_P(PagedKeys, WhatNoSequenceUsesIsNotReadAndHasNoGradient) {
  for (const char* dtype : {"f32", "bf16"}) {
    CaseData paged = make(std::string("backward ") + dtype + " b2 h2 q3:60 d32 pages=16:12 seqlens_kv=60,17 seed=5");
    RUN_OR_SKIP(paged);
    const auto expected = bits_of_results(paged);
    std::vector<bool> used(static_cast<std::size_t>(paged.line().pages * paged.line().page_size));
    for (const Key& key : keys_of(paged.line())) used[static_cast<std::size_t>(paged.pool_row(key.sequence, key.key))] = true;
    for (const char* role : {"k", "v"}) {
      Values pool = values_of(paged.view(role));
      const std::size_t row = pool.size() / used.size();
      for (std::size_t i = 0; i < pool.size(); ++i)
        if (!used[i / row]) pool[i] = NAN;
      set_values(paged.view(role), pool);
    }
    RUN_OR_SKIP(paged);
    EXPECT_EQ(bits_of_results(paged), expected);
    const Values dk = values_of(paged.view("dk"));
    for (std::size_t i = 0; i < dk.size(); ++i)
      if (!used[i / (dk.size() / used.size())]) {
        EXPECT_EQ(dk[i], 0);
      }
  }
}

TEST_P(PagedKeys, SharedPagesSumTheirGradientsWhateverTheThreads) {
  const std::string problem = "backward f32 b4 h4:2 q9:64 d32 pages=16:5 seqlens_kv=64,50,64,16 seed=6";
  CaseData paged = make(problem);
  RUN_OR_SKIP(paged);
  const auto bits = bits_of_results(paged);
  for (const int threads : {2, 5}) {
    CaseData again = make(problem);
    RUN_OR_SKIP(again, threads);
    EXPECT_EQ(bits_of_results(again), bits);
  }
  CaseData packed = packed_from(paged, make("backward f32 h4:2 d32 seed=6 lengths=9:64,9:50,9:64,9:16"));
  RUN_OR_SKIP(packed);
  for (const char* role : {"dk", "dv"})
    EXPECT_LT(worst_difference(values_of(paged.view(role)), scattered(paged, values_of(packed.view(role)))), 1e-5) << role;
}

TEST_P(PagedKeys, KeepTheToleranceRule) {
  for (const char* text : {
           "forward f32 b1 h8:2 q1:4096 d64 pages=64 seqlens_kv=3999 mask=\"causal_bottom_right()\"",  // split-KV
           "forward bf16 b2 h8:1 q1:2048 d128 pages=64 seqlens_kv=2048,70 score=\"score * 0.5 + head\"",
           "forward bf16 b1 h4:2 q200:300 d64 pages=48 mask=\"causal()\"",  // prefill
           "forward f16 b1 h2 q130:129 d64:96 pages=16:40 layout=bhsd",
           "backward bf16 b1 h4:2 q200:300 d64 pages=48:4 mask=\"causal()\"",
           "backward f32 b2 h2 q65 d32 pages=16:3 strategy=split dlse",
           "backward f32 b2 h2 q65 d32 pages=16 strategy=two_scan grads=dk",
       }) {
    Line line = parse_line(text);
    if (GetParam().backend == "cuda") line.device.kind = DeviceKind::cuda;
    const check::Report report = check::Checker(CaseData(line))(options(2));
    EXPECT_TRUE(report.pass || report.refused) << report.line << "\n" << report.failure;
  }
}

TEST_P(PagedKeys, OnePlanServesEveryTable) {
  CaseData paged = make("forward f32 b2 h2 q1:64 d32 pages=16:8 seqlens_kv=64,64 seed=7");
  if (GetParam().backend == "cuda") GTEST_SKIP() << "its runs are given tensors in host memory";
  const Plan plan = foveal::plan(paged.line().attention, paged.forward_inputs(), paged.forward_outputs(), options());
  std::vector<std::byte> memory(plan.workspace_bytes() + 256);
  void* workspace = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256);
  for (const std::int64_t length : {1, 16, 17, 63}) {
    paged.set_pages({7, 0, 6, 1, 5, 5, 2, 2}, {static_cast<double>(length), 33});
    plan.run(paged.forward_inputs(), paged.forward_outputs(), workspace);
    CaseData packed = packed_from(paged, make("forward f32 h2 d32 lengths=1:" + std::to_string(length) + ",1:33"));
    RUN_OR_SKIP(packed);
    EXPECT_EQ(worst_difference(values_of(paged.view("out")), values_of(packed.view("out"))), 0) << length;
  }
}

}  // namespace
}  // namespace foveal::laws
