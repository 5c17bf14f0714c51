// Masks of integers near the ends of 64 bits, and of cancelling sums, on the reference and on CPUs: each keeps the pairs of exact
// integers, or refuses.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "foveal/foveal.h"

namespace foveal {
namespace {

constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t queries = 2, keys = 3, dim = 16;

struct Case {
  const char* name;
  const char* mask;
  std::vector<std::int64_t> a, b;
  std::string kept;  ///< by query; "" where it is refused
  std::int64_t q_offset = 0, kv_offset = 0;
};

/// Which keys each query sees, as in Case.
std::string kept(const Case& c, const char* backend) {
  const Param a{"a", {static_cast<std::int64_t>(c.a.size())}, Type::integer},
      b{"b", {static_cast<std::int64_t>(c.b.size())}, Type::integer};
  std::vector<float> q(queries * dim), k(keys * dim), v(keys * dim), out(queries * dim);
  for (std::int64_t i = 0; i < keys; ++i) v[static_cast<std::size_t>(i * dim + i)] = 1;
  const auto view = [](std::vector<float>& data, std::int64_t length) { return TensorView(data.data(), DType::f32, {1, length, 1, dim}); };
  Attention attention{.mask = parse(c.mask, {a, b})};
  attention.q_offset = c.q_offset, attention.kv_offset = c.kv_offset;
  const std::string text = to_string(attention.mask);
  std::vector<ParamBinding> params;
  for (const auto& [param, data] : {std::pair{&a, &c.a}, {&b, &c.b}})
    if (text.find(param->name() + "[") != std::string::npos)
      params.push_back({*param, TensorView(const_cast<std::int64_t*>(data->data()), DType::i64, {param->shape()[0]})});
  try {
    forward(attention, {.q = view(q, queries), .k = view(k, keys), .v = view(v, keys), .params = params}, {.out = view(out, queries)}, {},
            {.backend = backend});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    EXPECT_NE(std::string(error.what()).find("expected integers of 64 bits"), std::string::npos) << error.what();
    return "";
  }
  std::string result;
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) result += out[static_cast<std::size_t>(i * dim + j)] > 0 ? '1' : '0';
    result += i + 1 < queries ? " " : "";
  }
  return result;
}

class LargeIntegers : public testing::TestWithParam<Case> {};

TEST_P(LargeIntegers, AreExactOrRefused) {
  for (const char* backend : {"reference", "cpu"})
    EXPECT_EQ(kept(GetParam(), backend), GetParam().kept) << backend << ": " << GetParam().mask;
}

constexpr std::int64_t far = std::int64_t{1} << 53;

INSTANTIATE_TEST_SUITE_P(
    Masks, LargeIntegers,
    testing::Values(
        Case{"NoLimit", "kv_idx - 10 <= a[q_idx]", {most, 0}, {0}, "111 111"},
        Case{"NoLimitStrict", "a[q_idx] > -1 - kv_idx", {most, 0}, {0}, "111 111"},
        Case{"NoLimitOfBits", "(16 | a[q_idx]) >= (~seqlen_kv)", {most - 2, least}, {0}, "111 000"},
        Case{"NotBelow", "~(kv_idx + 5 > a[q_idx])", {most, 6}, {0}, "111 110"},
        Case{"Quotient", "(a[q_idx] - 1) // 4 > 0", {most - (1 << 24), 0}, {0}, "111 000"},
        Case{"NegativeQuotient", "a[q_idx] // -4 > 0", {least, most}, {0}, "111 000"},
        Case{"TwoNumbers", "a[q_idx] - 1 <= b[kv_idx]", {least, 0}, {0, 0, 0}, ""},
        Case{"LeastByMinusOne", "(a[0] // b[0]) > 0", {least}, {-1}, ""}, Case{"LeastByOne", "(a[0] // b[0]) < 0", {least}, {1}, "111 111"},
        Case{"Cancelling", "953552*a[0] - 966813*b[0] + kv_idx != 537653", {1880320431074}, {1854529580892}, "101 101"},
        Case{"CancellingPositions", "2041642190*q_idx - 1414579300*kv_idx == 814912030", {0}, {0}, "100 000", 553293787, 798561055},
        Case{"BesideTheLastExact", "a[0] == 9007199254740992 + 0*kv_idx", {far + 1}, {0}, "000 000"},
        Case{"BeyondTheLastExact", "a[0] + kv_idx >= 9007199254740993", {far}, {0}, "011 011"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foveal
