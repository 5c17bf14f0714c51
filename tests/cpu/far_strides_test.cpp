// Elements of a tensor that are more than 2^31, 2^32 and 2^33 elements apart, along each of its dimensions: what a call makes of them is what
// it makes of the same elements one beside the other.
#if defined(__linux__)
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/wide_type.h"
#include "foveal/foveal.h"
#include "sparse_memory.h"

namespace foveal {
namespace {

constexpr std::int64_t distances[] = {(std::int64_t{1} << 31) + 5, (std::int64_t{1} << 32) + 3, (std::int64_t{1} << 33) + 1};

/// Calls fn(offset in a, offset in b) for each index of two views of one shape.
template <class Fn>
void each(const TensorView& a, const TensorView& b, Fn&& fn) {
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    std::int64_t rest = i, in_a = 0, in_b = 0;
    for (auto d = static_cast<std::size_t>(a.rank); d-- > 0; rest /= a.sizes[d])
      in_a += rest % a.sizes[d] * a.strides[d], in_b += rest % a.sizes[d] * b.strides[d];
    fn(in_a, in_b);
  }
}

/// A tensor in two places: `near` contiguous, `far` with a large stride in one dimension.
struct Twice {
  TensorView near, far;
  std::vector<test::SparseMemory> memory;

  Twice(DType dtype, std::initializer_list<std::int64_t> sizes, std::size_t along, std::int64_t distance) {
    near = far = TensorView(nullptr, dtype, sizes);
    far.strides[along] = distance;
    for (TensorView* view : {&near, &far}) {
      std::int64_t reach = 1;
      for (std::size_t d = 0; d < sizes.size(); ++d) reach += (view->sizes[d] - 1) * view->strides[d];
      memory.emplace_back(static_cast<std::size_t>(reach) * size_of(dtype));
      view->data = memory.back().there() ? memory.back().data() : nullptr;
    }
  }
  bool there() const { return near.data != nullptr && far.data != nullptr; }
  void fill(std::mt19937& random) {
    std::normal_distribution<double> normal;
    each(near, far, [&](std::int64_t in_near, std::int64_t in_far) {
      base::store(near.data, near.dtype, in_near, normal(random));
      base::store(far.data, far.dtype, in_far, base::load(near.data, near.dtype, in_near));
    });
  }
  void expect_same(const std::string& what) const {
    int wrong = 0;
    each(near, far, [&](std::int64_t in_near, std::int64_t in_far) {
      const double expected = base::load(near.data, near.dtype, in_near), found = base::load(far.data, far.dtype, in_far);
      if (found != expected && !(std::abs(found - expected) <= 0x1p-6 * (1 + std::abs(expected)))) ++wrong;  // equal: also infinities
    });
    EXPECT_EQ(wrong, 0) << what << ": of " << near.numel();
  }
};

struct Form {
  const char* name;
  int rank;             ///< of q, k and v
  std::int64_t tokens;  ///< of q
  bool paged;
};
std::ostream& operator<<(std::ostream& stream, const Form& form) { return stream << form.name; }

class FarStrides : public testing::TestWithParam<std::tuple<Form, DType>> {};

/// Every tensor of a call, forward and backward, with this distance along one dimension.
struct Call {
  static constexpr std::int64_t batch = 2, keys = 40, heads = 2, dim = 16, pages = 5, page_size = 16;
  Form form;
  DType dtype;
  std::size_t along;
  std::int64_t distance;
  std::array<std::int32_t, 3> starts_q{0, static_cast<std::int32_t>(form.tokens), static_cast<std::int32_t>(2 * form.tokens)},
      starts_kv{0, keys, 2 * keys};
  std::array<std::int32_t, 6> table{4, 0, 2, 1, 3, 2};
  std::array<std::int32_t, 2> lengths{keys, keys - 3};
  Param bias{"bias", {heads, 9}};
  DType wide = base::wide_type(dtype);
  Twice q = rows(form.tokens), k = of_keys(), v = of_keys(), out = rows(form.tokens), dout = rows(form.tokens), dq = rows(form.tokens),
        dk = of_keys(), dv = of_keys(), lse = statistics(), values{wide, {heads, 9}, 0, distance}, dvalues{wide, {heads, 9}, 0, distance};

  std::vector<Twice*> all() { return {&q, &k, &v, &out, &dout, &dq, &dk, &dv, &lse, &values, &dvalues}; }
  bool there() {
    for (const Twice* tensor : all())
      if (!tensor->there()) return false;
    return true;
  }

  template <class Inputs>
  void add_lengths(Inputs& in) {
    if (form.rank == 3) in.varlen = Varlen{TensorView(starts_q.data(), DType::i32, {3}), TensorView(starts_kv.data(), DType::i32, {3})};
    if (form.paged) in.paged = Paged{TensorView(table.data(), DType::i32, {2, 3}), TensorView(lengths.data(), DType::i32, {2})};
  }
  void run(TensorView Twice::*place, const PlanOptions& options) {
    using namespace symbols;
    const Attention attention{.score_mod = score + bias(head, clamp(kv_idx - q_idx, -4, 4) + 4), .mask = causal_bottom_right()};
    ForwardInputs in{.q = q.*place, .k = k.*place, .v = v.*place, .params = {{bias, values.*place}}};
    add_lengths(in);
    forward(attention, in, {.out = out.*place, .lse = lse.*place}, {}, options);
    BackwardInputs back{.q = in.q, .k = in.k, .v = in.v, .out = out.*place, .lse = lse.*place, .dout = dout.*place, .params = in.params};
    add_lengths(back);
    backward(attention, back, {.dq = dq.*place, .dk = dk.*place, .dv = dv.*place, .dparams = {{bias, dvalues.*place}}}, {}, options);
  }

 private:
  Twice rows(std::int64_t tokens) const {
    if (form.rank == 3) return {dtype, {batch * tokens, heads, dim}, std::min<std::size_t>(along, 2), distance};
    return {dtype, {batch, tokens, heads, dim}, along, distance};
  }
  Twice of_keys() const {
    if (form.paged) return {dtype, {pages, page_size, heads, dim}, along, distance};
    return rows(keys);
  }
  Twice statistics() const {
    if (form.rank == 3) return {wide, {heads, batch * form.tokens}, along % 2, distance};
    return {wide, {batch, heads, form.tokens}, along % 3, distance};
  }
};

TEST_P(FarStrides, GiveTheSameResults) {
  const auto& [form, dtype] = GetParam();
  std::mt19937 random(1);
  for (std::size_t along = 0; along < 4; ++along)
    for (const std::int64_t distance : distances) {
      Call call{.form = form, .dtype = dtype, .along = along, .distance = distance};
      if (!call.there()) GTEST_SKIP() << "no address space";
      for (Twice* tensor : {&call.q, &call.k, &call.v, &call.dout, &call.values}) tensor->fill(random);
      for (const TargetInfo& target : targets()) {
        if (!target.available || target.backend == "cuda") continue;
        const PlanOptions options{.backend = target.backend, .target = target.target, .threads = 2};
        try {
          call.run(&Twice::near, options);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();  // a target without this type
          continue;
        }
        call.run(&Twice::far, options);
        const std::string name = target.target + ", " + std::to_string(distance) + " along " + std::to_string(along) + ": ";
        call.out.expect_same(name + "out"), call.lse.expect_same(name + "lse");
        call.dq.expect_same(name + "dq"), call.dk.expect_same(name + "dk"), call.dv.expect_same(name + "dv");
        call.dvalues.expect_same(name + "gradient of the bias");
      }
    }
}

INSTANTIATE_TEST_SUITE_P(All, FarStrides,
                         testing::Combine(testing::Values(Form{"batched", 4, 40, false}, Form{"few_queries", 4, 1, false},
                                                          Form{"packed", 3, 40, false}, Form{"paged", 4, 40, true}),
                                          testing::Values(DType::f32, DType::bf16, DType::f16, DType::f64)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" + to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace foveal
#endif
